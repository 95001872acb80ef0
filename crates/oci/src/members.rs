//! Members of a tar archive, one after another.
//!
//! The `tar` crate reads blocks. This file puts long names and extended headers together itself, because they must be
//! bounded, whatever their sizes claim.

use std::io::{self, Read};

use tar::{Entries, Entry, EntryType, PaxExtensions};

use crate::{Error, MAX_MEMBERS, Result};

/// The most bytes of a name or of an extended header.
const MAX_HEADER: u64 = 64 * 1024;
/// The most bytes of a path, and of the target of a link.
const MAX_PATH: usize = 4095;
/// The most parts of a path. Each may cost an entry for a directory.
const MAX_DEPTH: usize = 64;

/// The kind of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, with its target.
    Symlink(String),
    /// Another name of a member, given by its cleaned path.
    Link(String),
    /// A device, a pipe or something unknown: all users of this skip it.
    Other,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number, counted from 0.
    pub ordinal: usize,
    /// Its path, relative, without `.`, `..` and empty parts; empty for the root.
    pub path: String,
    /// What it is.
    pub kind: Kind,
    /// Bytes of its content.
    pub size: u64,
    /// Position of its content in the archive.
    pub offset: u64,
    /// Its permissions.
    pub mode: u32,
    /// Its owner: user and group.
    pub owner: (u64, u64),
    /// When it was changed, in seconds since 1970.
    pub mtime: u64,
}

/// Calls a function with every member and its content.
pub fn each<R: Read>(
    entries: Entries<'_, R>,
    mut visit: impl FnMut(Member, &mut dyn Read) -> Result<()>,
) -> Result<()> {
    let mut names = Extended::default();
    let mut ordinal = 0;
    for entry in entries.raw(true) {
        let mut entry = entry.map_err(damaged)?;
        match entry.header().entry_type() {
            EntryType::GNULongName => names.path = Some(until_nul(bounded(&mut entry)?)),
            EntryType::GNULongLink => names.link = Some(until_nul(bounded(&mut entry)?)),
            EntryType::XHeader => names.read(&bounded(&mut entry)?)?,
            EntryType::XGlobalHeader => {}
            kind => {
                if ordinal == MAX_MEMBERS {
                    return Err(Error::TooLarge(format!("An archive may have {MAX_MEMBERS} members at most.")));
                }
                let member = member(std::mem::take(&mut names), kind, &entry, ordinal)?;
                visit(member, &mut entry)?;
                ordinal += 1;
            }
        }
    }
    Ok(())
}

/// What extended headers say of the next member.
#[derive(Default)]
struct Extended {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

impl Extended {
    fn read(&mut self, bytes: &[u8]) -> Result<()> {
        for extension in PaxExtensions::new(bytes) {
            let extension = extension.map_err(damaged)?;
            match extension.key_bytes() {
                b"path" => self.path = Some(extension.value_bytes().to_vec()),
                b"linkpath" => self.link = Some(extension.value_bytes().to_vec()),
                b"size" => return Err(Error::TooLarge("The archive has a member of 8 GiB or more.".into())),
                key if key.starts_with(b"GNU.sparse") => return Err(sparse()),
                _ => {}
            }
        }
        Ok(())
    }
}

fn member<R: Read>(names: Extended, kind: EntryType, entry: &Entry<'_, R>, ordinal: usize) -> Result<Member> {
    let path = clean(text(names.path.unwrap_or_else(|| entry.path_bytes().into_owned()))?)?;
    let link = || -> Result<String> {
        let link = names.link.or_else(|| entry.link_name_bytes().map(std::borrow::Cow::into_owned));
        text(link.ok_or_else(|| Error::invalid(format!("The link {path:?} in the archive leads nowhere.")))?)
    };
    let kind = match kind {
        EntryType::Regular | EntryType::Continuous => Kind::File,
        EntryType::Directory => Kind::Directory,
        EntryType::Symlink => Kind::Symlink(short(link()?, &path)?),
        EntryType::Link => Kind::Link(clean(link()?)?),
        EntryType::GNUSparse => return Err(sparse()),
        _ => Kind::Other,
    };
    let header = entry.header();
    let number = |value: io::Result<u64>| value.unwrap_or_default();
    Ok(Member {
        ordinal,
        path,
        kind,
        size: entry.size(),
        offset: entry.raw_file_position(),
        mode: header.mode().unwrap_or(0o644) & 0o7777,
        owner: (number(header.uid()), number(header.gid())),
        mtime: number(header.mtime()),
    })
}

/// A path without `.` and empty parts; refuses absolute paths and `..`, which no honest archive has.
fn clean(path: String) -> Result<String> {
    let refused = |why: &str| Error::invalid(format!("The archive has the member {:?}, {why}.", clip(&path)));
    if path.starts_with('/') {
        return Err(refused("whose path is absolute; pack relative ones, as with 'tar -C FOLDER -c .'"));
    }
    if path.len() > MAX_PATH {
        return Err(refused("whose path is too long"));
    }
    if path.contains('\0') {
        return Err(refused("whose path has a NUL"));
    }
    let parts = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect::<Vec<_>>();
    if parts.contains(&"..") {
        return Err(refused("whose path has '..'; pack from the folder above"));
    }
    if parts.len() > MAX_DEPTH {
        return Err(refused("whose path is too deep; pack from a folder below"));
    }
    Ok(parts.join("/"))
}

/// The target of a symbolic link; refuses one that is too long.
fn short(target: String, path: &str) -> Result<String> {
    if target.len() > MAX_PATH {
        let path = clip(path);
        return Err(Error::invalid(format!("The link {path:?} in the archive leads to a path that is too long.")));
    }
    Ok(target)
}

fn clip(text: &str) -> String {
    text.chars().take(200).collect()
}

fn text(bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|_| Error::invalid("The archive has a member whose name is not UTF-8."))
}

fn sparse() -> Error {
    Error::invalid("The archive has a sparse member; pack without '--sparse'.")
}

fn damaged(error: io::Error) -> Error {
    match Error::from_stream(error) {
        Error::Io(error) if error.raw_os_error().is_none() => {
            Error::invalid(format!("This is not a tar archive, or a damaged one ({error})."))
        }
        other => other,
    }
}

fn bounded<R: Read>(entry: &mut Entry<'_, R>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    entry.take(MAX_HEADER + 1).read_to_end(&mut bytes).map_err(damaged)?;
    if bytes.len() as u64 > MAX_HEADER {
        return Err(Error::TooLarge(format!("The archive has a header of more than {MAX_HEADER} bytes.")));
    }
    Ok(bytes)
}

fn until_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    bytes.truncate(end);
    bytes
}
