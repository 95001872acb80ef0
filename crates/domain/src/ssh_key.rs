//! SSH keys: the rule of a public key, and keys that people and projects store to choose them by name.
//!
//! A stored key is copied into a VM when the VM is made: what becomes of the stored one afterwards changes no machine.
//! The blob of a key is not decoded, as it is not for a VM's own keys; whether two are the same is told by algorithm and
//! blob, since the comment behind them belongs to nobody.

use serde_json::Value;

use crate::error::Result;
use crate::fields::{Fields, Parsed, text};
use crate::names::ReferenceName;

/// Most keys that a person or a project stores: each is compared with all others when one is stored.
pub const MOST: usize = 100;

/// A valid request to store a key. Which others there are is looked at later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreKey {
    /// Its name, unique among those of its owner.
    pub name: ReferenceName,
    /// The key in OpenSSH's format.
    pub public_key: String,
}

impl TryFrom<&Value> for StoreKey {
    type Error = crate::Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let name = f.required("name", |value| ReferenceName::parse(text(value)?));
        let key = f.required("public_key", public_key);
        f.finish(name.zip(key).map(|(name, public_key)| Self { name, public_key }))
    }
}

/// The key without its comment, so that the same key is the same text: algorithm, space, blob.
pub fn without_comment(key: &str) -> String {
    key.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

/// Rule: `^(ssh-rsa|ssh-ed25519)\s+[A-Za-z0-9+/]+[=]{0,2}(\s+.*)?$`, 50 to 2000 characters, one line.
pub fn public_key(value: &Value) -> Parsed<String> {
    let key = text(value)?;
    if !(50..=2000).contains(&key.chars().count()) {
        return Err("must have 50 to 2000 characters".into());
    }
    if key.chars().any(is_line_break) {
        return Err("must be one line".into());
    }
    let rest = key.strip_prefix("ssh-rsa").or_else(|| key.strip_prefix("ssh-ed25519"));
    if rest.is_some_and(is_key_body) {
        Ok(key.to_owned())
    } else {
        Err("must look like 'ssh-ed25519 AAAA… comment' or 'ssh-rsa AAAA… comment'".into())
    }
}

/// White space, base64, at most two `=`, then nothing or white space and a comment.
fn is_key_body(rest: &str) -> bool {
    let blob = rest.trim_start_matches(char::is_whitespace);
    let after = blob.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '+' || c == '/');
    let tail = after.strip_prefix("==").or_else(|| after.strip_prefix('=')).unwrap_or(after);
    blob.len() < rest.len() && after.len() < blob.len() && (tail.is_empty() || tail.starts_with(char::is_whitespace))
}

/// CR, LF, VT, FF, NEL, and the two Unicode separators.
const fn is_line_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOkvXqWhmrNwsKUVRjPMWzZ0pE7gNRQnxVbQkG4HmCrf";

    #[test]
    fn a_key_is_stored_under_a_name() {
        let read = |name: &str, key: &str| StoreKey::try_from(&json!({"name": name, "public_key": key}));
        let stored = read("laptop", &format!("{KEY} me@laptop")).unwrap();
        assert_eq!((stored.name.as_str(), stored.public_key), ("laptop", format!("{KEY} me@laptop")));
        assert!(read(&"a".repeat(63), KEY).is_ok() && read(&"a".repeat(64), KEY).is_err());
        for (name, key, field) in
            [("Laptop", KEY, "name"), ("laptop", "ssh-dss AAAA", "public_key"), ("laptop", "", "public_key")]
        {
            assert_eq!(read(name, key).unwrap_err().details[0].field, field);
        }
        assert_eq!(StoreKey::try_from(&json!({})).unwrap_err().details.len(), 2);
    }

    #[test]
    fn the_comment_makes_no_other_key() {
        let spaced = KEY.replace(' ', "\t ");
        for same in [KEY.to_owned(), format!("{KEY} me"), format!("{KEY}  me and others"), spaced] {
            assert_eq!(without_comment(&same), KEY);
        }
    }
}
