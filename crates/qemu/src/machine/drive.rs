//! Disks of a machine: whether they are as they were made, and how they grow.
//!
//! A disk grows in its file while no machine has it open, and by its machine while one has, so that the guest sees the new
//! size at once. What a running machine has is asked of QEMU and compared with what is wanted, so that each of these may be
//! done again after a crash. A guest knows a disk by its serial, and so does whoever asks: QEMU's own names for it differ
//! from version to version of this file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;
use uuid::Uuid;

use super::files::COMMANDS;
use super::jail::file_bytes;
use super::process::find;
use super::spec::{Drive, Spec};
use crate::disk::run_bounded;
use crate::error::at;
use crate::host::tool;
use crate::qmp::Qmp;
use crate::{Error, Result, qcow2};

/// What tables the file of a disk gets that grows, at most, in bytes, and how long that may take. A machine wrote the file,
/// so the program that reads it is bounded.
const TABLES: u64 = 1 << 30;
const GROWING: Duration = Duration::from_mins(1);

/// The format of a disk that lies elsewhere, and that a program beside the machine [serves](crate::served), as network block
/// devices are (the NBD protocol, over a socket). QEMU has a connection to each of them, and nothing else of it.
pub const SERVED: &str = "nbd";
/// A disk that a running machine has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// What QEMU calls what it reads and writes.
    pub(super) node: String,
    /// Its size for the guest, in bytes.
    pub(super) bytes: u64,
    /// Whether the guest may write to it.
    pub(super) is_written: bool,
}

/// The disks of a machine that are served, in the order in which QEMU is given connections to them.
pub(super) fn served(spec: &Spec) -> impl Iterator<Item = &Drive> {
    std::iter::once(&spec.root).chain(&spec.drives).filter(|drive| drive.format == SERVED)
}

/// The size of a disk that is as it was made, in bytes. Of one that is served the machine writes no file.
pub fn checked(drive: &Drive) -> Result<u64> {
    if drive.format == SERVED {
        return Ok(0);
    }
    if drive.format != "qcow2" {
        return Ok(std::fs::metadata(&drive.path).map_err(at("cannot look at", &drive.path))?.len());
    }
    let named = |base: &PathBuf| match (base.parent().and_then(Path::file_name), base.file_name()) {
        (Some(folder), Some(file)) => Path::new(folder).join(file),
        _ => base.clone(),
    };
    for (depth, base) in drive.bases.iter().enumerate() {
        qcow2::check(base, drive.bases.get(depth + 1).map(named).as_deref())?;
    }
    qcow2::check(&drive.path, drive.bases.first().map(named).as_deref())
}

/// Has a disk that no machine has open grow to so many bytes. One that is as large already is left as it is.
pub async fn grow_file(drive: &Drive, bytes: u64) -> Result<()> {
    // What a machine wrote into its header is not followed by the program below either.
    if checked(drive)? >= bytes {
        return Ok(());
    }
    let path = &drive.path;
    if drive.format != "qcow2" {
        let file = tokio::fs::File::options().write(true).open(path).await.map_err(at("cannot open", path))?;
        file.set_len(bytes).await.map_err(at("cannot size", path))?;
        return file.sync_all().await.map_err(at("cannot write", path));
    }
    let file = json!({"driver": "file", "filename": path.to_string_lossy()});
    let disk = json!({"driver": "qcow2", "file": file, "backing": null});
    let mut command = Command::new(tool("qemu-img")?);
    let most = std::fs::metadata(path).map_err(at("cannot look at", path))?.len().saturating_add(TABLES);
    run_bounded(command.args(["resize", "-q"]).arg(format!("json:{disk}")).arg(bytes.to_string()), most, GROWING).await
}

/// Has a disk of a running machine grow to so many bytes. One that is as large already is left as it is. Whether the
/// machine has it.
pub async fn grow(dir: &Path, id: Uuid, serial: &str, bytes: u64) -> Result<bool> {
    let mut qmp = Qmp::connect(dir, COMMANDS).await?;
    let Some(held) = held(&mut qmp, serial).await? else { return Ok(false) };
    if held.bytes < bytes {
        require(dir, id, bytes)?;
        let grown = qmp.execute("block_resize", json!({"node-name": held.node, "size": bytes})).await;
        grown.map_err(|error| match error {
            Error::Qemu(reason) if reason.contains("No space left") => Error::NoSpace,
            other => other,
        })?;
    }
    Ok(true)
}

/// The disk of a running machine with this serial.
pub(super) async fn held(qmp: &mut Qmp, serial: &str) -> Result<Option<Held>> {
    Ok(all(qmp).await?.remove(serial))
}

/// The disks of a running machine, by what its guest knows them by.
pub(super) async fn all(qmp: &mut Qmp) -> Result<BTreeMap<String, Held>> {
    let mut all = BTreeMap::new();
    let disks = qmp.execute("query-block", json!({})).await?;
    for disk in disks.as_array().into_iter().flatten() {
        let (Some(device), Some(held)) = (disk.get("qdev").and_then(Value::as_str), held_by(disk)) else { continue };
        let serial = qmp.execute("qom-get", json!({"path": device, "property": "serial"})).await?;
        if let Some(serial) = serial.as_str() {
            all.insert(serial.to_owned(), held);
        }
    }
    Ok(all)
}

fn held_by(disk: &Value) -> Option<Held> {
    let node = disk.pointer("/inserted/node-name")?.as_str()?.to_owned();
    let bytes = disk.pointer("/inserted/image/virtual-size")?.as_u64()?;
    let is_written = disk.pointer("/inserted/ro").and_then(Value::as_bool) == Some(false);
    Some(Held { node, bytes, is_written })
}

/// Refuses a disk of so many bytes to a running machine that may not write so much.
pub(super) fn require(dir: &Path, id: Uuid, disk_bytes: u64) -> Result<()> {
    let pid = find(dir, id).ok_or_else(|| Error::Qemu("the machine is gone".into()))?;
    if allowed(pid)?.is_none_or(|most| most >= file_bytes(disk_bytes)) {
        return Ok(());
    }
    Err(Error::Invalid(
        "the VM was started by an older version, and may have no disk as large as that; restart it first".into(),
    ))
}

/// The largest file that a process may write, in bytes; none where there is no bound (proc_pid_limits(5)).
fn allowed(pid: i32) -> Result<Option<u64>> {
    let path = format!("/proc/{pid}/limits");
    let text = std::fs::read_to_string(&path).map_err(at("cannot look at", Path::new(&path)))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max file size")).unwrap_or_default();
    Ok(line.split_whitespace().next().and_then(|bound| bound.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{clone_image, create_block, info};
    use crate::sandbox::create_layer;

    const GIB: u64 = 1 << 30;

    fn drive(path: PathBuf, format: &'static str, base: Option<PathBuf>) -> Drive {
        Drive { path, format, bases: base.into_iter().collect(), serial: String::new() }
    }

    #[tokio::test]
    async fn a_disk_that_is_off_grows_in_its_file_and_never_shrinks() {
        let dir = tempfile::tempdir().unwrap();
        let (raw, base) = (dir.path().join("data.raw"), dir.path().join("base.qcow2"));
        create_block(&raw, 10 * GIB).await.unwrap();
        create_layer(&base, "", GIB).unwrap();
        let root = dir.path().join("a \"disk\", and more.qcow2");
        clone_image(&base, &root, 20 * GIB).await.unwrap();
        for (drive, format) in [(drive(raw, "raw", None), "raw"), (drive(root, "qcow2", Some(base)), "qcow2")] {
            let before = info(&drive.path, format).await.unwrap();
            for gib in [30, 2048, 40] {
                grow_file(&drive, gib * GIB).await.unwrap();
            }
            let after = info(&drive.path, format).await.unwrap();
            assert_eq!((after.virtual_size, after.backing), (2048 * GIB, before.backing));
        }
    }

    #[tokio::test]
    async fn what_a_machine_wrote_into_a_header_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (other, disk) = (dir.path().join("other.qcow2"), dir.path().join("disk.qcow2"));
        create_layer(&other, "", GIB).unwrap();
        clone_image(&other, &disk, GIB).await.unwrap();
        let base = Some(dir.path().join("base.qcow2"));
        create_layer(base.as_deref().unwrap(), "", GIB).unwrap();
        let error = grow_file(&drive(disk, "qcow2", base), 2 * GIB).await.unwrap_err();
        assert!(matches!(error, Error::Damaged(_)), "{error}");
    }

    #[test]
    fn what_a_process_may_write_is_read() {
        let found = allowed(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert_eq!(found, rustix::process::getrlimit(rustix::process::Resource::Fsize).current);
    }
}
