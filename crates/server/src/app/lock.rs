//! One service for one data folder: the second refuses to start.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};

/// How often the folder and the addresses are tried: a child that a killed service had just forked holds both until it
/// executes its program.
pub(super) const TRIES: u32 = 60;
/// Between two tries.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// The data folder, held for as long as this lives. The kernel lets go of it with the process.
pub(super) struct DataDir(File);

impl Drop for DataDir {
    fn drop(&mut self) {
        // A child that was forked a moment ago has the file open, too, until it executes its program.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

impl DataDir {
    /// Makes the folder, if need be, and takes it.
    pub(super) async fn take(dir: &Path) -> Result<Self> {
        let cannot = || format!("the data folder {} cannot be used; set BERTH_DATA_DIR to one that can", dir.display());
        DirBuilder::new().recursive(true).mode(0o700).create(dir).with_context(cannot)?;
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(dir.join("lock"))
            .with_context(cannot)?;
        for _ in 0..TRIES {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(file)),
                Err(rustix::io::Errno::WOULDBLOCK) => tokio::time::sleep(PAUSE).await,
                Err(error) => return Err(error).with_context(cannot),
            }
        }
        bail!(
            "another service runs on the data folder {}; stop it with script/stop, or set BERTH_DATA_DIR to another folder",
            dir.display()
        )
    }
}
