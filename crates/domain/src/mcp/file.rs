//! Files of a sandbox.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::agent::runtime::{Entry, EntryType, Listing};

/// Most bytes of a file that one answer tells.
pub const CONTENT: u64 = 32 * 1024;
/// Most bytes of an image that one answer tells.
pub const IMAGE: u64 = 4 << 20;
/// Most entries of a directory that one answer tells.
pub const ENTRIES: u64 = 500;

/// A file to read.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Read {
    /// The sandbox's id.
    pub sandbox_id: String,
    /// Its path; a relative one from the user's home, `/home/user`.
    #[schemars(example = &"/home/user/report.md")]
    pub path: String,
    /// Where to begin, in bytes: the `next_offset` of the answer before. Default 0.
    pub offset: Option<u64>,
    /// Most bytes of the answer, up to 32768, which is the default.
    pub limit: Option<u64>,
}

impl Read {
    /// Which bytes are asked for: the first, and how many.
    pub fn range(&self) -> (u64, u64) {
        (self.offset.unwrap_or(0), self.limit.unwrap_or(CONTENT).clamp(1, CONTENT))
    }
}

/// A file to write.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Write {
    /// The sandbox's id.
    pub sandbox_id: String,
    /// Its path; a relative one from the user's home. Missing directories are made.
    #[schemars(example = &"/home/user/main.py")]
    pub path: String,
    /// All that it is to hold.
    #[schemars(example = &"print('hello')\n")]
    pub content: String,
    /// Whether `content` is base64, for what is no text. Default false.
    pub base64: Option<bool>,
    /// Its permissions in octal, such as `0755`.
    pub mode: Option<String>,
}

/// A directory to list.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListFiles {
    /// The sandbox's id.
    pub sandbox_id: String,
    /// Its path. Default the user's home.
    #[schemars(example = &"/home/user")]
    pub path: Option<String>,
    /// How many levels below it. Default 1.
    #[schemars(example = 2)]
    pub depth: Option<u64>,
}

/// A listing as lines: kind and mode, size, time, path.
pub fn lines(listing: &Listing) -> String {
    let mut text = String::new();
    for entry in &listing.data {
        let _ = writeln!(text, "{}", line(entry));
    }
    if listing.data.is_empty() {
        text.push_str("(empty)\n");
    }
    if listing.truncated {
        let _ = writeln!(text, "[only the first {} are told: list a directory below]", listing.data.len());
    }
    text
}

fn line(entry: &Entry) -> String {
    let kind = match entry.kind {
        EntryType::File => '-',
        EntryType::Directory => 'd',
        EntryType::Symlink => 'l',
        EntryType::Other => '?',
    };
    let to = entry.target.as_ref().map(|target| format!(" -> {target}")).unwrap_or_default();
    format!("{kind}{} {:>10} {} {}{to}", entry.mode, entry.size, entry.modified_at, entry.path)
}
