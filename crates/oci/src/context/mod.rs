//! The files sent with a Dockerfile, and the parts of them that a `COPY` takes.
//!
//! The context reads the archive once to learn its members, and once more for each `COPY`, which writes the members
//! that it takes to a new archive, with their destinations as names. No member ever becomes a file on this machine.

mod archive;
mod nested;
mod select;
mod tree;

use std::io::Read;
use std::path::{Path, PathBuf};

use berth_domain::sandbox::dockerfile::pattern::Ignore;
use berth_domain::sandbox::dockerfile::plan::Copy;

use crate::members::{Kind, Member};
use crate::{Budget, Error, Result};
use archive::read;
use tree::{Content, Tree};

/// Most bytes of a `.dockerignore`.
const MAX_IGNORE: u64 = 256 * 1024;
/// Bytes of a file that show whether it is an archive.
const START: usize = 16 * 1024;

/// The files sent with a Dockerfile.
pub struct Context {
    archive: Option<PathBuf>,
    tree: Tree,
    most: u64,
}

impl Context {
    /// No files.
    pub fn empty() -> Self {
        Self { archive: None, tree: Tree::default(), most: 0 }
    }

    /// Reads an archive, which may be compressed with gzip or zstd, and leaves out what its `.dockerignore` excludes.
    /// Decompressed, it may have `most` bytes.
    ///
    /// # Errors
    /// The archive is not tar, damaged, or too large; or a member's path is absolute, has `..` or is too deep.
    pub fn open(archive: &Path, most: u64) -> Result<Self> {
        let budget = Budget::new(most);
        let mut tree = Tree::default();
        let mut ignore = None;
        read(archive, &budget, |member, content| {
            if member.path == ".dockerignore" && member.kind == Kind::File {
                let mut text = Vec::new();
                content.take(MAX_IGNORE + 1).read_to_end(&mut text).map_err(Error::from_stream)?;
                ignore = Some(rules(&text)?);
                let content = Content::File { ordinal: member.ordinal, size: member.size, packed: false };
                return tree.add(content, member);
            }
            let content = match &member.kind {
                Kind::File => scan(&member, content)?,
                Kind::Directory => Content::Directory,
                Kind::Symlink(target) => Content::Symlink(target.clone()),
                Kind::Link(target) => tree.file(target).ok_or_else(|| {
                    Error::invalid(format!("The link {:?} in the archive leads nowhere.", member.path))
                })?,
                Kind::Other => return Ok(()),
            };
            tree.add(content, member)
        })?;
        if let Some(ignore) = ignore {
            tree.leave_out(|path| ignore.leaves_out(path));
        }
        Ok(Self { archive: Some(archive.to_owned()), tree, most })
    }

    /// Checks that everything that a `COPY` takes exists.
    ///
    /// # Errors
    /// A named file does not exist.
    pub fn look_for(&self, copy: &Copy) -> Result<()> {
        select::resolve(&self.tree, copy, true).map(drop)
    }

    /// Writes an archive of everything that a `COPY` takes, with the destination of each member as its name, relative
    /// to `/`. `directory` says whether the destination is already a directory. Owners are root, and permissions those
    /// of the context: `--chown` and `--chmod` are for the side that unpacks, which knows the accounts. A file with
    /// several destinations is written once; the others are hard links.
    ///
    /// # Errors
    /// A named file does not exist, several files would go to a destination that is no directory, or they are too much.
    pub fn select(&self, copy: &Copy, directory: bool, out: &mut dyn std::io::Write) -> Result<()> {
        let selection = select::resolve(&self.tree, copy, directory)?;
        let (budget, into) = (Budget::new(self.most), select::is_directory(copy, directory));
        select::Writer::new(out, &budget).write(copy, into, selection, self.archive.as_deref())
    }
}

fn rules(text: &[u8]) -> Result<Ignore> {
    if text.len() as u64 > MAX_IGNORE {
        return Err(Error::TooLarge(format!("A .dockerignore may have {MAX_IGNORE} bytes at most.")));
    }
    let text = std::str::from_utf8(text).map_err(|_| Error::invalid("The .dockerignore is not UTF-8."))?;
    Ignore::parse(text).map_err(Error::invalid)
}

/// Reads the beginning of a file, which shows whether it is an archive.
fn scan(member: &Member, content: &mut dyn Read) -> Result<Content> {
    let mut start = Vec::with_capacity(START);
    content.take(START as u64).read_to_end(&mut start).map_err(Error::from_stream)?;
    let packed = nested::is_archive(&start);
    Ok(Content::File { ordinal: member.ordinal, size: member.size, packed })
}
