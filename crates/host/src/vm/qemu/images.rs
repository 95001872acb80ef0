//! Images: those that are taken in, and those that projects make of their disks. These are folders beside the platform's, with a
//! disk that lies on no other.
//!
//! A project's image is made of a snapshot, whose file does not change, in `images/.<id>.making/`, and gets its name when all of it is
//! there. It boots as the image does that its disk was cloned from: the kernel and the initrd are that image's own, by hard
//! links, as the modules on the disk belong to them. Its manifest says that a row owns it, so that nobody takes it for one of
//! the platform's.

use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_domain::ids::ImageId;
use berth_qemu::foreign::Bounds;
use berth_qemu::image::{self, MANIFEST, Manifest};
use berth_qemu::machine::{self, Drive, snapshot};

use super::brought::untaken;
use super::exports::digest;
use super::{QemuEngine, STAGING, bases, gib, notes, room};
use crate::error::{qemu_failed, transient};
use crate::vm::{ImageImport, ImageInfo, ImageOfSnapshot};
use crate::{EngineError, Result, fault, lost};

/// How the folder of an image ends that is being made; a dot begins it.
const MAKING: &str = ".making";

impl QemuEngine {
    fn half_image(&self, id: &str) -> PathBuf {
        self.images_dir().join(format!(".{id}{MAKING}"))
    }

    /// The platform's images that are there.
    pub(super) fn platforms_images(&self) -> Vec<ImageInfo> {
        let all = image::list(&self.images_dir()).into_iter();
        all.filter(|(_, manifest)| !manifest.is_owned).map(|(_, manifest)| info(manifest)).collect()
    }

    /// An image that is whole.
    pub(super) async fn whole_image(&self, id: &str) -> Option<ImageInfo> {
        let dir = self.images_dir().join(id);
        let Ok(manifest) = Manifest::load(&dir) else { return None };
        let whole = manifest.id == id && self.integrity.check(&dir, &manifest).await.is_ok();
        whole.then(|| info(manifest))
    }

    /// Takes in a foreign image.
    pub(super) async fn take_in(&self, file: &Path, import: &ImageImport) -> Result<ImageInfo> {
        let slot = import.conversion;
        let import = image::Import {
            id: import.id.clone(),
            name: import.name.clone(),
            login_user: import.login_user.clone(),
            sha256: import.sha256.clone(),
            uefi: import.uefi,
            virtual_bytes: gib(self.settings.image_virtual_gb),
        };
        tokio::fs::create_dir_all(self.images_dir()).await.map_err(transient)?;
        let mut bounds = self.bounds_of_foreign(gib(self.settings.image_file_gb), slot);
        // Another file is its own user's, where an administrator names one of the host.
        bounds.user = bounds.user.filter(|_| is_within(file, &self.settings.host.data.join(STAGING)));
        let taken = image::import(file, &self.images_dir(), &import, &bounds).await;
        Ok(info(taken.map_err(|error| untaken(error, "image", bounds.time))?))
    }

    /// What converting what somebody sent may cost, in a slot of those, to a file of at most so many bytes: no more than is
    /// configured, and than there is room for.
    pub(super) fn bounds_of_foreign(&self, file_bytes: u64, slot: u32) -> Bounds {
        Bounds {
            file_bytes,
            kept: (self.settings.host.data.clone(), self.reserve()),
            time: Duration::from_secs(u64::try_from(self.settings.image_seconds).unwrap_or_default()),
            user: self.settings.host.machines.of_conversion(slot),
        }
    }

    /// Makes a project's image of a snapshot of a root disk.
    pub(super) async fn make_image_of(&self, image: &ImageOfSnapshot) -> Result<ImageInfo> {
        let id = image.id.to_string();
        let (half, whole) = (self.half_image(&id), self.images_dir().join(&id));
        if let Ok(manifest) = Manifest::load(&whole) {
            return Ok(info(manifest));
        }
        let base = self.base_below(image.snapshot)?;
        let drive = self.snapshot_drive(image.snapshot)?;
        self.require_room_for_all(&drive)?;
        remove_tree(&half).await?;
        tokio::fs::create_dir_all(&half).await.map_err(transient)?;
        let manifest = self.fill(image, &base, &drive, &half).await?;
        fault::point("image.make.half").await.map_err(transient)?;
        // One without a manifest that can be read is what is being replaced.
        remove_tree(&whole).await?;
        tokio::fs::rename(&half, &whole).await.map_err(transient)?;
        fault::point("image.make.whole").await.map_err(transient)?;
        Ok(info(manifest))
    }

    /// Fills the folder of an image; the manifest comes last.
    async fn fill(&self, image: &ImageOfSnapshot, base: &Path, drive: &Drive, into: &Path) -> Result<Manifest> {
        let mut manifest = Manifest::load(base).map_err(qemu_failed)?;
        for name in manifest.files().into_iter().filter(|name| *name != manifest.disk) {
            bases::link(&base.join(name), &into.join(name))?;
        }
        manifest.sha256.remove(&manifest.disk);
        bases::DISK.clone_into(&mut manifest.disk);
        let file = into.join(&manifest.disk);
        snapshot::flatten(drive, &file).await.map_err(qemu_failed)?;
        fault::point("image.make.copied").await.map_err(transient)?;
        tokio::fs::File::open(&file).await.map_err(transient)?.sync_all().await.map_err(transient)?;
        let sha256 = digest(&file).await?.sha256;
        manifest.virtual_size_bytes = machine::size(drive).map_err(qemu_failed)?;
        (manifest.id, manifest.name) = (image.id.to_string(), image.name.clone());
        // Nobody else begins with what its owner has running.
        (manifest.is_owned, manifest.waits) = (true, false);
        manifest.version.clone_from(&sha256);
        manifest.sha256.insert(manifest.disk.clone(), sha256);
        let text = serde_json::to_vec_pretty(&manifest).map_err(transient)?;
        notes::write(&into.join(MANIFEST), &text).map_err(transient)?;
        Ok(manifest)
    }

    /// Refuses to copy a disk with all that it lies on where the host has no room for that.
    fn require_room_for_all(&self, drive: &Drive) -> Result<()> {
        if room::is_left(&self.settings.host.data, room::taken_by_all(drive)?, self.reserve())? {
            return Ok(());
        }
        Err(EngineError::NoCapacity("the host's disk has no room for an image of the disk".into()))
    }

    /// Removes an image, and what is half made of it.
    pub(super) async fn forget_image(&self, id: &str) -> Result<()> {
        remove_tree(&self.half_image(id)).await?;
        self.end_travels(id).await?;
        remove_tree(&self.images_dir().join(id)).await
    }

    /// Moves a project's image into a folder. What is half made serves nobody.
    pub(super) async fn set_image_aside(&self, id: ImageId, into: &Path) -> Result<()> {
        remove_tree(&self.half_image(&id.to_string())).await?;
        lost::put(&self.images_dir().join(id.to_string()), into).await.map_err(transient)
    }

    /// The images of projects that are there, also those that are not whole.
    pub(super) fn owned_images(&self) -> Vec<ImageId> {
        let entries = std::fs::read_dir(self.images_dir()).into_iter().flatten().flatten();
        let owned = |entry: std::fs::DirEntry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            match name.strip_prefix('.').and_then(|name| name.strip_suffix(MAKING)) {
                Some(id) => id.parse().ok(),
                None => Manifest::load(&entry.path()).ok().filter(|found| found.is_owned)?.id.parse().ok(),
            }
        };
        let mut ids: Vec<ImageId> = entries.filter_map(owned).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

pub(super) fn info(manifest: Manifest) -> ImageInfo {
    ImageInfo {
        id: manifest.id,
        name: manifest.name,
        os: manifest.os,
        version: manifest.version,
        login_user: manifest.login_user,
        virtual_size: i64::try_from(manifest.virtual_size_bytes).unwrap_or(i64::MAX),
        min_memory_mb: i64::try_from(manifest.min_memory_mb).unwrap_or(i64::MAX),
    }
}

pub(super) async fn remove_tree(dir: &Path) -> Result<()> {
    match tokio::fs::remove_dir_all(dir).await {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(transient(e)),
        _ => Ok(()),
    }
}

/// Whether a file lies in a folder, wherever links and `..` lead.
fn is_within(file: &Path, folder: &Path) -> bool {
    let [file, folder] = [file, folder].map(std::fs::canonicalize);
    matches!((file, folder), (Ok(file), Ok(folder)) if file.starts_with(&folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_led_out_of_a_folder_is_not_within() {
        let dir = tempfile::tempdir().unwrap();
        let staging = dir.path().join("staging");
        std::fs::create_dir(&staging).unwrap();
        for file in [staging.join("own"), dir.path().join("others")] {
            std::fs::write(file, "").unwrap();
        }
        std::os::unix::fs::symlink(dir.path().join("others"), staging.join("link")).unwrap();
        assert!(is_within(&staging.join("own"), &staging));
        for file in ["../others", "link", "missing"] {
            assert!(!is_within(&staging.join(file), &staging), "{file}");
        }
    }
}
