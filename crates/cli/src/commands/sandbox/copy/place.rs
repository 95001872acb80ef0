//! The source or destination of a copy, as a person types it.

use std::path::PathBuf;

/// One side of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `-`: standard input or output.
    Stream,
    /// A path of this machine.
    Local(PathBuf),
    /// `SANDBOX:PATH`.
    Inside {
        /// Name or id.
        sandbox: String,
        /// The path from the workspace's root, or an absolute one; empty for the workspace.
        path: String,
    },
}

impl Place {
    /// Parses a place. The text before the first colon must have the form of a sandbox's name or id, so that most paths
    /// with colons are of this machine; `./` before a path always makes it one. A drive letter is no sandbox: `c:/x`.
    pub fn parse(text: &str) -> Self {
        if text == "-" {
            return Self::Stream;
        }
        match text.split_once(':') {
            Some((sandbox, path)) if is_name(sandbox) && !is_drive(sandbox, path) => {
                Self::Inside { sandbox: sandbox.to_owned(), path: path.to_owned() }
            }
            _ => Self::Local(text.into()),
        }
    }
}

/// Whether it is a DNS label (RFC 1123), as names and ids are.
fn is_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let edge = |b: Option<&u8>| b.copied().is_some_and(plain);
    let bytes = text.as_bytes();
    bytes.len() <= 63 && edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(|b| plain(*b) || *b == b'-')
}

/// A drive, rather than a sandbox of one letter: that one has to be named by its id, to take an absolute path.
fn is_drive(letter: &str, path: &str) -> bool {
    letter.len() == 1 && letter.bytes().all(|b| b.is_ascii_alphabetic()) && path.starts_with(['/', '\\'])
}

/// The last part of a path inside, if it has one.
pub fn last_part(path: &str) -> Option<&str> {
    path.trim_end_matches('/').rsplit('/').next().filter(|name| !matches!(*name, "" | "." | ".."))
}

/// A path inside, and a name below it.
pub fn below(path: &str, name: &str) -> String {
    match path.trim_end_matches('/') {
        "" if path.starts_with('/') => format!("/{name}"),
        "" | "." => name.to_owned(),
        path => format!("{path}/{name}"),
    }
}

/// A path inside as the service takes it: a dot for the workspace.
pub fn plain(path: &str) -> &str {
    match path {
        "" => ".",
        path if path.trim_end_matches('/').is_empty() => "/",
        path => path.trim_end_matches('/'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn inside(sandbox: &str, path: &str) -> Place {
        Place::Inside { sandbox: sandbox.into(), path: path.into() }
    }

    #[test]
    fn places_as_typed() {
        assert_eq!(Place::parse("-"), Place::Stream);
        for (text, sandbox, path) in [
            ("box:a/b", "box", "a/b"),
            ("box:", "box", ""),
            ("box:/etc/passwd", "box", "/etc/passwd"),
            ("box:a:b", "box", "a:b"),
            ("01a1fd0e-a39f-72cf-b31d-ece29501eabb:x", "01a1fd0e-a39f-72cf-b31d-ece29501eabb", "x"),
            ("b:x", "b", "x"),
            ("7:/x", "7", "/x"),
        ] {
            assert_eq!(Place::parse(text), inside(sandbox, path), "{text}");
        }
        for text in [
            "", "a", "./box:a", "/box:a", "a/b:c", "C:\\x", "c:\\x", "c:/x", "C:x", ":x", "-a:x", "a-:x", "a b:x",
            "a.b:x", "--", "é:x", "..:x",
        ] {
            assert_eq!(Place::parse(text), Place::Local(text.into()), "{text}");
        }
        let longest = "a".repeat(63);
        assert_eq!(Place::parse(&format!("{longest}:x")), inside(&longest, "x"));
        assert!(matches!(Place::parse(&format!("{longest}a:x")), Place::Local(_)));
    }

    #[test]
    fn names_of_paths_inside() {
        for (path, name) in
            [("a/b", Some("b")), ("a/b//", Some("b")), ("", None), (".", None), ("a/..", None), ("/", None)]
        {
            assert_eq!(last_part(path), name, "{path}");
        }
        for (path, all) in
            [("", "x"), (".", "x"), ("a", "a/x"), ("a/", "a/x"), ("./a", "./a/x"), ("/", "/x"), ("/a/", "/a/x")]
        {
            assert_eq!(below(path, "x"), all, "{path}");
        }
        for (path, expected) in [("", "."), ("a/", "a"), ("a", "a"), ("/", "/"), ("//", "/"), ("/a/", "/a")] {
            assert_eq!(plain(path), expected, "{path}");
        }
    }

    proptest! {
        #[test]
        fn a_dot_before_it_makes_every_path_one_of_this_machine(text in ".{0,40}") {
            let text = format!("./{text}");
            prop_assert_eq!(Place::parse(&text), Place::Local(text.clone().into()));
        }
    }
}
