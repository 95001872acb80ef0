//! Makes, removes and moves files.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use berth_domain::agent::runtime::{Entry, Mkdir, Move, Remove};
use berth_domain::fields::{Fields, Parsed, boolean};
use http::StatusCode;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use serde_json::Value;

use crate::body::{Answer, nothing, placed, reply};
use crate::call::Call;
use crate::error::{Refusal, Result};
use crate::files::Base;
use crate::files::list::entry_at;

/// How deep a tree to remove may be.
const MAX_DEPTH: usize = 2048;

/// Rule of a field: a string. A bad path has an error code of its own.
pub fn path(value: &Value) -> Parsed<String> {
    value.as_str().map(ToOwned::to_owned).ok_or_else(|| "must be a string".to_owned())
}

/// `POST files/mkdir`.
pub async fn mkdir(mut call: Call) -> Result<Answer> {
    let (acting, worker) = call.acting()?;
    let body = call.json().await?;
    let mut fields = Fields::of(&body);
    let parents = fields.optional("parents", boolean).unwrap_or_default();
    let wanted = fields.required("path", path).map(|path| Mkdir { path, parents });
    let wanted = fields.finish(wanted)?;
    let (made, entry) = worker.run(move |base| make(base, &wanted)).await?;
    Ok(placed(made, "files/stat", &entry, &acting.suffix()))
}

fn make(base: &Base, wanted: &Mkdir) -> Result<(bool, Entry)> {
    let path = base.locate_required(&wanted.path)?;
    let root = base.root();
    if wanted.parents && base.open(&path, OFlags::PATH | OFlags::DIRECTORY).is_ok() {
        return Ok((false, entry_at(base, &path)?));
    }
    let (above, name) = match path.split() {
        // The workspace itself exists, and so does the machine's root.
        Err(_) if matches!(path.shown().as_str(), "." | "/") => return Err(Errno::EXIST.into()),
        Err(refusal) => return Err(refusal),
        Ok((above, name)) if wanted.parents => (above.make(root)?, name),
        Ok(_) => path.parent(root)?,
    };
    rustix::fs::mkdirat(&above, name, Mode::from_raw_mode(0o755))?;
    Ok((true, entry_at(base, &path)?))
}

/// `POST files/remove`: removes a link itself, never its target.
pub async fn remove(mut call: Call) -> Result<Answer> {
    let (_, worker) = call.acting()?;
    let body = call.json().await?;
    let mut fields = Fields::of(&body);
    let recursive = fields.optional("recursive", boolean).unwrap_or_default();
    let wanted = fields.required("path", path).map(|path| Remove { path, recursive });
    let wanted = fields.finish(wanted)?;
    let work = move |base: &Base| {
        let path = base.locate_required(&wanted.path)?;
        let (above, name) = path.parent(base.root())?;
        remove_at(above.as_fd(), name.as_bytes(), wanted.recursive)
    };
    worker.run(work).await?;
    Ok(nothing())
}

/// Removes an entry of a directory.
pub fn remove_at(above: BorrowedFd<'_>, name: &[u8], recursive: bool) -> Result<()> {
    match rustix::fs::unlinkat(above, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        other => return Ok(other?),
    }
    match rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY) if recursive => remove_tree(above, name),
        other => Ok(other?),
    }
}

/// Removes a directory that is not empty: by handles, so that nothing swapped in meanwhile leads elsewhere.
fn remove_tree(above: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    let enter = |above: BorrowedFd<'_>, name: &[u8]| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(above, name, flags, Mode::empty())
    };
    let mut stack: Vec<(OwnedFd, Vec<u8>)> = vec![(enter(above, name)?, name.to_vec())];
    while let Some((directory, _)) = stack.last() {
        match clear(directory.as_fd())? {
            Some(below) if stack.len() < MAX_DEPTH => {
                let entered = enter(directory.as_fd(), &below);
                match entered {
                    Ok(handle) => stack.push((handle, below)),
                    // It is gone, or no directory any more: the next round shows which.
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Some(_) => return Err(Refusal::new("conflict", "The tree is too deep; remove its inner parts first.")),
            None => {
                let Some((_, name)) = stack.pop() else { break };
                let outer = stack.last().map_or(above, |(directory, _)| directory.as_fd());
                match rustix::fs::unlinkat(outer, &name, AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    Ok(())
}

/// Removes everything from a directory except directories that are not empty; returns the first of those.
fn clear(directory: BorrowedFd<'_>) -> Result<Option<Vec<u8>>> {
    for found in Dir::read_from(directory)? {
        let found = found?;
        let name = found.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        match remove_at(directory, name, false) {
            Ok(()) => {}
            Err(refusal) if refusal.code == "not_empty" => return Ok(Some(name.to_vec())),
            Err(refusal) if refusal.code == "not_found" => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(None)
}

/// `POST files/move`.
pub async fn rename(mut call: Call) -> Result<Answer> {
    let (_, worker) = call.acting()?;
    let body = call.json().await?;
    let mut fields = Fields::of(&body);
    let (from, to) = (fields.required("from", path), fields.required("to", path));
    let overwrite = fields.optional("overwrite", boolean).unwrap_or_default();
    let wanted = from.zip(to).map(|(from, to)| Move { from, to, overwrite });
    let wanted = fields.finish(wanted)?;
    let entry = worker.run(move |base| move_entry(base, &wanted)).await?;
    Ok(reply(StatusCode::OK, &entry))
}

fn move_entry(base: &Base, wanted: &Move) -> Result<Entry> {
    let (from, to) = (base.locate_required(&wanted.from)?, base.locate_required(&wanted.to)?);
    let (from_above, from_name) = from.parent(base.root())?;
    let (to_above, to_name) = to.parent(base.root())?;
    let rename = |flags: RenameFlags| rustix::fs::renameat_with(&from_above, from_name, &to_above, to_name, flags);
    if !wanted.overwrite {
        rename(RenameFlags::NOREPLACE)?;
        return entry_at(base, &to);
    }
    match rename(RenameFlags::empty()) {
        // What cannot be replaced directly swaps places with the source, and is then removed.
        Err(Errno::NOTEMPTY | Errno::EXIST | Errno::ISDIR | Errno::NOTDIR) => {
            rename(RenameFlags::EXCHANGE)?;
            remove_at(from_above.as_fd(), from_name.as_bytes(), true)?;
        }
        other => other?,
    }
    entry_at(base, &to)
}
