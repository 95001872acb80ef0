//! Removes old events.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::services::project::{Projects, store};

/// Pause between two looks.
const LOOK: Duration = Duration::from_mins(5);
/// Seconds for which events are kept.
const KEPT: i64 = 7 * 86_400;

/// Runs until told to stop.
pub async fn forget_old(projects: Projects, stop: CancellationToken) {
    let mut look = tokio::time::interval(LOOK);
    while stop.run_until_cancelled(look.tick()).await.is_some() {
        let before = projects.clock.now().plus_seconds(-KEPT);
        if let Err(error) = store::event::forget(&projects.db, before, &stop).await {
            tracing::warn!(%error, "old events cannot be removed; trying again later");
        }
    }
}
