//! Carries messages, at least once each.
//!
//! A message is looked into at the moment of sending: an account that is gone, an address that is verified
//! already, an invitation that was taken back need none. Its link or code is made, its hash is committed, and
//! only then the message leaves; a second attempt makes another, and both are good.

use berth_domain::ids::{InvitationId, OutboxId, UserId};
use berth_domain::names::misleads;
use berth_domain::{Error, Result, Secret, Timestamp};
use berth_host::EngineError;

use crate::db::Tx;
use crate::services::identity::mail::{self, Letter};
use crate::services::identity::store::one_time::OneTimeRow;
use crate::services::identity::store::outbox::OutboxRow;
use crate::services::identity::{Identity, store, token};
use crate::work::Due;
use crate::work::lifecycle::{Life, Next, StepError, fault};

/// First pause after a failure, in seconds; it doubles.
const PAUSE: i64 = 5;
/// Longest pause, in seconds.
const LONGEST: i64 = 3_600;
/// Age after which a message that could not be sent is given up, in seconds.
const GIVEN_UP: i64 = 3 * 86_400;

/// Before a recipient who has got enough is written to again, in seconds.
const WHILE: i64 = 900;

/// What becomes of a message.
enum Prepared {
    /// It is sent.
    Letter(Letter),
    /// Nobody needs it any more.
    Unneeded,
    /// Its recipient has got enough for now.
    Later,
}

/// The lives of messages.
pub struct MessageLife {
    identity: Identity,
}

impl Life for MessageLife {
    type Key = OutboxId;
    type Seen = OutboxRow;
    /// There is one: to send it.
    type Step = ();
    const TABLE: &'static str = "outbox";
    const KIND: &'static str = "outbox";
    /// A relay may keep a message waiting for long; one that was dropped is sent again.
    const DROPPED_BY_A_STOP: bool = true;

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Due<OutboxId>> {
        Ok(Due::at(now, store::outbox::with_work(&self.identity.inner.db, limit).await?))
    }

    async fn look(&self, id: &OutboxId) -> Result<Option<OutboxRow>, StepError> {
        Ok(store::outbox::find(&self.identity.inner.db, *id).await?)
    }

    async fn plan(&self, row: &OutboxRow) -> Result<Next<()>, StepError> {
        let now = self.identity.inner.clock.now();
        Ok(if row.work_at.is_some_and(|at| at <= now) { Next::Take(()) } else { Next::Rest(row.work_at) })
    }

    fn name((): &()) -> &'static str {
        "send"
    }

    async fn take(&self, row: &OutboxRow, (): ()) -> Result<(), StepError> {
        let (inner, mut row) = (&self.identity.inner, row.clone());
        let letter = match self.prepare(&mut row).await? {
            Prepared::Letter(letter) => letter,
            Prepared::Unneeded => return Ok(self.settle(row.id, "unneeded").await?),
            Prepared::Later => return Ok(self.later(&row).await?),
        };
        let sent = inner.carrier.send(row.id, &row.recipient, &letter).await;
        fault("outbox", "send", "done").await?;
        match sent {
            Ok(()) => self.settle(row.id, "sent").await?,
            Err(reason) => self.failed(&row, &reason).await?,
        }
        Ok(())
    }

    /// A row that waits has its time already.
    async fn rest(&self, _: &OutboxRow, _: Option<Timestamp>) -> Result<(), StepError> {
        Ok(())
    }

    async fn postpone(&self, row: &OutboxRow, until: Timestamp) -> Result<(), StepError> {
        let mut tx = self.identity.inner.db.begin().await?;
        store::outbox::postpone(&mut tx, row.id, row.attempts, "the service could not work on it", until).await?;
        Ok(tx.commit().await?)
    }

    /// Its age alone ends it.
    async fn give_up(&self, _: &OutboxRow, _: &EngineError) -> Result<bool, StepError> {
        Ok(false)
    }
}

impl MessageLife {
    /// The lives of the service's messages.
    pub const fn new(identity: Identity) -> Self {
        Self { identity }
    }

    /// Has a message wait until its recipient has not been written to for a while.
    async fn later(&self, row: &OutboxRow) -> Result<()> {
        self.wait(row, row.attempts, "the recipient has got enough of its kind within the hour", WHILE).await
    }

    /// Has a message that could not be sent wait longer than the last time.
    async fn failed(&self, row: &OutboxRow, reason: &str) -> Result<()> {
        let attempts = row.attempts + 1;
        tracing::warn!(outbox = %row.id, kind = row.kind, attempts, reason, "a message cannot be sent");
        let doublings = u32::try_from(row.attempts).unwrap_or(u32::MAX).min(20);
        self.wait(row, attempts, reason, (PAUSE << doublings).min(LONGEST)).await
    }

    async fn wait(&self, row: &OutboxRow, attempts: i64, reason: &str, seconds: i64) -> Result<()> {
        let now = self.identity.inner.clock.now();
        if row.created_at.plus_seconds(GIVEN_UP) <= now {
            return self.settle(row.id, "failed").await;
        }
        let mut tx = self.identity.inner.db.begin().await?;
        store::outbox::postpone(&mut tx, row.id, attempts, reason, now.plus_seconds(seconds)).await?;
        Ok(tx.commit().await?)
    }

    async fn settle(&self, id: OutboxId, outcome: &str) -> Result<()> {
        let mut tx = self.identity.inner.db.begin().await?;
        store::outbox::settle(&mut tx, id, outcome, self.identity.inner.clock.now()).await?;
        Ok(tx.commit().await?)
    }

    /// The letter, with a new link or code whose hash is committed.
    async fn prepare(&self, row: &mut OutboxRow) -> Result<Prepared> {
        let mut tx = self.identity.inner.db.begin().await?;
        if row.kind == mail::INVITATION && self.enough(&mut tx, row).await? {
            return Ok(Prepared::Later);
        }
        store::outbox::begin(&mut tx, row.id, self.identity.inner.clock.now()).await?;
        let letter = match row.kind.as_str() {
            mail::VERIFY_EMAIL | mail::RESET_PASSWORD => self.to_account(&mut tx, row).await?,
            mail::VERIFY_PHONE => self.to_number(&mut tx, row).await?,
            mail::INVITATION => self.to_invited(&mut tx, row).await?,
            mail::EMAIL_TAKEN if self.enough(&mut tx, row).await? => None,
            mail::EMAIL_TAKEN => Some(Letter::EmailTaken),
            mail::EMAIL_CHANGED => Some(Letter::EmailChanged),
            mail::PASSWORD_CHANGED => Some(Letter::PasswordChanged),
            other => return Err(Error::internal(format!("the outbox knows no '{other}'"))),
        };
        tx.commit().await?;
        Ok(letter.map_or(Prepared::Unneeded, Prepared::Letter))
    }

    async fn to_account(&self, tx: &mut Tx, row: &mut OutboxRow) -> Result<Option<Letter>> {
        let config = &self.identity.inner.config;
        let Some(user) = store::user::by_email(&mut *tx, &row.recipient).await? else { return Ok(None) };
        // To the address of the account, however somebody spelt it.
        row.recipient.clone_from(&user.email);
        let verifies = row.kind == mail::VERIFY_EMAIL;
        let unneeded = if verifies { user.email_verified_at } else { user.suspended_at }.is_some();
        let subject = user.id.to_string();
        if unneeded || self.too_many(tx, row, &subject).await? {
            return Ok(None);
        }
        if verifies {
            let (life, code_life) = (config.email_link_seconds, config.code_seconds);
            let (token, code) = self.mint(tx, &subject, row, life, Some(code_life)).await?;
            return Ok(Some(Letter::VerifyEmail { token, life, code, code_life }));
        }
        let life = config.reset_token_seconds;
        let (token, _) = self.mint(tx, &subject, row, life, None).await?;
        Ok(Some(Letter::ResetPassword { token, life }))
    }

    async fn to_number(&self, tx: &mut Tx, row: &OutboxRow) -> Result<Option<Letter>> {
        let subject = row.subject.clone().unwrap_or_default();
        let id: UserId = subject.parse().map_err(Error::internal)?;
        if store::user::find(&mut *tx, id).await?.is_none() || self.too_many(tx, row, &subject).await? {
            return Ok(None);
        }
        let life = self.identity.inner.config.code_seconds;
        let (_, code) = self.mint(tx, &subject, row, life, Some(life)).await?;
        Ok(Some(Letter::VerifyPhone { code, life }))
    }

    async fn to_invited(&self, tx: &mut Tx, row: &OutboxRow) -> Result<Option<Letter>> {
        let now = self.identity.inner.clock.now();
        let subject = row.subject.clone().unwrap_or_default();
        let id: InvitationId = subject.parse().map_err(Error::internal)?;
        let found = store::invitation::find(&mut *tx, id).await?;
        let Some(invitation) = found.filter(|invitation| invitation.is_open(now)) else { return Ok(None) };
        let Some(org) = store::org::find(&mut *tx, invitation.org).await? else { return Ok(None) };
        let by = store::user::find(&mut *tx, invitation.invited_by).await?;
        // Names that were chosen before the rule for them lead nobody astray either.
        let plain = |name: &String| !misleads(name);
        let by = by.map(|user| user.name.filter(plain).unwrap_or(user.email));
        let by = by.unwrap_or_else(|| "Somebody".into());
        let org_name = Some(org.name).filter(plain).unwrap_or(org.slug);
        let life = (invitation.expires_at.0 - now.0) / Timestamp::SECOND;
        let (token, _) = self.mint(tx, &subject, row, life, None).await?;
        Ok(Some(Letter::Invitation { token, life, org: org_name, by }))
    }

    /// Whether an account was written to so often that somebody wants to annoy its owner, or to guess.
    async fn too_many(&self, tx: &mut Tx, row: &OutboxRow, subject: &str) -> Result<bool> {
        let made = store::one_time::since(&mut *tx, &row.kind, subject, self.hour_ago()).await?;
        Ok(made >= self.identity.inner.config.messages_per_hour || self.enough(tx, row).await?)
    }

    /// Whether a recipient has got as many of a kind within the hour as anybody gets, whoever had them sent.
    async fn enough(&self, tx: &mut Tx, row: &OutboxRow) -> Result<bool> {
        let sent = store::outbox::sent(tx, &row.kind, &row.recipient, self.hour_ago(), row.id).await?;
        Ok(sent >= self.identity.inner.config.messages_per_hour)
    }

    fn hour_ago(&self) -> Timestamp {
        self.identity.inner.clock.now().plus_seconds(-3_600)
    }

    async fn mint(
        &self,
        tx: &mut Tx,
        subject: &str,
        row: &OutboxRow,
        life: i64,
        code_life: Option<i64>,
    ) -> Result<(Secret, Secret)> {
        let now = self.identity.inner.clock.now();
        let id = uuid::Uuid::now_v7().to_string();
        let (token, code) = (token::new_opaque()?, token::new_code()?);
        let one_time = OneTimeRow {
            purpose: row.kind.clone(),
            subject: subject.to_owned(),
            recipient: row.recipient.clone(),
            token_hash: Some(token::hash(&token)),
            code_hash: code_life.map(|_| token::hash_code(&id, &code)),
            created_at: now,
            expires_at: now.plus_seconds(life),
            code_expires_at: code_life.map(|life| now.plus_seconds(life)),
            id,
        };
        store::one_time::insert(tx, &one_time).await?;
        Ok((Secret(token), Secret(code)))
    }
}
