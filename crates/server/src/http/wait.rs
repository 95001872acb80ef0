//! Waiting for a row: a handler looks at the row whenever it changes, until it is as wanted or the time is over.

use std::time::Duration;

use berth_domain::{Error, Result};
use tokio::sync::broadcast;
use tokio::time::Instant;
use uuid::Uuid;

use crate::db::{Db, Signal};

/// Longest wait, in seconds (contract, section 3).
pub const LONGEST: i64 = 300;
/// Default wait, in seconds.
pub const DEFAULT: i64 = 60;

/// A wait for a row.
pub struct Wait {
    signals: broadcast::Receiver<Signal>,
    row: Signal,
    deadline: Instant,
}

impl Wait {
    /// Begins to wait. The caller must look at the row after this, or it may miss a change.
    pub fn begin(db: &Db, table: &'static str, id: Uuid, seconds: i64) -> Self {
        let deadline = Instant::now() + Duration::from_secs(seconds.unsigned_abs());
        Self { signals: db.watch(), row: Signal::Row(table, id), deadline }
    }

    /// Returns when the row may have changed: true if that was in time. Fails once `refusal` returns, because the
    /// caller may not look any more.
    pub async fn changed(&mut self, refusal: impl Future<Output = Error>) -> Result<bool> {
        let Self { signals, row, deadline } = self;
        let changed = async {
            while let Ok(signal) = signals.recv().await {
                if signal == *row {
                    return;
                }
            }
        };
        tokio::select! {
            changed = tokio::time::timeout_at(*deadline, changed) => Ok(changed.is_ok()),
            refusal = refusal => Err(refusal),
        }
    }
}
