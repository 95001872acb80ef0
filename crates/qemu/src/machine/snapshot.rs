//! Snapshots of disks: what a disk is at one moment, in a file of its own.
//!
//! The file has what its disk's own file has and lies on the same base, so no chain of files grows with the number of
//! snapshots, and none is needed by another. Of a disk that a machine has open the machine makes it (QEMU, `blockdev-backup`):
//! the moment is the beginning of that job, and before the guest overwrites what is not copied yet, QEMU copies that. Of any
//! other disk qemu-img copies the file. A raw disk becomes a qcow2 as well: QEMU writes zeros into a raw copy where the disk
//! has nothing, which would take the whole size of it on the host.
//!
//! A job is named after its snapshot, and says how it ended until it is asked to forget that: a service that dies finds it
//! again, or finds that there is none and begins anew.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;

use super::arguments::{FILE, base_of};
use super::drive::{checked, held};
use super::files::COMMANDS;
use super::spec::Drive;
use crate::disk::{run, run_bounded};
use crate::error::at;
use crate::host::tool;
use crate::qmp::Qmp;
use crate::{Error, Result};

/// How long QEMU may take to begin a job: it waits for what the disk is doing.
const BEGINNING: Duration = Duration::from_secs(15);
/// How long a copy of a file may take: 2 TiB at 100 MB a second.
const COPYING: Duration = Duration::from_hours(6);
/// What a copy may have more than what it is a copy of: tables, in bytes.
const TABLES: u64 = 1 << 30;

/// How far a machine is with a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The machine does not have the disk.
    NotHeld,
    /// It copies.
    Underway,
    /// The file is whole. [`forget`] once that is noted.
    Whole,
}

/// What a running machine says of a job.
enum Job {
    Underway,
    Ended(Option<String>),
}

/// What QEMU calls all that belongs to a snapshot, by its serial; the file's node has [`FILE`] behind it.
fn name_of(serial: &str) -> String {
    format!("snap-{serial}")
}

/// Has a running machine copy a disk into a file as the disk is when this is first called, or looks how far it is. A file
/// of which the machine knows nothing is made anew.
pub async fn take(dir: &Path, drive: &Drive, serial: &str, file: &Path) -> Result<Progress> {
    let mut qmp = Qmp::connect(dir, COMMANDS).await?;
    let name = name_of(serial);
    match job(&mut qmp, &name).await? {
        Some(Job::Underway) => return Ok(Progress::Underway),
        Some(Job::Ended(None)) => {
            clear(&mut qmp, &name).await?;
            return Ok(Progress::Whole);
        }
        Some(Job::Ended(Some(reason))) => {
            clear(&mut qmp, &name).await?;
            qmp.execute("job-dismiss", json!({"id": name})).await?;
            return Err(failed(reason));
        }
        None => {}
    }
    let Some(held) = held(&mut qmp, &drive.serial).await? else { return Ok(Progress::NotHeld) };
    clear(&mut qmp, &name).await?;
    create(file, drive.bases.first().map(PathBuf::as_path), held.bytes).await?;
    begin(&mut qmp, (&held.node, drive), &name, file).await?;
    Ok(Progress::Underway)
}

async fn begin(qmp: &mut Qmp, (node, drive): (&str, &Drive), name: &str, path: &Path) -> Result<()> {
    let file = File::options().read(true).write(true).open(path).map_err(at("cannot open", path))?;
    let given = qmp.give_named(name, &file).await?;
    let below = format!("{name}{FILE}");
    let (backing, sync) = if drive.bases.is_empty() { (Value::Null, "full") } else { (json!(base_of(node, 0)), "top") };
    let nodes = [
        json!({"driver": "file", "filename": given, "node-name": below, "discard": "unmap"}),
        json!({"driver": "qcow2", "file": below, "node-name": name, "backing": backing}),
    ];
    for arguments in nodes {
        qmp.execute("blockdev-add", arguments).await?;
    }
    let job = json!({"job-id": name, "device": node, "target": name, "sync": sync, "auto-dismiss": false});
    qmp.wait_longer(BEGINNING);
    qmp.execute("blockdev-backup", job).await.map(drop)
}

/// What went wrong within a job. Another try begins with another moment, so there is none.
fn failed(reason: String) -> Error {
    if reason.contains("No space left") {
        Error::NoSpace
    } else {
        Error::Invalid(format!("it could not be copied: {reason}"))
    }
}

/// What went wrong with a copy of a file, which will not go better another time. Why is the operator's to know.
fn ended(error: Error) -> Error {
    let reason = match error {
        Error::Qemu(reason) => reason,
        Error::Timeout(_) => format!("it took longer than {} hours", COPYING.as_secs() / 3600),
        other => return other,
    };
    tracing::warn!(reason, "a disk could not be copied");
    Error::Invalid("it could not be copied; ask the operator".into())
}

/// Has a running machine forget a snapshot that is whole, or give up one that is not.
pub async fn forget(dir: &Path, serial: &str) -> Result<()> {
    let mut qmp = Qmp::connect(dir, COMMANDS).await?;
    end(&mut qmp, &name_of(serial)).await
}

/// Has a running machine give up every snapshot that is under way.
pub async fn give_up_all(dir: &Path) -> Result<()> {
    let mut qmp = Qmp::connect(dir, COMMANDS).await?;
    let jobs = qmp.execute("query-jobs", json!({})).await?;
    let named = |job: &Value| job.get("id").and_then(Value::as_str).map(str::to_owned);
    for name in jobs.as_array().into_iter().flatten().filter_map(named).filter(|name| name.starts_with(&name_of(""))) {
        end(&mut qmp, &name).await?;
    }
    Ok(())
}

async fn end(qmp: &mut Qmp, name: &str) -> Result<()> {
    const TRIES: usize = 100;
    for _ in 0..TRIES {
        match job(qmp, name).await? {
            None => return clear(qmp, name).await,
            Some(Job::Ended(_)) => {
                clear(qmp, name).await?;
                return qmp.execute("job-dismiss", json!({"id": name})).await.map(drop);
            }
            Some(Job::Underway) => {
                // One that ends at this moment cannot be ended: the next look says so.
                let _ = qmp.execute("block-job-cancel", json!({"device": name, "force": true})).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    Err(Error::Timeout("the end of a copy"))
}

async fn job(qmp: &mut Qmp, name: &str) -> Result<Option<Job>> {
    let jobs = qmp.execute("query-jobs", json!({})).await?;
    let found = jobs.as_array().into_iter().flatten().find(|job| job.get("id").and_then(Value::as_str) == Some(name));
    Ok(found.map(|job| match job.get("status").and_then(Value::as_str) {
        Some("concluded") => Job::Ended(job.get("error").and_then(Value::as_str).map(str::to_owned)),
        _ => Job::Underway,
    }))
}

/// Has QEMU close the file of a snapshot that no job uses.
async fn clear(qmp: &mut Qmp, name: &str) -> Result<()> {
    let nodes = qmp.execute("query-named-block-nodes", json!({"flat": true})).await?;
    let named = |node: &Value| node.get("node-name").and_then(Value::as_str).map(str::to_owned);
    let known: Vec<_> = nodes.as_array().into_iter().flatten().filter_map(named).collect();
    for node in [name.to_owned(), format!("{name}{FILE}")] {
        if known.contains(&node) {
            qmp.execute("blockdev-del", json!({"node-name": node})).await?;
        }
    }
    qmp.take_back(name).await
}

async fn create(file: &Path, base: Option<&Path>, bytes: u64) -> Result<()> {
    match tokio::fs::remove_file(file).await {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(at("cannot remove", file)(e)),
        _ => {}
    }
    let mut command = Command::new(tool("qemu-img")?);
    command.args(["create", "-q", "-f", "qcow2"]);
    if let Some(base) = base {
        // What lies below is not opened, so that what its header names is not followed.
        command.args(["-u", "-F", "qcow2", "-b"]).arg(base.canonicalize().map_err(at("cannot find", base))?);
    }
    run(command.arg(file).arg(bytes.to_string())).await
}

/// Copies a disk that no machine has open into a file that lies on the same base.
pub async fn copy(drive: &Drive, file: &Path) -> Result<()> {
    let most = most(drive)?;
    let mut command = convert(drive, "qcow2")?;
    if let Some(base) = drive.bases.first() {
        create(file, Some(base), checked(drive)?).await?;
        let copy = json!({"driver": "qcow2", "file": plain(file), "backing": below(drive)});
        command.args(["-n", "-F", "qcow2", "-B"]).arg(base).arg(format!("json:{copy}"));
    } else {
        command.arg(file);
    }
    run_bounded(&mut command, most, COPYING).await.map_err(ended)
}

/// Copies a disk that no machine has open into a qcow2 file that lies on no other.
pub async fn flatten(drive: &Drive, file: &Path) -> Result<()> {
    run_bounded(convert(drive, "qcow2")?.arg(file), most(drive)?, COPYING).await
}

/// Copies a disk into a qcow2 file that lies on no other, and takes no lock of it: a machine that is started meanwhile starts.
/// Whoever asks finds out whether it was written to.
pub async fn export(drive: &Drive, file: &Path) -> Result<()> {
    run_bounded(convert(drive, "qcow2")?.arg("-U").arg(file), most(drive)?, COPYING).await
}

/// Copies a disk that no machine has open into a raw file that takes space only where something was written.
pub async fn unpack(drive: &Drive, file: &Path) -> Result<()> {
    run_bounded(convert(drive, "raw")?.arg(file), most(drive)?, COPYING).await
}

/// The size of a disk for its guest, in bytes; refuses one that is not as it was made.
pub fn size(drive: &Drive) -> Result<u64> {
    checked(drive)
}

/// The largest file that a copy may become, in bytes.
pub fn most(drive: &Drive) -> Result<u64> {
    Ok(checked(drive)?.saturating_add(TABLES))
}

/// A conversion, but for where to. What the disk's own header says of other files is not asked for, nor what those of its
/// bases say.
pub(crate) fn convert(drive: &Drive, format: &str) -> Result<Command> {
    let mut disk = json!({"driver": drive.format, "file": plain(&drive.path)});
    if drive.format == "qcow2" {
        disk["backing"] = below(drive);
    }
    let mut command = Command::new(tool("qemu-img")?);
    command.args(["convert", "-O", format]).arg(format!("json:{disk}"));
    Ok(command)
}

/// What a disk lies on; null where that is nothing.
fn below(drive: &Drive) -> Value {
    let onto = |below: Value, base: &PathBuf| json!({"driver": "qcow2", "file": plain(base), "backing": below});
    drive.bases.iter().rev().fold(Value::Null, onto)
}

fn plain(path: &Path) -> Value {
    json!({"driver": "file", "filename": path.to_string_lossy()})
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;
    use crate::disk::{clone_image, create_block, info};
    use crate::sandbox::create_layer;

    const GIB: u64 = 1 << 30;

    fn drive(path: PathBuf, format: &'static str, bases: Vec<PathBuf>) -> Drive {
        Drive { path, format, bases, serial: String::new() }
    }

    async fn write(path: &Path, at: &str, byte: u8) {
        let mut command = Command::new(tool("qemu-io").unwrap());
        run(command.args(["-f", "qcow2", "-c", &format!("write -P {byte} {at} 64k")]).arg(path)).await.unwrap();
    }

    async fn holds(drive: &Drive, at: &str, byte: u8) {
        let flat = drive.path.with_extension("look");
        flatten(drive, &flat).await.unwrap();
        let mut command = Command::new(tool("qemu-io").unwrap());
        run(command.args(["-f", "qcow2", "-c", &format!("read -P {byte} {at} 64k")]).arg(&flat)).await.unwrap();
        assert_eq!(info(&flat, "qcow2").await.unwrap().backing, None);
    }

    #[tokio::test]
    async fn a_copy_lies_on_the_same_base_and_is_whole_without_its_disk() {
        let dir = tempfile::tempdir().unwrap();
        let [base, middle, top, copied] = ["base", "middle", "top", "copied"].map(|name| dir.path().join(name));
        create_layer(&base, "", GIB).unwrap();
        write(&base, "0", 1).await;
        clone_image(&base, &middle, GIB).await.unwrap();
        write(&middle, "1M", 2).await;
        clone_image(&middle, &top, 2 * GIB).await.unwrap();
        write(&top, "0", 3).await;
        let bases = vec![middle.clone(), base];
        copy(&drive(top.clone(), "qcow2", bases.clone()), &copied).await.unwrap();
        std::fs::remove_file(&top).unwrap();
        let found = info(&copied, "qcow2").await.unwrap();
        assert_eq!((found.virtual_size, found.backing), (2 * GIB, Some(middle.canonicalize().unwrap())));
        for (place, byte) in [("0", 3), ("1M", 2), ("2M", 0)] {
            holds(&drive(copied.clone(), "qcow2", bases.clone()), place, byte).await;
        }
    }

    #[tokio::test]
    async fn a_raw_disk_is_copied_and_unpacked_and_takes_little_space() {
        let dir = tempfile::tempdir().unwrap();
        let [disk, copied, back] = ["disk", "copied", "back"].map(|name| dir.path().join(name));
        create_block(&disk, 100 * GIB).await.unwrap();
        std::fs::File::options().write(true).open(&disk).unwrap().write_all_at(b"here", 50 * GIB).unwrap();
        copy(&drive(disk, "raw", Vec::new()), &copied).await.unwrap();
        unpack(&drive(copied.clone(), "qcow2", Vec::new()), &back).await.unwrap();
        let mut found = [0; 4];
        std::fs::File::open(&back).unwrap().read_exact_at(&mut found, 50 * GIB).unwrap();
        assert_eq!(&found, b"here");
        for path in [copied, back] {
            assert!(std::fs::metadata(&path).unwrap().blocks() * 512 < 1 << 20, "{path:?}");
        }
    }

    #[tokio::test]
    async fn a_header_that_names_another_file_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let [other, disk, copied] = ["other", "disk", "copied"].map(|name| dir.path().join(name));
        create_layer(&other, "", GIB).unwrap();
        clone_image(&other, &disk, GIB).await.unwrap();
        for bases in [Vec::new(), vec![dir.path().join("base")]] {
            let error = copy(&drive(disk.clone(), "qcow2", bases), &copied).await.unwrap_err();
            assert!(!copied.exists() && matches!(error, Error::Damaged(_) | Error::Io { .. }), "{error}");
        }
    }
}
