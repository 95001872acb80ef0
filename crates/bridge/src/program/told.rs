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
    read: Mutex<(Version, Arc<Wanted>)>,
}

/// What tells one version of a file from another that replaced it.
type Version = (u64, i64, u64, i64);

impl Told {
    /// Opens the folder that this process works in.
    pub(super) fn open() -> io::Result<Self> {
        let folder = openat(CWD, ".", OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let read = Mutex::new(read(&folder)?);
        Ok(Self { folder, read })
    }

    /// What is wanted now; what was wanted before where that cannot be read.
    pub(super) fn now(&self) -> Arc<Wanted> {
        let mut known = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = statat(&self.folder, WANTED, AtFlags::empty()).is_ok_and(|stat| version(&stat) == known.0);
        if !is_known {
            match read(&self.folder) {
                Ok(read) => *known = read,
                Err(error) => eprintln!("berth-bridge: what is wanted cannot be read: {error}"),
            }
        }
        Arc::clone(&known.1)
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
