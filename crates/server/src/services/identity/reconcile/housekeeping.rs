//! What time brings: keys that were used, keys that are old, rows that nobody needs any more.

use std::time::Duration;

use berth_domain::Result;
use tokio_util::sync::CancellationToken;

use crate::services::identity::{Identity, ops, store};

/// Between two notes of which API keys were used.
const USED: Duration = Duration::from_secs(5);
/// Between two looks at what is old.
const OLD: Duration = Duration::from_mins(10);
/// Seconds for which links and settled messages are kept.
const KEPT: i64 = 7 * 86_400;

/// Runs until told to stop.
pub async fn run(identity: Identity, stop: CancellationToken) {
    let mut used = tokio::time::interval(USED);
    let mut old = tokio::time::interval(OLD);
    loop {
        let done = tokio::select! {
            () = stop.cancelled() => break,
            _ = used.tick() => note_used(&identity).await,
            _ = old.tick() => tidy(&identity).await,
        };
        if let Err(error) = done {
            tracing::warn!(%error, "identity's housekeeping failed; trying again later");
        }
    }
    if let Err(error) = note_used(&identity).await {
        tracing::warn!(%error, "the last uses of API keys could not be noted");
    }
}

async fn note_used(identity: &Identity) -> Result<()> {
    let used = identity.inner.memory.take_used();
    if used.is_empty() {
        return Ok(());
    }
    let mut tx = identity.inner.db.begin().await?;
    for (id, at) in used {
        store::api_key::used(&mut tx, id, at).await?;
    }
    Ok(tx.commit().await?)
}

async fn tidy(identity: &Identity) -> Result<()> {
    ops::signing_key::keep_fresh(identity).await?;
    let before = identity.inner.clock.now().plus_seconds(-KEPT);
    let mut tx = identity.inner.db.begin().await?;
    store::one_time::forget(&mut tx, before).await?;
    store::outbox::forget(&mut tx, before).await?;
    Ok(tx.commit().await?)
}
