//! The engine's exports: which files are copied or sent, and whether they stand still.

use std::io::SeekFrom;

use berth_domain::ids::ImageId;
use berth_qemu::image::Manifest;
use berth_qemu::machine;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use super::QemuEngine;
use super::exports::{Copy, Flat, state};
use crate::error::transient;
use crate::vm::{Content, ExportSource, Exported, Part};
use crate::{EngineError, Result};

impl QemuEngine {
    /// A stand-alone file, made or found.
    pub(super) async fn flat(&self, of: &ExportSource) -> Result<Exported> {
        if let ExportSource::Image(id) = of {
            return Ok(self.flat_image(*id).await?.about);
        }
        let copy = self.copy_of(of)?;
        Ok(self.exports.make(copy).await?.about)
    }

    /// A part of a file that was made.
    pub(super) async fn open_flat(&self, of: &ExportSource, sha256: &str, part: Part) -> Result<Box<dyn Content>> {
        let again = || EngineError::Transient("the file is not there any more; ask for it again".into());
        let flat = match of {
            ExportSource::Image(id) => self.flat_image(*id).await?,
            other => self.exports.kept(&self.copy_of(other)?.name).ok_or_else(again)?,
        };
        if flat.about.sha256 != sha256 {
            return Err(again());
        }
        if !flat.about.has(part) {
            return Err(EngineError::Permanent("the file has no such part".into()));
        }
        let mut file = tokio::fs::File::open(&flat.file).await.map_err(transient)?;
        file.seek(SeekFrom::Start(part.from)).await.map_err(transient)?;
        Ok(Box::new(file.take(part.bytes)))
    }

    /// What is copied, where that stands still.
    fn copy_of(&self, of: &ExportSource) -> Result<Copy> {
        let (id, drive) = match of {
            ExportSource::Disk { id, of } => {
                if of.is_some_and(|of| machine::find(&self.machine(of), of.0).is_some()) {
                    return Err(EngineError::Transient("a machine has the disk that runs".into()));
                }
                (id.0, self.any_drive(*id)?)
            }
            ExportSource::Snapshot(id) => (id.0, self.snapshot_drive(*id)?),
            ExportSource::Image(_) => return Err(EngineError::Permanent("an image is not copied".into())),
        };
        let state = state(&drive.path)?;
        let name = format!("{id}-{:x}-{:x}", state.0, state.1);
        Ok(Copy { source: id, name, drive, state, reserve: self.reserve() })
    }

    /// The disk of a project's image, which is a stand-alone file.
    async fn flat_image(&self, id: ImageId) -> Result<Flat> {
        let gone = || EngineError::Permanent("the image is not there any more".into());
        let dir = self.images_dir().join(id.to_string());
        let manifest = Manifest::load(&dir).map_err(|_| gone())?;
        self.integrity.check(&dir, &manifest).await?;
        let sha256 = manifest.sha256.get(&manifest.disk).cloned().ok_or_else(gone)?;
        let file = dir.join(&manifest.disk);
        let bytes = std::fs::metadata(&file).map_err(transient)?.len();
        Ok(Flat { file, about: Exported { bytes, sha256 } })
    }
}

#[cfg(test)]
mod tests;
