//! The files that a `COPY` takes, and the archive of them.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;

use berth_domain::sandbox::dockerfile::pattern::Pattern;
use berth_domain::sandbox::dockerfile::plan::Copy;
use tar::{Builder, EntryType, Header};

use super::archive::read;
use super::nested::each_member;
use super::tree::{Content, Node, Tree};
use crate::members::{Kind, Member};
use crate::names::Names;
use crate::{Budget, Error, Result};

/// The sources with their destinations.
#[derive(Debug, Default)]
pub struct Selection {
    /// The result at each path, relative to `/`.
    at: BTreeMap<String, Node>,
    names: Names,
}

/// Finds what a `COPY` takes from a tree.
pub fn resolve(tree: &Tree, copy: &Copy, directory: bool) -> Result<Selection> {
    let mut selection = Selection::default();
    let to = copy.to.trim_matches('/');
    let into = is_directory(copy, directory);
    let mut files = copy.inline.len();
    for source in &copy.sources {
        let pattern = Pattern::parse(source).map_err(Error::invalid)?;
        let found = tree.matching(&pattern);
        if found.is_empty() {
            return Err(missing(source));
        }
        for path in found {
            let real = tree.resolve(&path).ok_or_else(|| missing(&path))?;
            match tree.get(&real) {
                Some(node) if node.content != Content::Directory => {
                    files += 1;
                    let unpacked = copy.extract && matches!(node.content, Content::File { packed: true, .. });
                    let name = path.rsplit('/').next().unwrap_or_default();
                    let target = if into || unpacked { join(to, name) } else { to.to_owned() };
                    selection.put(target, node)?;
                }
                _ => selection.directory(tree, &real, to)?,
            }
        }
    }
    if files > 1 && !into {
        let message = format!("Several files are copied to one; write '{}/', so that it is a directory.", copy.to);
        return Err(Error::Invalid(message));
    }
    Ok(selection)
}

/// Whether the copy goes into a directory, and not to a path of its own.
pub fn is_directory(copy: &Copy, directory: bool) -> bool {
    copy.into || directory || copy.to == "/"
}

fn missing(source: &str) -> Error {
    Error::NotFound(format!(
        "There is no '{source}' among the files that were sent; send it, or take it out of .dockerignore."
    ))
}

fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

impl Selection {
    /// A later entry at a path replaces an earlier one. It counts all the same: many sources for the same paths are
    /// work, too.
    fn put(&mut self, to: String, node: &Node) -> Result<()> {
        self.names.keep(&to)?;
        if let Content::Symlink(target) = &node.content {
            self.names.keep(target)?;
        }
        self.at.insert(to, node.clone());
        Ok(())
    }

    /// Takes the content of a directory, not the directory itself.
    fn directory(&mut self, tree: &Tree, real: &str, to: &str) -> Result<()> {
        if !to.is_empty() && !self.at.contains_key(to) {
            self.put(to.to_owned(), &Node { content: Content::Directory, mode: 0o755, mtime: 0 })?;
        }
        tree.below(real).try_for_each(|(path, node)| self.put(join(to, path), node))
    }
}

/// Writes the archive.
pub struct Writer<'a> {
    builder: Builder<&'a mut dyn Write>,
    budget: &'a Budget,
}

impl<'a> Writer<'a> {
    /// A writer whose files may have as many bytes as the budget.
    pub fn new(out: &'a mut dyn Write, budget: &'a Budget) -> Self {
        Self { builder: Builder::new(out), budget }
    }

    /// Writes directories, links and the files inside the Dockerfile first, then files in the order of the archive.
    pub fn write(mut self, copy: &Copy, into: bool, selection: Selection, archive: Option<&Path>) -> Result<()> {
        let mut wanted: BTreeMap<usize, Vec<(String, Node)>> = BTreeMap::new();
        for (to, node) in selection.at {
            match &node.content {
                Content::Directory => self.member(EntryType::Directory, &to, &node, 0, &mut io::empty())?,
                Content::Symlink(target) => self.link(EntryType::Symlink, &to, target, &node)?,
                Content::File { ordinal, .. } => wanted.entry(*ordinal).or_default().push((to, node)),
            }
        }
        self.inline(copy, into)?;
        if let Some(archive) = archive.filter(|_| !wanted.is_empty()) {
            // The first reading kept within its budget, so this one does, too.
            read(archive, &Budget::new(u64::MAX), |member, content| {
                let places = wanted.remove(&member.ordinal).unwrap_or_default();
                self.file(copy, &places, content)
            })?;
        }
        if !wanted.is_empty() {
            return Err(Error::invalid("The archive changed while it was read; send it again."));
        }
        Ok(self.builder.into_inner()?.flush()?)
    }

    fn inline(&mut self, copy: &Copy, into: bool) -> Result<()> {
        let to = copy.to.trim_matches('/');
        for file in &copy.inline {
            let path = if into { join(to, &file.name) } else { to.to_owned() };
            let node = Node { content: Content::Directory, mode: 0o644, mtime: 0 };
            let bytes = file.content.as_bytes();
            self.member(EntryType::Regular, &path, &node, bytes.len() as u64, &mut &bytes[..])?;
        }
        Ok(())
    }

    /// Writes a file to its first destination, and hard links for the others, because the content can be read only
    /// once. An archive to unpack has one destination, whatever its name.
    fn file(&mut self, copy: &Copy, places: &[(String, Node)], content: &mut dyn Read) -> Result<()> {
        let [(first, node), others @ ..] = places else { return Ok(()) };
        let Content::File { size, packed, .. } = &node.content else { return Ok(()) };
        if copy.extract && *packed {
            let name = first.rsplit('/').next().unwrap_or_default();
            let (root, budget) = (copy.to.trim_matches('/'), self.budget);
            return each_member(name, content, budget, |member, content| self.unpacked(root, member, content));
        }
        self.budget.spend(*size)?;
        self.member(EntryType::Regular, first, node, *size, content)?;
        others.iter().try_for_each(|(to, node)| self.link(EntryType::Link, to, first, node))
    }

    /// A member of an unpacked archive keeps its owner.
    fn unpacked(&mut self, root: &str, member: Member, content: &mut dyn Read) -> Result<()> {
        if member.path.is_empty() {
            return Ok(());
        }
        let path = join(root, &member.path);
        let mut header = header(EntryType::Regular, member.mode, member.mtime, 0);
        header.set_uid(member.owner.0);
        header.set_gid(member.owner.1);
        match member.kind {
            Kind::File => {
                header.set_size(member.size);
                self.append(&mut header, &path, content)
            }
            Kind::Directory => {
                header.set_entry_type(EntryType::Directory);
                self.append(&mut header, &path, &mut io::empty())
            }
            Kind::Symlink(target) => {
                header.set_entry_type(EntryType::Symlink);
                self.append_link(&mut header, &path, &target)
            }
            Kind::Link(target) => {
                header.set_entry_type(EntryType::Link);
                self.append_link(&mut header, &path, &join(root, &target))
            }
            Kind::Other => Ok(()),
        }
    }

    fn link(&mut self, kind: EntryType, to: &str, target: &str, node: &Node) -> Result<()> {
        self.append_link(&mut header(kind, node.mode, node.mtime, 0), to, target)
    }

    fn member(&mut self, kind: EntryType, to: &str, node: &Node, size: u64, content: &mut dyn Read) -> Result<()> {
        self.append(&mut header(kind, node.mode, node.mtime, size), to, content)
    }

    fn append(&mut self, header: &mut Header, path: &str, content: &mut dyn Read) -> Result<()> {
        self.builder.append_data(header, path, content).map_err(Error::from_stream)
    }

    fn append_link(&mut self, header: &mut Header, path: &str, target: &str) -> Result<()> {
        self.builder.append_link(header, path, target).map_err(Error::from_stream)
    }
}

fn header(kind: EntryType, mode: u32, mtime: u64, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(mtime);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(size);
    header
}
