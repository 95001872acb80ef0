//! What root disks are cloned from: an image as it was then, or a snapshot, kept for as long as a disk builds on it.
//!
//! A snapshot's file lies on the base that its disk lies on, so its base names that one, and a chain is as long as the
//! generations are: a VM of a snapshot of a VM of a snapshot. Beyond [`LONGEST`] files the next generation begins a chain
//! anew, with a file that has everything.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use berth_domain::ids::{DiskId, DiskSnapshotId};
use berth_qemu::image::Manifest;
use berth_qemu::machine::{Drive, snapshot};
use berth_qemu::{disk, image};

use super::{DiskSpec, QemuEngine, gib};
use crate::error::{qemu_failed, transient};
use crate::{EngineError, Result, fault, lost};

/// Most files that a root disk lies on. Each costs a look where the one above has nothing, and an open file.
const LONGEST: usize = 4;
/// The disk of a base that was made of a snapshot, and the file that names the base which that lies on.
const DISK: &str = "disk.qcow2";
const BELOW: &str = "below";
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

    /// The folder a root disk is cloned from: the image as it is now, kept for as long as it is needed.
    pub(super) async fn base(&self, image: &str) -> Result<PathBuf> {
        let from = self.images_dir().join(image);
        let manifest = Manifest::load(&from).map_err(qemu_failed)?;
        self.integrity.check(&from, &manifest).await?;
        let to = self.bases().join(format!("{image}-{}", manifest.version));
        if to.join(image::MANIFEST).is_file() {
            return Ok(to);
        }
        std::fs::create_dir_all(&to).map_err(transient)?;
        // The manifest comes last: where it is, the folder is whole.
        for name in manifest.files().into_iter().chain([image::MANIFEST]) {
            link(&from.join(name), &to.join(name))?;
        }
        Ok(to)
    }

    /// Removes bases that no disk builds on. A young one may belong to a clone that is being made.
    pub(super) fn forget_bases(&self) {
        let entries = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten();
        // What was set aside needs what it builds on, to be put back.
        let lost = lost::of_every_day(&self.settings.host.data)
            .flat_map(|day| ["disks", "snapshots"].map(|kind| entries(day.join(kind))).into_iter().flatten());
        let all = entries(self.disks()).chain(entries(self.snapshots())).chain(lost);
        let notes = all.filter(|e| e.path().extension().is_some_and(|x| x == "base"));
        let mut next: Vec<String> = notes.filter_map(|e| note(&e.path())).collect();
        let mut used = HashSet::new();
        while let Some(name) = next.pop() {
            next.extend(note(&self.bases().join(&name).join(BELOW)).filter(|below| !used.contains(below)));
            used.insert(name);
        }
        for entry in entries(self.bases()) {
            let age = entry.metadata().and_then(|m| m.modified()).ok().and_then(|at| at.elapsed().ok());
            if !used.contains(&*entry.file_name().to_string_lossy()) && age.is_some_and(|age| age > YOUNG) {
                tracing::info!(base = %entry.file_name().to_string_lossy(), "removing a base that no disk builds on");
                // Another try comes with the next search.
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }

    /// The folder that a root disk was cloned from.
    pub(super) fn base_of(&self, disk: DiskId) -> Result<PathBuf> {
        let name = note(&self.base_note(disk)).ok_or_else(|| {
            EngineError::Permanent("the root disk is not whole; delete the VM and create it again".into())
        })?;
        Ok(self.bases().join(name))
    }

    fn bases(&self) -> PathBuf {
        self.settings.host.data.join("bases")
    }

    /// The files that a clone of a base lies on, the nearest first.
    pub(super) fn chain(&self, base: &Path) -> Result<Vec<PathBuf>> {
        let (mut files, mut base) = (Vec::new(), base.to_owned());
        while files.len() <= LONGEST {
            files.push(base.join(Manifest::load(&base).map_err(qemu_failed)?.disk));
            match note(&base.join(BELOW)) {
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
        if to.join(image::MANIFEST).is_file() {
            return Ok(to);
        }
        let gone = || EngineError::Permanent("the snapshot is not there any more".into());
        let below = note(&self.snapshot_note(id)).filter(|_| file.is_file()).ok_or_else(gone)?;
        let from = self.bases().join(&below);
        let mut manifest = Manifest::load(&from).map_err(qemu_failed)?;
        let drive = Drive { path: file, format: "qcow2", bases: self.chain(&from)?, serial: String::new() };
        std::fs::create_dir_all(&to).map_err(transient)?;
        for name in manifest.files().into_iter().filter(|name| *name != manifest.disk) {
            link(&from.join(name), &to.join(name))?;
        }
        if drive.bases.len() < LONGEST {
            link(&drive.path, &to.join(DISK))?;
            std::fs::write(to.join(BELOW), &below).map_err(transient)?;
        } else {
            let (half, whole) = (to.join("half"), to.join(DISK));
            self.require_room(&drive)?;
            disk::remove(&half).await.map_err(qemu_failed)?;
            snapshot::flatten(&drive, &half).await.map_err(qemu_failed)?;
            std::fs::rename(half, whole).map_err(transient)?;
        }
        manifest.sha256.remove(&manifest.disk);
        // Nobody else begins with what its owner has running.
        manifest.waits = false;
        DISK.clone_into(&mut manifest.disk);
        manifest.virtual_size_bytes = snapshot::size(&drive).map_err(qemu_failed)?;
        let text = serde_json::to_vec_pretty(&manifest).map_err(transient)?;
        // Where it is, the folder is whole.
        let half = to.join("half.json");
        std::fs::write(&half, text).map_err(transient)?;
        fault::point("disk.of_snapshot.based").await.map_err(transient)?;
        std::fs::rename(half, to.join(image::MANIFEST)).map_err(transient)?;
        Ok(to)
    }

    /// Clones a root disk from what a base has. One that is there already stays as it is.
    pub(super) async fn clone_root(&self, spec: &DiskSpec, base: PathBuf) -> Result<()> {
        let (below, size) = about_to_clone(spec, &base)?;
        self.write_note(spec.id, &base)?;
        disk::clone_image(&below, &self.disk_file(spec.id, true), size).await.map_err(qemu_failed)
    }

    /// The same, and one that is there already goes. It has its base until then, whatever fails.
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
        std::fs::write(self.base_note(id), name).map_err(transient)
    }
}

/// What a root disk is about to be cloned from, and its size in bytes.
fn about_to_clone(spec: &DiskSpec, base: &Path) -> Result<(PathBuf, u64)> {
    let manifest = Manifest::load(base).map_err(qemu_failed)?;
    Ok((base.join(&manifest.disk), gib(spec.size_gb).max(manifest.virtual_size_bytes)))
}

/// What a file of one line says; none where there is none.
fn note(path: &Path) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The same file under another name, which may be there already.
fn link(from: &Path, to: &Path) -> Result<()> {
    match std::fs::hard_link(from, to) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(transient(e)),
        _ => Ok(()),
    }
}
