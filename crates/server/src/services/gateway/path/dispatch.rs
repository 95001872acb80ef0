//! From a request to a good answer: which upstream to ask first, which one next, and what to tell the client when none
//! is left.
//!
//! Dispatch asks every upstream that admits requests once, in the order of the model's strategy; then, once more, one
//! that may succeed a moment later; then the fallback models. Upstreams with an open breaker come last: a doubtful
//! upstream is better than none. All this happens before anything of an answer goes to the client.
//!
//! Dispatch may always go on to another upstream that seems well, because that one's breaker bounds how often this is
//! in vain. To ask an upstream again, or one with an open breaker after another failed, takes a retry of the model's
//! budget.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use berth_domain::gateway::body::{Head, Operation};
use berth_domain::gateway::budget::Budget;
use berth_domain::gateway::route::{self, Lack, Standing};
use berth_domain::gateway::{Model, name};
use berth_domain::ids::{OrgId, Owner};
use berth_domain::{Code, Error, Result};
use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use super::admission::Weight;
use super::attempt::{Answer, Failure, Patience, Question, Track, ask};
use crate::http::event_loop::compute;
use crate::services::gateway::books::bill::Bill;
use crate::services::gateway::upstream::fleet::Fleet;
use crate::services::gateway::upstream::queue::{Priority, Shares, Ticket, Turn};
use crate::services::gateway::upstream::slot::Slot;
use crate::services::gateway::upstream::table::Entry;

/// Pause before an upstream is asked again; a random part of up to as much again is added.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a request in a queue relies on being called: nobody calls when an upstream's health changes.
const LOOK: Duration = Duration::from_secs(1);

/// A request on its way.
pub struct Job {
    /// What for.
    pub operation: Operation,
    /// What its body says.
    pub head: Head,
    /// Its body, as the client sent it.
    pub body: Bytes,
    /// The room that the body takes, for as long as the request holds it.
    #[expect(dead_code, reason = "dropped with the body")]
    pub weight: Weight,
    /// Whose.
    pub owner: Owner,
    /// Its shares of the places.
    pub shares: Shares,
    /// The conversation, distinct from those of other projects.
    pub conversation: u64,
    /// How urgent it is.
    pub priority: Priority,
    /// Its id.
    pub request_id: String,
    /// When it ends, however far it got.
    pub deadline: Instant,
}

/// A good answer, and the upstream that gives it.
pub struct Found {
    /// The place at the upstream, held until the answer's end.
    pub slot: Slot,
    /// The answer.
    pub answer: Answer,
    /// How long the rest may take.
    pub patience: Patience,
}

/// What went wrong so far.
#[derive(Default)]
struct Failures {
    count: u32,
    limited: u32,
    retry_after: Option<u64>,
    last: Option<Failure>,
}

impl Failures {
    fn note(&mut self, failure: Failure) {
        self.count += 1;
        if let Failure::Status(429, after) = failure {
            self.limited += 1;
            self.retry_after = after.into_iter().chain(self.retry_after).min();
        }
        self.last = Some(failure);
    }

    /// The error for the client.
    fn verdict(&self, model: &str) -> Error {
        match self.last {
            Some(_) if self.limited == self.count => Error::new(
                Code::RateLimited,
                format!("Every server of '{model}' asks for fewer requests. Try again later."),
            )
            .retry_after(self.retry_after.unwrap_or(1)),
            Some(Failure::Timeout | Failure::Late) => {
                Error::new(Code::UpstreamTimeout, format!("No server of '{model}' answered in time. Try again."))
            }
            Some(_) => Error::new(
                Code::UpstreamError,
                format!("No server of '{model}' gave an answer. Try again; if it stays, tell the operator."),
            ),
            None => Error::new(Code::UpstreamError, format!("No server of '{model}' can be reached at the moment."))
                .retry_after(1),
        }
    }
}

/// How far an upstream has got in this request.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Past {
    #[default]
    Untried,
    /// It failed once, but may succeed.
    Doubtful,
    /// It failed once, and is asked again.
    Again,
    Done,
}

/// A model that may answer, and the state of its upstreams in this request.
struct Leg<'a> {
    entry: &'a Arc<Entry>,
    past: Vec<Past>,
    asks_again: bool,
}

impl<'a> Leg<'a> {
    const fn new(entry: &'a Arc<Entry>) -> Self {
        Self { entry, past: Vec::new(), asks_again: true }
    }

    /// Has one upstream that may succeed asked once more, after a pause; false where there is none.
    async fn again(&mut self) -> bool {
        let Some(index) = self.past.iter().position(|past| *past == Past::Doubtful) else { return false };
        if !std::mem::take(&mut self.asks_again) {
            return false;
        }
        self.past.fill(Past::Done);
        self.past[index] = Past::Again;
        tokio::time::sleep(PAUSE + PAUSE.mul_f64(chance_of_one())).await;
        true
    }

    /// Whether every upstream was asked.
    fn is_spent(&self) -> bool {
        !self.past.contains(&Past::Untried)
    }

    fn failed(&mut self, index: usize, failure: Failure) {
        self.past[index] = match self.past[index] {
            Past::Untried if failure.may_pass() => Past::Doubtful,
            _ => Past::Done,
        };
    }
}

/// Finds a good answer.
pub async fn find(fleet: &Fleet, job: &Job, first: &Arc<Entry>, bill: &mut Bill) -> Result<Found> {
    let table = fleet.table();
    let fallbacks = first.model.fallbacks.iter().filter_map(|id| table.find(id.as_str()));
    let admitted = fallbacks.filter(|entry| entry.admits(job.owner.1));
    let mut chain: Vec<_> = std::iter::once(first).chain(admitted).map(Leg::new).collect();
    let mut search = Search { fleet, job, first, failures: Failures::default(), heeds_breakers: true };
    search.budget().deposit(fleet.millis());
    for heeds_breakers in [true, false] {
        search.heeds_breakers = heeds_breakers;
        for leg in &mut chain {
            if let Some(found) = search.of_model(leg, bill).await? {
                return Ok(found);
            }
        }
    }
    Err(search.failures.verdict(&job.head.model))
}

/// The first field of the request that the model does not take.
pub async fn denied(model: &Model, body: &Bytes) -> Option<String> {
    if model.deny_fields.is_empty() {
        return None;
    }
    let (text, names) = (body.clone(), model.deny_fields.clone());
    compute(body.len(), move || name::denied(&text, &names)).await
}

/// The search for an answer to one request.
struct Search<'a> {
    fleet: &'a Fleet,
    job: &'a Job,
    /// The model that the client asked for; the search spends its retry budget.
    first: &'a Entry,
    failures: Failures,
    /// False in the last resort.
    heeds_breakers: bool,
}

impl Search<'_> {
    fn budget(&self) -> MutexGuard<'_, Budget> {
        self.first.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an upstream may be asked. The first always may, and so may another that seems well. Others cost a retry.
    fn may_ask(&self, past: Past) -> bool {
        let is_new = past == Past::Untried && self.heeds_breakers;
        self.failures.count == 0 || is_new || self.budget().withdraw(self.fleet.millis())
    }

    /// Asks the remaining upstreams of a model, one after another.
    async fn of_model(&mut self, leg: &mut Leg<'_>, bill: &mut Bill) -> Result<Option<Found>> {
        let (job, entry) = (self.job, leg.entry);
        // Refused fields were reported for the model that the client named. A fallback that does not take them is
        // skipped.
        if !std::ptr::eq(entry.as_ref(), self.first) && denied(&entry.model, &job.body).await.is_some() {
            return Ok(None);
        }
        let timeouts = entry.model.timeouts;
        let patience = Patience { first_byte: timeouts.first_byte, idle: timeouts.idle, deadline: job.deadline };
        leg.past.resize(entry.upstreams.len(), Past::Untried);
        while Instant::now() < job.deadline || self.failures.count == 0 {
            let taken = take(job, entry, &leg.past, self.heeds_breakers, &mut self.failures).await?;
            let Some((index, mut slot)) = taken else {
                // An upstream that was not asked yet is worth more than one that failed.
                let over = !self.heeds_breakers || leg.is_spent();
                if over && leg.again().await {
                    continue;
                }
                return Ok(None);
            };
            if !self.may_ask(leg.past[index]) {
                return Ok(None);
            }
            let sent = bill.asks(&entry.name, entry.model.price, job.head.stream);
            let track = Track { traceparent: bill.traceparent(), sent };
            match ask_at(self.fleet, job, &slot, patience, track).await {
                Ok(answer) => {
                    slot.answered();
                    return Ok(Some(Found { slot, answer, patience }));
                }
                Err(failure) => {
                    tracing::info!(model = %entry.name, upstream = index, ?failure, "an upstream gave no answer");
                    judge(&mut slot, failure, job.owner);
                    bill.failed(failure == Failure::Late);
                    self.failures.note(failure);
                    leg.failed(index, failure);
                }
            }
        }
        Ok(None)
    }
}

/// Reports a failure to the upstream's breaker. A breaker counts organizations as callers, since anybody may have many
/// projects.
fn judge(slot: &mut Slot, failure: Failure, (org, _): Owner) {
    match failure {
        Failure::Status(403, _) => slot.refused(number(org)),
        _ => slot.failed(),
    }
}

/// A number for an organization.
const fn number(org: OrgId) -> u64 {
    let (high, low) = org.0.as_u64_pair();
    route::mix(high ^ low)
}

async fn ask_at(fleet: &Fleet, job: &Job, slot: &Slot, patience: Patience, track: Track) -> Result<Answer, Failure> {
    let address = slot.upstream.address().ok_or(Failure::Unreachable)?;
    let rewritten = job.head.rewritten(&job.body, &slot.upstream.spec.model);
    let body = rewritten.map_or_else(|| job.body.clone(), Bytes::from);
    let streams = job.head.stream;
    let request_id = &job.request_id;
    let question = Question { operation: job.operation, streams, body, request_id, track };
    ask(&fleet.client, &address, &question, patience).await
}

/// Takes a place at an upstream, and waits while all are busy; `None` where there will be none.
async fn take(
    job: &Job,
    entry: &Arc<Entry>,
    past: &[Past],
    heeds_breakers: bool,
    failures: &mut Failures,
) -> Result<Option<(usize, Slot)>> {
    let mut ticket: Option<Ticket<'_>> = None;
    loop {
        // A newcomer does not overtake requests that wait.
        let turn = match ticket.as_ref().map(Ticket::turn) {
            None => !entry.is_bounded || entry.queue.len() == 0,
            Some(Turn::Out) => return Err(queue_full(&entry.name)),
            Some(turn) => turn == Turn::Now,
        };
        match (choose(job, entry, past, heeds_breakers, turn), &ticket) {
            (Ok(taken), _) => return Ok(Some(taken)),
            (Err(Lack::Down), _) => return Ok(None),
            (Err(Lack::Spare), Some(ticket)) if turn => ticket.pass_on(),
            (Err(Lack::Spare), Some(_)) => entry.queue.call(),
            (Err(Lack::Spare), None) | (Err(Lack::Busy), _) => {}
        }
        if Instant::now() >= job.deadline {
            failures.note(Failure::Timeout);
            return Ok(None);
        }
        match &ticket {
            None => {
                let joined = entry.queue.join(job.owner, job.shares, job.priority, entry.model.max_queue);
                ticket = Some(joined.ok_or_else(|| queue_full(&entry.name))?);
            }
            Some(waiting) => {
                let _ = timeout_at(job.deadline.min(Instant::now() + LOOK), waiting.called()).await;
            }
        }
    }
}

/// Chooses an upstream and takes a place at it, if it is the request's turn.
fn choose(
    job: &Job,
    entry: &Arc<Entry>,
    past: &[Past],
    heeds_breakers: bool,
    turn: bool,
) -> Result<(usize, Slot), Lack> {
    let _alone = entry.choosing.lock().unwrap_or_else(PoisonError::into_inner);
    let standings: Vec<_> = std::iter::zip(&entry.upstreams, past)
        .map(|(upstream, past)| Standing {
            tried: !matches!(past, Past::Untried | Past::Again),
            ..upstream.standing(heeds_breakers)
        })
        .collect();
    let chosen = turn.then(|| route::choose(entry.model.strategy, &standings, chance(), job.conversation)).flatten();
    let index = chosen.ok_or_else(|| route::lack(&standings))?;
    Ok((index, entry.upstreams[index].begin(entry, job.owner, job.shares)))
}

fn queue_full(model: &str) -> Error {
    Error::new(Code::RateLimited, format!("All servers of '{model}' are busy, and many requests wait. Try again."))
        .retry_after(1)
}

/// 64 bits that nobody can easily foresee: good enough to spread load.
fn chance() -> u64 {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    route::mix(COUNTER.fetch_add(1, Ordering::Relaxed))
}

/// A number from 0 to 1.
fn chance_of_one() -> f64 {
    f64::from(u32::try_from(chance() >> 32).unwrap_or_default()) / f64::from(u32::MAX)
}
