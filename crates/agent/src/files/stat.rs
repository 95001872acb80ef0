//! What the kernel says of a file, in the API's words.

use std::collections::HashMap;
use std::path::Path;

use berth_domain::agent::runtime::EntryType;
use rustix::fs::{FileType, Stat};

use crate::accounts;

/// Names of accounts or groups by number, read once per answer.
pub struct Names(HashMap<u32, String>);

impl Names {
    /// Reads `/etc/passwd` or `/etc/group`.
    pub fn read(file: &str) -> Self {
        let text = accounts::read(Path::new(file)).unwrap_or_default();
        // If several names have one number, the first counts.
        let mut all = HashMap::new();
        for (name, number) in accounts::names(&text) {
            all.entry(number).or_insert_with(|| name.to_owned());
        }
        Self(all)
    }

    /// The name of a number, or else the number.
    pub fn name(&self, number: u32) -> String {
        self.0.get(&number).cloned().unwrap_or_else(|| number.to_string())
    }
}

/// What something is.
pub fn kind(stat: &Stat) -> EntryType {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => EntryType::File,
        FileType::Directory => EntryType::Directory,
        FileType::Symlink => EntryType::Symlink,
        _ => EntryType::Other,
    }
}

/// Permissions in four digits.
pub fn mode(stat: &Stat) -> String {
    format!("{:04o}", stat.st_mode & 0o7777)
}
