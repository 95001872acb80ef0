//! Disks that are made of files which were brought.
//!
//! What such a file's header says of other files is refused before any other program opens it, and a copy of it is made that
//! the format's own program writes: what a machine gets is no header of somebody else. What that may cost of a file that somebody
//! sent is bounded ([`berth_qemu::foreign`]).

use std::path::Path;
use std::time::Duration;

use berth_qemu::foreign::{self, Target};
use berth_qemu::image::{self, Manifest};
use berth_qemu::machine::{self, Drive, snapshot};
use berth_qemu::{Error, disk};

use super::snapshots::sync;
use super::{BroughtDisk, DiskSpec, QemuEngine, gib};
use crate::error::{qemu_failed, transient};
use crate::vm::DiskSource;
use crate::{EngineError, Result, fault};

impl QemuEngine {
    /// Makes a data disk of what a file has.
    pub(super) async fn make_data_of_file(&self, file: &Path, brought: &BroughtDisk) -> Result<()> {
        std::fs::create_dir_all(self.disks()).map_err(transient)?;
        let whole = self.disk_file(brought.id, false);
        if whole.exists() {
            return Ok(());
        }
        let is_foreign = brought.conversion.is_some();
        let drive = if is_foreign { judged(file, brought)? } else { checked(file, brought)? };
        self.require_room(&drive)?;
        let half = self.disks().join(format!("{}.raw.tmp", brought.id));
        disk::remove(&half).await.map_err(qemu_failed)?;
        if let Some(slot) = brought.conversion {
            self.unpack_foreign(&drive, &half, slot).await?;
        } else {
            snapshot::unpack(&drive, &half).await.map_err(qemu_failed)?;
        }
        let raw = Drive { path: half.clone(), format: "raw", ..drive };
        machine::grow_file(&raw, gib(brought.size_gb)).await.map_err(qemu_failed)?;
        sync(&half).await?;
        fault::point("disk.of_file.unpacked").await.map_err(transient)?;
        tokio::fs::rename(&half, &whole).await.map_err(transient)?;
        // Where it came from it may be removed as soon as it is here.
        sync(&self.disks()).await
    }

    /// Copies a disk that somebody sent into a raw file, or leaves nothing of it.
    async fn unpack_foreign(&self, drive: &Drive, half: &Path, slot: u32) -> Result<()> {
        let bounds = self.bounds_of_foreign(snapshot::most(drive).map_err(qemu_failed)?, slot);
        let target = Target { file: half, format: "raw", mode: 0o600 };
        foreign::convert(drive, target, &bounds).await.map_err(|error| untaken(error, "disk", bounds.time))
    }

    /// Makes a root disk of what a file has, which boots as an image does.
    pub(super) async fn make_root_of_file(&self, file: &Path, brought: &BroughtDisk, image: &str) -> Result<()> {
        std::fs::create_dir_all(self.disks()).map_err(transient)?;
        let whole = self.disk_file(brought.id, true);
        if !whole.exists() {
            self.require_image(image)?;
            let base = self.base_of_file(&checked(file, brought)?, brought.id, image).await?;
            let source = DiskSource::Image(image.to_owned());
            self.clone_root(&DiskSpec { id: brought.id, source, size_gb: brought.size_gb }, base).await?;
        }
        // Where it came from it may be removed as soon as it is here.
        sync(&whole).await?;
        sync(&self.disks()).await
    }

    /// Refuses an image that the host does not have.
    fn require_image(&self, image: &str) -> Result<()> {
        match Manifest::load(&self.images_dir().join(image)) {
            Ok(_) => Ok(()),
            Err(error) => {
                tracing::warn!(image, %error, "a root disk boots with an image that is not there");
                Err(EngineError::Permanent(format!(
                    "the image '{image}', with which the disk boots, is not on the host; have it built or imported again"
                )))
            }
        }
    }
}

/// A file as a disk that lies on no other, and fits.
fn checked(file: &Path, BroughtDisk { id, size_gb, .. }: &BroughtDisk) -> Result<Drive> {
    let drive = Drive { path: file.to_owned(), format: "qcow2", bases: Vec::new(), serial: id.serial() };
    let bytes = snapshot::size(&drive).map_err(|error| {
        tracing::warn!(disk = %id, %error, "what was brought cannot be made a disk of");
        EngineError::Permanent("what was brought is no disk, or builds on another file".into())
    })?;
    if gib(*size_gb) < bytes {
        let least = bytes.div_ceil(gib(1));
        return Err(EngineError::Permanent(format!("what was brought has {least} GiB, more than the disk is to have")));
    }
    Ok(drive)
}

/// A file that somebody sent as a disk that lies on no other, and fits.
fn judged(file: &Path, BroughtDisk { id, size_gb, .. }: &BroughtDisk) -> Result<Drive> {
    let header = image::data(file, gib(*size_gb)).map_err(qemu_failed)?;
    Ok(Drive { path: file.to_owned(), format: header.format, bases: Vec::new(), serial: id.serial() })
}

/// What is told of a file that somebody sent, of which no disk or image could be made.
pub(super) fn untaken(error: Error, what: &str, time: Duration) -> EngineError {
    match error {
        Error::Qemu(reason) | Error::Damaged(reason) => {
            tracing::warn!(reason, what, "nothing can be made of what somebody sent");
            EngineError::Permanent(format!(
                "the file is damaged, and no {what} can be made of it; look at it with: qemu-img check FILE"
            ))
        }
        Error::Timeout(_) => {
            EngineError::Permanent(format!("making the {what} of the file took longer than {} s", time.as_secs()))
        }
        Error::NoSpace => EngineError::NoCapacity("the host's disk has no room for what the file holds".into()),
        // It is the host's, and not the sender's: the operator can install what is missing.
        missing @ Error::Missing { .. } => transient(missing),
        other => qemu_failed(other),
    }
}

#[cfg(test)]
mod tests {
    use berth_domain::ids::DiskId;
    use berth_qemu::disk::clone_image;
    use berth_qemu::sandbox::create_layer;

    use super::super::tests::engine;
    use super::*;
    use crate::vm::Engine as _;

    #[tokio::test]
    async fn a_file_fits_and_lies_on_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let [alone, above, text] = ["alone", "above", "text"].map(|name| dir.path().join(name));
        create_layer(&alone, "", 2 << 30).unwrap();
        clone_image(&alone, &above, 2 << 30).await.unwrap();
        std::fs::write(&text, vec![b'x'; 4096]).unwrap();
        let disk = |size_gb| BroughtDisk { id: DiskId(uuid::Uuid::nil()), size_gb, image: None, conversion: None };
        assert!(checked(&alone, &disk(2)).is_ok());
        let error = checked(&alone, &disk(1)).unwrap_err();
        assert!(error.is_final() && error.to_string().contains("2 GiB"), "{error}");
        for file in [above, text, dir.path().join("none")] {
            assert!(checked(&file, &disk(2)).unwrap_err().is_final(), "{}", file.display());
        }
    }

    /// A file that somebody sent, and the disk that is to be made of it.
    fn sent(dir: &Path, content: &[u8], size_gb: i64) -> (std::path::PathBuf, BroughtDisk) {
        let file = dir.join("sent");
        std::fs::write(&file, content).unwrap();
        let id = DiskId(uuid::Uuid::from_u128(7));
        (file, BroughtDisk { id, size_gb, image: None, conversion: Some(0) })
    }

    async fn qemu_img(arguments: &[&str]) {
        let done = tokio::process::Command::new("qemu-img").args(arguments).output().await.unwrap();
        assert!(done.status.success(), "{done:?}");
    }

    #[tokio::test]
    async fn what_was_sent_becomes_a_raw_disk_of_its_size_that_takes_little_room() {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine(dir.path(), 0);
        let mut content = vec![0; 1 << 20];
        content[5000..5004].copy_from_slice(b"here");
        let (raw, disk) = sent(dir.path(), &content, 2);
        let qcow2 = dir.path().join("sent.qcow2");
        let [from, to] = [&raw, &qcow2].map(|path| path.to_str().unwrap());
        qemu_img(&["convert", "-c", "-f", "raw", "-O", "qcow2", from, to]).await;
        for file in [&raw, &qcow2] {
            engine.make_data_of_file(file, &disk).await.unwrap();
            let made = engine.disk_file(disk.id, false);
            let bytes = std::fs::metadata(&made).unwrap();
            assert_eq!(bytes.len(), 2 << 30);
            assert!(std::os::unix::fs::MetadataExt::blocks(&bytes) * 512 < 2 << 20);
            let mut found = [0; 4];
            let read = std::fs::File::open(&made).unwrap();
            std::os::unix::fs::FileExt::read_exact_at(&read, &mut found, 5000).unwrap();
            assert_eq!(&found, b"here");
            std::fs::remove_file(made).unwrap();
        }
    }

    /// A file as a host sends it of a root disk, whose guest wrote this.
    async fn root_with(dir: &Path, text: &str) -> std::path::PathBuf {
        let (raw, file) = (dir.join("root"), dir.join(format!("{text}.qcow2")));
        let mut content = vec![0; 1 << 20];
        content[5000..5000 + text.len()].copy_from_slice(text.as_bytes());
        std::fs::write(&raw, content).unwrap();
        let [from, to] = [&raw, &file].map(|path| path.to_str().unwrap());
        qemu_img(&["convert", "-f", "raw", "-O", "qcow2", from, to]).await;
        file
    }

    /// What a guest would read of a root disk.
    async fn guest_reads(engine: &QemuEngine, id: DiskId, bytes: usize) -> String {
        let read = engine.disks().join("read");
        snapshot::unpack(&engine.any_drive(id).unwrap(), &read).await.unwrap();
        let content = std::fs::read(&read).unwrap();
        std::fs::remove_file(read).unwrap();
        String::from_utf8_lossy(&content[5000..5000 + bytes]).into_owned()
    }

    #[tokio::test]
    async fn a_root_disk_that_comes_back_has_what_it_comes_with() {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine(dir.path(), 0);
        let id = DiskId(uuid::Uuid::from_u128(7));
        let disk = BroughtDisk { id, size_gb: 1, image: Some("micro".into()), conversion: None };
        for text in ["once", "then", "once"] {
            let file = root_with(dir.path(), text).await;
            for _ in 0..2 {
                engine.bring_disk(&file, &disk).await.unwrap();
                assert_eq!(guest_reads(&engine, id, 4).await, text);
            }
            engine.forget_disk(id).await.unwrap();
        }
        // What was made of it meanwhile stays, whatever comes: a snapshot of it lies on what it was.
        assert_eq!(std::fs::read_dir(engine.bases()).unwrap().count(), 3, "two contents, and the image");
    }

    #[tokio::test]
    async fn what_comes_late_changes_no_disk_that_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine(dir.path(), 0);
        let id = DiskId(uuid::Uuid::from_u128(7));
        let disk = BroughtDisk { id, size_gb: 1, image: Some("micro".into()), conversion: None };
        engine.bring_disk(&root_with(dir.path(), "kept").await, &disk).await.unwrap();
        let spec = DiskSpec { id, source: DiskSource::Image("micro".into()), size_gb: 1 };
        engine.clone_root(&spec, engine.base("micro").await.unwrap()).await.unwrap();
        assert_eq!(guest_reads(&engine, id, 4).await, "kept");
    }

    #[tokio::test]
    async fn what_lies_or_refers_to_the_host_is_refused_with_a_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine(dir.path(), 0);
        let header = |change: &dyn Fn(&mut Vec<u8>)| {
            let whole = dir.path().join("whole.qcow2");
            let _ = std::fs::remove_file(&whole);
            create_layer(&whole, "", 1 << 30).unwrap();
            let mut bytes = std::fs::read(&whole).unwrap();
            change(&mut bytes);
            bytes
        };
        let word = |at: usize, value: u32| header(&|bytes| bytes[at..at + 4].copy_from_slice(&value.to_be_bytes()));
        let below = |bytes: &mut Vec<u8>| {
            bytes[8..16].copy_from_slice(&600_u64.to_be_bytes());
            bytes[16..20].copy_from_slice(&11_u32.to_be_bytes());
            bytes[600..611].copy_from_slice(b"/etc/shadow");
        };
        let huge = |bytes: &mut Vec<u8>| bytes[24..32].copy_from_slice(&(1_u64 << 60).to_be_bytes());
        let torn = |bytes: &mut Vec<u8>| bytes[40..48].copy_from_slice(&7_u64.to_be_bytes());
        for (content, part) in [
            (header(&below), "builds on another file"),
            (word(76, 4), "builds on another file"),
            (word(32, 1), "encrypted"),
            (header(&huge), "1073741824 GiB, more than the 1 GiB"),
            (header(&torn), "damaged"),
            (b"KDMV".iter().copied().chain([0; 1020]).collect(), "qemu-img convert"),
            (vec![7; 1000], "whole sectors"),
        ] {
            let (file, disk) = sent(dir.path(), &content, 1);
            let error = engine.make_data_of_file(&file, &disk).await.unwrap_err();
            assert!(error.is_final() && error.to_string().contains(part), "{part}: {error}");
            assert!(!error.to_string().contains(dir.path().to_str().unwrap()), "{error}");
            assert_eq!(std::fs::read_dir(engine.disks()).unwrap().count(), 0, "{part}");
        }
    }

    /// A qcow2 of five clusters with 4 GiB for a guest, all of which are the last one.
    fn expanding() -> Vec<u8> {
        const CLUSTER: usize = 1 << 16;
        const COPIED: u64 = 1 << 63;
        const TABLES: usize = 8;
        let mut bytes = vec![0; 5 * CLUSTER];
        bytes[..4].copy_from_slice(b"QFI\xfb");
        for (at, value) in [(4, 3_u32), (20, 16), (36, 8), (56, 1), (96, 4), (100, 104)] {
            bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
        }
        let mut long = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
        long(24, 4 << 30);
        long(40, 2 * CLUSTER as u64);
        long(48, CLUSTER as u64);
        (0..TABLES).for_each(|table| long(2 * CLUSTER + 8 * table, (3 * CLUSTER as u64) | COPIED));
        (0..CLUSTER / 8).for_each(|entry| long(3 * CLUSTER + 8 * entry, (4 * CLUSTER as u64) | COPIED));
        bytes[4 * CLUSTER..].fill(0xab);
        bytes
    }

    #[tokio::test]
    async fn few_bytes_that_stand_for_more_than_the_host_can_spare_are_stopped() {
        let dir = tempfile::tempdir().unwrap();
        // It keeps back more than any host has: the room is gone as soon as that is looked at.
        let engine = engine(dir.path(), 1 << 30);
        let (file, disk) = sent(dir.path(), &expanding(), 4);
        let error = engine.make_data_of_file(&file, &disk).await.unwrap_err();
        assert!(matches!(&error, EngineError::NoCapacity(why) if why.contains("a copy of the disk")), "{error}");
        // Where it goes while the file is read, that is ended.
        let half = engine.disks().join("half");
        let error = engine.unpack_foreign(&judged(&file, &disk).unwrap(), &half, 0).await.unwrap_err();
        assert!(matches!(&error, EngineError::NoCapacity(why) if why.contains("what the file holds")), "{error}");
        assert!(!half.exists());
    }

    #[test]
    fn a_sender_is_not_told_off_for_what_the_host_lacks() {
        let missing = Error::Missing { tool: "qemu-img".into(), package: "qemu-utils" };
        let killed = Error::io("a program", std::io::Error::other("it was ended"));
        for error in [missing, killed] {
            assert!(!untaken(error, "disk", Duration::ZERO).is_final());
        }
        assert!(untaken(Error::Qemu("Invalid argument".into()), "disk", Duration::ZERO).is_final());
    }

    #[tokio::test]
    async fn a_file_is_read_for_as_long_as_the_operator_allows() {
        let dir = tempfile::tempdir().unwrap();
        let mut engine = engine(dir.path(), 0);
        let (file, disk) = sent(dir.path(), &expanding(), 4);
        engine.settings.image_seconds = 0;
        let error = engine.make_data_of_file(&file, &disk).await.unwrap_err();
        assert!(error.is_final() && error.to_string().contains("longer than 0 s"), "{error}");
    }
}
