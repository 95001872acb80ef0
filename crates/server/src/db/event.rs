//! Events of a project: written by every service in the transaction of what happens, told on commit.

use berth_domain::Timestamp;
use berth_domain::ids::ProjectId;
use serde_json::Value as Json;

use super::{DbError, Signal, Tx, sql};

/// Writes an event; watchers are told on commit.
pub async fn emit(
    tx: &mut Tx,
    project: ProjectId,
    kind: &str,
    subject: &str,
    data: &Json,
    now: Timestamp,
) -> Result<(), DbError> {
    sql("INSERT INTO events (project_id, kind, subject, data, created_at) VALUES ($1, $2, $3, $4, $5)")
        .bind(project)
        .bind(kind)
        .bind(subject)
        .bind(data.to_string())
        .bind(now)
        .execute(tx)
        .await?;
    tx.signal(Signal::Event(project.0));
    Ok(())
}
