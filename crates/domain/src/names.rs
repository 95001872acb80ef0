//! Names that people choose.

use std::fmt;

/// A DNS-1123 label of at most 20 characters: the name of a VM or a disk.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name(String);

impl Name {
    /// Most characters of a VM or disk name (specification, Limits).
    pub const MAX: usize = 20;

    /// Parses a name.
    pub fn parse(text: &str) -> Result<Self, String> {
        label(text, Self::MAX)?;
        Ok(Self(text.to_owned()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A DNS-1123 label of at most 63 characters: the name of a sandbox, and its host name inside.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostName(String);

impl HostName {
    /// Most characters of a host name (RFC 1123).
    pub const MAX: usize = 63;

    /// Parses a host name.
    pub fn parse(text: &str) -> Result<Self, String> {
        label(text, Self::MAX)?;
        Ok(Self(text.to_owned()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name of a template: a host name that cannot be taken for an id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TemplateName(String);

impl TemplateName {
    /// Parses a name.
    pub fn parse(text: &str) -> Result<Self, String> {
        label(text, HostName::MAX)?;
        not_an_id(text)?;
        Ok(Self(text.to_owned()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A short address for an organization or a project, usable in paths instead of its UUID.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slug(String);

impl Slug {
    /// Most characters of a slug.
    pub const MAX: usize = 40;

    /// Parses a slug: a DNS-1123 label that cannot be taken for a UUID.
    pub fn parse(text: &str) -> Result<Self, String> {
        label(text, Self::MAX)?;
        not_an_id(text)?;
        Ok(Self(text.to_owned()))
    }

    /// Makes a slug out of any title: lower case, other characters become single hyphens.
    /// `fallback` serves where nothing is left.
    pub fn from_title(title: &str, fallback: &str) -> Self {
        let mut text = String::new();
        for c in title.chars().flat_map(char::to_lowercase) {
            if c.is_ascii_alphanumeric() {
                text.push(c);
            } else if !text.is_empty() && !text.ends_with('-') {
                text.push('-');
            }
            if text.len() == Self::MAX - 8 {
                break;
            }
        }
        let text = text.trim_matches('-');
        Self::parse(text).unwrap_or_else(|_| Self(fallback.to_owned()))
    }

    /// The slug with a suffix, for when the plain one is taken.
    #[must_use]
    pub fn with_suffix(&self, suffix: &str) -> Self {
        Self(format!("{}-{suffix}", self.0))
    }

    /// The slug as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn not_an_id(text: &str) -> Result<(), String> {
    if uuid::Uuid::parse_str(text).is_ok() { Err("must not look like a UUID".into()) } else { Ok(()) }
}

fn label(text: &str, max: usize) -> Result<(), String> {
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = text.as_bytes();
    let inner = bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-');
    if bytes.len() > max || !inner || !edge(bytes.first()) || !edge(bytes.last()) {
        return Err(format!(
            "must be 1 to {max} characters of a-z, 0-9 and '-', beginning and ending with a letter or digit"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_sides_of_every_bound() {
        for good in ["a", "0", "a-b", "a--b", "a1234567890123456789"] {
            assert!(Name::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "-", "-a", "a-", "A", "a_b", "a.b", "ä", "a\n", "a12345678901234567890"] {
            assert!(Name::parse(bad).is_err(), "{bad:?}");
        }
        assert!(Slug::parse(&"a".repeat(40)).is_ok());
        assert!(Slug::parse(&"a".repeat(41)).is_err());
        let id = "01939f2e-7c00-7abc-8def-0123456789ab";
        assert!(Slug::parse(id).is_err() && TemplateName::parse(id).is_err() && HostName::parse(id).is_ok());
        for (length, good) in [(63, true), (64, false)] {
            let text = "a".repeat(length);
            assert_eq!((HostName::parse(&text).is_ok(), TemplateName::parse(&text).is_ok()), (good, good));
        }
    }

    proptest! {
        #[test]
        fn a_title_always_yields_a_slug(title in ".{0,80}") {
            let slug = Slug::from_title(&title, "project");
            prop_assert!(Slug::parse(slug.as_str()).is_ok());
            prop_assert!(Slug::parse(slug.with_suffix("abc123").as_str()).is_ok());
        }
    }
}
