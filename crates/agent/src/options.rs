//! The command line of tests. Pure.

use std::ffi::OsString;
use std::path::PathBuf;

const USAGE: &str = "usage: berth-agent --socket PATH --root DIR --user NAME [--cgroup DIR]";

/// The options.
#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    /// The socket to make and serve.
    pub socket: PathBuf,
    /// The workspace.
    pub root: PathBuf,
    /// The account that works there.
    pub user: String,
    /// The cgroup of commands.
    pub cgroup: Option<PathBuf>,
}

impl Options {
    /// Parses the words after the program's name.
    pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Self, String> {
        let (mut socket, mut root, mut user, mut cgroup) = (None, None, None, None);
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let slot = match word.to_str() {
                Some("--socket") => &mut socket,
                Some("--root") => &mut root,
                Some("--user") => &mut user,
                Some("--cgroup") => &mut cgroup,
                _ => return Err(format!("{} is unknown; {USAGE}", word.display())),
            };
            *slot = Some(words.next().ok_or_else(|| format!("{} needs a value; {USAGE}", word.display()))?);
        }
        let needed = |slot: Option<OsString>| slot.ok_or_else(|| USAGE.to_owned());
        Ok(Self {
            socket: needed(socket)?.into(),
            root: needed(root)?.into(),
            user: needed(user)?.to_string_lossy().into_owned(),
            cgroup: cgroup.map(Into::into),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn the_usage_is_told() {
        let fine = parse("--socket s --user u --root r").unwrap();
        assert_eq!((fine.socket, fine.user.as_str(), fine.cgroup), ("s".into(), "u", None));
        for bad in ["", "--socket s", "--socket", "--what s", "--socket s --root r"] {
            assert!(parse(bad).unwrap_err().contains("usage"), "{bad}");
        }
    }
}
