//! What more is told of an entry, if it is asked for.

use std::os::fd::{AsFd, OwnedFd};

use berth_domain::agent::runtime::{Entry, EntryType, Resolved};
use rustix::fs::{Mode, OFlags, Stat};

use crate::files::Base;
use crate::files::attributes;
use crate::files::beneath::{Located, real};
use crate::files::stat::{Names, kind, mode};

/// What it takes to tell more, read once per answer.
pub struct Details {
    groups: Names,
}

impl Details {
    /// Reads it.
    pub fn read() -> Self {
        Self { groups: Names::read("/etc/group") }
    }

    /// Adds to an entry of a directory.
    pub fn add_in(&self, base: &Base, entry: &mut Entry, stat: &Stat, directory: &OwnedFd, name: &[u8]) {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory.as_fd(), name, flags, Mode::empty()).ok();
        let path = base.locate(&entry.path).ok();
        self.add(base, entry, stat, file.as_ref(), path.as_ref());
    }

    /// Adds to an entry that is open.
    pub fn add(&self, base: &Base, entry: &mut Entry, stat: &Stat, file: Option<&OwnedFd>, path: Option<&Located>) {
        entry.group = Some(self.groups.name(stat.st_gid));
        // A link has no such attributes, and what it leads to is another file.
        let own = file.filter(|_| matches!(entry.kind, EntryType::File | EntryType::Directory));
        entry.attributes = Some(own.map(attributes::read).unwrap_or_default());
        if entry.kind == EntryType::Symlink {
            entry.resolved = path.and_then(|path| resolve(base, path));
        }
    }
}

/// What a link leads to in the end; none if nothing is there.
fn resolve(base: &Base, link: &Located) -> Option<Resolved> {
    let target = base.open(link, OFlags::PATH).ok()?;
    let stat = rustix::fs::fstat(&target).ok()?;
    Some(Resolved { path: real(&target).ok()?, kind: kind(&stat), mode: mode(&stat) })
}
