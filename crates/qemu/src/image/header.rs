//! What a foreign disk says of itself, read before any other program opens it.
//!
//! `qemu-img` opens what a header names (a backing file, an external data file) before anybody can refuse it, so the
//! header of qcow2 is read here, by the format's description (`docs/interop/qcow2.txt` of QEMU). A disk that names
//! other files, is encrypted, or needs a feature that is not known here is refused.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::qcow2::{self, HEAD, MAGIC, Qcow2};
use crate::{Error, Result};

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

/// Opens a file that is one.
pub(super) fn open(path: &Path) -> Result<File> {
    qcow2::open(path)
}

/// Reads what a disk says of itself.
pub(super) fn read(file: &File) -> Result<Header> {
    let length = file.metadata().map_err(|e| Error::io("cannot look at the image", e))?.len();
    let mut head = [0; HEAD];
    file.read_exact_at(&mut head, 0).map_err(|_| invalid("the file is too small to be a disk image"))?;
    if head.starts_with(MAGIC) {
        Ok(Header { format: "qcow2", virtual_size: judged(&qcow2::read(file, &head)?)? })
    } else if head.ends_with(&BOOT_SECTOR) {
        Ok(Header { format: "raw", virtual_size: length })
    } else {
        Err(invalid("the file is neither a qcow2 image nor a raw disk with a boot sector"))
    }
}

/// The size of a disk that stands alone.
fn judged(found: &Qcow2) -> Result<u64> {
    if found.backing.is_some() || found.is_external {
        return Err(invalid("the image builds on another file; flatten it with qemu-img convert first"));
    }
    if found.is_encrypted {
        return Err(invalid("the image is encrypted; convert it with qemu-img convert first"));
    }
    if found.is_strange {
        return Err(invalid(
            "the image is damaged, or of a newer kind than this; convert it with qemu-img convert first",
        ));
    }
    Ok(found.virtual_size)
}

fn invalid(text: &str) -> Error {
    Error::Invalid(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qcow2::EXTERNAL_NAME;
    use proptest::prelude::*;

    fn of(bytes: &[u8]) -> Result<Header> {
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
        assert_eq!(of(&header()).unwrap(), Header { format: "qcow2", virtual_size: 1 << 30 });
        let mut raw = vec![0; 4096];
        raw[510..512].copy_from_slice(&BOOT_SECTOR);
        assert_eq!(of(&raw).unwrap(), Header { format: "raw", virtual_size: 4096 });
        assert!(of(&raw[..511]).is_err());
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
            let error = of(&bytes).unwrap_err().to_string();
            assert!(error.contains(part), "{at}: {error}");
        }
        for harmless in [1, 1 << 3, 1 << 4] {
            let mut bytes = header();
            set(&mut bytes, 76, harmless);
            of(&bytes).unwrap();
        }
    }

    #[test]
    fn an_extension_behind_others_is_found() {
        let mut bytes = header();
        set(&mut bytes, 104, 0x6803_f857);
        set(&mut bytes, 108, 9);
        set(&mut bytes, 104 + 8 + 16, EXTERNAL_NAME);
        assert!(of(&bytes).unwrap_err().to_string().contains("another file"));
    }

    proptest! {
        #[test]
        fn no_header_panics(bytes in prop::collection::vec(any::<u8>(), 508)) {
            let _ = of(&[MAGIC, &bytes].concat());
        }
    }
}
