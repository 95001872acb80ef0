//! Events of a project: every service writes them in the transaction of what happens; the commit tells the watchers.

use berth_domain::Timestamp;
use berth_domain::ids::ProjectId;
use serde_json::Value as Json;

use super::{DbError, Signal, Tx, record};
use crate::columns;

/// Writes an event; the commit tells the watchers.
pub async fn emit(
    tx: &mut Tx,
    project: ProjectId,
    kind: &str,
    subject: &str,
    data: &Json,
    now: Timestamp,
) -> Result<(), DbError> {
    write(tx, (project, false), (kind, subject), data, now).await
}

/// The same, for watchers who are administrators of the platform: it names hosts.
pub async fn emit_to_administrators(
    tx: &mut Tx,
    project: ProjectId,
    kind: &str,
    subject: &str,
    data: &Json,
    now: Timestamp,
) -> Result<(), DbError> {
    write(tx, (project, true), (kind, subject), data, now).await
}

async fn write(
    tx: &mut Tx,
    (project, for_administrators): (ProjectId, bool),
    (kind, subject): (&str, &str),
    data: &Json,
    now: Timestamp,
) -> Result<(), DbError> {
    let columns = columns! {
        "project_id": project, "kind": kind, "subject": subject, "data": data.to_string(), "created_at": now,
        "for_administrators": for_administrators,
    };
    record::insert("events", columns).execute(tx).await?;
    tx.signal(Signal::Event(project.0));
    Ok(())
}
