//! What builds of templates told: their last MiB, once they are over.

use berth_domain::ids::TemplateId;

use crate::columns;
use crate::db::{DbError, FromRow, On, Row, Tx, record, sql};

/// A log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BuildLog {
    /// Where it begins, in bytes since the beginning of the build.
    pub starts_at: i64,
    /// Whole lines.
    pub text: String,
}

impl FromRow for BuildLog {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self { starts_at: row.int("starts_at")?, text: row.text("log")? })
    }
}

/// Writes a log in the place of an earlier one.
pub async fn put(tx: &mut Tx, id: TemplateId, log: &BuildLog) -> Result<(), DbError> {
    remove(tx, id).await?;
    let columns = columns! { "template_id": id, "starts_at": log.starts_at, "log": &log.text };
    record::insert("sandbox_build_logs", columns).execute(tx).await.map(drop)
}

/// A template's log.
pub async fn find(on: impl On, id: TemplateId) -> Result<Option<BuildLog>, DbError> {
    sql("SELECT starts_at, log FROM sandbox_build_logs WHERE template_id = $1").bind(id).fetch_optional(on).await
}

/// Removes a template's log.
pub async fn remove(tx: &mut Tx, id: TemplateId) -> Result<(), DbError> {
    sql("DELETE FROM sandbox_build_logs WHERE template_id = $1").bind(id).execute(tx).await.map(drop)
}
