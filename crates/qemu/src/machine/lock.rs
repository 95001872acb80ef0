//! Who starts and ends a machine: one at a time.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::at;
use crate::{Error, Result};

/// How long another one may hold it: a launcher takes some 10 ms.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two tries.
const TICK: Duration = Duration::from_millis(2);

/// The right to start or end the machine in a folder: a lock of the folder itself. A launcher that it was shared with
/// keeps it though the service dies, so that a later service waits until it can tell whether there is a machine.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Lock {
    /// Waits for it; none where there is no folder.
    pub(crate) async fn take(dir: &Path) -> Result<Option<Self>> {
        Self::take_within(dir, PATIENCE).await
    }

    /// Waits for it so long; none where there is no folder.
    pub(crate) async fn take_within(dir: &Path, patience: Duration) -> Result<Option<Self>> {
        let folder = match File::open(dir) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            folder => folder.map_err(at("cannot open", dir))?,
        };
        let deadline = Instant::now() + patience;
        loop {
            match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Self(folder))),
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => tokio::time::sleep(TICK).await,
                Err(Errno::WOULDBLOCK) => return Err(Error::Timeout("the launcher of the machine")),
                Err(error) => return Err(at("cannot lock", dir)(error.into())),
            }
        }
    }

    /// The same right for another process, for as long as that one has the descriptor.
    pub(crate) fn share(&self) -> Result<OwnedFd> {
        let copy = self.0.try_clone().map_err(|e| Error::io("cannot share a lock", e))?;
        Ok(copy.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whom_it_was_shared_with_keeps_it() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Lock::take(&dir.path().join("none")).await.unwrap().is_none());
        let lock = Lock::take(dir.path()).await.unwrap().unwrap();
        let shared = lock.share().unwrap();
        drop(lock);
        let second = Lock::take(dir.path());
        tokio::pin!(second);
        let early = tokio::time::timeout(TICK * 5, &mut second).await;
        assert!(early.is_err(), "it was taken though another process holds it");
        drop(shared);
        assert!(second.await.unwrap().is_some());
    }
}
