//! What a project or an organization keeps on the host, in bytes: layers that nobody writes to any more, memories,
//! uploads, and what is under way with the most it may become. Disks of sandboxes are bounded by their number and size.

use berth_domain::ids::{HostId, LayerId};

use crate::db::tenant::Whose;
use crate::db::{Db, DbError, FromRow, Row, Tx, sql};

/// Bytes that are kept, an upload on its way being taken for `upload` bytes.
pub async fn bytes(tx: &mut Tx, whose: Whose, upload: i64) -> Result<i64, DbError> {
    let owns = whose.owns();
    sql(format!(
        "SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) AS bytes FROM ( \
         SELECT bytes FROM sandbox_layers WHERE {owns} AND frozen = 1 UNION ALL \
         SELECT m.bytes FROM sandbox_memories m JOIN sandbox_layers l ON l.id = m.layer_id WHERE {owns} \
         UNION ALL SELECT disk_gb * 1073741824 FROM sandboxes WHERE {owns} AND durable = 1 AND deleted_at IS NULL \
         AND EXISTS (SELECT 1 FROM sandbox_layers l WHERE l.id = sandboxes.layer_id AND l.frozen = 0 AND l.state = 'present') \
         UNION ALL SELECT CASE WHEN state = 'receiving' THEN $2 ELSE bytes END FROM sandbox_uploads \
         WHERE {owns} UNION ALL \
         SELECT disk_gb * 1073741824 + memory_mb * include_memory * 1048576 FROM sandbox_snapshots \
         WHERE {owns} AND status = 'Pending' AND deleted_at IS NULL UNION ALL \
         SELECT disk_gb * 1073741824 + memory_mb * 1048576 FROM sandbox_templates \
         WHERE {owns} AND status IN ('pending', 'building') AND deleted_at IS NULL) kept"
    ))
    .bind(whose.id().to_string())
    .bind(upload)
    .fetch_one(tx)
    .await
}

struct IdRow(LayerId);

impl FromRow for IdRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        row.parsed("id").map(Self)
    }
}

/// Layers of a host that nobody writes to any more and whose bytes are not known: those of an earlier version.
pub async fn unmeasured(db: &Db, host: HostId) -> Result<Vec<LayerId>, DbError> {
    let unmeasured = sql("SELECT id FROM sandbox_layers WHERE frozen = 1 AND bytes = 0 AND host_id = $1");
    let rows: Vec<IdRow> = unmeasured.bind(host).fetch_all(db).await?;
    Ok(rows.into_iter().map(|row| row.0).collect())
}
