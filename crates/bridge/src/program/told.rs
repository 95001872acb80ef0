//! What the program is told, by a file of the bridge's folder.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, fstat, openat, statat};

use crate::folder::{WANTED, parse};
use crate::machine::Wanted;

/// A folder that stays open, whatever lies above it, and what was read there last.
pub(super) struct Told {
    folder: OwnedFd,
    read: Mutex<Read>,
}

struct Read {
    version: Version,
    wanted: Arc<Wanted>,
    /// The version that could not be read, which was said.
    complained: Option<Version>,
}

/// What tells one version of a file from another that replaced it.
type Version = (u64, i64, u64, i64);

impl Told {
    /// Opens the folder that this process works in.
    pub(super) fn open() -> io::Result<Self> {
        let folder = openat(CWD, ".", OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let (version, wanted) = read(&folder)?;
        Ok(Self { folder, read: Mutex::new(Read { version, wanted, complained: None }) })
    }

    /// What is wanted now; what was wanted before where that cannot be read, which is said once.
    pub(super) fn now(&self) -> Arc<Wanted> {
        let mut known = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        // What is not there has a version, too: guests have it asked for as often as they like.
        let found =
            statat(&self.folder, WANTED, AtFlags::empty()).map_or_else(|_| Version::default(), |stat| version(&stat));
        if found != known.version {
            match read(&self.folder) {
                Ok((version, wanted)) => *known = Read { version, wanted, complained: None },
                Err(_) if known.complained == Some(found) => {}
                Err(error) => {
                    known.complained = Some(found);
                    eprintln!("berth-bridge: what is wanted cannot be read: {error}");
                }
            }
        }
        Arc::clone(&known.wanted)
    }
}

fn read(folder: &OwnedFd) -> io::Result<(Version, Arc<Wanted>)> {
    let file = File::from(openat(folder, WANTED, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?);
    let version = version(&fstat(&file)?);
    Ok((version, Arc::new(parse(io::read_to_string(file)?.as_bytes())?)))
}

#[expect(clippy::unnecessary_cast, reason = "their types differ between platforms")]
fn version(stat: &Stat) -> Version {
    (stat.st_ino as u64, stat.st_mtime as i64, stat.st_mtime_nsec as u64, stat.st_size as i64)
}
