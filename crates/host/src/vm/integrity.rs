//! Whether an image's files are what they were made as.
//!
//! Files are hashed once for each state they are in (inode, size, time of change), not once for each use.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use berth_qemu::image::Manifest;

use crate::{EngineError, Result};

/// What identifies a state of a file.
type Stamp = (u64, u64, i64, i64);

/// Verdicts on images.
#[derive(Default)]
pub struct Integrity {
    verdicts: Arc<Mutex<HashMap<Vec<Stamp>, bool>>>,
}

impl Integrity {
    /// Compares the files of an image with their hashes.
    pub async fn check(&self, dir: &Path, manifest: &Manifest) -> Result<()> {
        let damaged =
            || EngineError::Permanent(format!("the image '{}' is damaged; build or import it again", manifest.id));
        let stamps = stamps(dir, manifest).map_err(|_| damaged())?;
        let known = self.verdicts().get(&stamps).copied();
        let whole = match known {
            Some(whole) => whole,
            None => self.judge(dir, manifest, stamps).await?,
        };
        if whole { Ok(()) } else { Err(damaged()) }
    }

    /// Whoever asked may leave meanwhile: the verdict is there for the next one.
    async fn judge(&self, dir: &Path, manifest: &Manifest, stamps: Vec<Stamp>) -> Result<bool> {
        let (dir, of, verdicts) = (dir.to_path_buf(), manifest.clone(), self.verdicts.clone());
        let judged = tokio::task::spawn_blocking(move || {
            let outcome = of.verify(&dir);
            if let Err(error) = &outcome {
                tracing::error!(image = of.id, %error, "an image is damaged");
            }
            verdicts.lock().unwrap_or_else(PoisonError::into_inner).insert(stamps, outcome.is_ok());
            outcome.is_ok()
        });
        judged.await.map_err(|e| EngineError::Transient(e.to_string()))
    }

    fn verdicts(&self) -> std::sync::MutexGuard<'_, HashMap<Vec<Stamp>, bool>> {
        self.verdicts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn stamps(dir: &Path, manifest: &Manifest) -> std::io::Result<Vec<Stamp>> {
    let stamp = |name: &&str| {
        let found = std::fs::metadata(dir.join(name))?;
        Ok((found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
    };
    manifest.files().iter().map(stamp).collect()
}
