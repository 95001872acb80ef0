//! The bridge's folder: what is wanted, written before it is done, and the lock of whoever does it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::error::{Error, Result};
use crate::machine::Wanted;

/// What is wanted. It is replaced as a whole.
pub(crate) const WANTED: &str = "bridge.json";
/// The same while it is written.
const NEW: &str = "bridge.json.new";
const LOCK: &str = "lock";
/// How long a program may take that somebody began who is gone: a thousand machines' rules are 0.7 s.
const PATIENCE: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(20);
/// Others read what is wanted: the program that answers guests is another user.
const READABLE: u32 = 0o644;
const OPEN: u32 = 0o755;

#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Held as long as this is.
    pub(crate) lock: File,
}

impl Folder {
    /// Makes it where it is not there, and waits for whoever has it.
    pub(crate) async fn open(path: &Path) -> Result<Self> {
        let failed = || Error::file(format!("the folder of the bridge, {}", path.display()));
        fs::DirBuilder::new().recursive(true).mode(OPEN).create(path).map_err(failed())?;
        fs::set_permissions(path, fs::Permissions::from_mode(OPEN)).map_err(failed())?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path.join(LOCK));
        let lock = lock.map_err(failed())?;
        let since = Instant::now();
        while flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            if since.elapsed() > PATIENCE {
                let message = format!("another service has the bridge of {}; stop it first", path.display());
                return Err(Error::Missing(message));
            }
            tokio::time::sleep(TICK).await;
        }
        Ok(Self { path: path.to_owned(), lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What was wanted last.
    pub(crate) fn read(&self) -> Result<Option<Wanted>> {
        peek(&self.path)
    }

    /// Notes what is wanted now, so that it survives whatever happens to the host.
    pub(crate) fn write(&self, wanted: &Wanted) -> Result<()> {
        let (new, path) = (self.path.join(NEW), self.path.join(WANTED));
        let write = || {
            let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(READABLE).open(&new)?;
            // Whatever files of the service are for others by default.
            file.set_permissions(fs::Permissions::from_mode(READABLE))?;
            serde_json::to_writer(io::BufWriter::new(&file), wanted)?;
            file.flush()?;
            file.sync_data()?;
            fs::rename(&new, &path)
        };
        write().map_err(Error::file(path.display().to_string()))
    }
}

/// What was wanted last, whoever has the folder.
pub(crate) fn peek(folder: &Path) -> Result<Option<Wanted>> {
    let path = folder.join(WANTED);
    let failed = || Error::file(path.display().to_string());
    match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        bytes => parse(&bytes.map_err(failed())?).map(Some).map_err(failed()),
    }
}

pub(crate) fn parse(bytes: &[u8]) -> io::Result<Wanted> {
    Ok(serde_json::from_slice(bytes)?)
}
