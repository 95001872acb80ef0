//! Sandboxes that are paused, and snapshots, which are to outlive their host, as their rows have it.
//!
//! What a row says of who else has it ([`super::copied`]) is for its owner and never decided by: rows of layers and memories say where
//! those lie.

use std::fmt;

use berth_domain::ids::{HostId, LayerId, MemoryId, OrgId, SandboxId, SnapshotId};

use super::copied::Copied;
use crate::db::{Db, DbError, FromRow, On, Row, Tx, Value, record, sql};
use crate::{columns, with_machine};

/// What is to outlive its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Durable {
    /// A sandbox that is paused.
    Sandbox(SandboxId),
    /// A snapshot.
    Snapshot(SnapshotId),
}

impl fmt::Display for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sandbox(id) => write!(f, "sandbox {id}"),
            Self::Snapshot(id) => write!(f, "snapshot {id}"),
        }
    }
}

/// Something at rest that is to outlive its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtRest {
    /// What.
    pub durable: Durable,
    /// Whose.
    pub org: OrgId,
    /// The host that it is on, once its layers have a place.
    pub home: Option<HostId>,
    /// The top of its disk.
    pub top: LayerId,
    /// Its memory.
    pub memory: Option<MemoryId>,
    /// What its row says of who else has all of it.
    pub copy: Option<Copied>,
}

impl FromRow for AtRest {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        let is_snapshot = row.flag("is_snapshot")?;
        Ok(Self {
            durable: if is_snapshot {
                Durable::Snapshot(row.parsed("id")?)
            } else {
                Durable::Sandbox(row.parsed("id")?)
            },
            org: row.parsed("org_id")?,
            home: row.opt_parsed("home_id")?,
            top: row.parsed("layer_id")?,
            memory: row.opt_parsed("memory_id")?,
            copy: Copied::of(row)?,
        })
    }
}

/// Sandboxes that stand still: they are paused, go nowhere, and nobody takes a snapshot of them. One that was to be resumed when its
/// host was lost stands still, too, as long as its top is not made: no machine begins before.
macro_rules! sandboxes {
    ($which:literal) => {
        concat!(
            "SELECT CAST(0 AS BIGINT) AS is_snapshot, sandboxes.id, sandboxes.org_id, m.host_id AS home_id, sandboxes.layer_id, sandboxes.memory_id, sandboxes.copy_host_id, \
             sandboxes.copied_at FROM ",
            with_machine!("sandboxes", "sandbox"),
            " WHERE sandboxes.durable = 1 AND sandboxes.deleted_at IS NULL \
             AND (sandboxes.phase = 'Paused' AND sandboxes.wish = 'paused' OR sandboxes.phase = 'Resuming' \
             AND sandboxes.wish = 'ready' AND EXISTS (SELECT 1 FROM hosts h WHERE h.id = m.host_id AND h.state = 'lost')) AND sandboxes.to_host_id IS NULL AND sandboxes.layer_id IS NOT NULL \
             AND NOT EXISTS (SELECT 1 FROM sandbox_snapshots s WHERE s.sandbox_id = sandboxes.id AND s.deleted_at IS NULL \
             AND (s.status = 'Pending' OR s.next_layer_id IS NOT NULL))",
            $which
        )
    };
}

macro_rules! snapshots {
    ($which:literal) => {
        concat!(
            "SELECT CAST(1 AS BIGINT) AS is_snapshot, k.id, k.org_id, l.host_id AS home_id, k.layer_id, k.memory_id, k.copy_host_id, k.copied_at \
             FROM sandbox_snapshots k JOIN sandbox_layers l ON l.id = k.layer_id \
             WHERE k.durable = 1 AND k.deleted_at IS NULL AND k.status = 'Ready' AND k.next_layer_id IS NULL",
            $which
        )
    };
}

/// All that is at rest and to outlive its host.
pub async fn all(db: &Db) -> Result<Vec<AtRest>, DbError> {
    let mut all: Vec<AtRest> = sql(sandboxes!(" ORDER BY sandboxes.id")).fetch_all(db).await?;
    let snapshots: Vec<AtRest> = sql(snapshots!(" ORDER BY k.id")).fetch_all(db).await?;
    all.extend(snapshots);
    Ok(all)
}

/// How many snapshots, or else sandboxes, are to outlive their host and have a second copy, and how many have none.
pub async fn counts(db: &Db, of_snapshots: bool) -> Result<(i64, i64), DbError> {
    let table = if of_snapshots { "sandbox_snapshots" } else { "sandboxes" };
    let count = async |copied: &str| {
        let counted =
            format!("SELECT COUNT(*) FROM {table} WHERE durable = 1 AND deleted_at IS NULL AND copied_at {copied}");
        sql(counted).fetch_one::<i64>(db).await
    };
    Ok((count("IS NOT NULL").await?, count("IS NULL").await?))
}

/// One of them; none where it is at rest no more, or need not outlive anything.
pub async fn find(on: impl On, durable: Durable) -> Result<Option<AtRest>, DbError> {
    match durable {
        Durable::Sandbox(id) => sql(sandboxes!(" AND sandboxes.id = $1")).bind(id).fetch_optional(on).await,
        Durable::Snapshot(id) => sql(snapshots!(" AND k.id = $1")).bind(id).fetch_optional(on).await,
    }
}

/// Records who else has all of something; none where that is to be made anew.
pub async fn set_copy(tx: &mut Tx, durable: Durable, copy: Option<Copied>) -> Result<(), DbError> {
    let (host, since) = (copy.and_then(|copy| copy.host), copy.map(|copy| copy.since));
    let set = match durable {
        Durable::Sandbox(id) => {
            record::overwrite("sandboxes", columns! { "id": id, "copy_host_id": host, "copied_at": since })
        }
        Durable::Snapshot(id) => {
            record::overwrite("sandbox_snapshots", columns! { "id": id, "copy_host_id": host, "copied_at": since })
        }
    };
    set.execute(tx).await.map(drop)
}

/// Nobody is told of a second host any more by those that have this memory, since that goes elsewhere. What the store of backups
/// has stays as it is.
pub(super) async fn doubt_memory(tx: &mut Tx, id: MemoryId) -> Result<(), DbError> {
    doubt(tx, "copy_host_id IS NOT NULL AND memory_id", id.into()).await
}

/// The same of those whose disk has this layer for its top, since that is at home elsewhere.
pub(super) async fn doubt_layer(tx: &mut Tx, id: LayerId) -> Result<(), DbError> {
    doubt(tx, "copy_host_id IS NOT NULL AND layer_id", id.into()).await
}

/// Nobody is told of a second copy any more by those whose disk has this layer for its top, since somebody writes to that.
pub(super) async fn forget(tx: &mut Tx, id: LayerId) -> Result<(), DbError> {
    doubt(tx, "layer_id", id.into()).await
}

async fn doubt(tx: &mut Tx, whose: &str, id: Value) -> Result<(), DbError> {
    for table in ["sandboxes", "sandbox_snapshots"] {
        let doubt =
            format!("UPDATE {table} SET copy_host_id = NULL, copied_at = NULL WHERE {whose} = $1 AND durable = 1");
        sql(doubt).bind(id.clone()).execute(&mut *tx).await?;
    }
    Ok(())
}
