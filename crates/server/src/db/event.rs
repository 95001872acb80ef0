//! Events of a project: written by every service in the transaction of what happens, told on commit.

use berth_domain::Timestamp;
use berth_domain::ids::ProjectId;
use serde_json::Value as Json;

use super::{DbError, Signal, Tx, record};
use crate::columns;

/// Writes an event; watchers are told on commit.
pub async fn emit(
    tx: &mut Tx,
    project: ProjectId,
    kind: &str,
    subject: &str,
    data: &Json,
    now: Timestamp,
) -> Result<(), DbError> {
    let columns = columns! {
        "project_id": project, "kind": kind, "subject": subject, "data": data.to_string(), "created_at": now,
    };
    record::insert("events", columns).execute(tx).await?;
    tx.signal(Signal::Event(project.0));
    Ok(())
}
