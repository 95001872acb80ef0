//! Files of a sandbox.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Deserialize;

use super::excerpt::whole_characters;
use crate::agent::runtime::{Entry, EntryType, Listing};

/// Most bytes of a file that one answer tells.
pub const CONTENT: u64 = 32 * 1024;
/// Least bytes of an answer: of a character.
const LEAST: u64 = 4;
/// Most bytes of a picture that one answer tells: in base64 as much as models take.
pub const IMAGE: u64 = 3_750_000;
/// Most entries of a directory that one answer tells.
pub const ENTRIES: u64 = 200;
/// The largest file that is edited, in bytes.
pub const EDITED: u64 = 1 << 20;

/// A file to read.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Read {
    /// The sandbox's id.
    pub sandbox_id: String,
    /// Its path; a relative one from the home of the account.
    #[schemars(example = &"/home/user/report.md")]
    pub path: String,
    /// The account that reads it: the template's own by default; `root` may read everything.
    pub user: Option<String>,
    /// Where to begin, in bytes: the `next_offset` of the answer before. Default 0.
    pub offset: Option<u64>,
    /// Most bytes of the answer, 4 to 32768. Default 32768.
    pub limit: Option<u64>,
    /// Whether what is no text is told as base64; without it, its size alone. Default false.
    pub base64: Option<bool>,
}

impl Read {
    /// Which bytes are asked for: the first, and how many.
    pub fn range(&self) -> (u64, u64) {
        (self.offset.unwrap_or(0), self.limit.unwrap_or(CONTENT).clamp(LEAST, CONTENT))
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
    /// The account that writes it: the template's own by default; `root` may write everything.
    pub user: Option<String>,
}

/// A change of a file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// The sandbox's id.
    pub sandbox_id: String,
    /// Its path; a relative one from the home of the account.
    #[schemars(example = &"/home/user/main.py")]
    pub path: String,
    /// What stands in it, exactly, with as many lines around as make it the only one.
    #[schemars(example = &"print('hello')")]
    pub old_text: String,
    /// What is to stand there instead.
    #[schemars(example = &"print('hello, world')")]
    pub new_text: String,
    /// Whether it is replaced wherever it stands. Default false: then it has to stand there once.
    pub replace_all: Option<bool>,
    /// The account that writes it: the template's own by default; `root` may write everything.
    pub user: Option<String>,
}

impl Edit {
    /// The text after the change, and how often it was changed.
    ///
    /// # Errors
    /// The old text does not stand there, or more than once.
    pub fn applied(&self, text: &str) -> Result<(String, usize), String> {
        if self.old_text.is_empty() {
            return Err("old_text must not be empty. sandbox_write_file writes a whole file".to_owned());
        }
        match (text.matches(&self.old_text).count(), self.replace_all == Some(true)) {
            (0, _) => {
                Err("old_text does not stand in the file. Read the file again: white space counts, too".to_owned())
            }
            (count @ 2.., false) => {
                Err(format!("old_text stands in the file {count} times. Give more lines around it, or replace_all"))
            }
            (count, _) => {
                let longer = count.saturating_mul(self.new_text.len());
                let length = (text.len() - count * self.old_text.len()).saturating_add(longer);
                if length as u64 > EDITED {
                    return Err(format!("The file would have more than {EDITED} bytes"));
                }
                Ok((text.replace(&self.old_text, &self.new_text), count))
            }
        }
    }
}

/// Bytes that are told as text, of a part of a file: without the half of a character at its end, and at its beginning, where
/// more of the file is on that side. Returns how many bytes at the beginning are not told, and the text.
pub fn text_of(bytes: &[u8], more_before: bool, more_behind: bool) -> Option<(usize, &str)> {
    let is_inside = |byte: &&u8| **byte & 0xC0 == 0x80;
    let start = if more_before { bytes.iter().take(3).take_while(is_inside).count() } else { 0 };
    let bytes = &bytes[start..];
    let bytes = if more_behind { &bytes[..whole_characters(bytes)] } else { bytes };
    let text = std::str::from_utf8(bytes).ok()?;
    (!text.contains('\0')).then_some((start, text))
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
    /// The account that looks: the template's own by default; `root` may see everything.
    pub user: Option<String>,
}

/// A listing of a directory as lines: kind and mode, size, time, path below it.
pub fn lines(listing: &Listing) -> String {
    let mut text = String::new();
    let above = listing.data.iter().filter_map(|entry| entry.path.rsplit_once('/')).map(|(above, _)| above);
    let above = above.min_by_key(|above| above.len()).unwrap_or_default().to_owned();
    if !listing.data.is_empty() {
        let _ = writeln!(text, "{above}/:");
    }
    for entry in &listing.data {
        let _ = writeln!(text, "{}", line(entry, &above));
    }
    if listing.data.is_empty() {
        text.push_str("(empty)\n");
    }
    if listing.truncated {
        let _ = writeln!(
            text,
            "[only the first {} are told; find and ls by sandbox_run_command tell more]",
            listing.data.len()
        );
    }
    text
}

fn line(entry: &Entry, above: &str) -> String {
    let kind = match entry.kind {
        EntryType::File => '-',
        EntryType::Directory => 'd',
        EntryType::Symlink => 'l',
        EntryType::Other => '?',
    };
    let to = entry.target.as_ref().map(|target| format!(" -> {target}")).unwrap_or_default();
    let path = entry.path.strip_prefix(above).map_or(entry.path.as_str(), |path| path.trim_start_matches('/'));
    // To the minute.
    let at = entry.modified_at.get(..16).unwrap_or(&entry.modified_at);
    format!("{kind}{} {:>8} {at} {path}{to}", entry.mode, entry.size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn text_is_told_without_the_halves_of_characters_that_go_on() {
        assert_eq!(text_of("aä".as_bytes(), false, false), Some((0, "aä")));
        assert_eq!(text_of(&"äb".as_bytes()[1..], true, false), Some((1, "b")));
        assert_eq!(text_of(&"bä".as_bytes()[..2], false, true), Some((0, "b")));
        for (binary, before, behind) in [
            (&b"a\0b"[..], false, false),
            (b"\xff\xfe", true, true),
            (b"a\xffb", false, false),
            (&"äb".as_bytes()[1..], false, false),
            (&"bä".as_bytes()[..2], false, false),
        ] {
            assert_eq!(text_of(binary, before, behind), None, "{binary:?}");
        }
        assert_eq!(text_of(b"", false, false), Some((0, "")));
    }

    proptest! {
        #[test]
        fn the_parts_of_a_file_are_the_file(text in "[^\0]{0,120}", most in 4_usize..30) {
            let bytes = text.as_bytes();
            let (mut parts, mut from) = (String::new(), 0);
            while from < bytes.len() {
                let end = bytes.len().min(from + most);
                let (skipped, part) = text_of(&bytes[from..end], from > 0, end < bytes.len()).unwrap_or((0, "?"));
                parts.push_str(part);
                prop_assert!(!part.is_empty());
                from += skipped + part.len();
            }
            prop_assert_eq!(parts, text);
        }
    }

    fn edit(old: &str, new: &str, all: bool) -> Edit {
        let asked = json!({"sandbox_id": "s", "path": "p", "old_text": old, "new_text": new, "replace_all": all});
        serde_json::from_value(asked).unwrap()
    }

    #[test]
    fn what_stands_there_once_is_replaced() {
        assert_eq!(edit("b", "x", false).applied("abc"), Ok(("axc".into(), 1)));
        assert_eq!(edit("b", "", true).applied("abcb"), Ok(("ac".into(), 2)));
        let most = usize::try_from(EDITED).unwrap();
        assert!(edit("b", &"x".repeat(most / 2 - 1), true).applied("abcb").is_ok());
        assert!(edit("b", &"x".repeat(most / 2), true).applied("abcb").unwrap_err().contains("more than"));
        for (old, told) in [("", "empty"), ("z", "does not stand"), ("b", "2 times")] {
            assert!(edit(old, "x", false).applied("abcb").unwrap_err().contains(told), "{old}");
        }
    }

    #[test]
    fn an_answer_has_room_for_a_character_and_no_more_than_a_context_takes() {
        let range = |limit: u64| {
            serde_json::from_value::<Read>(json!({"sandbox_id": "s", "path": "p", "limit": limit})).unwrap().range().1
        };
        assert_eq!([range(1), range(4), range(CONTENT), range(CONTENT + 1)], [4, 4, CONTENT, CONTENT]);
    }
}
