//! Work lists of rows that belong to projects: first the longest due row of each organization, then the second of each,
//! so that an organization with a thousand due rows does not fill the list. Within an organization, its projects take
//! turns the same way.

use std::fmt::Display;
use std::str::FromStr;

use berth_domain::Timestamp;
use berth_domain::ids::Owner;

use super::{Db, DbError, FromRow, Row, Signal, Value, sql};

/// Tables whose rows say when they want work; looking at a row earlier does no harm.
const TABLES: [&str; 15] = [
    "vms",
    "disks",
    "disk_snapshots",
    "backups",
    "brought_disks",
    "backup_schedules",
    "images",
    "project_images",
    "sandboxes",
    "sandbox_templates",
    "sandbox_layers",
    "sandbox_layer_copies",
    "sandbox_memories",
    "networks",
    "outbox",
];

/// Makes all waiting rows due now. After the clock was set back, they would else wait as long as the clock had been
/// ahead; the worker that looks at a row sets a new time.
pub async fn look_at_all(db: &Db, now: Timestamp) -> Result<(), DbError> {
    let mut tx = db.begin_in_bulk().await?;
    for table in TABLES {
        sql(format!("UPDATE {table} SET work_at = $1 WHERE work_at > $1")).bind(now).execute(&mut tx).await?;
        tx.signal(Signal::Work(table));
    }
    tx.commit().await
}

/// A row that wants work, and its owner; no owner where the row is the platform's.
struct DueRow<K>(K, Option<Owner>);

impl<K: FromStr<Err: Display>> FromRow for DueRow<K> {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self(row.parsed("id")?, Option::from_row(row)?))
    }
}

struct Earliest(Option<Timestamp>);

impl FromRow for Earliest {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self(row.opt_time("work_at")?))
    }
}

/// Rows that want work.
#[derive(Debug)]
pub struct Due<K> {
    /// Due rows with their owners, longest due first; no owner where a row is the platform's.
    pub now: Vec<(K, Option<Owner>)>,
    /// When the next row becomes due.
    pub next: Option<Timestamp>,
}

impl<K> Due<K> {
    /// Splits a work list of the platform's rows, longest due first, into what is due and what comes next.
    pub fn at(now: Timestamp, list: Vec<(K, Timestamp)>) -> Self {
        let next = list.iter().map(|(_, at)| *at).find(|at| *at > now);
        Self { now: list.into_iter().filter(|(_, at)| *at <= now).map(|(key, _)| (key, None)).collect(), next }
    }
}

/// Rows of a table that want work, at most `limit`, with organizations taking turns. The table has `id`, `org_id`,
/// `project_id` and `work_at`.
pub async fn of_projects<K: FromStr<Err: Display>>(
    db: &Db,
    table: &'static str,
    now: Timestamp,
    limit: usize,
) -> Result<Due<K>, DbError> {
    let mut on = db.reader().await?;
    let due: Vec<DueRow<K>> = sql(format!(
        "SELECT id, org_id, project_id FROM (SELECT id, org_id, project_id, work_at, ROW_NUMBER() OVER \
         (PARTITION BY org_id ORDER BY own, work_at, id) AS turn FROM (SELECT id, org_id, project_id, work_at, \
         ROW_NUMBER() OVER (PARTITION BY project_id ORDER BY work_at, id) AS own FROM {table} WHERE work_at <= $1) \
         of_projects) due ORDER BY turn, work_at LIMIT $2"
    ))
    .bind(now)
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_all(&mut on)
    .await?;
    let next = sql(format!("SELECT MIN(work_at) AS work_at FROM {table} WHERE work_at > $1"));
    let Earliest(next) = next.bind(now).fetch_one(&mut on).await?;
    Ok(Due { now: due.into_iter().map(|DueRow(id, owner)| (id, owner)).collect(), next })
}

/// The owner of a row of such a table.
pub async fn owner(db: &Db, table: &'static str, id: impl Into<Value>) -> Result<Option<Owner>, DbError> {
    let owner: Option<Option<Owner>> =
        sql(format!("SELECT org_id, project_id FROM {table} WHERE id = $1")).bind(id).fetch_optional(db).await?;
    Ok(owner.flatten())
}
