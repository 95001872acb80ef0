//! Writes a file: whole, or not at all.

use std::os::fd::{AsFd, OwnedFd};

use berth_domain::agent::error::code;
use berth_domain::agent::runtime::Entry;
use http_body_util::BodyExt;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use crate::body::{Answer, placed};
use crate::call::Call;
use crate::error::{Refusal, Result};
use crate::files::beneath::{Located, named, open};
use crate::files::content::CHUNK;
use crate::files::list::entry_at;
use crate::files::{Base, attributes};

/// The bits of a directory in which only an entry's owner removes it, and in which everybody makes one.
const STICKY: u32 = 0o1000;
const WRITABLE_BY_ALL: u32 = 0o002;
/// The bits by which a program runs as its file's owner or group.
const SET_ID: u32 = 0o6000;
/// Links that may follow each other at the end of a path to write.
const MAX_LINKS: usize = 40;

/// `PUT files/content`.
pub async fn write(mut call: Call) -> Result<Answer> {
    let path = call.query.required("path");
    let wanted = Wanted { mode: call.query.mode("mode"), attributes: call.query.beginning("attribute.") };
    let (acting, worker) = call.acting()?;
    let mut upload = worker.run(move |base| Upload::begin(base, &path, &wanted)).await?;
    let mut pending = Vec::new();
    loop {
        let data = match call.body.frame().await {
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            Some(Err(_)) => {
                let message = "The body ended early; the file is as it was before.";
                return Err(Refusal::new(code::INVALID_REQUEST, message));
            }
            None => break,
        };
        pending.extend_from_slice(&data);
        if pending.len() >= CHUNK {
            let bytes = std::mem::take(&mut pending);
            upload = worker.run(move |_| upload.append(&bytes)).await?;
        }
    }
    let (new, entry) = worker.run(move |base| upload.append(&pending)?.finish(base)).await?;
    Ok(placed(new, "files/content", &entry, &acting.suffix()))
}

/// What a file is to have beside its content.
struct Wanted {
    mode: Option<u32>,
    attributes: Vec<(String, String)>,
}

/// A file that has no name until it is complete.
struct Upload {
    file: OwnedFd,
    above: OwnedFd,
    path: Located,
    mode: u32,
    /// Whose the file was that this one replaces.
    owner: Option<(Uid, Gid)>,
    new: bool,
}

impl Upload {
    fn begin(base: &Base, path: &str, wanted: &Wanted) -> Result<Self> {
        let Destination { path, above, old } = destination(base, base.locate_required(path)?)?;
        let file = open(above.as_fd(), ".", OFlags::WRONLY | OFlags::TMPFILE, 0o600)?;
        attributes::set(&file, &wanted.attributes)?;
        let mode = wanted.mode.or(old.as_ref().map(|old| old.st_mode & 0o7777)).unwrap_or(0o644);
        let owner = old.as_ref().map(|old| (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid)));
        Ok(Self { file, above, mode, owner: owner.filter(|_| path.is_machine()), path, new: old.is_none() })
    }

    fn append(self, bytes: &[u8]) -> Result<Self> {
        write_all(&self.file, bytes)?;
        Ok(self)
    }

    /// Names the file, once it is on the disk: a reader sees the old file or the new one, also after a crash.
    fn finish(self, base: &Base) -> Result<(bool, Entry)> {
        let mut mode = self.mode;
        if let Some((uid, gid)) = self.owner {
            // Only root may give a file to somebody else; then it is the writer's, as whom nobody is to run it unasked.
            if rustix::fs::fchown(&self.file, Some(uid), Some(gid)).is_err() {
                mode &= !SET_ID;
            }
        }
        // After the owner, whose change takes some permissions away.
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode))?;
        rustix::fs::fsync(&self.file)?;
        let (_, name) = self.path.split()?;
        match link(&self.file, &self.above, name) {
            Err(Errno::EXIST) => self.replace(name)?,
            other => other?,
        }
        self.tell(name);
        let directory = open(self.above.as_fd(), ".", OFlags::RDONLY | OFlags::DIRECTORY, 0);
        // A directory that the user may write but not read cannot be synced; the file is synced.
        if let Ok(directory) = directory {
            rustix::fs::fsync(&directory)?;
        }
        Ok((self.new, entry_at(base, &self.path)?))
    }

    /// Tells who watches the directory that there is content, as a program's write does: a size that is set anew does.
    fn tell(&self, name: &str) {
        let Ok(named) = open(self.above.as_fd(), name, OFlags::WRONLY | OFlags::NOFOLLOW, 0) else { return };
        let is_it = |a: &Stat, b: &Stat| (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino);
        if let (Ok(own), Ok(there)) = (rustix::fs::fstat(&self.file), rustix::fs::fstat(&named))
            && is_it(&own, &there)
            && own.st_size > 0
        {
            let _ = rustix::fs::ftruncate(&named, own.st_size.unsigned_abs());
        }
    }

    /// Replaces the file of this name.
    fn replace(&self, name: &str) -> Result<()> {
        let temporary = loop {
            let mut random = [0; 8];
            rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
            let temporary = format!(".berth-{:016x}", u64::from_ne_bytes(random));
            match link(&self.file, &self.above, &temporary) {
                Ok(()) => break temporary,
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        };
        rustix::fs::renameat(&self.above, &temporary, &self.above, name).map_err(|error| {
            let _ = rustix::fs::unlinkat(&self.above, &temporary, AtFlags::empty());
            error.into()
        })
    }
}

/// Writes everything.
pub fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(file, bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Where a write goes: the path behind all links, its directory, and the file that is there.
struct Destination {
    path: Located,
    above: OwnedFd,
    old: Option<Stat>,
}

fn destination(base: &Base, mut path: Located) -> Result<Destination> {
    for link in 0..MAX_LINKS {
        if path.as_str().ends_with('/') {
            return Err(Errno::ISDIR.into());
        }
        let (parent, name) = path.split().map_err(|refusal| match path.shown().as_str() {
            "." | "/" => Errno::ISDIR.into(),
            _ => refusal,
        })?;
        let above = parent.make(base.root())?;
        let found = |path: &Located, name: &str| {
            if link == 0 { Ok(path.clone()) } else { path.clone().settled(&above, name) }
        };
        let stat = match rustix::fs::statat(&above, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(Destination { path: found(&path, name)?, above, old: None }),
            other => other?,
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return Ok(Destination { path: found(&path, name)?, above, old: Some(stat) }),
            FileType::Directory => return Err(Errno::ISDIR.into()),
            FileType::Symlink if !follows(&above, &stat)? => return Err(Errno::ACCESS.into()),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&above, name, Vec::new())?;
                path = parent.behind(&above, target.to_str().map_err(|_| Errno::INVAL)?)?;
            }
            _ => return Err(Refusal::new(code::CONFLICT, "There is no regular file at this path.")),
        }
    }
    Err(Errno::LOOP.into())
}

/// Whether a link may be followed, by the kernel's rule for links in directories that everybody may write and nobody may clear
/// (`fs.protected_symlinks`): only its owner's own, and those of who has the directory.
fn follows(above: &OwnedFd, link: &Stat) -> Result<bool> {
    let directory = rustix::fs::fstat(above)?;
    let is_shared = directory.st_mode & (STICKY | WRITABLE_BY_ALL) == STICKY | WRITABLE_BY_ALL;
    // A thread's own identity for files: setting none returns it.
    let own = nix::unistd::setfsuid(nix::unistd::Uid::from_raw(u32::MAX)).as_raw();
    Ok(!is_shared || link.st_uid == own || link.st_uid == directory.st_uid)
}

/// Gives a file without a name an unused one.
fn link(file: &OwnedFd, above: &OwnedFd, name: &str) -> rustix::io::Result<()> {
    rustix::fs::linkat(CWD, named(file), above, name, AtFlags::SYMLINK_FOLLOW)
}
