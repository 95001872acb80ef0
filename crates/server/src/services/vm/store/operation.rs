//! Operations: what was asked of a VM, by whom, and how it ended.

use berth_domain::Timestamp;
use berth_domain::ids::{OperationId, VmId};

use crate::columns;
use crate::db::audit::Actor;
use crate::db::listing::{Listed, Listing, Words};
use crate::db::{Db, DbError, FromRow, Row, Tx, page_of, record, sql};

/// An operation.
#[derive(Clone, Debug)]
pub struct OperationRow {
    /// Its id.
    pub id: OperationId,
    /// `create`, `start`, `stop`, `restart`, `update` or `delete`.
    pub verb: String,
    /// Who asked.
    pub actor: Option<String>,
    /// `running`, `done` or `failed`.
    pub status: String,
    /// Why it failed.
    pub message: Option<String>,
    /// When it was asked.
    pub created_at: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
}

impl FromRow for OperationRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            verb: row.text("verb")?,
            actor: row.opt_text("actor")?,
            status: row.text("status")?,
            message: row.opt_text("message")?,
            created_at: row.time("created_at")?,
            finished_at: row.opt_time("finished_at")?,
        })
    }
}

/// Records a new operation; those still running are superseded by it.
pub async fn begin(tx: &mut Tx, vm: VmId, verb: &str, actor: Actor, now: Timestamp) -> Result<(), DbError> {
    finish(tx, vm, "failed", Some(&format!("superseded by {verb}")), now).await?;
    let columns = columns! {
        "id": OperationId(uuid::Uuid::now_v7()), "vm_id": vm, "verb": verb, "actor": actor.id(), "status": "running",
        "created_at": now,
    };
    record::insert("operations", columns).execute(tx).await.map(drop)
}

/// Ends the operation under way.
pub async fn finish(tx: &mut Tx, vm: VmId, status: &str, message: Option<&str>, now: Timestamp) -> Result<(), DbError> {
    sql("UPDATE operations SET status = $2, message = $3, finished_at = $4 WHERE vm_id = $1 AND status = 'running'")
        .bind(vm)
        .bind(status)
        .bind(message)
        .bind(now)
        .execute(tx)
        .await
        .map(drop)
}

/// By what a list of operations can be narrowed and ordered.
pub const LISTED: Listed = Listed {
    id: "operations.id",
    created: "operations.created_at",
    name: None,
    status: Some(Words { param: "status", column: "operations.status", words: &["running", "done", "failed"] }),
    labels: None,
};

/// A page of a VM's operations, and how many there are.
pub async fn list(db: &Db, vm: VmId, listing: &Listing) -> Result<(Vec<OperationRow>, i64), DbError> {
    page_of("*", "operations WHERE vm_id = $1").bind(vm).list(db, &LISTED, listing).await
}
