//! What sandboxes used, in steps of three sizes.

use berth_domain::Timestamp;
use berth_domain::ids::SandboxId;
use tokio_util::sync::CancellationToken;

use crate::columns;
use crate::db::record::{self, Columns};
use crate::db::{Db, DbError, FromRow, Row, Tx, sql};

/// Sizes of a step, and how long they are kept, in seconds. A series of 2,000 points reaches back 10,000 s at a
/// resolution of 5 s, and 33 hours at one of a minute, so each size is there for what is asked of it.
pub const LEVELS: [(i64, i64); 3] = [(5, 3 * 3600), (60, 2 * 86_400), (600, 31 * 86_400)];

/// What a sandbox used in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Beginning of the step, in seconds since 1970.
    pub at: i64,
    /// Size of the step, in seconds.
    pub step: i64,
    /// Microseconds it ran, as far as is known.
    pub covered: i64,
    /// Microseconds of processor.
    pub cpu: i64,
    /// Memory at the end.
    pub memory_bytes: i64,
    /// Disk at the end.
    pub disk_bytes: i64,
    /// Bytes received.
    pub rx_bytes: i64,
    /// Bytes sent.
    pub tx_bytes: i64,
    /// Processes at the end.
    pub processes: i64,
}

impl FromRow for Used {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            at: row.int("at")?,
            step: row.int("step")?,
            covered: row.int("covered")?,
            cpu: row.int("cpu")?,
            memory_bytes: row.int("memory_bytes")?,
            disk_bytes: row.int("disk_bytes")?,
            rx_bytes: row.int("rx_bytes")?,
            tx_bytes: row.int("tx_bytes")?,
            processes: row.int("processes")?,
        })
    }
}

/// What of a step adds up, and what is as at its end.
const ADDED: &str = "(sandbox_id, step, at) DO UPDATE SET covered = sandbox_metrics.covered + excluded.covered, \
     cpu = sandbox_metrics.cpu + excluded.cpu, rx_bytes = sandbox_metrics.rx_bytes + excluded.rx_bytes, \
     tx_bytes = sandbox_metrics.tx_bytes + excluded.tx_bytes, memory_bytes = excluded.memory_bytes, \
     disk_bytes = excluded.disk_bytes, processes = excluded.processes";

fn columns(id: SandboxId, step: i64, used: &Used) -> Columns {
    columns! {
        "sandbox_id": id, "step": step, "at": used.at / step * step, "covered": used.covered, "cpu": used.cpu,
        "memory_bytes": used.memory_bytes, "disk_bytes": used.disk_bytes, "rx_bytes": used.rx_bytes,
        "tx_bytes": used.tx_bytes, "processes": used.processes,
    }
}

/// Adds what sandboxes used to each size of step, all of them or none.
pub async fn add(db: &Db, round: &[(SandboxId, Used)]) -> Result<(), DbError> {
    let mut tx = if round.len() > 1 { db.begin_in_bulk().await? } else { db.begin().await? };
    for (id, used) in round {
        add_one(&mut tx, *id, used).await?;
    }
    tx.commit().await
}

async fn add_one(tx: &mut Tx, id: SandboxId, used: &Used) -> Result<(), DbError> {
    for (step, _) in LEVELS {
        record::insert("sandbox_metrics", columns(id, step, used)).on_conflict(ADDED).execute(&mut *tx).await?;
    }
    Ok(())
}

/// What a sandbox used in steps of a size that overlap with `from..to`, oldest first.
pub async fn between(db: &Db, id: SandboxId, step: i64, from: i64, to: i64) -> Result<Vec<Used>, DbError> {
    sql("SELECT * FROM sandbox_metrics WHERE sandbox_id = $1 AND step = $2 AND at > $3 AND at < $4 ORDER BY at")
        .bind(id)
        .bind(step)
        .bind(from - step)
        .bind(to)
        .fetch_all(db)
        .await
}

/// Removes what was kept long enough, until told to stop.
pub async fn forget(db: &Db, now: Timestamp, stop: &CancellationToken) -> Result<(), DbError> {
    for (step, kept) in LEVELS {
        let old = sql("DELETE FROM sandbox_metrics WHERE (sandbox_id, step, at) IN \
             (SELECT sandbox_id, step, at FROM sandbox_metrics WHERE step = $1 AND at < $2 LIMIT $3)");
        old.bind(step).bind(now.seconds() - kept).remove_in_batches(db, stop).await?;
    }
    Ok(())
}
