//! An archive within a context, which `ADD` unpacks: its members take their places among the others.

use std::io::Read;

use super::archive::Spending;
use crate::compression::{Compression, Decoder};
use crate::members::{Member, each};
use crate::{Budget, Error, Result};

/// Position of the tar magic in a header.
const MAGIC: std::ops::Range<usize> = 257..262;

/// Whether the beginning of a file is that of an archive, compressed or not. An archive that cannot be read here
/// counts, too, so that `ADD` reports it instead of copying what it should unpack.
pub fn is_archive(start: &[u8]) -> bool {
    let compression = Compression::of(start);
    if matches!(compression, Compression::Bzip2 | Compression::Xz) {
        return true;
    }
    let Ok(decoder) = Decoder::new(compression, start) else { return false };
    let mut header = Vec::new();
    // The beginning of a compressed file ends in the middle of its data.
    let _ = decoder.take(MAGIC.end as u64).read_to_end(&mut header);
    header.get(MAGIC) == Some(b"ustar")
}

/// Calls a function with every member of an archive. Everything decompressed from it counts against the budget.
pub fn each_member(
    name: &str,
    content: &mut dyn Read,
    budget: &Budget,
    visit: impl FnMut(Member, &mut dyn Read) -> Result<()>,
) -> Result<()> {
    let within = |error: Error| match error {
        Error::Invalid(message) => Error::Invalid(format!("ADD cannot unpack '{name}': {message}")),
        other => other,
    };
    let decoder = Decoder::sniff(content).map_err(|error| within(Error::from_stream(error)))?;
    let mut archive = tar::Archive::new(Spending { reader: decoder, budget });
    each(archive.entries()?, visit).map_err(within)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn archives_are_told_from_other_files() {
        let mut header = tar::Header::new_gnu();
        header.set_cksum();
        let tar = header.as_bytes().to_vec();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(&tar).unwrap();
        gzip.write_all(&vec![7; 100_000]).unwrap();
        let gzip = gzip.finish().unwrap();
        let mut text = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        text.write_all(&[7; 1000]).unwrap();
        assert!(is_archive(&tar) && is_archive(&gzip[..gzip.len() / 2]) && is_archive(b"\xfd7zXZ\0"));
        assert!(!is_archive(&text.finish().unwrap()) && !is_archive(b"") && !is_archive(b"text"));
    }
}
