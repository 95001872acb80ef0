//! A label: what owners call their things by, to find several of them at once.

use core::fmt;
use std::collections::BTreeMap;

use serde_json::Value;

use crate::fields::Parsed;

/// Most labels of one thing.
pub const MAX_LABELS: usize = 64;
/// Longest key, in bytes.
pub const LONGEST_KEY: usize = 63;
/// Longest value, in characters.
pub const LONGEST_VALUE: usize = 255;

/// Rule: labels as an object of strings.
///
/// # Errors
/// What is wrong with them, to go behind a field's name.
pub fn labels(value: &Value) -> Parsed<BTreeMap<String, String>> {
    let object = value.as_object().ok_or("must be an object of strings")?;
    if object.len() > MAX_LABELS {
        return Err(format!("must have at most {MAX_LABELS} entries"));
    }
    object
        .iter()
        .map(|(key, value)| {
            let value = value.as_str().ok_or("must be an object of strings")?;
            Label::new(key, value)?;
            Ok((key.clone(), value.to_owned()))
        })
        .collect()
}

/// A valid label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Label {
    key: String,
    value: String,
}

impl Label {
    /// A label of a key and a value.
    ///
    /// # Errors
    /// Which of them is wrong, to go behind a field's name.
    pub fn new(key: &str, value: &str) -> Parsed<Self> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./".contains(&b);
        if key.is_empty() || key.len() > LONGEST_KEY || !key.bytes().all(plain) {
            return Err("keys must have 1 to 63 characters of A-Z, a-z, 0-9, '-', '_', '.' and '/'".into());
        }
        if value.chars().count() > LONGEST_VALUE || value.chars().any(char::is_control) {
            return Err("values must have at most 255 characters and no control characters".into());
        }
        Ok(Self { key: key.to_owned(), value: value.to_owned() })
    }

    /// The same of one text, `key=value`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Parsed<Self> {
        let (key, value) = text.split_once('=').ok_or("must have a label as key=value")?;
        Self::new(key, value)
    }

    /// Its key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Its value.
    pub fn value(&self) -> &str {
        &self.value
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_read_as_it_is_written() {
        for text in ["role=web", "app/tier=", "a=b=c", "k=\u{e4} b"] {
            assert_eq!(Label::parse(text).unwrap().to_string(), text);
        }
        assert_eq!((Label::parse("a=b=c").unwrap().key(), Label::parse("a=b=c").unwrap().value()), ("a", "b=c"));
        let longest = format!("{}={}", "k".repeat(LONGEST_KEY), "\u{e4}".repeat(LONGEST_VALUE));
        assert!(Label::parse(&longest).is_ok());
        for bad in ["role", "=web", "a b=c", "a=\n", &format!("k{longest}"), &format!("{longest}v")] {
            assert!(Label::parse(bad).is_err(), "{bad}");
        }
    }
}
