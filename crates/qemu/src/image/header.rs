//! What a foreign disk says of itself, read before any other program opens it.
//!
//! `qemu-img` opens what a header names (a backing file, an external data file) before anybody can refuse it, so the
//! header of qcow2 is read here, by the format's description (`docs/interop/qcow2.txt` of QEMU). A disk that names
//! other files, is encrypted, or needs a feature that is not known here is refused.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::error::at;
use crate::{Error, Result};

/// How qcow2 begins.
const MAGIC: &[u8] = b"QFI\xfb";
/// Bytes of a header of version 2 and of the least of version 3.
const SHORT: usize = 72;
const LONG: usize = 104;
/// Incompatible features: an unclean end, compression by zstd, small clusters. Each is harmless to a reader.
const HARMLESS: u64 = 1 | (1 << 3) | (1 << 4);
/// Incompatible feature: the data lie in another file.
const EXTERNAL: u64 = 1 << 2;
/// Header extension: the name of that file.
const EXTERNAL_NAME: u32 = 0x4441_5441;
/// Most extensions that are looked at; QEMU writes three.
const EXTENSIONS: usize = 64;
/// The last bytes of a boot sector.
const BOOT_SECTOR: [u8; 2] = [0x55, 0xaa];

/// A disk that may be converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// `qcow2` or `raw`.
    pub(super) format: &'static str,
    /// Its size for a guest, in bytes.
    pub(super) virtual_size: u64,
}

/// Opens a file that is one: a pipe, a device or a directory is refused without a wait for who writes into it.
pub(super) fn open(path: &Path) -> Result<File> {
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file =
        std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(at("cannot open", path))?;
    let found = file.metadata().map_err(at("cannot look at", path))?;
    if found.is_file() { Ok(file) } else { Err(invalid("the image must be a plain file")) }
}

/// Reads what a disk says of itself.
pub(super) fn read(file: &File) -> Result<Header> {
    let length = file.metadata().map_err(|e| Error::io("cannot look at the image", e))?.len();
    let mut head = [0; 512];
    file.read_exact_at(&mut head, 0).map_err(|_| invalid("the file is too small to be a disk image"))?;
    if head.starts_with(MAGIC) {
        Ok(Header { format: "qcow2", virtual_size: qcow2(file, &head)? })
    } else if head.ends_with(&BOOT_SECTOR) {
        Ok(Header { format: "raw", virtual_size: length })
    } else {
        Err(invalid("the file is neither a qcow2 image nor a raw disk with a boot sector"))
    }
}

fn qcow2(file: &File, head: &[u8; 512]) -> Result<u64> {
    let (version, backing, cluster_bits) = (u32_at(head, 4), u64_at(head, 8), u32_at(head, 20));
    let (size, encrypted) = (u64_at(head, 24), u32_at(head, 32) != 0);
    if !matches!(version, 2 | 3) || !(9..=21).contains(&cluster_bits) {
        return Err(invalid("the image is no qcow2 of version 2 or 3"));
    }
    let (features, header_length) = match version {
        2 => (0, SHORT),
        _ => (u64_at(head, 72), usize::try_from(u32_at(head, 100)).unwrap_or(usize::MAX)),
    };
    if backing != 0 || features & EXTERNAL != 0 || names_another_file(file, header_length, cluster_bits)? {
        return Err(invalid("the image builds on another file; flatten it with qemu-img convert first"));
    }
    if encrypted {
        return Err(invalid("the image is encrypted; convert it with qemu-img convert first"));
    }
    if features & !HARMLESS != 0 {
        return Err(invalid(
            "the image is damaged, or of a newer kind than this; convert it with qemu-img convert first",
        ));
    }
    Ok(size)
}

/// Whether an extension of the header names a file with the data.
fn names_another_file(file: &File, header_length: usize, cluster_bits: u32) -> Result<bool> {
    let cluster = 1_u64 << cluster_bits;
    if header_length != SHORT && header_length < LONG {
        return Err(invalid("the image's header is damaged"));
    }
    let mut offset = header_length as u64;
    for _ in 0..EXTENSIONS {
        let mut head = [0; 8];
        if offset + 8 > cluster || file.read_exact_at(&mut head, offset).is_err() {
            return Ok(false);
        }
        match u32_at(&head, 0) {
            0 => return Ok(false),
            EXTERNAL_NAME => return Ok(true),
            _ => offset += 8 + u64::from(u32_at(&head, 4)).next_multiple_of(8),
        }
    }
    Err(invalid("the image's header is damaged"))
}

fn invalid(text: &str) -> Error {
    Error::Invalid(text.into())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_be_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    (u64::from(u32_at(bytes, at)) << 32) | u64::from(u32_at(bytes, at + 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn judged(bytes: &[u8]) -> Result<Header> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::write(&path, bytes).unwrap();
        read(&open(&path)?)
    }

    /// A header of version 3 with clusters of 64 KiB and 1 GiB for the guest.
    fn header() -> Vec<u8> {
        let mut bytes = vec![0; 512];
        bytes[..4].copy_from_slice(MAGIC);
        for (at, word) in [(4, 3), (20, 16), (100, 104)] {
            set(&mut bytes, at, word);
        }
        bytes[24..32].copy_from_slice(&(1_u64 << 30).to_be_bytes());
        bytes
    }

    fn set(bytes: &mut [u8], at: usize, word: u32) {
        bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
    }

    #[test]
    fn a_plain_disk_tells_its_size() {
        assert_eq!(judged(&header()).unwrap(), Header { format: "qcow2", virtual_size: 1 << 30 });
        let mut raw = vec![0; 4096];
        raw[510..512].copy_from_slice(&BOOT_SECTOR);
        assert_eq!(judged(&raw).unwrap(), Header { format: "raw", virtual_size: 4096 });
        assert!(judged(&raw[..511]).is_err());
    }

    #[test]
    fn what_a_reader_cannot_or_must_not_follow_is_refused() {
        for (at, word, part) in [
            (4, 1, "version"),
            (4, 4, "version"),
            (20, 8, "version"),
            (20, 22, "version"),
            (12, 512, "another file"),
            (76, 1 << 2, "another file"),
            (104, EXTERNAL_NAME, "another file"),
            (32, 1, "encrypted"),
            (76, 1 << 1, "damaged"),
            (76, 1 << 5, "newer"),
            (100, 80, "damaged"),
        ] {
            let mut bytes = header();
            set(&mut bytes, at, word);
            let error = judged(&bytes).unwrap_err().to_string();
            assert!(error.contains(part), "{at}: {error}");
        }
        for harmless in [1, 1 << 3, 1 << 4] {
            let mut bytes = header();
            set(&mut bytes, 76, harmless);
            judged(&bytes).unwrap();
        }
    }

    #[test]
    fn an_extension_behind_others_is_found() {
        let mut bytes = header();
        set(&mut bytes, 104, 0x6803_f857);
        set(&mut bytes, 108, 9);
        set(&mut bytes, 104 + 8 + 16, EXTERNAL_NAME);
        assert!(judged(&bytes).unwrap_err().to_string().contains("another file"));
    }

    proptest! {
        #[test]
        fn no_header_panics(bytes in prop::collection::vec(any::<u8>(), 508)) {
            let _ = judged(&[MAGIC, &bytes].concat());
        }
    }
}
