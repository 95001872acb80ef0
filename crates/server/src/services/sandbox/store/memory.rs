//! Rows of memories that are kept.

use berth_domain::Timestamp;
use berth_domain::ids::{HostId, LayerId, MemoryId};
use berth_domain::sandbox::MemoryKind;
use berth_domain::sandbox::layer_copy::Archive;

use super::archived::Archived;
use crate::columns;
use crate::db::{Db, DbError, FromRow, On, Row, Signal, Tx, home, record, sql};

/// The table.
pub const TABLE: &str = "sandbox_memories";

/// A memory as its row has it.
#[derive(Clone, Debug)]
pub struct MemoryRow {
    /// Its id.
    pub id: MemoryId,
    /// The state of the disk it was kept with.
    pub layer: LayerId,
    /// The host that it lies on.
    pub host: Option<HostId>,
    /// Another one that may have it, or some of it: it goes there, or came from there.
    pub other_host: Option<HostId>,
    /// Whether that one has all of it.
    pub copied: bool,
    /// Whose it is.
    pub kind: MemoryKind,
    /// What it takes.
    pub bytes: i64,
    /// The store of backups that has all of it.
    pub archive: Option<Archive>,
    /// Creation.
    pub created_at: Timestamp,
}

impl MemoryRow {
    /// Whether a host has all of it; those that name no host lie on whichever asks.
    pub fn is_on(&self, host: Option<HostId>) -> bool {
        self.host.is_none() || self.host == host || self.copied && self.other_host == host
    }
}

impl FromRow for MemoryRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            layer: row.parsed("layer_id")?,
            host: row.opt_parsed("host_id")?,
            other_host: row.opt_parsed("other_host_id")?,
            copied: row.flag("copied")?,
            kind: row.word("kind", MemoryKind::parse)?,
            bytes: row.int("bytes")?,
            archive: Archived::of(row)?.map(|archived| archived.archive),
            created_at: row.time("created_at")?,
        })
    }
}

/// Writes a new row; it has to be named by another one in the same transaction.
pub async fn insert(tx: &mut Tx, memory: &MemoryRow) -> Result<(), DbError> {
    let columns = columns! {
        "id": memory.id, "layer_id": memory.layer, "host_id": memory.host, "other_host_id": memory.other_host,
        "copied": memory.copied, "kind": memory.kind.as_str(), "bytes": memory.bytes, "state": "present", "created_at": memory.created_at,
    };
    record::insert(TABLE, columns).execute(tx).await.map(drop)
}

/// Has those be on a service's own host that lie in its folder.
pub async fn bring_home(tx: &mut Tx, host: HostId) -> Result<(), DbError> {
    home::bring(tx, TABLE, "1 = 1", host).await
}

/// A memory.
pub async fn find(on: impl On, id: MemoryId) -> Result<Option<MemoryRow>, DbError> {
    sql("SELECT * FROM sandbox_memories WHERE id = $1").bind(id).fetch_optional(on).await
}

/// Notes what a memory takes.
pub async fn set_bytes(tx: &mut Tx, id: MemoryId, bytes: i64) -> Result<(), DbError> {
    sql("UPDATE sandbox_memories SET bytes = $2 WHERE id = $1").bind(id).bind(bytes).execute(tx).await.map(drop)
}

/// Has looked whether somebody still needs a memory.
pub async fn look_at(tx: &mut Tx, id: MemoryId, at: Timestamp) -> Result<(), DbError> {
    tx.signal(Signal::Work(TABLE));
    sql("UPDATE sandbox_memories SET work_at = $2 WHERE id = $1").bind(id).bind(at).execute(tx).await.map(drop)
}

/// Has looked whether somebody still needs each of them.
pub async fn look_at_all(tx: &mut Tx, at: Timestamp) -> Result<(), DbError> {
    sql("UPDATE sandbox_memories SET work_at = $1").bind(at).execute(tx).await.map(drop)
}

/// Nobody need look at a memory for now.
pub async fn rest(tx: &mut Tx, id: MemoryId) -> Result<(), DbError> {
    sql("UPDATE sandbox_memories SET work_at = NULL WHERE id = $1").bind(id).execute(tx).await.map(drop)
}

/// Marks a memory for removal if no sandbox, snapshot or template names it. Whether it is marked.
pub async fn condemn(tx: &mut Tx, id: MemoryId) -> Result<bool, DbError> {
    let marked = sql("UPDATE sandbox_memories SET state = 'removing' WHERE id = $1 \
         AND NOT EXISTS (SELECT 1 FROM sandboxes WHERE memory_id = $1) \
         AND NOT EXISTS (SELECT 1 FROM sandbox_snapshots WHERE memory_id = $1) \
         AND NOT EXISTS (SELECT 1 FROM sandbox_templates WHERE memory_id = $1 OR next_memory_id = $1)")
    .bind(id)
    .execute(tx)
    .await?;
    Ok(marked > 0)
}

/// Removes the row of a memory that is gone.
pub async fn remove(tx: &mut Tx, id: MemoryId) -> Result<(), DbError> {
    sql("DELETE FROM sandbox_memories WHERE id = $1 AND state = 'removing'").bind(id).execute(tx).await.map(drop)
}

/// Memories to look at, in order, with the time.
pub async fn with_work(db: &Db, limit: usize) -> Result<Vec<(MemoryId, Timestamp)>, DbError> {
    sql("SELECT id, work_at FROM sandbox_memories WHERE work_at IS NOT NULL ORDER BY work_at LIMIT $1")
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(db)
        .await
}

/// Ids of every memory that may be on a host.
pub async fn ids(db: &Db, host: HostId) -> Result<Vec<String>, DbError> {
    sql("SELECT id FROM sandbox_memories WHERE host_id = $1 OR host_id IS NULL OR other_host_id = $1")
        .bind(host)
        .fetch_all(db)
        .await
}

/// Those of snapshots and of projects' templates that belong to a layer and lie on a host.
pub async fn shared_of(on: impl On, layer: LayerId, host: HostId) -> Result<Vec<MemoryRow>, DbError> {
    sql("SELECT * FROM sandbox_memories k WHERE layer_id = $1 AND host_id = $2 AND state = 'present' \
         AND (EXISTS (SELECT 1 FROM sandbox_snapshots s WHERE s.memory_id = k.id) \
         OR EXISTS (SELECT 1 FROM sandbox_templates t WHERE t.memory_id = k.id AND t.project_id IS NOT NULL)) ORDER BY id")
    .bind(layer)
    .bind(host)
    .fetch_all(on)
    .await
}

/// Whether a sandbox on a host may begin with a memory.
pub async fn is_named_on(on: impl On, id: MemoryId, host: HostId) -> Result<bool, DbError> {
    let named: i64 =
        sql("SELECT COUNT(*) FROM sandboxes s JOIN machines m ON m.owner_id = s.id AND m.owner_kind = 'sandbox' \
         WHERE s.memory_id = $1 AND m.host_id = $2")
        .bind(id)
        .bind(host)
        .fetch_one(on)
        .await?;
    Ok(named > 0)
}

/// Whether a snapshot or a template has a memory whose layer is at home on a host: what is made of it begins there.
pub async fn is_at_home_on(on: impl On, id: MemoryId, host: HostId) -> Result<bool, DbError> {
    let named: i64 =
        sql("SELECT (SELECT COUNT(*) FROM sandbox_snapshots s JOIN sandbox_layers l ON l.id = s.layer_id \
         WHERE s.memory_id = $1 AND l.host_id = $2) + (SELECT COUNT(*) FROM sandbox_templates t \
         JOIN sandbox_layers l ON l.id = t.layer_id WHERE t.memory_id = $1 AND l.host_id = $2)")
        .bind(id)
        .bind(host)
        .fetch_one(on)
        .await?;
    Ok(named > 0)
}

/// Records that another host than its home may have something of a memory, which nobody is to rely on. Whether it is another one.
pub async fn set_other_host(tx: &mut Tx, id: MemoryId, host: HostId) -> Result<bool, DbError> {
    super::durable::doubt_memory(tx, id).await?;
    let set = sql("UPDATE sandbox_memories SET other_host_id = $2, copied = 0 WHERE id = $1 AND host_id <> $2");
    Ok(set.bind(id).bind(host).execute(tx).await? > 0)
}

/// Records that the other host, to which a memory was brought from its home, has all of it. Whether it was still to go there.
pub async fn copied(tx: &mut Tx, id: MemoryId, (from, to): (HostId, HostId)) -> Result<bool, DbError> {
    let changed = sql("UPDATE sandbox_memories SET copied = 1 WHERE id = $1 AND host_id = $2 AND other_host_id = $3 \
             AND state = 'present'")
    .bind(id)
    .bind(from)
    .bind(to)
    .execute(tx)
    .await?;
    Ok(changed > 0)
}

/// Records that a memory lies on the host that has all of it by now; where it was it still is. Whether it does.
pub async fn go_over(tx: &mut Tx, id: MemoryId, host: HostId) -> Result<bool, DbError> {
    super::durable::doubt_memory(tx, id).await?;
    let moved =
        sql("UPDATE sandbox_memories SET other_host_id = CASE WHEN host_id = $2 THEN other_host_id ELSE host_id END, \
         host_id = $2 WHERE id = $1 AND (host_id = $2 OR other_host_id = $2 AND copied = 1)");
    Ok(moved.bind(id).bind(host).execute(tx).await? > 0)
}

/// Records that nothing of a memory is on a host any more on which it does not lie.
pub async fn left(tx: &mut Tx, id: MemoryId, host: HostId) -> Result<(), DbError> {
    sql("UPDATE sandbox_memories SET other_host_id = NULL, copied = 0 WHERE id = $1 AND other_host_id = $2")
        .bind(id)
        .bind(host)
        .execute(tx)
        .await
        .map(drop)
}
