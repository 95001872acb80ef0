//! Disks that are made of files which were brought.
//!
//! What such a file's header says of other files is refused before any other program opens it, and a copy of it is made that
//! the format's own program writes: what a machine gets is no header of somebody else.

use std::path::Path;

use berth_qemu::disk;
use berth_qemu::image::Manifest;
use berth_qemu::machine::{self, Drive, snapshot};

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
        let drive = checked(file, brought)?;
        self.require_room(&drive)?;
        let half = self.disks().join(format!("{}.raw.tmp", brought.id));
        disk::remove(&half).await.map_err(qemu_failed)?;
        snapshot::unpack(&drive, &half).await.map_err(qemu_failed)?;
        let raw = Drive { path: half.clone(), format: "raw", ..drive };
        machine::grow_file(&raw, gib(brought.size_gb)).await.map_err(qemu_failed)?;
        fault::point("disk.of_file.unpacked").await.map_err(transient)?;
        tokio::fs::rename(&half, &whole).await.map_err(transient)
    }

    /// Makes a root disk of what a file has, which boots as an image does.
    pub(super) async fn make_root_of_file(&self, file: &Path, brought: &BroughtDisk, image: &str) -> Result<()> {
        std::fs::create_dir_all(self.disks()).map_err(transient)?;
        if self.disk_file(brought.id, true).exists() {
            return Ok(());
        }
        self.require_image(image)?;
        let base = self.base_of_file(&checked(file, brought)?, brought.id, image).await?;
        let source = DiskSource::Image(image.to_owned());
        self.clone_root(&DiskSpec { id: brought.id, source, size_gb: brought.size_gb }, base).await
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

#[cfg(test)]
mod tests {
    use berth_domain::ids::DiskId;
    use berth_qemu::disk::clone_image;
    use berth_qemu::sandbox::create_layer;

    use super::*;

    #[tokio::test]
    async fn a_file_fits_and_lies_on_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let [alone, above, text] = ["alone", "above", "text"].map(|name| dir.path().join(name));
        create_layer(&alone, "", 2 << 30).unwrap();
        clone_image(&alone, &above, 2 << 30).await.unwrap();
        std::fs::write(&text, vec![b'x'; 4096]).unwrap();
        let disk = |size_gb| BroughtDisk { id: DiskId(uuid::Uuid::nil()), size_gb, image: None };
        assert!(checked(&alone, &disk(2)).is_ok());
        let error = checked(&alone, &disk(1)).unwrap_err();
        assert!(error.is_final() && error.to_string().contains("2 GiB"), "{error}");
        for file in [above, text, dir.path().join("none")] {
            assert!(checked(&file, &disk(2)).unwrap_err().is_final(), "{}", file.display());
        }
    }
}
