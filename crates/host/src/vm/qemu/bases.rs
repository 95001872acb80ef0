//! What root disks are cloned from: an image as it was then, or a snapshot, kept for as long as a disk builds on it.
//!
//! A snapshot's file lies on the base that its disk lies on, so its base names that one, and a chain is as long as the
//! generations are: a VM of a snapshot of a VM of a snapshot. Beyond [`LONGEST`] files the next generation begins a chain
//! anew, with a file that has everything.

use std::collections::HashSet;
use std::fs::{DirEntry, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use berth_domain::ids::{DiskId, DiskSnapshotId};
use berth_qemu::image::Manifest;
use berth_qemu::machine::{Drive, snapshot};
use berth_qemu::{disk, image};

use super::boots::Boots;
use super::exports::digest;
use super::snapshots::{gone, sync};
use super::{DiskSpec, QemuEngine, gib, notes};
use crate::error::{qemu_failed, transient};
use crate::{EngineError, Result, fault, lost};

/// A file without content in the place of a disk, which lies in the store, or is a file that lies on none.
pub(super) const NO_DISK: &str = "disk";
/// Most files that a root disk lies on. Each costs a look where the one above has nothing, and an open file.
const LONGEST: usize = 4;
/// The disk of a base that was made of a snapshot, and the file that names the base which that lies on.
pub(super) const DISK: &str = "disk.qcow2";
const BELOW: &str = "below";
/// How the notes end of disks that come from another host.
pub(super) const COMING: &str = "coming";
/// Age below which a base is left alone.
const YOUNG: Duration = Duration::from_mins(10);

impl QemuEngine {
    /// The file that names the base of a root disk.
    pub(super) fn base_note(&self, id: DiskId) -> PathBuf {
        self.disks().join(format!("{id}.base"))
    }

    /// The file that tells that no machine had a root disk yet.
    pub(super) fn fresh_note(&self, id: DiskId) -> PathBuf {
        self.disks().join(format!("{id}.fresh"))
    }

    /// The file that tells how large a root disk is to be, in bytes, that may have a captured boot's size.
    pub(super) fn growth_note(&self, id: DiskId) -> PathBuf {
        self.disks().join(format!("{id}.growth"))
    }

    /// The file that names the machine with which a disk comes from another host, until that goes on here.
    pub(super) fn coming_note(&self, id: DiskId) -> PathBuf {
        self.disks().join(format!("{id}.{COMING}"))
    }

    /// All files that a disk may have.
    pub(super) fn files_of_disk(&self, id: DiskId) -> [PathBuf; 6] {
        let notes = (self.base_note(id), self.fresh_note(id), self.growth_note(id), self.coming_note(id));
        // That it is not whole is known for as long as anything of it is there.
        [self.disk_file(id, true), self.disk_file(id, false), notes.0, notes.1, notes.2, notes.3]
    }

    /// The folder a root disk is cloned from: the image as it is now, kept for as long as it is needed.
    pub(super) async fn base(&self, image: &str) -> Result<PathBuf> {
        let from = self.images_dir().join(image);
        let manifest = Manifest::load(&from).map_err(qemu_failed)?;
        self.integrity.check(&from, &manifest).await?;
        let to = self.bases().join(format!("{image}-{}", manifest.version));
        if is_whole(&to) {
            return Ok(to);
        }
        std::fs::create_dir_all(&to).map_err(transient)?;
        // The manifest comes last: where it is, the folder is whole.
        for name in manifest.files().into_iter().chain([image::MANIFEST]) {
            link(&from.join(name), &to.join(name))?;
        }
        Ok(to)
    }

    /// Removes bases that no disk builds on, where all is read that says so. A young one may belong to a clone that is being
    /// made, and while one is made of a snapshot, which may take hours, none goes.
    pub(super) fn forget_bases(&self) {
        let Ok(_turn) = self.making_bases.try_lock() else { return };
        if let Err(error) = forget(&self.settings.host.data, &self.bases()) {
            tracing::warn!(%error, "no base is removed: what disks build on cannot be read");
        }
    }

    /// The folder that a root disk was cloned from.
    pub(super) fn base_of(&self, disk: DiskId) -> Result<PathBuf> {
        let name = notes::read(&self.base_note(disk)).map_err(transient)?.ok_or_else(|| {
            EngineError::Permanent("the root disk is not whole; delete the VM and create it again".into())
        })?;
        Ok(self.bases().join(name))
    }

    pub(super) fn bases(&self) -> PathBuf {
        self.settings.host.data.join("bases")
    }

    /// The files that a clone of a base lies on, the nearest first.
    pub(super) fn chain(&self, base: &Path) -> Result<Vec<PathBuf>> {
        let (mut files, mut base) = (Vec::new(), base.to_owned());
        while files.len() <= LONGEST {
            let disk = Manifest::load(&base).map_err(qemu_failed)?.disk;
            if disk == NO_DISK {
                return Ok(files);
            }
            files.push(base.join(disk));
            match notes::read(&base.join(BELOW)).map_err(transient)? {
                Some(below) => base = self.bases().join(below),
                None => return Ok(files),
            }
        }
        Err(EngineError::Permanent("a disk lies on too many others; ask the operator".into()))
    }

    /// The folder that a root disk is cloned from which is made of a snapshot, kept for as long as it is needed: its file,
    /// and the kernel that its disk booted.
    pub(super) async fn base_of_snapshot(&self, id: DiskSnapshotId) -> Result<PathBuf> {
        let _turn = self.making_bases.lock().await;
        let (file, to) = (self.snapshot_file(id), self.bases().join(id.to_string()));
        if is_whole(&to) {
            return Ok(to);
        }
        let below = notes::read(&self.snapshot_note(id)).map_err(transient)?;
        let below = below.filter(|_| file.is_file()).ok_or_else(gone)?;
        let from = self.bases().join(&below);
        let manifest = Manifest::load(&from).map_err(qemu_failed)?;
        let drive = Drive { path: file, format: "qcow2", bases: self.chain(&from)?, serial: String::new() };
        std::fs::create_dir_all(&to).map_err(transient)?;
        for name in manifest.files().into_iter().filter(|name| *name != manifest.disk) {
            link(&from.join(name), &to.join(name))?;
        }
        if drive.bases.len() < LONGEST {
            link(&drive.path, &to.join(DISK))?;
            notes::write(&to.join(BELOW), below.as_bytes()).map_err(transient)?;
        } else {
            self.flatten_into(&drive, &to).await?;
        }
        self.finish_base(&to, manifest, snapshot::size(&drive).map_err(qemu_failed)?).await?;
        Ok(to)
    }

    /// The folder that a root disk is cloned from which was brought as a file, kept for as long as it is needed: that file's
    /// content, and what the image boots with as it is now. Each content has a folder of its own, since a disk may come more
    /// than once, and snapshots of what it was may lie on an earlier one.
    pub(super) async fn base_of_file(&self, drive: &Drive, id: DiskId, image: &str) -> Result<PathBuf> {
        let sha256 = digest(&drive.path).await?.sha256;
        let _turn = self.making_bases.lock().await;
        let from = self.base(image).await?;
        let manifest = Manifest::load(&from).map_err(qemu_failed)?;
        let to = self.bases().join(format!("{id}-{}-{sha256}", manifest.version));
        if is_whole(&to) {
            return Ok(to);
        }
        std::fs::create_dir_all(&to).map_err(transient)?;
        for name in manifest.files().into_iter().filter(|name| *name != manifest.disk) {
            link(&from.join(name), &to.join(name))?;
        }
        self.flatten_into(drive, &to).await?;
        self.finish_base(&to, manifest, snapshot::size(drive).map_err(qemu_failed)?).await?;
        Ok(to)
    }

    /// Makes the disk of a base, a file that has everything.
    async fn flatten_into(&self, drive: &Drive, to: &Path) -> Result<()> {
        let (half, whole) = (to.join("half"), to.join(DISK));
        self.require_room(drive)?;
        disk::remove(&half).await.map_err(qemu_failed)?;
        snapshot::flatten(drive, &half).await.map_err(qemu_failed)?;
        sync(&half).await?;
        std::fs::rename(half, whole).map_err(transient)
    }

    /// Writes what a base is. Where that is, the folder is whole, and outlives a loss of power: what it was made of may be
    /// removed as soon as a disk is made.
    async fn finish_base(&self, to: &Path, mut manifest: Manifest, virtual_size_bytes: u64) -> Result<()> {
        manifest.sha256.remove(&manifest.disk);
        // Nobody else begins with what its owner has running.
        manifest.waits = false;
        DISK.clone_into(&mut manifest.disk);
        manifest.virtual_size_bytes = virtual_size_bytes;
        let text = serde_json::to_vec_pretty(&manifest).map_err(transient)?;
        let half = to.join("half.json");
        std::fs::write(&half, text).map_err(transient)?;
        sync(&half).await?;
        fault::point("disk.of_snapshot.based").await.map_err(transient)?;
        std::fs::rename(half, to.join(image::MANIFEST)).map_err(transient)?;
        sync(to).await?;
        sync(&self.bases()).await
    }

    /// Clones a root disk from what a base has. One that is there already stays as it is.
    pub(super) async fn clone_root(&self, spec: &DiskSpec, base: PathBuf) -> Result<()> {
        let file = self.disk_file(spec.id, true);
        if file.exists() {
            // It lies on what its note names, which may be another base.
            return Ok(());
        }
        let (below, size) = about_to_clone(spec, &base)?;
        self.write_note(spec.id, &base)?;
        disk::clone_image(&below, &file, size).await.map_err(qemu_failed)
    }

    /// Clones a root disk of so many bytes, all of which then comes from elsewhere: it boots with what its base has.
    pub(super) async fn clone_root_to_fill(&self, id: DiskId, base: &Path, bytes: u64) -> Result<()> {
        let manifest = Manifest::load(base).map_err(qemu_failed)?;
        self.write_note(id, base)?;
        let (below, file) = (base.join(&manifest.disk), self.disk_file(id, true));
        disk::clone_image(&below, &file, bytes).await.map_err(qemu_failed)
    }

    /// The same as [`Self::clone_root`], and one that is there already goes. It has its base until then, whatever fails.
    pub(super) async fn clone_root_anew(&self, spec: &DiskSpec, base: PathBuf) -> Result<()> {
        self.touch(&base)?;
        let (below, size) = about_to_clone(spec, &base)?;
        disk::clone_image_anew(&below, &self.disk_file(spec.id, true), size).await.map_err(qemu_failed)?;
        self.write_note(spec.id, &base)
    }

    /// Has a base stay that no note names yet: what is young does.
    pub(super) fn touch(&self, base: &Path) -> Result<()> {
        let now = UNIX_EPOCH + Duration::from_micros(self.clock.now().0.unsigned_abs());
        File::open(base).and_then(|folder| folder.set_modified(now)).map_err(transient)
    }

    fn write_note(&self, id: DiskId, base: &Path) -> Result<()> {
        let name = base.file_name().unwrap_or_default().to_string_lossy().into_owned();
        notes::write(&self.base_note(id), name.as_bytes()).map_err(transient)
    }
}

/// What a root disk is about to be cloned from, and its size in bytes.
fn about_to_clone(spec: &DiskSpec, base: &Path) -> Result<(PathBuf, u64)> {
    let manifest = Manifest::load(base).map_err(qemu_failed)?;
    Ok((base.join(&manifest.disk), gib(spec.size_gb).max(manifest.virtual_size_bytes)))
}

/// Whether a base is there, which is young from then on.
pub(super) fn is_whole(base: &Path) -> bool {
    notes::make_young(base);
    base.join(image::MANIFEST).is_file()
}

/// Removes bases that no disk of a data folder builds on, nor a captured boot.
fn forget(data: &Path, bases: &Path) -> io::Result<()> {
    let used = used(data, bases)?;
    for entry in entries(bases)? {
        let age = entry.metadata().and_then(|m| m.modified()).ok().and_then(|at| at.elapsed().ok());
        if !used.contains(&*entry.file_name().to_string_lossy()) && age.is_some_and(|age| age > YOUNG) {
            tracing::info!(base = %entry.file_name().to_string_lossy(), "removing a base that no disk builds on");
            // Another try comes with the next search.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

/// The names of the bases that anything builds on.
fn used(data: &Path, bases: &Path) -> io::Result<HashSet<String>> {
    // What was set aside needs what it builds on, to be put back.
    let days = entries(&data.join(lost::FOLDER))?.into_iter().map(|day| day.path());
    let mut next: Vec<String> = Boots::new(data).bases().collect();
    for folder in days.chain([data.to_path_buf()]).flat_map(|at| ["disks", "snapshots"].map(|kind| at.join(kind))) {
        for entry in entries(&folder)? {
            if is_note(&entry.file_name().to_string_lossy()) {
                next.extend(notes::read(&entry.path())?);
            }
        }
    }
    let mut used = HashSet::new();
    while let Some(name) = next.pop() {
        next.extend(notes::read(&bases.join(&name).join(BELOW))?.filter(|below| !used.contains(below)));
        used.insert(name);
    }
    Ok(used)
}

/// Whether a file names a base: one that was set aside twice has something behind its name.
fn is_note(name: &str) -> bool {
    let mut parts = name.split('.').skip(1);
    parts.next() == Some("base") && parts.next() != Some("tmp")
}

/// What is in a folder; nothing where there is none.
fn entries(folder: &Path) -> io::Result<Vec<DirEntry>> {
    match std::fs::read_dir(folder) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(Vec::new()),
        Err(error) => Err(error),
        Ok(entries) => entries.collect(),
    }
}

/// The same file under another name, which may be there already.
pub(super) fn link(from: &Path, to: &Path) -> Result<()> {
    match std::fs::hard_link(from, to) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(transient(e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

    use super::*;

    /// A data folder whose bases are old, one of them named by nothing.
    fn data() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for base in ["bases/above", "bases/below", "bases/unused", "bases/kept", "boots/boot"] {
            std::fs::create_dir_all(dir.path().join(base)).unwrap();
        }
        std::fs::create_dir(dir.path().join("disks")).unwrap();
        std::fs::create_dir_all(dir.path().join("lost/2026-03-01/disks")).unwrap();
        notes::write(&dir.path().join("bases/above").join(BELOW), b"below").unwrap();
        notes::write(&dir.path().join("disks/one.base"), b"above").unwrap();
        std::fs::write(dir.path().join("lost/2026-03-01/disks/two.base.again"), "kept").unwrap();
        let old = Timespec { tv_sec: 1, tv_nsec: 0 };
        for base in entries(&dir.path().join("bases")).unwrap() {
            let times = Timestamps { last_access: old, last_modification: old };
            utimensat(CWD, base.path(), &times, AtFlags::empty()).unwrap();
        }
        dir
    }

    fn left(data: &Path) -> Vec<String> {
        let entries = entries(&data.join("bases")).unwrap().into_iter();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_base_goes_that_nothing_names_and_none_that_a_boot_is_of_or_that_was_just_looked_at() {
        let dir = data();
        forget(dir.path(), &dir.path().join("bases")).unwrap();
        assert_eq!(left(dir.path()), ["above", "below", "kept"]);
        let dir = data();
        std::fs::write(dir.path().join("boots/boot/boot.json"), r#"{"base": "unused"}"#).unwrap();
        forget(dir.path(), &dir.path().join("bases")).unwrap();
        assert_eq!(left(dir.path()), ["above", "below", "kept", "unused"]);
        let dir = data();
        assert!(!is_whole(&dir.path().join("bases/unused")));
        forget(dir.path(), &dir.path().join("bases")).unwrap();
        assert_eq!(left(dir.path()), ["above", "below", "kept", "unused"]);
    }

    #[test]
    fn none_goes_where_a_note_cannot_be_read_or_says_nothing() {
        for note in ["disks/three.base", "lost/2026-03-01/disks/three.base", "bases/above/below"] {
            let dir = data();
            std::fs::write(dir.path().join(note), "").unwrap();
            assert!(forget(dir.path(), &dir.path().join("bases")).is_err(), "{note}");
            assert_eq!(left(dir.path()).len(), 4);
            std::fs::remove_file(dir.path().join(note)).unwrap();
            std::fs::create_dir(dir.path().join(note)).unwrap();
            assert!(forget(dir.path(), &dir.path().join("bases")).is_err(), "{note}");
            assert_eq!(left(dir.path()).len(), 4);
        }
    }
}
