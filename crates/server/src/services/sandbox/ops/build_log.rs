//! Reading what a build tells, while it is told and afterwards.

use std::time::Duration;

use berth_domain::ids::TemplateId;
use berth_domain::sandbox::TemplateStatus;
use berth_host::sandbox::build::{Log, Piece};
use serde_json::{Value, json};

use crate::db::DbError;
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::store;
use crate::services::sandbox::store::template::TemplateRow;

/// Between two looks at a build that may not have begun.
const LOOK: Duration = Duration::from_secs(1);

/// A reader of a build's log.
pub struct Tail {
    sandboxes: Sandboxes,
    id: TemplateId,
    /// Where the next event begins.
    offset: u64,
    follow: bool,
    over: bool,
}

impl Tail {
    /// A reader from an offset on; one that follows waits for what comes.
    pub fn new(sandboxes: Sandboxes, id: TemplateId, offset: u64, follow: bool) -> Self {
        Self { sandboxes, id, offset, follow, over: false }
    }

    /// The next event: its name and data. None after `end`.
    pub async fn next(&mut self) -> Option<(&'static str, Value)> {
        if self.over {
            return None;
        }
        let event = self.look().await.unwrap_or_else(|error| {
            tracing::warn!(template = %self.id, %error, "a build's log cannot be read; the stream ends");
            ("error", json!({"code": "service_unavailable", "message": "The log cannot be read. Try again."}))
        });
        self.over = event.0 != "log";
        Some(event)
    }

    async fn look(&mut self) -> Result<(&'static str, Value), DbError> {
        loop {
            if let Some(log) = self.sandboxes.builds().log(self.id) {
                if let Some(event) = self.live(&log).await {
                    return Ok(event);
                }
                if self.follow {
                    continue;
                }
            }
            let row = store::template::load(self.sandboxes.db(), self.id).await?;
            let row = row.filter(|row| row.deleted_at.is_none());
            if self.follow && row.as_ref().is_some_and(is_built) {
                tokio::time::sleep(LOOK).await;
                continue;
            }
            let kept = store::build_log::find(self.sandboxes.db(), self.id).await?.unwrap_or_default();
            let starts_at = u64::try_from(kept.starts_at).unwrap_or(0);
            let from = self.offset.max(starts_at);
            let skip = usize::try_from(from - starts_at).unwrap_or(usize::MAX).min(kept.text.len());
            if skip < kept.text.len() && row.as_ref().is_some_and(|row| !is_built(row)) {
                let text = String::from_utf8_lossy(&kept.text.as_bytes()[skip..]).into_owned();
                return Ok(self.tell(Piece { from, text }));
            }
            let status = row.as_ref().map_or("deleted", |row| row.status.as_str());
            return Ok(("end", json!({"status": status, "message": row.and_then(|row| row.message)})));
        }
    }

    /// What a build under way has told since; None when it is over, or has told nothing for a while.
    async fn live(&mut self, log: &Log) -> Option<(&'static str, Value)> {
        let mut end = log.end();
        let known = *end.borrow_and_update();
        if known.at < self.offset {
            // It was begun anew.
            self.offset = 0;
        }
        let piece = log.read(self.offset);
        if !piece.text.is_empty() {
            return Some(self.tell(piece));
        }
        if self.follow && !known.closed {
            // Whatever comes of it, it is looked at again.
            let _ = tokio::time::timeout(LOOK, end.changed()).await;
        }
        None
    }

    fn tell(&mut self, piece: Piece) -> (&'static str, Value) {
        self.offset = piece.from + piece.text.len() as u64;
        ("log", json!({"text": piece.text, "offset": self.offset}))
    }
}

/// Whether its disk is being built, or will be.
fn is_built(row: &TemplateRow) -> bool {
    matches!(row.status, TemplateStatus::Pending | TemplateStatus::Building) && row.layer.is_none()
}
