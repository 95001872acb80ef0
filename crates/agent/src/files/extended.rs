//! Headers of an archive that describe the entry after them: GNU's long names, and pax records (pax(1)).

use std::io::Read;

use tar::{Entry, EntryType};

use crate::error::Result;
use crate::files::incoming::{In, broken};

/// The most bytes of a name or of an extended header.
pub const MAX_HEADER: usize = 64 * 1024;
/// The most attributes of one entry that are kept.
pub const MAX_ATTRIBUTES: usize = 64;
/// The prefix of an attribute's key.
pub const ATTRIBUTE: &str = "SCHILY.xattr.";

/// Whether an attribute means something on another machine.
pub fn is_attribute(name: &[u8]) -> bool {
    name == b"security.capability" || name.starts_with(b"user.")
}

/// What extended headers say of the entry after them.
#[derive(Default)]
pub struct Extended {
    /// Its name.
    pub path: Option<Vec<u8>>,
    /// What it links to.
    pub link: Option<Vec<u8>>,
    /// The user id of its owner.
    pub uid: Option<u32>,
    /// Its group id.
    pub gid: Option<u32>,
    /// When it was changed, in seconds since 1970.
    pub mtime: Option<i64>,
    /// Its attributes that mean something here, by name.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Extended {
    /// Takes an entry if it is a header of another one; returns whether it was.
    pub fn take(&mut self, entry: &mut Entry<'_, In>) -> Result<bool> {
        match entry.header().entry_type() {
            EntryType::GNULongName => self.path = Some(until_nul(bounded(entry)?)),
            EntryType::GNULongLink => self.link = Some(until_nul(bounded(entry)?)),
            EntryType::XHeader => self.read(&bounded(entry)?)?,
            EntryType::XGlobalHeader => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn read(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let next = record(bytes).ok_or_else(|| broken("it has an extended header that cannot be read"))?;
            self.note(next.key, next.value)?;
            bytes = next.rest;
        }
        Ok(())
    }

    fn note(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let text = std::str::from_utf8(value).unwrap_or_default();
        match key {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"uid" => self.uid = text.parse().ok(),
            b"gid" => self.gid = text.parse().ok(),
            b"mtime" => self.mtime = text.split('.').next().and_then(|seconds| seconds.parse().ok()),
            b"size" => return Err(broken("it has an entry of 8 GiB or more")),
            key if key.starts_with(b"GNU.sparse") => return Err(broken("it has a sparse entry")),
            key => {
                let name = key.strip_prefix(ATTRIBUTE.as_bytes()).filter(|name| is_attribute(name));
                if let Some(name) = name.filter(|_| self.attributes.len() < MAX_ATTRIBUTES) {
                    self.attributes.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        Ok(())
    }
}

/// A record of an extended header, and the bytes after it.
struct Record<'a> {
    key: &'a [u8],
    value: &'a [u8],
    rest: &'a [u8],
}

/// The first record: its whole length in digits, a space, a key, `=`, a value of any bytes, and a newline.
fn record(bytes: &[u8]) -> Option<Record<'_>> {
    let space = memchr::memchr(b' ', bytes)?;
    let length = std::str::from_utf8(&bytes[..space]).ok()?.parse::<usize>().ok()?;
    let (whole, rest) = bytes.split_at_checked(length)?;
    let text = whole.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = memchr::memchr(b'=', text)?;
    Some(Record { key: &text[..equals], value: &text[equals + 1..], rest })
}

/// The bounded content of a header entry.
fn bounded(entry: &mut Entry<'_, In>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    entry.take(MAX_HEADER as u64 + 1).read_to_end(&mut bytes).map_err(broken)?;
    if bytes.len() > MAX_HEADER {
        return Err(broken("it has a header that is too long"));
    }
    Ok(bytes)
}

/// The bytes before the first NUL.
fn until_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(memchr::memchr(0, &bytes).unwrap_or(bytes.len()));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A header in the form that archives have.
    fn header(records: &[(&str, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        builder.append_pax_extensions(records.iter().copied()).unwrap();
        let bytes = builder.into_inner().unwrap();
        let mut archive = tar::Archive::new(&bytes[..]);
        let mut content = Vec::new();
        archive.entries().unwrap().raw(true).next().unwrap().unwrap().read_to_end(&mut content).unwrap();
        content
    }

    fn read(bytes: &[u8]) -> Result<Extended> {
        let mut extended = Extended::default();
        extended.read(bytes)?;
        Ok(extended)
    }

    #[test]
    fn every_record_is_read() {
        let records = [
            ("path", &b"a\nb"[..]),
            ("linkpath", b"c"),
            ("uid", b"7"),
            ("gid", b"x"),
            ("mtime", b"9.5"),
            ("comment", b"none"),
            ("SCHILY.xattr.user.a", b""),
            ("SCHILY.xattr.trusted.a", b"no"),
            ("SCHILY.xattr.security.capability", b"\x01\0\0\x02\n\0"),
        ];
        let read = read(&header(&records)).unwrap();
        assert_eq!((read.path.as_deref(), read.link.as_deref()), (Some(&b"a\nb"[..]), Some(&b"c"[..])));
        assert_eq!((read.uid, read.gid, read.mtime), (Some(7), None, Some(9)));
        let capability = (b"security.capability".to_vec(), b"\x01\0\0\x02\n\0".to_vec());
        assert_eq!(read.attributes, [(b"user.a".to_vec(), Vec::new()), capability]);
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for bad in [&b"5 a=\n6 b"[..], b"x a=b\n", b"99 a=b\n", b"1 a=b\n", b"6 a=b ", b"6 abc\n", b"a=b", b"\n"] {
            assert_eq!(read(bad).map(drop).unwrap_err().code, "invalid_archive", "{bad:?}");
        }
        for (key, value) in [("size", &b"1"[..]), ("GNU.sparse.major", b"1")] {
            assert!(read(&header(&[(key, value)])).is_err(), "{key}");
        }
        assert!(read(b"").is_ok() && read(b"6 a=b\n").is_ok());
    }

    #[test]
    fn only_so_many_attributes_are_taken() {
        let names = (0..=MAX_ATTRIBUTES).map(|n| format!("{ATTRIBUTE}user.{n}")).collect::<Vec<_>>();
        for (count, taken) in [(MAX_ATTRIBUTES, MAX_ATTRIBUTES), (MAX_ATTRIBUTES + 1, MAX_ATTRIBUTES)] {
            let records = names[..count].iter().map(|name| (name.as_str(), &b"v"[..])).collect::<Vec<_>>();
            assert_eq!(read(&header(&records)).unwrap().attributes.len(), taken);
        }
    }

    proptest! {
        #[test]
        fn every_value_arrives(value in prop::collection::vec(any::<u8>(), 0..300)) {
            let read = read(&header(&[("SCHILY.xattr.user.a", &value[..]), ("path", &b"p"[..])])).unwrap();
            prop_assert_eq!(read.attributes, [(b"user.a".to_vec(), value)]);
            prop_assert_eq!(read.path, Some(b"p".to_vec()));
        }

        #[test]
        fn nothing_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..60), text in "[0-9 =a\n]{0,30}") {
            let _ = (read(&bytes).map(drop), read(text.as_bytes()).map(drop));
        }
    }
}
