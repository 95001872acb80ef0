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

/// Bytes of a sector: a raw disk has whole ones.
const SECTOR: u64 = 512;
/// How files begin that are no disks as they are, and what to do about each.
const OTHERS: [(&[u8], &str); 14] = [
    (b"KDMV", CONVERT),
    (b"COWD", CONVERT),
    (b"# Disk DescriptorFile", CONVERT),
    (b"vhdxfile", CONVERT),
    (b"conectix", CONVERT),
    (b"<<< ", CONVERT),
    (b"QED\0", CONVERT),
    (b"LUKS", "the file is encrypted; decrypt it before you send it"),
    (b"\x1f\x8b\x08", UNPACK),
    (b"\xfd7zXZ\0", UNPACK),
    (b"\x28\xb5\x2f\xfd", UNPACK),
    (b"BZh", UNPACK),
    (b"PK\x03\x04", UNPACK),
    (b"7z\xbc\xaf\x27\x1c", UNPACK),
];
const CONVERT: &str =
    "the file is a disk of another format; make a qcow2 of it with: qemu-img convert -O qcow2 FILE disk.qcow2";
const UNPACK: &str = "the file is compressed or an archive; unpack it, and send the disk in it";

/// A disk that may be converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// `qcow2` or `raw`.
    pub format: &'static str,
    /// Its size for a guest, in bytes.
    pub virtual_size: u64,
}

/// Opens a file that is one.
pub(super) fn open(path: &Path) -> Result<File> {
    qcow2::open(path)
}

/// Reads what a disk says of itself that a machine boots from.
pub(super) fn read(file: &File) -> Result<Header> {
    let (head, length) = begun(file)?;
    if head.starts_with(MAGIC) {
        Ok(Header { format: "qcow2", virtual_size: judged(&qcow2::read(file, &head)?)? })
    } else if head.ends_with(&BOOT_SECTOR) {
        Ok(Header { format: "raw", virtual_size: length })
    } else {
        Err(invalid("the file is neither a qcow2 image nor a raw disk with a boot sector"))
    }
}

/// Smallest clusters of a disk that somebody sends, as a power of two; `qemu-img` makes those of 64 KiB.
const LEAST_CLUSTER: u32 = 12;

/// Reads what a disk says of itself that holds data. A raw one may begin with anything, but for what begins another format.
pub(super) fn read_data(file: &File) -> Result<Header> {
    let (head, length) = begun(file)?;
    if head.starts_with(MAGIC) {
        let virtual_size = judged(&qcow2::read(file, &head)?)?;
        // A table of small clusters may have a reader unpack the same few bytes many times.
        if head[20..24] < LEAST_CLUSTER.to_be_bytes()[..] {
            return Err(invalid(
                "the image has clusters of less than 4 KiB; type: qemu-img convert -O qcow2 FILE NEW, and send that one",
            ));
        }
        return Ok(Header { format: "qcow2", virtual_size });
    }
    if let Some((_, reason)) = OTHERS.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Err(invalid(reason));
    }
    if !length.is_multiple_of(SECTOR) {
        return Err(invalid("the file is neither a qcow2 image nor a raw disk, which has whole sectors of 512 bytes"));
    }
    Ok(Header { format: "raw", virtual_size: length })
}

/// How a disk begins, and how long its file is.
fn begun(file: &File) -> Result<([u8; HEAD], u64)> {
    let length = file.metadata().map_err(|e| Error::io("cannot look at the image", e))?.len();
    let mut head = [0; HEAD];
    file.read_exact_at(&mut head, 0).map_err(|_| invalid("the file is too small to be a disk image"))?;
    Ok((head, length))
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

    fn written(bytes: &[u8], read: impl FnOnce(&File) -> Result<Header>) -> Result<Header> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::write(&path, bytes).unwrap();
        read(&open(&path)?)
    }

    fn of(bytes: &[u8]) -> Result<Header> {
        written(bytes, read)
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
    fn a_disk_of_data_needs_no_boot_sector_and_is_of_no_other_format() {
        let of_data = |bytes: &[u8]| written(bytes, read_data);
        assert_eq!(of_data(&header()).unwrap().format, "qcow2");
        assert_eq!(of_data(&[7; 1024]).unwrap(), Header { format: "raw", virtual_size: 1024 });
        for wrong in [&[7; 1023][..], &[7; 511]] {
            assert!(of_data(wrong).is_err(), "{}", wrong.len());
        }
        for (magic, reason) in OTHERS {
            let mut bytes = vec![0; 1024];
            bytes[..magic.len()].copy_from_slice(magic);
            assert!(of_data(&bytes).unwrap_err().to_string().contains(reason), "{reason}");
        }
        for (bits, is_taken) in [(11, false), (12, true)] {
            let mut small = header();
            set(&mut small, 20, bits);
            assert_eq!(of_data(&small).is_ok(), is_taken, "{bits}");
        }
        let mut lies = header();
        set(&mut lies, 12, 512);
        assert!(of_data(&lies).unwrap_err().to_string().contains("another file"));
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
