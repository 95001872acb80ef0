//! Removes old events.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::db::DbError;
use crate::services::project::{Projects, store};

/// Pause between two looks.
const LOOK: Duration = Duration::from_mins(5);
/// Events that one transaction removes at most: others wait for it.
const BATCH: i64 = 5_000;
/// Seconds for which events are kept.
const KEPT: i64 = 7 * 86_400;

/// Runs until told to stop.
pub async fn forget_old(projects: Projects, stop: CancellationToken) {
    let mut look = tokio::time::interval(LOOK);
    while stop.run_until_cancelled(look.tick()).await.is_some() {
        if let Err(error) = forget(&projects, &stop).await {
            tracing::warn!(%error, "old events cannot be removed; trying again later");
        }
    }
}

async fn forget(projects: &Projects, stop: &CancellationToken) -> Result<(), DbError> {
    let before = projects.clock.now().plus_seconds(-KEPT);
    while !stop.is_cancelled() {
        let mut tx = projects.db.begin_in_bulk().await?;
        let removed = store::event::forget(&mut tx, before, BATCH).await?;
        tx.commit().await?;
        if removed < BATCH.unsigned_abs() {
            break;
        }
        tokio::task::yield_now().await;
    }
    Ok(())
}
