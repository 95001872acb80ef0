//! What root disks are cloned from: an image as it was then, kept for as long as a disk builds on it.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use berth_domain::ids::DiskId;
use berth_qemu::image::Manifest;
use berth_qemu::{disk, image};

use super::{DiskSpec, QemuEngine, gib};
use crate::error::{qemu_failed, transient};
use crate::{EngineError, Result, lost};

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
    async fn base(&self, image: &str) -> Result<PathBuf> {
        let from = self.images_dir().join(image);
        let manifest = Manifest::load(&from).map_err(qemu_failed)?;
        self.integrity.check(&from, &manifest).await?;
        let to = self.settings.host.data.join("bases").join(format!("{image}-{}", manifest.version));
        if to.join(image::MANIFEST).is_file() {
            return Ok(to);
        }
        std::fs::create_dir_all(&to).map_err(transient)?;
        // The manifest comes last: where it is, the folder is whole.
        for name in manifest.files().into_iter().chain([image::MANIFEST]) {
            match std::fs::hard_link(from.join(name), to.join(name)) {
                Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(transient(e));
                }
                _ => {}
            }
        }
        Ok(to)
    }

    /// Removes bases that no disk builds on. A young one may belong to a clone that is being made.
    pub(super) fn forget_bases(&self) {
        let entries = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten();
        // What was set aside needs what it builds on, to be put back.
        let lost = lost::of_every_day(&self.settings.host.data).flat_map(|day| entries(day.join("disks")));
        let notes = entries(self.disks()).chain(lost).filter(|e| e.path().extension().is_some_and(|x| x == "base"));
        let used: HashSet<String> =
            notes.filter_map(|e| Some(std::fs::read_to_string(e.path()).ok()?.trim().to_owned())).collect();
        for entry in entries(self.settings.host.data.join("bases")) {
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
        let name = std::fs::read_to_string(self.base_note(disk)).map_err(|_| {
            EngineError::Permanent("the root disk is not whole; delete the VM and create it again".into())
        })?;
        Ok(self.settings.host.data.join("bases").join(name.trim()))
    }

    /// Clones a root disk from an image as it is now.
    pub(super) async fn clone_root(&self, spec: &DiskSpec, image: &str) -> Result<()> {
        let base = self.base(image).await?;
        let manifest = Manifest::load(&base).map_err(qemu_failed)?;
        let name = base.file_name().unwrap_or_default().to_string_lossy().into_owned();
        std::fs::write(self.base_note(spec.id), name).map_err(transient)?;
        let size = gib(spec.size_gb).max(manifest.virtual_size_bytes);
        let file = self.disk_file(spec.id, true);
        let is_new = !file.exists();
        disk::clone_image(&base.join(&manifest.disk), &file, size).await.map_err(qemu_failed)?;
        if is_new && self.settings.captured_boots { self.note_fresh(spec.id) } else { Ok(()) }
    }
}
