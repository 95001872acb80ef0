//! Bytes of backups on their way: from the host to the store, and back into a file. Of each there is one part in memory.

use std::path::Path;
use std::time::Duration;

use berth_domain::hex;
use berth_domain::ids::BackupId;
use berth_host::EngineError;
use berth_host::vm::{Engine, ExportSource, Exported, Part};
use bytes::Bytes;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::{StepError, fault};
use crate::services::depot::{Depot, DepotError, PART};
use crate::services::vm::store::backup::BackupRow;
use crate::services::vm::{Vms, store as rows};

/// How long a part of a disk may take to come.
const SILENCE: Duration = Duration::from_mins(5);

/// What the store has of a backup, read back.
pub(super) struct Stored {
    pub parts: i64,
    pub size_bytes: i64,
    pub sha256: String,
}

/// Why nothing came of it.
pub(super) enum Failed {
    /// The store cannot be used.
    Depot(DepotError),
    /// Something else.
    Step(StepError),
}

impl From<DepotError> for Failed {
    fn from(error: DepotError) -> Self {
        Self::Depot(error)
    }
}

impl From<StepError> for Failed {
    fn from(error: StepError) -> Self {
        Self::Step(error)
    }
}

impl From<EngineError> for Failed {
    fn from(error: EngineError) -> Self {
        Self::Step(error.into())
    }
}

impl From<Failed> for StepError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Depot(error) => error.into(),
            Failed::Step(error) => error,
        }
    }
}

/// Brings what a backup's snapshot has to the store, and reads it back. Of what an earlier try left there what is so already stays,
/// and what is more than there is to be goes.
pub(super) async fn store<F: Future<Output = ()>>(
    vms: &Vms,
    depot: &Depot<BackupId>,
    backup: &BackupRow,
    told: impl Fn(String) -> F,
) -> Result<Stored, Failed> {
    if let Some(stored) = whole(depot, backup, &told).await? {
        return Ok(stored);
    }
    let Some(snapshot) = backup.snapshot else {
        return Err(EngineError::Permanent("the copy of the disk is gone; make another backup".into()).into());
    };
    let of = ExportSource::Snapshot(snapshot);
    let host = rows::disk_snapshot::load(vms.db(), snapshot).await.map_err(StepError::from)?.and_then(|row| row.host);
    let engine = vms.engine_of(host)?;
    let file = engine.export(&of).await?;
    if !file.may_be_of(backup.size_gb) {
        return Err(EngineError::Permanent("the host says more of the disk than that can have".into()).into());
    }
    fault("backup", "store", "exported").await?;
    let parts = send(&*engine, depot, (backup, &of, &file), &told).await?;
    depot.keep(backup.id, parts).await?;
    depot.describe(backup.id, &about(backup, &file, parts)).await?;
    fault("backup", "store", "sent").await?;
    let read = read_back(depot, backup, (parts, file.bytes), &told).await?;
    fault("backup", "store", "read_back").await?;
    if (read.size_bytes, &read.sha256) != (i64::try_from(file.bytes).unwrap_or(i64::MAX), &file.sha256) {
        tracing::warn!(backup = %backup.id, "what the store has is not what was sent; sending it again");
        return Err(EngineError::Transient("what the store has is not what was sent".into()).into());
    }
    Ok(read)
}

/// What the store has of a backup, where that is all of it: who made it may have died before it was recorded, and a database
/// may be an older copy, which does not know.
async fn whole<F: Future<Output = ()>>(
    depot: &Depot<BackupId>,
    backup: &BackupRow,
    told: &impl Fn(String) -> F,
) -> Result<Option<Stored>, Failed> {
    let Some(about) = depot.about(backup.id).await? else { return Ok(None) };
    let (parts, bytes) = (about["parts"].as_i64(), about["size_bytes"].as_u64());
    let (Some(parts), Some(bytes), Some(sha256)) = (parts, bytes, about["sha256"].as_str()) else { return Ok(None) };
    let read = match read_back(depot, backup, (parts, bytes), told).await {
        Err(Failed::Depot(error)) if error.is_missing() => return Ok(None),
        read => read?,
    };
    let is_whole = read.sha256 == sha256 && u64::try_from(read.size_bytes) == Ok(bytes);
    Ok(is_whole.then_some(read))
}

/// Reads so many parts of so many bytes.
async fn read_back<F: Future<Output = ()>>(
    depot: &Depot<BackupId>,
    backup: &BackupRow,
    (parts, whole): (i64, u64),
    told: &impl Fn(String) -> F,
) -> Result<Stored, Failed> {
    let (mut read, mut bytes) = (Sha256::new(), 0_u64);
    for number in 1..=parts {
        told(format!("reading back: {} of {} MiB", bytes >> 20, whole >> 20)).await;
        let part = depot.get(backup.id, number).await?;
        bytes += part.len() as u64;
        // Hashing a part takes a moment that others of this thread have to wait for.
        read = hashed(read, part).await?;
    }
    let sha256 = hex::encode(&read.finalize());
    Ok(Stored { parts, size_bytes: i64::try_from(bytes).unwrap_or(i64::MAX), sha256 })
}

/// Puts a file part by part, but for those at its beginning that the store has already; how many there are.
async fn send<F: Future<Output = ()>>(
    engine: &dyn Engine,
    depot: &Depot<BackupId>,
    (backup, of, file): (&BackupRow, &ExportSource, &Exported),
    told: &impl Fn(String) -> F,
) -> Result<i64, Failed> {
    let (mut from, mut number, mut may_be_there) = (0, 0, true);
    while from < file.bytes {
        told(format!("storing: {} of {} MiB", from >> 20, file.bytes >> 20)).await;
        let part = Part { from, bytes: PART.min(file.bytes - from) };
        let mut bytes = Vec::with_capacity(usize::try_from(part.bytes).unwrap_or_default());
        let mut content = engine.exported(of, &file.sha256, part).await?;
        let broke_off = |error: std::io::Error| EngineError::Transient(error.to_string());
        let read = timeout(SILENCE, content.read_to_end(&mut bytes)).await;
        read.map_err(|silent| broke_off(silent.into()))?.map_err(broke_off)?;
        if bytes.len() as u64 != part.bytes {
            return Err(EngineError::Transient("the file of the disk broke off".into()).into());
        }
        number += 1;
        may_be_there = may_be_there && is_there(depot, backup, number, &bytes).await?;
        if !may_be_there {
            depot.put(backup.id, number, bytes.into()).await?;
        }
        fault("backup", "store", "part").await?;
        from += part.bytes;
    }
    Ok(number)
}

/// Whether the store has a part already.
async fn is_there(depot: &Depot<BackupId>, backup: &BackupRow, number: i64, bytes: &[u8]) -> Result<bool, Failed> {
    match depot.get(backup.id, number).await {
        Err(error) if error.is_missing() => Ok(false),
        found => Ok(found? == bytes),
    }
}

/// What stands beside the parts of a backup, for whoever has nothing but the store.
fn about(backup: &BackupRow, file: &Exported, parts: i64) -> serde_json::Value {
    json!({
        "id": backup.id, "name": backup.name, "project_id": backup.project, "disk_id": backup.disk,
        "kind": backup.kind.as_str(), "type": backup.disk_type.as_str(), "size_gb": backup.size_gb,
        "image_id": backup.image_id, "created_at": backup.created_at, "parts": parts, "size_bytes": file.bytes,
        "sha256": file.sha256, "format": "qcow2: its parts in the order of their names",
    })
}

async fn hashed(mut hash: Sha256, part: Bytes) -> Result<Sha256, EngineError> {
    let work = move || {
        hash.update(&part);
        hash
    };
    tokio::task::spawn_blocking(work).await.map_err(|error| EngineError::Transient(error.to_string()))
}

/// Fetches a backup into a file, whole or not at all: what is not what it was is refused.
pub(super) async fn fetch<F: Future<Output = ()>>(
    depot: &Depot<BackupId>,
    backup: &BackupRow,
    file: &Path,
    told: impl Fn(String) -> F,
) -> Result<(), Failed> {
    let mut out = tokio::fs::File::create(file).await.map_err(unwritten)?;
    let (whole, mut hash, mut bytes) = (backup.size_bytes.unwrap_or_default(), Sha256::new(), 0_i64);
    for number in 1..=backup.parts.unwrap_or_default() {
        told(format!("restoring: {} of {} MiB", bytes >> 20, whole >> 20)).await;
        let part = match depot.get(backup.id, number).await {
            Err(error) if error.is_missing() => return Err(damaged(backup, "a part of it is not there").into()),
            part => part?,
        };
        bytes += i64::try_from(part.len()).unwrap_or(i64::MAX);
        if bytes > whole {
            return Err(damaged(backup, "it is longer than it was").into());
        }
        out.write_all(&part).await.map_err(unwritten)?;
        hash = hashed(hash, part).await?;
        fault("brought_disk", "make", "part").await?;
    }
    let sha256 = hex::encode(&hash.finalize());
    if bytes != whole || Some(&sha256) != backup.sha256.as_ref() {
        return Err(damaged(backup, "what it hashes to is not what it hashed to when it was made").into());
    }
    out.flush().await.map_err(unwritten)?;
    Ok(out.sync_all().await.map_err(unwritten)?)
}

/// Why a file of the host cannot be written.
fn unwritten(error: std::io::Error) -> EngineError {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    match error.kind() {
        StorageFull | QuotaExceeded => EngineError::NoCapacity("the host's disk is full".into()),
        _ => EngineError::Transient(format!("the disk cannot be written: {error}")),
    }
}

/// What is told of a backup that is not what it was.
fn damaged(backup: &BackupRow, how: &str) -> EngineError {
    tracing::error!(backup = %backup.id, how, "a backup in the store is damaged");
    EngineError::Permanent(format!("the backup is damaged: {how}; delete this disk, and restore another backup"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_full_disk_is_not_tried_again() {
        let mut full = std::fs::File::options().write(true).open("/dev/full").expect("a device that is full");
        assert!(unwritten(full.write_all(b"part").expect_err("no room")).is_final());
        let other = std::fs::File::open("/dev/null/none").expect_err("no folder");
        assert!(!unwritten(other).is_final());
    }
}
