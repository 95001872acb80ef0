//! A tar archive on disk, with members that can be read in any order.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::compression::{Compression, Decoder, MAGIC};
use crate::members::{Kind, each};
use crate::names::Names;
use crate::{Error, Result};

/// The most links to follow from one name.
const MAX_HOPS: usize = 16;

/// The archive.
pub struct Archive {
    file: Arc<File>,
    members: BTreeMap<String, Place>,
}

enum Place {
    Content { at: u64, size: u64 },
    Link(String),
}

impl Archive {
    /// Opens an archive. Decompresses a compressed one into a file of its own in `scratch`, which has no name and
    /// vanishes with the archive; it may have `most` bytes.
    pub fn open(path: &Path, scratch: &Path, most: u64) -> Result<Self> {
        let mut file = File::open(path)?;
        let mut start = Vec::new();
        file.by_ref().take(MAGIC as u64).read_to_end(&mut start)?;
        file.seek(SeekFrom::Start(0))?;
        let compression = Compression::of(&start);
        if compression != Compression::None {
            file = expand(compression, file, scratch, most)?;
        }
        let members = places(&file, Names::default())?;
        Ok(Self { file: Arc::new(file), members })
    }

    /// The content of a member and its length.
    pub fn member(&self, name: &str) -> Option<(Section, u64)> {
        let mut name = name;
        for _ in 0..MAX_HOPS {
            match self.members.get(name)? {
                Place::Content { at, size } => {
                    let section = Section { file: self.file.clone(), at: *at, end: at.saturating_add(*size) };
                    return Some((section, *size));
                }
                Place::Link(target) => name = target,
            }
        }
        None
    }
}

fn expand(compression: Compression, file: File, scratch: &Path, most: u64) -> Result<File> {
    let mut out = tempfile::tempfile_in(scratch)?;
    let decoder = Decoder::new(compression, BufReader::new(file)).map_err(Error::from_stream)?;
    let written = io::copy(&mut decoder.take(most.saturating_add(1)), &mut out).map_err(Error::from_stream)?;
    if written > most {
        let message = format!(
            "Without its compression the archive has more than the {most} bytes that there is room for; send a smaller one."
        );
        return Err(Error::TooLarge(message));
    }
    out.seek(SeekFrom::Start(0))?;
    Ok(out)
}

/// The positions of an archive's members.
fn places(file: &File, mut names: Names) -> Result<BTreeMap<String, Place>> {
    let mut members = BTreeMap::new();
    let mut archive = tar::Archive::new(file);
    each(archive.entries_with_seek()?, |member, _| {
        let place = match member.kind {
            Kind::File => Place::Content { at: member.offset, size: member.size },
            Kind::Symlink(target) => Place::Link(beside(&member.path, &target)),
            Kind::Link(target) => Place::Link(target),
            Kind::Directory | Kind::Other => return Ok(()),
        };
        names.keep(&member.path)?;
        if let Place::Link(target) = &place {
            names.keep(target)?;
        }
        members.insert(member.path, place);
        Ok(())
    })?;
    Ok(members)
}

/// The target of a symbolic link; one that leads out of the archive matches no member.
fn beside(path: &str, target: &str) -> String {
    let above = path.rsplit_once('/').map_or("", |(above, _)| above);
    let mut parts: Vec<&str> = Vec::new();
    for part in above.split('/').chain(target.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Part of a file. Sections of one file do not interfere with each other.
pub struct Section {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Read for Section {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let most = left.min(buffer.len());
        let n = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tar::{Builder, EntryType, Header};

    #[test]
    fn names_and_what_links_lead_to_are_bounded() {
        let mut builder = Builder::new(tempfile::tempfile().unwrap());
        let mut header = Header::new_gnu();
        header.set_size(0);
        builder.append_data(&mut header, "d/file", &b""[..]).unwrap();
        header.set_entry_type(EntryType::Symlink);
        builder.append_link(&mut header, "d/link", "file").unwrap();
        let mut file = builder.into_inner().unwrap();
        let mut found = |bytes| {
            file.seek(SeekFrom::Start(0)).unwrap();
            places(&file, Names::within(bytes)).map(|places| places.len())
        };
        let bytes = 3 * (6 + 64);
        assert_eq!(found(bytes).unwrap(), 2);
        assert!(matches!(found(bytes - 1), Err(Error::TooLarge(_))));
    }
}
