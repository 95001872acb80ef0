//! Archives of files that a copy takes from the disk.
//!
//! An answer that breaks off gives no reason. So the agent first finds and examines everything that it will pack, and
//! can still refuse; it opens the files again when it writes them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use berth_domain::agent::control::{Pack, absolute};
use berth_domain::agent::error::code;
use berth_domain::fields::{Fields, boolean, text};
use berth_domain::sandbox::dockerfile::pattern::Pattern;
use rustix::fs::{AtFlags, FileType, OFlags, Stat};
use rustix::io::Errno;
use serde_json::Value;
use tar::{Builder, EntryType};

use super::root::Root;
use super::walk::{directory, enter, walk};
use crate::body::Answer;
use crate::call::Call;
use crate::error::{Refusal, Result};
use crate::files::archive::{Out, file, header, packing};
use crate::files::extended::{ATTRIBUTE, MAX_ATTRIBUTES, MAX_HEADER, is_attribute};

/// How deep a tree may be.
const MAX_DEPTH: usize = 256;
const MAX_SOURCES: usize = 1000;
/// The most paths that a copy may take, after expanding its patterns.
const MAX_FOUND: usize = 100_000;
/// The most files with several names that are written as links; beyond that, each name becomes a file of its own.
const MAX_LINKS: usize = 100_000;
/// The most bytes of an attribute's record besides its key and value: the length, a space, `=` and a newline.
const RECORD: usize = 8;
/// How to open files to pack: without waiting for the other end of a pipe.
const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// `POST /control/pack`.
pub async fn pack(call: Call) -> Result<Answer> {
    let agent = call.agent.clone();
    let wanted = parse(&call.json().await?)?;
    let look = move || {
        let root = Root::of(&agent)?;
        let found = find(&root, &wanted, MAX_FOUND)?;
        Ok::<_, Refusal>((root, found))
    };
    let (root, found) = tokio::task::spawn_blocking(look).await.map_err(Refusal::internal)??;
    let (packing, answer) = packing();
    tokio::task::spawn_blocking(move || {
        packing.run(|out| {
            let mut writing = Writing { out, links: Links::default() };
            found.iter().try_for_each(|taken| writing.take(&root, taken))
        });
    });
    Ok(answer)
}

fn parse(body: &Value) -> Result<Pack> {
    let mut fields = Fields::among_others(body);
    let sources = fields.list("sources", MAX_SOURCES, |value| text(value).map(ToOwned::to_owned)).unwrap_or_default();
    let to = fields.required("to", absolute);
    let into = fields.required("into", boolean).unwrap_or_default();
    Ok(fields.finish(to.map(|to| Pack { sources, to, into }))?)
}

/// Something to pack, and its destination.
struct Taken {
    from: String,
    to: PathBuf,
}

/// Finds everything to pack, up to a limit.
fn find(root: &Root, wanted: &Pack, most: usize) -> Result<Vec<Taken>> {
    let to = Path::new(wanted.to.trim_matches('/'));
    let into = wanted.into || to.as_os_str().is_empty();
    let (mut taken, mut files) = (Vec::new(), 0);
    for source in &wanted.sources {
        let pattern = Pattern::parse(source).map_err(|message| Refusal::field("sources", message))?;
        let paths = match pattern.literal() {
            Some(path) => vec![path],
            None => matching(root, &pattern, most.saturating_sub(taken.len()))?,
        };
        if paths.is_empty() {
            return Err(missing(source));
        }
        for from in paths {
            let is_directory = look(root, &from, source)?;
            let name = Path::new(&from).file_name().unwrap_or_default();
            let to = if into && !is_directory { to.join(name) } else { to.to_owned() };
            files += usize::from(!is_directory);
            taken.push(Taken { from, to });
        }
    }
    if files > 1 && !into {
        let message = format!("Several files are copied to one; write '{}/', so that it is a directory.", wanted.to);
        return Err(Refusal::field("to", message));
    }
    Ok(taken)
}

fn missing(source: &str) -> Refusal {
    Refusal::not_found(format!("There is no '{source}' to copy from; check its path."))
}

/// Whether the source is a directory. Refuses what is not there, and a tree that is too deep.
fn look(root: &Root, from: &str, source: &str) -> Result<bool> {
    let handle = match root.open(from.as_bytes(), FLAGS) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Err(missing(source)),
        other => other?,
    };
    if FileType::from_raw_mode(rustix::fs::fstat(&handle)?.st_mode) != FileType::Directory {
        return Ok(false);
    }
    walk(handle, Path::new(""), |above, entry, _, depth| match directory(above, entry)? {
        Some(_) if depth == MAX_DEPTH => {
            let message = format!("'{source}' has directories more than {MAX_DEPTH} deep; copy less of it.");
            Err(Refusal::new(code::CONFLICT, message))
        }
        found => Ok(found),
    })?;
    Ok(true)
}

/// The paths that match a pattern, ordered by name.
fn matching(root: &Root, pattern: &Pattern, most: usize) -> Result<Vec<String>> {
    let (start, deepest) = pattern.within();
    let Ok(top) = root.open(start.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    walk(top, Path::new(&start), |above, entry, path, depth| {
        // Patterns are text, and match only names that are text.
        let Some(path) = path.to_str() else { return Ok(None) };
        if pattern.matches(path) {
            if found.len() == most {
                let message = format!("The sources stand for more than {MAX_FOUND} files; copy a directory instead.");
                return Err(Refusal::new(code::TOO_MANY, message));
            }
            found.push(path.to_owned());
        }
        // A directory that cannot be opened has no matches.
        Ok(if depth < deepest.unwrap_or(MAX_DEPTH) { directory(above, entry).unwrap_or_default() } else { None })
    })?;
    found.sort();
    Ok(found)
}

/// Writes an archive of everything found.
struct Writing<'a> {
    out: &'a mut Builder<Out>,
    links: Links,
}

impl Writing<'_> {
    fn take(&mut self, root: &Root, taken: &Taken) -> io::Result<()> {
        let handle = root.open(taken.from.as_bytes(), FLAGS)?;
        let stat = rustix::fs::fstat(&handle)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                if !taken.to.as_os_str().is_empty() {
                    self.directory(&handle, &stat, &taken.to)?;
                }
                walk(handle, &taken.to, |above, entry, to, depth| {
                    self.entry(above, entry.file_name().to_bytes(), to, depth)
                })
            }
            FileType::RegularFile => self.file(handle, &stat, &taken.to),
            _ => Ok(()),
        }
    }

    /// Writes an entry of a directory; returns its handle if it is a directory itself.
    fn entry(&mut self, above: BorrowedFd<'_>, name: &[u8], to: &Path, depth: usize) -> io::Result<Option<OwnedFd>> {
        let stat = rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let flags = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => OFlags::empty(),
            FileType::Directory => OFlags::DIRECTORY,
            FileType::Symlink => {
                self.links.forget(to);
                let target = rustix::fs::readlinkat(above, name, Vec::new())?;
                let mut header = header(&stat, EntryType::Symlink, 0);
                self.out.append_link(&mut header, to, OsStr::from_bytes(target.to_bytes()))?;
                return Ok(None);
            }
            _ => return Ok(None),
        };
        let handle = match enter(above, name, flags) {
            // A file system mounted there is no part of the disk.
            Err(Errno::XDEV) => return Ok(None),
            other => other?,
        };
        if flags.is_empty() {
            return self.file(handle, &stat, to).map(|()| None);
        }
        if depth == MAX_DEPTH {
            return Err(io::Error::other("the tree became too deep"));
        }
        self.directory(&handle, &stat, to)?;
        Ok(Some(handle))
    }

    fn directory(&mut self, handle: &OwnedFd, stat: &Stat, to: &Path) -> io::Result<()> {
        self.attributes(handle)?;
        let mut header = header(stat, EntryType::Directory, 0);
        self.out.append_data(&mut header, to, io::empty())
    }

    fn file(&mut self, handle: OwnedFd, stat: &Stat, to: &Path) -> io::Result<()> {
        if let Some(first) = self.links.first(stat, to) {
            let mut header = header(stat, EntryType::Link, 0);
            return self.out.append_link(&mut header, to, first);
        }
        self.attributes(&handle)?;
        file(self.out, handle, stat, to)
    }

    fn attributes(&mut self, handle: &OwnedFd) -> io::Result<()> {
        let found = attributes(handle)?;
        self.out.append_pax_extensions(found.iter().map(|(key, value)| (key.as_str(), value.as_slice())))
    }
}

/// The attributes that unpacking accepts, as far as one header can carry them.
fn attributes(handle: &OwnedFd) -> rustix::io::Result<Vec<(String, Vec<u8>)>> {
    let mut names = match rustix::fs::flistxattr_query(handle) {
        // Some file systems have no attributes.
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        length => vec![0_u8; length?],
    };
    let length = rustix::fs::flistxattr(handle, &mut names)?;
    names.truncate(length);
    let (mut found, mut size) = (Vec::new(), 0);
    for name in names.split(|byte| *byte == 0).filter(|name| is_attribute(name)).take(MAX_ATTRIBUTES) {
        // A key is text without `=`, which ends it.
        let Some(name) = std::str::from_utf8(name).ok().filter(|name| !name.contains('=')) else { continue };
        let mut value = vec![0_u8; rustix::fs::fgetxattr_query(handle, name)?];
        let length = rustix::fs::fgetxattr(handle, name, &mut value)?;
        value.truncate(length);
        let key = format!("{ATTRIBUTE}{name}");
        let record = RECORD + key.len() + value.len();
        if size + record <= MAX_HEADER {
            size += record;
            found.push((key, value));
        }
    }
    Ok(found)
}

/// Files with several names that were written already, with the first name of each.
#[derive(Default)]
struct Links {
    names: HashMap<(u64, u64), PathBuf>,
    files: HashMap<PathBuf, (u64, u64)>,
}

impl Links {
    /// The name under which the file was written before and which still belongs to it. Without one, this is the first.
    fn first(&mut self, stat: &Stat, to: &Path) -> Option<PathBuf> {
        self.forget(to);
        let file = (stat.st_dev, stat.st_ino);
        let first = self.names.get(&file).cloned();
        if first.is_none() && stat.st_nlink > 1 && self.names.len() < MAX_LINKS {
            self.names.insert(file, to.to_owned());
            self.files.insert(to.to_owned(), file);
        }
        first
    }

    /// Forgets a name that something else has taken.
    fn forget(&mut self, to: &Path) {
        if let Some(file) = self.files.remove(to) {
            self.names.remove(&file);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::accounts::Account;
    use crate::agent::Agent;
    use crate::boot::place;

    fn disk(folder: &Path) -> Root {
        let agent = Agent::new(false);
        assert!(agent.place.set(Arc::new(place(Account::root(), folder.to_owned()).unwrap())).is_ok());
        Root::of(&agent).unwrap()
    }

    #[test]
    fn all_sources_together_stand_for_so_many_paths() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a1", "a2", "b1", "b2", "c"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let root = disk(folder.path());
        let sources = ["a*", "c", "b*"].map(str::to_owned).to_vec();
        let wanted = Pack { sources, to: "/x".to_owned(), into: true };
        let found = find(&root, &wanted, 5).unwrap();
        assert_eq!(found.iter().map(|taken| taken.from.as_str()).collect::<Vec<_>>(), ["a1", "a2", "c", "b1", "b2"]);
        assert_eq!(found[0].to, Path::new("x/a1"));
        assert_eq!(find(&root, &wanted, 4).err().map(|refusal| refusal.code), Some(code::TOO_MANY));
    }
}
