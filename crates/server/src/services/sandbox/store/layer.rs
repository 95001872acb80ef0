//! Rows of layers: the files that disks are chains of.

use berth_domain::Timestamp;
use berth_domain::ids::{HostId, LayerId, OrgId, Owner, ProjectId};

use super::sandbox::SandboxRow;
use crate::db::{Db, DbError, FromRow, On, Row, Signal, Tx, home, record, sql};
use crate::{columns, no_platforms_layer};

/// The table.
pub const TABLE: &str = "sandbox_layers";

/// A layer as its row has it.
#[derive(Clone, Copy, Debug)]
pub struct LayerRow {
    /// Its id.
    pub id: LayerId,
    /// What it lies on.
    pub parent: Option<LayerId>,
    /// The organization; none for the platform's.
    pub org: Option<OrgId>,
    /// The project.
    pub project: Option<ProjectId>,
    /// The host that it lies on, with all that it lies on; none of a template's that has no place yet.
    pub host: Option<HostId>,
    /// Whether nobody writes to it any more.
    pub frozen: bool,
    /// Whether it was made.
    pub made: bool,
    /// Creation.
    pub created_at: Timestamp,
}

impl FromRow for LayerRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            parent: row.opt_parsed("parent_id")?,
            org: row.opt_parsed("org_id")?,
            project: row.opt_parsed("project_id")?,
            host: row.opt_parsed("host_id")?,
            frozen: row.flag("frozen")?,
            made: row.text("state")? != "making",
            created_at: row.time("created_at")?,
        })
    }
}

/// A new layer of a sandbox on another one, not yet made, where its machine is.
pub const fn above(row: &SandboxRow, id: LayerId, parent: LayerId, now: Timestamp) -> LayerRow {
    LayerRow {
        id,
        parent: Some(parent),
        org: Some(row.org),
        project: Some(row.project),
        host: row.machine.host,
        frozen: false,
        made: false,
        created_at: now,
    }
}

/// Writes a new row.
pub async fn insert(tx: &mut Tx, layer: &LayerRow) -> Result<(), DbError> {
    let state = if layer.made { "present" } else { "making" };
    let columns = columns! {
        "id": layer.id, "parent_id": layer.parent, "org_id": layer.org, "project_id": layer.project,
        "host_id": layer.host, "frozen": layer.frozen, "state": state, "created_at": layer.created_at,
    };
    record::insert(TABLE, columns).execute(tx).await.map(drop)
}

/// A layer.
pub async fn find(on: impl On, id: LayerId) -> Result<Option<LayerRow>, DbError> {
    sql("SELECT * FROM sandbox_layers WHERE id = $1").bind(id).fetch_optional(on).await
}

/// The host that a layer lies on, where it has a place on one.
pub async fn host(on: impl On, id: LayerId) -> Result<Option<HostId>, DbError> {
    Ok(find(on, id).await?.and_then(|layer| layer.host))
}

/// Records on which host a layer that is not made yet has its place.
pub async fn place(tx: &mut Tx, id: LayerId, host: HostId) -> Result<(), DbError> {
    record::overwrite(TABLE, columns! { "id": id, "host_id": host }).execute(tx).await.map(drop)
}

/// Has those be on a service's own host that lie in its folder.
pub async fn bring_home(tx: &mut Tx, host: HostId) -> Result<(), DbError> {
    home::bring(tx, TABLE, "state <> 'making'", host).await
}

/// Records that a layer was made. Of a disk whose top it is no other host has all.
pub async fn made(tx: &mut Tx, id: LayerId) -> Result<(), DbError> {
    super::durable::forget(tx, id).await?;
    sql("UPDATE sandbox_layers SET state = 'present' WHERE id = $1 AND state = 'making'")
        .bind(id)
        .execute(tx)
        .await
        .map(drop)
}

/// Records that a layer lies on another one. Whether that is there, and stays.
pub async fn put_on(tx: &mut Tx, id: LayerId, parent: LayerId) -> Result<bool, DbError> {
    let changed = sql("UPDATE sandbox_layers SET parent_id = $2 WHERE id = $1 \
         AND EXISTS (SELECT 1 FROM sandbox_layers WHERE id = $2 AND state = 'present')")
    .bind(id)
    .bind(parent)
    .execute(tx)
    .await?;
    Ok(changed > 0)
}

/// Has a layer be a sandbox's that was nobody's.
pub async fn give(tx: &mut Tx, id: LayerId, (org, project): Owner) -> Result<(), DbError> {
    let columns = columns! { "id": id, "org_id": org, "project_id": project };
    record::overwrite(TABLE, columns).execute(tx).await.map(drop)
}

/// Records that nobody writes to a layer any more, and what it takes.
pub async fn freeze(tx: &mut Tx, id: LayerId, bytes: i64) -> Result<(), DbError> {
    sql("UPDATE sandbox_layers SET frozen = 1, bytes = $2 WHERE id = $1")
        .bind(id)
        .bind(bytes)
        .execute(tx)
        .await
        .map(drop)
}

/// The layers of a disk, its top first.
pub async fn chain(db: &Db, top: LayerId) -> Result<Vec<LayerId>, DbError> {
    let ids: Vec<String> = sql("WITH RECURSIVE chain (id, parent_id, depth) AS (\
         SELECT id, parent_id, CAST(0 AS BIGINT) FROM sandbox_layers WHERE id = $1 UNION ALL \
         SELECT l.id, l.parent_id, c.depth + 1 FROM sandbox_layers l JOIN chain c ON l.id = c.parent_id) \
         SELECT id FROM chain ORDER BY depth")
    .bind(top)
    .fetch_all(db)
    .await?;
    ids.iter().map(|id| id.parse().map_err(|e| DbError::Other(format!("id: {e}")))).collect()
}

/// Has looked whether somebody still needs a layer.
pub async fn look_at(tx: &mut Tx, id: LayerId, at: Timestamp) -> Result<(), DbError> {
    tx.signal(Signal::Work(TABLE));
    sql("UPDATE sandbox_layers SET work_at = $2 WHERE id = $1").bind(id).bind(at).execute(tx).await.map(drop)
}

/// Has looked whether somebody still needs each of them.
pub async fn look_at_all(tx: &mut Tx, at: Timestamp) -> Result<(), DbError> {
    sql("UPDATE sandbox_layers SET work_at = $1").bind(at).execute(tx).await.map(drop)
}

/// Nobody need look at a layer for now.
pub async fn rest(tx: &mut Tx, id: LayerId) -> Result<(), DbError> {
    sql("UPDATE sandbox_layers SET work_at = NULL WHERE id = $1").bind(id).execute(tx).await.map(drop)
}

/// Marks a layer for removal if no sandbox, machine, snapshot, template or layer names it. Whether it is marked.
pub async fn condemn(tx: &mut Tx, id: LayerId) -> Result<bool, DbError> {
    let marked = sql("UPDATE sandbox_layers SET state = 'removing' WHERE id = $1 \
         AND NOT EXISTS (SELECT 1 FROM sandbox_layers WHERE parent_id = $1) \
         AND NOT EXISTS (SELECT 1 FROM sandboxes WHERE layer_id = $1) \
         AND NOT EXISTS (SELECT 1 FROM machines WHERE layer_id = $1) \
         AND NOT EXISTS (SELECT 1 FROM sandbox_snapshots WHERE layer_id = $1) \
         AND NOT EXISTS (SELECT 1 FROM sandbox_snapshots WHERE next_layer_id = $1) \
         AND NOT EXISTS (SELECT 1 FROM sandbox_templates WHERE base_layer_id = $1) \
         AND NOT EXISTS (SELECT 1 FROM sandbox_templates WHERE layer_id = $1) \
         AND NOT EXISTS (SELECT 1 FROM sandbox_templates WHERE next_layer_id = $1)")
    .bind(id)
    .execute(tx)
    .await?;
    Ok(marked > 0)
}

/// Removes the row of a layer that is gone with its copies, and has looked at what it lay on.
pub async fn remove(tx: &mut Tx, layer: &LayerRow, now: Timestamp) -> Result<(), DbError> {
    sql("DELETE FROM sandbox_layer_copies WHERE layer_id = $1").bind(layer.id).execute(&mut *tx).await?;
    sql("DELETE FROM sandbox_layers WHERE id = $1 AND state = 'removing'").bind(layer.id).execute(&mut *tx).await?;
    match layer.parent {
        Some(parent) => look_at(tx, parent, now).await,
        None => Ok(()),
    }
}

/// Layers to look at, in order, with the time.
pub async fn with_work(db: &Db, limit: usize) -> Result<Vec<(LayerId, Timestamp)>, DbError> {
    sql("SELECT id, work_at FROM sandbox_layers WHERE work_at IS NOT NULL ORDER BY work_at LIMIT $1")
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(db)
        .await
}

/// Layers at home on a host to which nobody writes any more, of those only the topmost: what they lie on goes with them. Those
/// that a sandbox takes along are not among them, nor those of templates that are built, and of the platform's, which are where
/// its service is.
pub async fn leaving(db: &Db, host: HostId) -> Result<Vec<LayerId>, DbError> {
    let ids: Vec<String> = sql(concat!(
        "SELECT l.id FROM sandbox_layers l WHERE l.host_id = $1 AND l.state = 'present' AND l.frozen = 1 AND ",
        no_platforms_layer!("l.id"),
        " AND NOT EXISTS (SELECT 1 FROM sandbox_layers c WHERE c.parent_id = l.id AND c.host_id = $1 \
         AND c.state = 'present' AND c.frozen = 1) \
         AND NOT EXISTS (SELECT 1 FROM sandbox_templates t WHERE t.deleted_at IS NULL \
         AND t.status IN ('pending', 'building') AND l.id IN (t.base_layer_id, t.layer_id, t.next_layer_id)) \
         AND NOT EXISTS (SELECT 1 FROM sandbox_layers c JOIN sandboxes s ON s.layer_id = c.id \
         WHERE c.parent_id = l.id AND s.to_host_id IS NOT NULL) ORDER BY l.id"
    ))
    .bind(host)
    .fetch_all(db)
    .await?;
    ids.iter().map(|id| id.parse().map_err(|e| DbError::Other(format!("id: {e}")))).collect()
}

/// Ids of every layer that may be on a host, copies among them.
pub async fn ids(db: &Db, host: HostId) -> Result<Vec<String>, DbError> {
    sql("SELECT id FROM sandbox_layers WHERE host_id = $1 OR host_id IS NULL \
         UNION SELECT layer_id FROM sandbox_layer_copies WHERE host_id = $1")
    .bind(host)
    .fetch_all(db)
    .await
}
