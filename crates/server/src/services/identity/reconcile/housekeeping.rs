//! What time brings: keys that were used, keys that are old, rows that nobody needs any more.

use std::time::Duration;

use berth_domain::{Error, Result, Timestamp};
use tokio_util::sync::CancellationToken;

use crate::services::identity::{Identity, ops, store};

/// Between two notes of which API keys were used.
const USED: Duration = Duration::from_secs(5);
/// Seconds between two looks at what is old, by the service's clock.
const OLD: i64 = 600;
const DAY: i64 = 86_400;
/// Rows that one transaction removes: nobody waits long for it.
const BATCH: i64 = 500;
/// Transactions of one look; what is left then is the next one's.
const BATCHES: usize = 200;

/// Runs until told to stop.
pub async fn run(identity: Identity, stop: CancellationToken) {
    let mut used = tokio::time::interval(USED);
    let mut next = identity.inner.clock.now();
    loop {
        if stop.run_until_cancelled(used.tick()).await.is_none() {
            break;
        }
        let mut done = note_used(&identity).await;
        let now = identity.inner.clock.now();
        if next <= now {
            let tidied = tidy(&identity, &stop).await;
            if tidied.is_ok() {
                next = now.plus_seconds(OLD);
            }
            done = done.and(tidied);
        }
        if let Err(error) = done {
            tracing::warn!(%error, "identity's housekeeping failed; trying again later");
        }
    }
    if let Err(error) = note_used(&identity).await {
        tracing::warn!(%error, "the last uses of API keys could not be noted");
    }
}

async fn note_used(identity: &Identity) -> Result<()> {
    let used = identity.inner.cache.take_used();
    if used.is_empty() {
        return Ok(());
    }
    let mut tx = identity.inner.db.begin_in_bulk().await?;
    for (id, (at, from)) in used {
        store::api_key::used(&mut tx, id, at, from).await?;
    }
    Ok(tx.commit().await?)
}

async fn tidy(identity: &Identity, stop: &CancellationToken) -> Result<()> {
    ops::signing_key::keep_fresh(identity).await?;
    for _ in 0..BATCHES {
        if stop.is_cancelled() || !remove(identity).await? {
            break;
        }
    }
    ops::audit::forget_refusals(identity, stop).await?;
    ops::audit::forget_old(identity, identity.inner.clock.now(), stop).await?;
    let (carrier, before) = (&identity.inner.carrier, messages_before(identity));
    carrier.forget(before).await.map_err(Error::internal)
}

/// Messages that were settled before this are removed.
fn messages_before(identity: &Identity) -> Timestamp {
    let days = identity.inner.config.settled_messages_days;
    identity.inner.clock.now().plus_seconds(-days.saturating_mul(DAY))
}

/// Removes a batch of each kind of what ended; whether there may be more.
async fn remove(identity: &Identity) -> Result<bool> {
    let (config, now) = (&identity.inner.config, identity.inner.clock.now());
    let messages = messages_before(identity);
    let sessions = now.plus_seconds(-config.ended_sessions_days.saturating_mul(DAY));
    let mut tx = identity.inner.db.begin_in_bulk().await?;
    let removed = [
        store::one_time::forget(&mut tx, messages, BATCH).await?,
        store::outbox::forget(&mut tx, messages, BATCH).await?,
        store::session::forget_refresh(&mut tx, sessions, BATCH).await?,
        store::session::forget(&mut tx, sessions, BATCH).await?,
    ];
    tx.commit().await?;
    Ok(removed.iter().any(|rows| *rows >= BATCH.unsigned_abs()))
}
