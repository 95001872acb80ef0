//! Names that people choose.

use std::fmt;

use serde_json::Value;

use crate::fields::{Parsed, sized, text};

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

/// A domain: labels of DNS-1123 with dots between them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Domain(String);

impl Domain {
    /// Most characters of a domain, so that a VM's name and a project's id go before it (RFC 1035, 2.3.4).
    pub const MAX: usize = 150;

    /// Parses a domain, in capitals or not, with a dot at its end or without.
    pub fn parse(text: &str) -> Result<Self, String> {
        let whole = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        let last_is_number =
            whole.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
        if whole.len() > Self::MAX || last_is_number || whole.split('.').any(|part| label(part, HostName::MAX).is_err())
        {
            return Err(format!("'{text}' is no domain like vms.example.org"));
        }
        Ok(Self(whole))
    }

    /// The domain in small letters, without a dot at its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A name by which requests speak of a template or a network in place of its id: a label of DNS names that cannot be
/// taken for one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReferenceName(String);

impl ReferenceName {
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

/// Rule: a slug.
pub fn slug(value: &Value) -> Parsed<Slug> {
    Slug::parse(text(value)?)
}

/// Rule: a name for people: 1 to 100 characters, none of them a control character, not only white space.
pub fn title(value: &Value) -> Parsed<String> {
    let text = sized(1, 100)(value)?;
    if text.trim().is_empty() || text.chars().any(char::is_control) {
        return Err("must have 1 to 100 characters, not only white space, and no control characters".into());
    }
    Ok(text)
}

/// Rule: a name that stands in mails to strangers: a title without a web address.
pub fn public_name(value: &Value) -> Parsed<String> {
    let name = title(value)?;
    if misleads(&name) {
        return Err("must hold no web address and no invisible characters; put a space behind a dot".into());
    }
    Ok(name)
}

/// Whether a name would mislead those who read it in a mail: it holds what mail programs make a link of, or characters
/// that are not seen or turn the order of others.
pub fn misleads(name: &str) -> bool {
    let unseen = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    name.contains("://") || name.chars().any(unseen) || holds_host_name(name)
}

/// Whether two labels meet at a dot, the right one of which could be a top-level domain.
fn holds_host_name(text: &str) -> bool {
    // All that stands for a dot in host names (UTS #46).
    let dot = |c: char| matches!(c, '.' | '\u{3002}' | '\u{ff0e}' | '\u{ff61}');
    let mut parts = text.split(dot).peekable();
    while let (Some(left), Some(right)) = (parts.next(), parts.peek()) {
        let mut label = right.chars().take_while(|c| c.is_alphanumeric() || *c == '-');
        let named = label.next().is_some_and(char::is_alphabetic) && label.next().is_some();
        if named && left.chars().next_back().is_some_and(char::is_alphanumeric) {
            return true;
        }
    }
    false
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
    use proptest::prelude::*;

    #[test]
    fn a_domain_is_a_name() {
        for good in ["vms.example.org", "VMs.Example.org.", "internal", "a-b.c1"] {
            let wanted = good.trim_end_matches('.').to_ascii_lowercase();
            assert_eq!(super::Domain::parse(good).unwrap().as_str(), wanted);
        }
        let long = ["a".repeat(63), "a".repeat(63), "a".repeat(22)].join(".");
        assert!(super::Domain::parse(&long).is_ok());
        for bad in [
            "",
            ".",
            "a..b",
            "-a.org",
            "a-.org",
            "a b.org",
            "a_b.org",
            "192.0.2.1",
            &"a".repeat(64),
            &format!("{long}a"),
        ] {
            assert!(super::Domain::parse(bad).unwrap_err().contains("no domain"), "{bad}");
        }
    }
    use serde_json::json;

    use super::*;

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
        assert!(Slug::parse(id).is_err() && ReferenceName::parse(id).is_err() && HostName::parse(id).is_ok());
        assert!(ReferenceName::parse(id).is_err());
        for (length, good) in [(63, true), (64, false)] {
            let text = "a".repeat(length);
            assert_eq!((HostName::parse(&text).is_ok(), ReferenceName::parse(&text).is_ok()), (good, good));
            assert_eq!(ReferenceName::parse(&text).is_ok(), good);
        }
    }

    #[test]
    fn titles_have_two_sides() {
        let longest = "ä".repeat(100);
        for (text, good) in
            [("x", true), (longest.as_str(), true), ("", false), (" \u{a0}", false), ("a\nb", false), ("a\0", false)]
        {
            assert_eq!(title(&json!(text)).is_ok(), good, "{text:?}");
        }
        assert!(title(&json!(format!("{longest}ä"))).is_err() && title(&json!(1)).is_err());
        assert!(title(&json!("evil.com")).is_ok() && public_name(&json!("evil.com")).is_err());
        assert!(public_name(&json!("Acme Inc.")).is_ok());
    }

    #[test]
    fn a_name_leads_nobody_astray() {
        for good in
            ["Ada", "J.R.R. Tolkien", "Acme Inc.", "Dr. Meier", "v2.0", "Zoë & Söhne", "...", "a@b", "Berth 1.5x"]
        {
            assert!(!misleads(good), "{good}");
        }
        for bad in [
            "Win at evil.com",
            "https://192.0.2.1",
            "evil.com/path",
            "www.evil",
            "bücher.example",
            "x@evil.org",
            "evil\u{3002}com",
            "a\u{202e}b",
            "a\u{200b}b",
            "a\u{2028}b",
            "a\nb",
        ] {
            assert!(misleads(bad), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_host_name_is_found(before in "[a-z ]{0,9}", label in "[a-z0-9]{1,9}", top in "[a-z]{2,9}", after in "[ /:?,!a-z]{0,9}") {
            let name = format!("{before}{label}.{top}{after}");
            prop_assert!(misleads(&name));
        }

        #[test]
        fn words_without_a_dot_between_are_names(words in prop::collection::vec("[A-Za-z0-9äöüß'-]{1,9}\\.?", 1..6)) {
            prop_assert!(!misleads(&words.join(" ")));
        }

        #[test]
        fn a_title_always_yields_a_slug(title in ".{0,80}") {
            let slug = Slug::from_title(&title, "project");
            prop_assert!(Slug::parse(slug.as_str()).is_ok());
            prop_assert!(Slug::parse(slug.with_suffix("abc123").as_str()).is_ok());
        }
    }
}
