//! Things in a sandbox's file system, and what happens to them, as envd's `filesystem.Filesystem` tells it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::connect::{Code, Refused};
use crate::agent::runtime::{Change, ChangeKind, Entry, EntryType};

/// What attributes that SDKs set are called, before their own name.
pub const ATTRIBUTE: &str = "e2b.";
/// Headers that set them, before their own name.
pub const METADATA: &str = "x-metadata-";

/// Whether a thing is a directory, or leads to one; and where that is.
pub fn directory(entry: &Entry) -> Option<&str> {
    match (entry.kind, &entry.resolved) {
        (EntryType::Directory, _) => Some(&entry.path),
        (EntryType::Symlink, Some(target)) if target.kind == EntryType::Directory => Some(&target.path),
        _ => None,
    }
}

/// A thing as envd tells it, which the runtime told with its details: of a link the type and the mode are its target's.
pub fn told(entry: &Entry) -> Value {
    let is_link = entry.kind == EntryType::Symlink;
    let (kind, mode) = match &entry.resolved {
        Some(target) if is_link => (word(target.kind), bits(&target.mode)),
        _ if is_link => ("FILE_TYPE_UNSPECIFIED", 0),
        _ => (word(entry.kind), bits(&entry.mode)),
    };
    let names = entry.attributes.iter().flatten();
    let metadata: BTreeMap<_, _> =
        names.filter_map(|(name, value)| Some((name.strip_prefix(ATTRIBUTE)?, value))).collect();
    let mut told = json!({
        "name": entry.name, "type": kind, "path": entry.path, "size": entry.size.to_string(), "mode": mode,
        "permissions": permissions(entry.kind, bits(&entry.mode)), "owner": entry.owner, "group": entry.group,
        "modifiedTime": entry.modified_at, "metadata": metadata, "isSymlink": is_link,
    });
    if is_link {
        told["symlinkTarget"] = entry.resolved.as_ref().map_or(entry.path.as_str(), |target| &target.path).into();
    }
    told
}

/// The failure of a guest whose answer cannot be read.
pub fn nonsense() -> Refused {
    Refused::new(Code::Internal, "The sandbox's answer makes no sense.")
}

const fn word(kind: EntryType) -> &'static str {
    match kind {
        EntryType::File => "FILE_TYPE_FILE",
        EntryType::Directory => "FILE_TYPE_DIRECTORY",
        EntryType::Symlink => "FILE_TYPE_SYMLINK",
        EntryType::Other => "FILE_TYPE_UNSPECIFIED",
    }
}

fn bits(octal: &str) -> u32 {
    u32::from_str_radix(octal, 8).unwrap_or_default() & 0o7777
}

/// As Go writes a mode.
fn permissions(kind: EntryType, mode: u32) -> String {
    let first = match kind {
        EntryType::Directory => 'd',
        EntryType::Symlink => 'L',
        EntryType::File | EntryType::Other => '-',
    };
    let flags = "rwxrwxrwx".chars().enumerate();
    let flags = flags.map(|(at, flag)| if mode & (0o400 >> at) == 0 { '-' } else { flag });
    std::iter::once(first).chain(flags).collect()
}

/// What happened to one thing below a watched directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happened {
    /// Its path from the directory.
    pub name: String,
    /// What.
    pub kind: &'static str,
}

impl Happened {
    /// What a change of the runtime, with absolute paths, means for who watches a directory.
    pub fn of(change: &Change, directory: &str) -> Vec<Self> {
        let one = |path: &str, kind| Self { name: below(path, directory), kind };
        match change.kind {
            ChangeKind::Created => vec![one(&change.path, "EVENT_TYPE_CREATE")],
            ChangeKind::Modified if change.metadata => vec![one(&change.path, "EVENT_TYPE_CHMOD")],
            ChangeKind::Modified => vec![one(&change.path, "EVENT_TYPE_WRITE")],
            ChangeKind::Removed => vec![one(&change.path, "EVENT_TYPE_REMOVE")],
            ChangeKind::Renamed => {
                let came = change.to.as_deref().map(|to| one(to, "EVENT_TYPE_CREATE"));
                std::iter::once(one(&change.path, "EVENT_TYPE_RENAME")).chain(came).collect()
            }
        }
    }

    /// The event, with the thing as it is now where that was asked for.
    pub fn told(&self, entry: Option<Value>) -> Value {
        let mut told = json!({"name": self.name, "type": self.kind});
        if let Some(entry) = entry {
            told["entry"] = entry;
        }
        told
    }
}

fn below(path: &str, directory: &str) -> String {
    let rest = path.strip_prefix(directory.trim_end_matches('/')).and_then(|rest| rest.strip_prefix('/'));
    rest.unwrap_or(path).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: &str, mode: &str, resolved: Option<Value>) -> Entry {
        let mut told = json!({"name": "a", "path": "/tmp/a", "type": kind, "size": 3, "mode": mode, "owner": "user",
            "group": "user", "modified_at": "2026-01-01T00:00:00Z", "attributes": {"e2b.k": "v", "other": "x"}});
        if let Some(resolved) = resolved {
            told["resolved"] = resolved;
        }
        serde_json::from_value(told).unwrap()
    }

    #[test]
    fn a_file_is_told_as_envd_tells_it() {
        let file = entry("file", "0644", None);
        let shown = told(&file);
        assert_eq!((&shown["type"], &shown["mode"]), (&json!("FILE_TYPE_FILE"), &json!(0o644)));
        assert_eq!((&shown["permissions"], &shown["size"]), (&json!("-rw-r--r--"), &json!("3")));
        assert_eq!((&shown["metadata"], &shown["isSymlink"]), (&json!({"k": "v"}), &json!(false)));
        assert!(shown.get("symlinkTarget").is_none() && directory(&file).is_none());
        let folder = entry("directory", "1755", None);
        assert_eq!(told(&folder)["permissions"], "drwxr-xr-x");
        assert_eq!(directory(&folder), Some("/tmp/a"));
    }

    #[test]
    fn a_link_has_the_type_of_what_it_leads_to() {
        let link = entry("symlink", "0777", Some(json!({"path": "/etc", "type": "directory", "mode": "0755"})));
        let shown = told(&link);
        assert_eq!((&shown["type"], &shown["mode"]), (&json!("FILE_TYPE_DIRECTORY"), &json!(0o755)));
        assert_eq!((&shown["symlinkTarget"], &shown["permissions"]), (&json!("/etc"), &json!("Lrwxrwxrwx")));
        assert_eq!(directory(&link), Some("/etc"));
        let broken = told(&entry("symlink", "0777", None));
        assert_eq!((&broken["symlinkTarget"], &broken["type"]), (&json!("/tmp/a"), &json!("FILE_TYPE_UNSPECIFIED")));
    }

    #[test]
    fn changes_are_named_from_the_directory() {
        let read = |change, directory: &str| Happened::of(&serde_json::from_value(change).unwrap(), directory);
        let one = |name: &str, kind| vec![Happened { name: name.into(), kind }];
        let below = |change| read(change, "/tmp/w/");
        assert_eq!(below(json!({"kind": "created", "path": "/tmp/w/a/b"})), one("a/b", "EVENT_TYPE_CREATE"));
        assert_eq!(below(json!({"kind": "modified", "path": "/tmp/w/a"})), one("a", "EVENT_TYPE_WRITE"));
        let chmod = json!({"kind": "modified", "path": "/tmp/w/a", "metadata": true});
        assert_eq!(below(chmod), one("a", "EVENT_TYPE_CHMOD"));
        assert_eq!(below(json!({"kind": "removed", "path": "/tmp/w/a"})), one("a", "EVENT_TYPE_REMOVE"));
        let renamed = below(json!({"kind": "renamed", "path": "/tmp/w/a", "to": "/tmp/w/b"}));
        assert_eq!(renamed, [one("a", "EVENT_TYPE_RENAME"), one("b", "EVENT_TYPE_CREATE")].concat());
        assert_eq!(read(json!({"kind": "created", "path": "/a"}), "/"), one("a", "EVENT_TYPE_CREATE"));
    }
}
