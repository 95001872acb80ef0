//! Watches whether the leader leads.

use std::sync::Arc;
use std::time::Duration;

use sqlx::Connection;
use sqlx::postgres::PgConnection;
use tokio::time::{Instant, sleep, timeout};

use super::choice::{Answer, Beside, Followed, Move, next};
use super::members::{Member, PROBE, Said, none_leads};
use super::{Following, GRACE};

/// Between two questions whether the leader still leads.
const LOOK: Duration = Duration::from_secs(1);
/// So many of those questions are between two of all members, whether one has overtaken the leader.
const LOOKS: u32 = 3;
/// How long a leader that was connected may take to answer that.
const SILENCE: Duration = Duration::from_secs(3);
/// Between two lines of the log about a cluster without a leader.
const TELL: Duration = Duration::from_mins(1);

/// Asks the leader again and again whether it leads, and finds another one where it does not.
pub(super) async fn watch(following: Arc<Following>) {
    let (mut connection, mut lost, mut is_untold) = (None, Lost::default(), false);
    for look in 1_u32.. {
        sleep(LOOK).await;
        let (followed, link) = following.now();
        let answers = link.answers();
        let answer = ask(&following, followed, &mut connection).await;
        let among_all = following.members.is_cluster() && look.is_multiple_of(LOOKS);
        let said = if answer.leads(followed).is_some() && !among_all {
            Vec::new()
        } else {
            following.members.ask(PROBE).await
        };
        let beside = Beside { has_answered: link.answers() != answers, is_untold };
        let next = next(followed, answer, &said, beside);
        is_untold = beside.leaves_untold(answer, next);
        if !matches!(next, Move::Stay(_)) {
            connection = None;
        }
        following.go(followed, next);
        lost.tell(&following, followed, next, &said);
    }
}

impl Following {
    fn go(&self, followed: Followed, next: Move) {
        match next {
            Move::Stay(found) => self.note(found),
            Move::Wait => {}
            Move::Follow(found) => self.follow(found, Duration::ZERO),
            Move::Renew => self.follow(followed, GRACE),
            Move::GiveUp => self.follow(followed, Duration::ZERO),
        }
    }
}

async fn ask(following: &Following, followed: Followed, connection: &mut Option<PgConnection>) -> Answer {
    let own = if let Some(own) = connection {
        own
    } else {
        let options = following.members.options(followed.member);
        let Ok(Ok(connected)) = timeout(PROBE, PgConnection::connect_with(&options)).await else { return Answer::No };
        connection.insert(connected)
    };
    match timeout(SILENCE, following.members.leads(own)).await {
        Err(_) => Answer::Silent,
        Ok(Err(_)) => Answer::Ended,
        Ok(Ok(Said::Leads(timeline))) => Answer::Leads(timeline),
        Ok(Ok(_)) => Answer::No,
    }
}

/// What the log was told of a leader that is lost.
#[derive(Default)]
struct Lost(Option<Instant>);

impl Lost {
    /// Tells the log what changed, and each minute of what did not.
    fn tell(&mut self, following: &Following, followed: Followed, next: Move, said: &[Member]) {
        let place = |member| following.members.place(member);
        let former = place(followed.member);
        match next {
            Move::Stay(Followed { timeline, .. }) if self.0.take().is_some() => {
                tracing::info!(leader = former, timeline, "the database's leader answers again");
            }
            Move::Stay(_) => {}
            Move::Follow(Followed { member, timeline }) => {
                tracing::warn!(leader = place(member), timeline, former, "the database has another leader");
                self.0 = None;
            }
            Move::Renew => tracing::warn!(leader = former, "the database's leader is asked over new connections"),
            Move::Wait | Move::GiveUp => {
                if self.0.is_none_or(|told| told.elapsed() > TELL) {
                    let found = none_leads(said, followed.timeline);
                    tracing::warn!(leader = former, "the database's leader does not answer, or leads no more: {found}");
                    self.0 = Some(Instant::now());
                }
            }
        }
    }
}
