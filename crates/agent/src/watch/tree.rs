//! The meaning of the kernel's events: which path changed how, and which directories to watch next. Pure.

use std::collections::{HashMap, HashSet};

use berth_domain::agent::runtime::{Change, ChangeKind};
use rustix::fs::inotify::ReadFlags;

use crate::files::join;

/// An event of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raw {
    /// The watched thing.
    pub descriptor: i32,
    /// What happened.
    pub flags: ReadFlags,
    /// The number that the two halves of a move share.
    pub cookie: u32,
    /// The name within a directory.
    pub name: Option<String>,
}

/// The consequence of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Tell the readers.
    Tell(Change),
    /// Tell the readers, if there is such a path.
    TellIfThere(Change),
    /// Tell the readers that events are missing.
    Overflow,
    /// Watch this directory; [`Tree::found`] reports what it already contains.
    Enter(String),
    /// Stop watching this.
    Leave(i32),
}

/// The watched paths.
#[derive(Debug, Default)]
pub struct Tree {
    recursive: bool,
    paths: HashMap<i32, String>,
    /// Entries that were reported when a new directory was read, and that the kernel may report once more.
    told: HashSet<(i32, String)>,
    /// The first half of a move: its cookie, its path, and whether it is a directory.
    moving: Option<(u32, String, bool)>,
}

impl Tree {
    /// Watches nothing yet.
    pub fn new(recursive: bool) -> Self {
        Self { recursive, ..Self::default() }
    }

    /// How many things are watched.
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// Notes that a path is now watched.
    pub fn watched(&mut self, descriptor: i32, path: String) {
        self.paths.insert(descriptor, path);
    }

    /// Notes an entry that a new directory already contains.
    pub fn found(&mut self, descriptor: i32, name: &str) -> Option<Change> {
        let path = join(self.paths.get(&descriptor)?, name);
        let new = self.told.insert((descriptor, name.to_owned()));
        new.then(|| change(ChangeKind::Created, path))
    }

    /// Whether the second half of a move is still to come.
    pub fn is_moving(&self) -> bool {
        self.moving.is_some()
    }

    /// The second half did not come: the thing moved out of the watched tree.
    pub fn settle(&mut self) -> Vec<Effect> {
        let Some((_, path, directory)) = self.moving.take() else { return Vec::new() };
        let mut effects = if directory { self.leave(&path) } else { Vec::new() };
        if !is_temporary(&path) {
            effects.push(Effect::Tell(change(ChangeKind::Removed, path)));
        }
        effects
    }

    /// The consequences of an event.
    pub fn event(&mut self, raw: Raw) -> Vec<Effect> {
        if raw.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.told.clear();
            return vec![Effect::Overflow];
        }
        let second_half = matches!(&self.moving, Some((cookie, ..)) if *cookie == raw.cookie && raw.cookie != 0);
        let mut effects = if second_half { Vec::new() } else { self.settle() };
        if raw.flags.contains(ReadFlags::IGNORED) {
            self.paths.remove(&raw.descriptor);
            self.told.retain(|(descriptor, _)| *descriptor != raw.descriptor);
            return effects;
        }
        let Some(parent) = self.paths.get(&raw.descriptor).cloned() else { return effects };
        match &raw.name {
            Some(name) => self.named(&raw, name, join(&parent, name), &mut effects),
            None => own(raw.flags, parent, &mut effects),
        }
        effects
    }

    fn named(&mut self, raw: &Raw, name: &str, path: String, effects: &mut Vec<Effect>) {
        let directory = raw.flags.contains(ReadFlags::ISDIR);
        let told = || (raw.descriptor, name.to_owned());
        if raw.flags.contains(ReadFlags::MOVED_FROM) {
            self.told.remove(&told());
            self.moving = Some((raw.cookie, path, directory));
        } else if raw.flags.contains(ReadFlags::MOVED_TO) {
            self.moved_to(path, directory, effects);
        } else if is_temporary(&path) {
            // A file that is still being written has no name yet.
        } else if raw.flags.contains(ReadFlags::CREATE) {
            if !self.told.remove(&told()) {
                effects.push(Effect::Tell(change(ChangeKind::Created, path.clone())));
                self.enter(path, directory, effects);
            }
        } else if raw.flags.contains(ReadFlags::DELETE) {
            self.told.remove(&told());
            effects.push(Effect::Tell(change(ChangeKind::Removed, path)));
        } else if raw.flags.intersects(ReadFlags::MODIFY | ReadFlags::ATTRIB) {
            let nameless = is_nameless(name);
            let change = modified(raw.flags, path);
            effects.push(if nameless { Effect::TellIfThere(change) } else { Effect::Tell(change) });
        }
    }

    fn moved_to(&mut self, to: String, directory: bool, effects: &mut Vec<Effect>) {
        match self.moving.take() {
            // The last step of replacing a file.
            Some((_, from, _)) if is_temporary(&from) => effects.push(Effect::Tell(change(ChangeKind::Modified, to))),
            Some((_, from, directory)) => {
                if directory {
                    self.rename(&from, &to);
                }
                let kind = ChangeKind::Renamed;
                effects.push(Effect::Tell(Change { to: Some(to), ..change(kind, from) }));
            }
            None => {
                effects.push(Effect::Tell(change(ChangeKind::Created, to.clone())));
                self.enter(to, directory, effects);
            }
        }
    }

    fn enter(&self, path: String, directory: bool, effects: &mut Vec<Effect>) {
        if directory && self.recursive {
            effects.push(Effect::Enter(path));
        }
    }

    fn rename(&mut self, from: &str, to: &str) {
        for path in self.paths.values_mut() {
            if let Some(rest) = below(path, from) {
                *path = format!("{to}{rest}");
            }
        }
    }

    fn leave(&self, from: &str) -> Vec<Effect> {
        let left = self.paths.iter().filter(|(_, path)| below(path, from).is_some());
        left.map(|(descriptor, _)| Effect::Leave(*descriptor)).collect()
    }
}

/// What happened to the watched thing itself. For a directory only its end counts; its entries report the rest.
fn own(flags: ReadFlags, path: String, effects: &mut Vec<Effect>) {
    if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) {
        effects.push(Effect::Tell(change(ChangeKind::Removed, path)));
    } else if flags.intersects(ReadFlags::MODIFY | ReadFlags::ATTRIB) && !flags.contains(ReadFlags::ISDIR) {
        effects.push(Effect::Tell(modified(flags, path)));
    }
}

fn change(kind: ChangeKind, path: String) -> Change {
    Change { kind, path, to: None, metadata: false }
}

fn modified(flags: ReadFlags, path: String) -> Change {
    Change { metadata: !flags.contains(ReadFlags::MODIFY), ..change(ChangeKind::Modified, path) }
}

/// The rest of a path after `from`, if it is `from` or below it.
fn below<'a>(path: &'a str, from: &str) -> Option<&'a str> {
    path.strip_prefix(from).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a name may be the kernel's for a file without a name: its number.
fn is_nameless(name: &str) -> bool {
    name.strip_prefix('#').is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether a path belongs to a file that is about to replace another one.
fn is_temporary(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.strip_prefix(".berth-").is_some_and(|rest| rest.len() == 16 && rest.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn raw(descriptor: i32, flags: ReadFlags, cookie: u32, name: &str) -> Raw {
        Raw { descriptor, flags, cookie, name: Some(name.to_owned()) }
    }

    fn tree() -> Tree {
        let mut tree = Tree::new(true);
        tree.watched(1, ".".into());
        tree.watched(2, "d".into());
        tree
    }

    fn told(effects: Vec<Effect>) -> Vec<(ChangeKind, String, Option<String>)> {
        let tell = |effect| if let Effect::Tell(change) = effect { Some(change) } else { None };
        effects.into_iter().filter_map(tell).map(|change| (change.kind, change.path, change.to)).collect()
    }

    #[test]
    fn two_halves_of_a_move_are_one_change_and_one_half_is_a_removal() {
        let mut tree = tree();
        assert_eq!(tree.event(raw(1, ReadFlags::MOVED_FROM, 7, "a")), []);
        let both = told(tree.event(raw(2, ReadFlags::MOVED_TO, 7, "b")));
        assert_eq!(both, [(ChangeKind::Renamed, "a".into(), Some("d/b".into()))]);
        tree.event(raw(1, ReadFlags::MOVED_FROM, 8, "a"));
        let other = told(tree.event(raw(1, ReadFlags::CREATE, 0, "c")));
        assert_eq!(other, [(ChangeKind::Removed, "a".into(), None), (ChangeKind::Created, "c".into(), None)]);
        assert_eq!(told(tree.event(raw(1, ReadFlags::MOVED_TO, 9, "x"))), [(ChangeKind::Created, "x".into(), None)]);
    }

    #[test]
    fn a_directory_that_moves_takes_its_own_along_or_leaves() {
        let mut tree = tree();
        tree.watched(3, "d/e".into());
        tree.watched(4, "dd".into());
        tree.event(raw(1, ReadFlags::MOVED_FROM | ReadFlags::ISDIR, 7, "d"));
        tree.event(raw(1, ReadFlags::MOVED_TO | ReadFlags::ISDIR, 7, "n"));
        assert_eq!(told(tree.event(raw(3, ReadFlags::CREATE, 0, "f")))[0].1, "n/e/f");
        assert_eq!(told(tree.event(raw(4, ReadFlags::CREATE, 0, "f")))[0].1, "dd/f");
        tree.event(raw(1, ReadFlags::MOVED_FROM | ReadFlags::ISDIR, 8, "n"));
        let left = tree.settle().into_iter().filter(|effect| matches!(effect, Effect::Leave(2 | 3))).count();
        assert_eq!(left, 2);
    }

    #[test]
    fn what_a_new_directory_held_is_told_once() {
        let mut tree = tree();
        let effects = tree.event(raw(1, ReadFlags::CREATE | ReadFlags::ISDIR, 0, "new"));
        assert!(effects.contains(&Effect::Enter("new".into())));
        tree.watched(5, "new".into());
        assert_eq!(tree.found(5, "early").unwrap().path, "new/early");
        assert_eq!(tree.event(raw(5, ReadFlags::CREATE, 0, "early")), []);
        assert_eq!(told(tree.event(raw(5, ReadFlags::CREATE, 0, "early"))).len(), 1);
    }

    #[test]
    fn writing_a_file_anew_is_a_modification() {
        let (mut tree, temporary) = (tree(), ".berth-0123456789abcdef");
        assert_eq!(tree.event(raw(1, ReadFlags::CREATE, 0, temporary)), []);
        assert_eq!(tree.event(raw(1, ReadFlags::MOVED_FROM, 7, temporary)), []);
        let effects = told(tree.event(raw(1, ReadFlags::MOVED_TO, 7, "a")));
        assert_eq!(effects, [(ChangeKind::Modified, "a".into(), None)]);
    }

    #[test]
    fn a_change_of_metadata_alone_is_told_as_one() {
        let mut tree = tree();
        let mut told = |flags: ReadFlags| match tree.event(raw(2, flags, 0, "a")).as_slice() {
            [Effect::Tell(change)] => (change.kind, change.metadata),
            other => panic!("{other:?}"),
        };
        assert_eq!(told(ReadFlags::ATTRIB), (ChangeKind::Modified, true));
        assert_eq!(told(ReadFlags::MODIFY), (ChangeKind::Modified, false));
        assert_eq!(told(ReadFlags::MODIFY | ReadFlags::ATTRIB), (ChangeKind::Modified, false));
        assert_eq!(told(ReadFlags::CREATE), (ChangeKind::Created, false));
    }

    proptest! {
        #[test]
        fn no_events_make_it_panic(events in prop::collection::vec((0..4_i32, any::<u32>(), 0..3_u32, "[a-c]?"), 0..60)) {
            let mut tree = tree();
            for (descriptor, flags, cookie, name) in events {
                let flags = ReadFlags::from_bits_truncate(flags);
                let name = (!name.is_empty()).then_some(name);
                tree.event(Raw { descriptor, flags, cookie, name });
            }
            tree.settle();
        }
    }
}
