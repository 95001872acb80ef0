//! Paths on the disk, resolved as if the disk were all there is.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::accounts::{self, Account};
use crate::agent::Agent;
use crate::error::{Refusal, Result};

/// How often to try a path again that changed while the kernel resolved it.
const TRIES: usize = 64;

/// The disk's root directory.
pub struct Root(OwnedFd);

impl Root {
    /// The disk of a machine; in a test, the workspace.
    pub fn of(agent: &Agent) -> Result<Self> {
        let place = agent.place()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = if agent.machine {
            rustix::fs::open("/", flags, Mode::empty())?
        } else {
            rustix::fs::openat(&place.root, ".", flags, Mode::empty())?
        };
        Ok(Self(root))
    }

    /// Opens a path; its links lead to places on the disk, and never onto another file system.
    pub fn open(&self, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        let path = if path.is_empty() { b"." } else { path };
        for _ in 0..TRIES {
            match rustix::fs::openat2(&self.0, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return other,
            }
        }
        Err(Errno::AGAIN)
    }

    /// Opens a directory, and makes it and its parents where they are missing; calls `made` for each new one.
    pub fn make(&self, path: &[u8], made: &mut dyn FnMut(&OwnedFd) -> Result<()>) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        match self.open(path, flags) {
            Err(Errno::NOENT) => {}
            other => return Ok(other?),
        }
        let mut done = Vec::new();
        for part in parts(path) {
            let above = self.open(&done, flags)?;
            let fresh = match rustix::fs::mkdirat(&above, part, Mode::from_raw_mode(0o755)) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(error) => return Err(error.into()),
            };
            done.extend_from_slice(if done.is_empty() { b"" } else { b"/" });
            done.extend_from_slice(part);
            if fresh {
                made(&self.open(&done, flags)?)?;
            }
        }
        Ok(self.open(path, flags)?)
    }

    /// Looks up an account of the disk: `name[:group]` or numbers.
    pub fn account(&self, text: &str) -> Result<Account> {
        let (passwd, group) = (self.text(b"etc/passwd"), self.text(b"etc/group"));
        Account::resolve(&passwd, &group, text).map_err(|message| Refusal::field("user", message))
    }

    fn text(&self, path: &[u8]) -> String {
        self.open(path, accounts::FLAGS).ok().and_then(accounts::read_open).unwrap_or_default()
    }
}

/// The parts of a path, without empty ones and `.`.
pub fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."))
}
