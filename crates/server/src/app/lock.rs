//! One service for one data folder: a second one refuses to start.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};

/// How often the service tries to take the folder and the addresses: a child that a killed service had just forked
/// holds both until it executes its program.
pub(super) const TRIES: u32 = 60;
/// Pause between two tries.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// Makes the data folder if it is missing; nobody else may look into it.
///
/// # Errors
/// It cannot be made.
pub(super) fn make_folder(dir: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).with_context(cannot(dir))
}

fn cannot(dir: &Path) -> impl Fn() -> String {
    move || format!("the data folder {} cannot be used; set BERTH_DATA_DIR to one that can", dir.display())
}

/// The data folder, locked while this lives. The kernel releases the lock when the process ends.
pub(super) struct DataDir(File);

impl Drop for DataDir {
    fn drop(&mut self) {
        // A child forked a moment ago shares the open file until it executes its program, so closing alone would not
        // unlock.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

impl DataDir {
    /// Makes the folder if it is missing, and locks it.
    pub(super) async fn take(dir: &Path) -> Result<Self> {
        make_folder(dir)?;
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(dir.join("lock"))
            .with_context(cannot(dir))?;
        for _ in 0..TRIES {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(file)),
                Err(rustix::io::Errno::WOULDBLOCK) => tokio::time::sleep(PAUSE).await,
                Err(error) => return Err(error).with_context(cannot(dir)),
            }
        }
        bail!(
            "another service runs on the data folder {}; stop it with script/stop, or set BERTH_DATA_DIR to another folder",
            dir.display()
        )
    }
}
