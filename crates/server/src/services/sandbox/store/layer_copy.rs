//! Rows of copies of layers on other hosts than their own.

use berth_domain::Timestamp;
use berth_domain::ids::{HostId, LayerCopyId, LayerId};
use berth_domain::sandbox::layer_copy::{CopyState, LayerCopy, Lying};
use uuid::Uuid;

use super::archived::Archived;
use super::sandbox;
use crate::db::{Db, DbError, FromRow, On, Row, Signal, Tx, record, sql};
use crate::{columns, no_platforms_layer};

/// The table.
pub const TABLE: &str = "sandbox_layer_copies";

/// A copy as its row has it.
#[derive(Clone, Copy, Debug)]
pub struct CopyRow {
    /// Its id.
    pub id: LayerCopyId,
    /// Of which layer.
    pub layer: LayerId,
    /// The host that it is on, or comes to.
    pub host: HostId,
    /// Where it stands.
    pub state: CopyState,
    /// Since when.
    pub since: Timestamp,
    /// Whether its layer is kept.
    pub is_layer_kept: bool,
}

impl FromRow for CopyRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            layer: row.parsed("layer_id")?,
            host: row.parsed("host_id")?,
            state: row.word("state", CopyState::parse)?,
            since: row.time("since")?,
            is_layer_kept: row.text("layer_state")? == "present",
        })
    }
}

/// A layer of a disk with one of its copies, if it has any.
struct LyingRow(Lying);

impl FromRow for LyingRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        let copy = match row.opt_parsed("copy_host")? {
            Some(host) => Some(LayerCopy {
                host,
                state: row.word("copy_state", CopyState::parse)?,
                since: row.time("since")?,
                message: row.opt_text("message")?,
            }),
            None => None,
        };
        let (layer, home, bytes) = (row.parsed("id")?, row.opt_parsed("host_id")?, row.int("bytes")?);
        let archive = Archived::of(row)?.map(|archived| archived.archive);
        Ok(Self(Lying { layer, home, bytes, copies: copy.into_iter().collect(), archive }))
    }
}

/// The layers of a disk and where they lie, its top first. Of what lies on a host that was removed nobody makes use.
pub async fn chain(on: impl On, top: LayerId) -> Result<Vec<Lying>, DbError> {
    let rows: Vec<LyingRow> = sql("WITH RECURSIVE chain (id, parent_id, depth) AS (\
         SELECT id, parent_id, CAST(0 AS BIGINT) FROM sandbox_layers WHERE id = $1 UNION ALL \
         SELECT l.id, l.parent_id, c.depth + 1 FROM sandbox_layers l JOIN chain c ON l.id = c.parent_id) \
         SELECT l.id, l.host_id, l.bytes, l.archive_store, l.archive_name, l.archive_bytes, l.archive_sha256, l.archive_doubted, \
         k.host_id AS copy_host, k.state AS copy_state, k.since, k.message \
         FROM chain JOIN sandbox_layers l ON l.id = chain.id LEFT JOIN sandbox_layer_copies k ON k.layer_id = chain.id \
         AND EXISTS (SELECT 1 FROM hosts h WHERE h.id = k.host_id AND h.removed_at IS NULL) ORDER BY chain.depth, k.id")
    .bind(top)
    .fetch_all(on)
    .await?;
    let mut chain: Vec<Lying> = Vec::new();
    for LyingRow(lying) in rows {
        match chain.last_mut().filter(|last| last.layer == lying.layer) {
            Some(last) => last.copies.extend(lying.copies),
            None => chain.push(lying),
        }
    }
    Ok(chain)
}

/// What is wished of a copy that has a row: one that failed is tried again.
const AGAIN: &str = "(layer_id, host_id) DO UPDATE SET state = 'coming', message = NULL, since = excluded.since, \
     work_at = excluded.work_at WHERE sandbox_layer_copies.state = 'failed'";

/// Wishes copies of layers on a host. One that is there or comes is left as it is; one that failed is tried again.
pub async fn want(tx: &mut Tx, layers: &[LayerId], host: HostId, now: Timestamp) -> Result<(), DbError> {
    tx.signal(Signal::Work(TABLE));
    for layer in layers {
        let columns = columns! {
            "id": LayerCopyId(Uuid::now_v7()), "layer_id": *layer, "host_id": host, "state": CopyState::Coming.as_str(),
            "since": now, "work_at": now,
        };
        record::insert(TABLE, columns).on_conflict(AGAIN).execute(&mut *tx).await?;
    }
    Ok(())
}

/// Has the layers of a disk be at home on a host that has copies of them, as far as they were on this one: what is there are
/// copies from now on. Those of the platform's templates stay at home, where its service is.
pub async fn rehome(tx: &mut Tx, chain: &[Lying], from: HostId, to: HostId, now: Timestamp) -> Result<(), DbError> {
    for layer in chain.iter().filter(|layer| layer.home == Some(from)) {
        let moved = sql(concat!(
            "UPDATE sandbox_layers SET host_id = $2 WHERE id = $1 AND host_id = $3 AND state = 'present' AND ",
            no_platforms_layer!("$1")
        ));
        if moved.bind(layer.layer).bind(to).bind(from).execute(&mut *tx).await? == 0 {
            continue;
        }
        super::durable::doubt_layer(tx, layer.layer).await?;
        let turned =
            sql("UPDATE sandbox_layer_copies SET host_id = $2, since = $4 WHERE layer_id = $1 AND host_id = $3");
        turned.bind(layer.layer).bind(from).bind(to).bind(now).execute(&mut *tx).await?;
    }
    Ok(())
}

/// How many copies come to hosts that answer, of layers that somebody can send.
pub async fn coming(on: impl On) -> Result<i64, DbError> {
    sql("SELECT COUNT(*) FROM sandbox_layer_copies k JOIN sandbox_layers l ON l.id = k.layer_id \
         JOIN hosts h ON h.id = k.host_id WHERE k.state = 'coming' AND l.state = 'present' AND h.state = 'ready' \
         AND h.removed_at IS NULL AND (l.archive_store IS NOT NULL OR NOT EXISTS (SELECT 1 FROM hosts o WHERE o.id = l.host_id AND o.state = 'lost'))")
    .fetch_one(on)
    .await
}

/// A copy.
pub async fn find(on: impl On, id: LayerCopyId) -> Result<Option<CopyRow>, DbError> {
    sql("SELECT k.*, l.state AS layer_state FROM sandbox_layer_copies k JOIN sandbox_layers l ON l.id = k.layer_id \
         WHERE k.id = $1")
    .bind(id)
    .fetch_optional(on)
    .await
}

/// Records what became of a copy that was coming, and wakes the sandboxes that wait for such on its host.
pub async fn settle(
    tx: &mut Tx,
    copy: &CopyRow,
    (state, message): (CopyState, Option<&str>),
    now: Timestamp,
) -> Result<(), DbError> {
    sql("UPDATE sandbox_layer_copies SET state = $2, message = $3, since = $4, work_at = NULL \
         WHERE id = $1 AND state = 'coming'")
    .bind(copy.id)
    .bind(state.as_str())
    .bind(message.map(str::to_owned))
    .bind(now)
    .execute(&mut *tx)
    .await?;
    tx.signal(Signal::Work(sandbox::TABLE));
    sql("UPDATE sandboxes SET work_at = $2 WHERE deleted_at IS NULL AND (to_host_id = $1 \
         OR layer_id IS NULL AND source_template_id IS NOT NULL AND EXISTS (SELECT 1 FROM machines m \
         WHERE m.owner_id = sandboxes.id AND m.owner_kind = 'sandbox' AND m.host_id = $1))")
    .bind(copy.host)
    .bind(now)
    .execute(tx)
    .await
    .map(drop)
}

/// Has a copy looked at then; never, where no time is given. One that is wished again since it was seen is left as it is.
pub async fn look_at(tx: &mut Tx, seen: &CopyRow, at: Option<Timestamp>) -> Result<(), DbError> {
    sql("UPDATE sandbox_layer_copies SET work_at = $2 WHERE id = $1 AND state = $3 AND since = $4")
        .bind(seen.id)
        .bind(at)
        .bind(seen.state.as_str())
        .bind(seen.since)
        .execute(tx)
        .await
        .map(drop)
}

/// Copies to look at, in order, with the time.
pub async fn with_work(db: &Db, limit: usize) -> Result<Vec<(LayerCopyId, Timestamp)>, DbError> {
    sql("SELECT id, work_at FROM sandbox_layer_copies WHERE work_at IS NOT NULL ORDER BY work_at LIMIT $1")
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(db)
        .await
}

struct HostRow(HostId);

impl FromRow for HostRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        row.parsed("host_id").map(Self)
    }
}

/// The hosts on which a layer may have copies, but for those that were removed.
pub async fn hosts(db: &Db, layer: LayerId) -> Result<Vec<HostId>, DbError> {
    let rows: Vec<HostRow> =
        sql("SELECT host_id FROM sandbox_layer_copies WHERE layer_id = $1 AND EXISTS (SELECT 1 FROM hosts h \
             WHERE h.id = sandbox_layer_copies.host_id AND h.removed_at IS NULL)")
        .bind(layer)
        .fetch_all(db)
        .await?;
    Ok(rows.into_iter().map(|row| row.0).collect())
}
