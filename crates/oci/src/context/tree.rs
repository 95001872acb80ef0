//! The files of a context, by path. Pure.

use std::collections::{BTreeMap, BTreeSet};

use berth_domain::sandbox::dockerfile::pattern::Pattern;

use crate::Result;
use crate::members::Member;
use crate::names::Names;

/// The most links to follow from one path.
const MAX_HOPS: usize = 40;

/// The content at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A file.
    File {
        /// Number of its member in the archive.
        ordinal: usize,
        /// Its bytes.
        size: u64,
        /// Whether it is an archive.
        packed: bool,
    },
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink(String),
}

/// An entry of a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What it is.
    pub content: Content,
    /// Its permissions.
    pub mode: u32,
    /// When it was changed, in seconds since 1970.
    pub mtime: u64,
}

/// The files of a context, by path.
#[derive(Debug, Default)]
pub struct Tree {
    nodes: BTreeMap<String, Node>,
    names: Names,
}

impl Tree {
    /// Adds a member. A later one replaces an earlier one with the same path.
    pub fn add(&mut self, content: Content, member: Member) -> Result<()> {
        if member.path.is_empty() {
            return Ok(());
        }
        let mut above = member.path.as_str();
        // Parent directories need not be members themselves.
        while let Some((parent, _)) = above.rsplit_once('/') {
            above = parent;
            if self.nodes.contains_key(parent) {
                break;
            }
            self.names.keep(parent)?;
            self.nodes.insert(parent.to_owned(), Node { content: Content::Directory, mode: 0o755, mtime: 0 });
        }
        self.names.keep(&member.path)?;
        if let Content::Symlink(target) = &content {
            self.names.keep(target)?;
        }
        self.nodes.insert(member.path, Node { content, mode: member.mode, mtime: member.mtime });
        Ok(())
    }

    /// A file by its path as a member.
    pub fn file(&self, path: &str) -> Option<Content> {
        self.nodes.get(path).map(|node| node.content.clone()).filter(|content| matches!(content, Content::File { .. }))
    }

    /// Removes paths that the caller excludes; asks for each path at most once. A directory stays if something in it
    /// stays.
    pub fn leave_out(&mut self, mut leaves_out: impl FnMut(&str) -> bool) {
        let mut needed = BTreeSet::new();
        let mut kept = Vec::with_capacity(self.nodes.len());
        // In reverse order, the content of a directory comes before it.
        for path in self.nodes.keys().rev() {
            let keep = needed.contains(path.as_str()) || !leaves_out(path);
            if let Some((parent, _)) = path.rsplit_once('/').filter(|_| keep) {
                needed.insert(parent);
            }
            kept.push(keep);
        }
        self.nodes.retain(|_, _| kept.pop().unwrap_or_default());
    }

    /// The entry at a path.
    pub fn get(&self, path: &str) -> Option<&Node> {
        self.nodes.get(path)
    }

    /// The paths that match a pattern; the empty one is the root.
    pub fn matching(&self, pattern: &Pattern) -> Vec<String> {
        if pattern.is_root() {
            return vec![String::new()];
        }
        match pattern.literal() {
            Some(path) => self.resolve(&path).map(|_| path).into_iter().collect(),
            None => self.nodes.keys().filter(|path| pattern.matches(path)).cloned().collect(),
        }
    }

    /// The path after following links, each resolved within the context; none if nothing is there.
    pub fn resolve(&self, path: &str) -> Option<String> {
        let mut left = path.split('/').rev().map(ToOwned::to_owned).collect::<Vec<_>>();
        let mut at: Vec<String> = Vec::new();
        let mut hops = 0;
        while let Some(part) = left.pop() {
            match part.as_str() {
                "" | "." => continue,
                ".." => {
                    at.pop();
                    continue;
                }
                _ => at.push(part),
            }
            match &self.nodes.get(&at.join("/"))?.content {
                Content::Symlink(target) => {
                    hops += 1;
                    if hops > MAX_HOPS {
                        return None;
                    }
                    at.pop();
                    if target.starts_with('/') {
                        at.clear();
                    }
                    left.extend(target.split('/').rev().map(ToOwned::to_owned));
                }
                Content::File { .. } if left.iter().any(|part| !matches!(part.as_str(), "" | ".")) => return None,
                Content::File { .. } | Content::Directory => {}
            }
        }
        Some(at.join("/"))
    }

    /// Everything below a directory, by its path relative to it.
    pub fn below<'a>(&'a self, directory: &str) -> impl Iterator<Item = (&'a str, &'a Node)> {
        let prefix = if directory.is_empty() { String::new() } else { format!("{directory}/") };
        let from = self.nodes.range(prefix.clone()..);
        let length = prefix.len();
        from.take_while(move |(path, _)| path.starts_with(&prefix)).map(move |(path, node)| (&path[length..], node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::members::Kind;
    use berth_domain::sandbox::dockerfile::pattern::Ignore;

    fn member(path: &str) -> Member {
        let (path, kind) = (path.to_owned(), Kind::Other);
        Member { ordinal: 0, path, kind, size: 0, offset: 0, mode: 0o644, owner: (0, 0), mtime: 0 }
    }

    fn tree(paths: &[(&str, Content)]) -> Tree {
        let mut tree = Tree::default();
        for (path, content) in paths {
            tree.add(content.clone(), member(path)).unwrap();
        }
        tree
    }

    fn file() -> Content {
        Content::File { ordinal: 0, size: 0, packed: false }
    }

    fn link(target: &str) -> Content {
        Content::Symlink(target.to_owned())
    }

    #[test]
    fn links_are_resolved_within_the_context() {
        let tree = tree(&[
            ("d/f", file()),
            ("up", link("../../d")),
            ("abs", link("/d/f")),
            ("d/l", link("../up/f")),
            ("loop", link("loop")),
            ("gone", link("x")),
        ]);
        for (path, leads) in [("d/f", "d/f"), ("up", "d"), ("up/f", "d/f"), ("abs", "d/f"), ("d/l", "d/f"), ("", "")] {
            assert_eq!(tree.resolve(path).as_deref(), Some(leads), "{path}");
        }
        for path in ["loop", "gone", "d/f/x", "none"] {
            assert_eq!(tree.resolve(path), None, "{path}");
        }
    }

    #[test]
    fn what_is_left_out_goes_but_for_what_is_kept_in_it() {
        let mut tree = tree(&[("a/b", file()), ("a/c", file()), ("n/x/y", file()), ("z.md", file())]);
        let ignore = Ignore::parse("a\n!a/c\nn\n*.md").unwrap();
        let mut asked = Vec::new();
        tree.leave_out(|path| {
            asked.push(path.to_owned());
            ignore.leaves_out(path)
        });
        asked.sort();
        // A directory whose content stays is not asked for.
        assert_eq!(asked, ["a/b", "a/c", "n", "n/x", "n/x/y", "z.md"]);
        assert_eq!(tree.below("").map(|(path, _)| path).collect::<Vec<_>>(), ["a", "a/c"]);
        assert_eq!(tree.matching(&Pattern::parse("*/c").unwrap()), ["a/c"]);
    }

    #[test]
    fn names_are_bounded_with_the_directories_above_them_and_where_links_lead() {
        let add = |bytes: usize, path: &str, content: Content| {
            let mut tree = Tree { names: Names::within(bytes), ..Tree::default() };
            tree.add(content, member(path))
        };
        for (path, content, bytes) in
            [("a/bc/def", file(), (1 + 64) + (4 + 64) + (8 + 64)), ("a", link("target"), (1 + 64) + (6 + 64))]
        {
            assert!(add(bytes, path, content.clone()).is_ok(), "{path}");
            assert!(matches!(add(bytes - 1, path, content), Err(Error::TooLarge(_))), "{path}");
        }
    }
}
