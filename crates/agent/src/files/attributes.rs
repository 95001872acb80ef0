//! Extended attributes that people set: those of the namespace `user.`, named without it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::error::{Refusal, Result};
use crate::files::beneath::named;

/// The namespace.
const NAMESPACE: &str = "user.";
/// The most names that are told of one file.
const MAX_NAMES: usize = 64;
/// The most bytes of names and values that are told of one file.
const MAX_BYTES: usize = 64 * 1024;

/// Attributes of something that is open, if only as a path: those that are text, as far as they fit.
pub fn read(open: &OwnedFd) -> BTreeMap<String, String> {
    // What has none, or may not be read, tells none.
    gather(&named(open)).unwrap_or_default()
}

fn gather(path: &str) -> rustix::io::Result<BTreeMap<String, String>> {
    let mut names = vec![0_u8; rustix::fs::listxattr_query(path)?];
    let length = if names.is_empty() { 0 } else { rustix::fs::listxattr(path, &mut names)? };
    names.truncate(length);
    let (mut found, mut size) = (BTreeMap::new(), 0);
    for name in names.split(|byte| *byte == 0) {
        let Some(short) = std::str::from_utf8(name).ok().and_then(|name| name.strip_prefix(NAMESPACE)) else {
            continue;
        };
        let Some(value) = value(path, name).and_then(|value| String::from_utf8(value).ok()) else { continue };
        if found.len() < MAX_NAMES && size + short.len() + value.len() <= MAX_BYTES {
            size += short.len() + value.len();
            found.insert(short.to_owned(), value);
        }
    }
    Ok(found)
}

fn value(path: &str, name: &[u8]) -> Option<Vec<u8>> {
    let mut value = vec![0_u8; rustix::fs::getxattr_query(path, name).ok()?];
    let length = if value.is_empty() { 0 } else { rustix::fs::getxattr(path, name, &mut value).ok()? };
    value.truncate(length);
    Some(value)
}

/// Sets attributes of a file that is open for writing.
pub fn set(file: &OwnedFd, attributes: &[(String, String)]) -> Result<()> {
    for (name, value) in attributes {
        let wrong = |rule: &str| Refusal::field(&format!("attribute.{name}"), rule);
        if name.is_empty() || name.contains('\0') {
            return Err(wrong("must have a name after the dot, without the character NUL"));
        }
        match rustix::fs::fsetxattr(file, format!("{NAMESPACE}{name}"), value.as_bytes(), XattrFlags::empty()) {
            Ok(()) => {}
            Err(Errno::RANGE) => return Err(wrong("has a name that is too long for the file system")),
            // ext4 says so when the attributes of one file are too large for it.
            Err(Errno::TOOBIG | Errno::NOSPC) => return Err(wrong("is too large for the file system")),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Err(wrong("is not taken by the file system")),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_told_and_what_does_not_fit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file: OwnedFd = std::fs::File::create(folder.path().join("a")).unwrap().into();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        set(&file, &[pair("a", "one"), pair("b.c", ""), pair("ü", "€")]).unwrap();
        rustix::fs::fsetxattr(&file, "user.bytes", b"\xff", XattrFlags::empty()).unwrap();
        let expected = BTreeMap::from([pair("a", "one"), pair("b.c", ""), pair("ü", "€")]);
        assert_eq!(read(&file), expected, "what is no text is left out");
        assert!(set(&file, &[pair(&"n".repeat(250), "")]).is_ok());
        for (name, value) in [("", "x"), ("nul\0", "x"), (&"n".repeat(251), "x"), ("large", &"x".repeat(65_537))] {
            let refusal = set(&file, &[pair(name, value)]).unwrap_err();
            assert_eq!((refusal.status.as_u16(), refusal.details[0].field.clone()), (400, format!("attribute.{name}")));
        }
    }
}
