//! What is in a context, by path. Pure.

use std::collections::{BTreeMap, BTreeSet};

use berth_domain::sandbox::dockerfile::pattern::{Ignore, Pattern};

use crate::members::Member;

/// How many links are followed from one path.
const MAX_HOPS: usize = 40;

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A file.
    File {
        /// The member of the archive that holds it.
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

/// Something in a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What it is.
    pub content: Content,
    /// Its permissions.
    pub mode: u32,
    /// When it was changed, in seconds since 1970.
    pub mtime: u64,
}

/// What is in a context, by path.
#[derive(Debug, Default)]
pub struct Tree {
    nodes: BTreeMap<String, Node>,
}

impl Tree {
    /// Adds what a member is. One of the same path takes the place of an earlier one.
    pub fn add(&mut self, content: Content, member: Member) {
        if member.path.is_empty() {
            return;
        }
        let mut above = member.path.as_str();
        // Directories need not be members themselves.
        while let Some((parent, _)) = above.rsplit_once('/') {
            above = parent;
            if self.nodes.contains_key(parent) {
                break;
            }
            self.nodes.insert(parent.to_owned(), Node { content: Content::Directory, mode: 0o755, mtime: 0 });
        }
        self.nodes.insert(member.path, Node { content, mode: member.mode, mtime: member.mtime });
    }

    /// A file by its path as a member.
    pub fn file(&self, path: &str) -> Option<Content> {
        self.nodes.get(path).map(|node| node.content.clone()).filter(|content| matches!(content, Content::File { .. }))
    }

    /// Takes out what is to be left out. A directory stays for what is kept in it.
    pub fn leave_out(&mut self, ignore: &Ignore) {
        let mut needed = BTreeSet::new();
        for path in self.nodes.keys().filter(|path| !ignore.leaves_out(path)) {
            let mut above = path.as_str();
            while let Some((parent, _)) = above.rsplit_once('/') {
                above = parent;
                if !needed.insert(parent.to_owned()) {
                    break;
                }
            }
        }
        self.nodes.retain(|path, _| needed.contains(path) || !ignore.leaves_out(path));
    }

    /// What is at a path.
    pub fn get(&self, path: &str) -> Option<&Node> {
        self.nodes.get(path)
    }

    /// The paths that a pattern stands for; the empty one is the root.
    pub fn matching(&self, pattern: &Pattern) -> Vec<String> {
        if pattern.is_root() {
            return vec![String::new()];
        }
        match pattern.literal() {
            Some(path) => self.resolve(&path).map(|_| path).into_iter().collect(),
            None => self.nodes.keys().filter(|path| pattern.matches(path)).cloned().collect(),
        }
    }

    /// The path that a path leads to by links, each resolved within the context; none if nothing is there.
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
                    if hops > MAX_HOPS || target.len() > 4095 {
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

    /// Everything below a directory, by its path from there.
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
    use crate::members::Kind;

    fn tree(paths: &[(&str, Content)]) -> Tree {
        let mut tree = Tree::default();
        for (path, content) in paths {
            let (path, kind) = ((*path).to_owned(), Kind::Other);
            let member = Member { ordinal: 0, path, kind, size: 0, offset: 0, mode: 0o644, owner: (0, 0), mtime: 0 };
            tree.add(content.clone(), member);
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
        tree.leave_out(&Ignore::parse("a\n!a/c\nn\n*.md").unwrap());
        assert_eq!(tree.below("").map(|(path, _)| path).collect::<Vec<_>>(), ["a", "a/c"]);
        assert_eq!(tree.matching(&Pattern::parse("*/c").unwrap()), ["a/c"]);
    }
}
