//! The header of a qcow2 file, by the format's description (`docs/interop/qcow2.txt` of QEMU).
//!
//! QEMU follows what the header names (a disk below, a file with the data) before anybody can refuse it, and whoever
//! wrote to a disk may have written to its header: so it is read here before every start.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::error::at;
use crate::{Error, Result};

/// How qcow2 begins.
pub(crate) const MAGIC: &[u8] = b"QFI\xfb";
/// Bytes that are read at once: a header of any version.
pub(crate) const HEAD: usize = 512;
/// Bytes of a header of version 2 and of the least of version 3.
const SHORT: usize = 72;
const LONG: usize = 104;
/// Incompatible features: an unclean end, compression by zstd, small clusters. Each is harmless to a reader.
const HARMLESS: u64 = 1 | (1 << 3) | (1 << 4);
/// Incompatible feature: the data lie in another file.
const EXTERNAL: u64 = 1 << 2;
/// Header extension: the name of that file.
pub(crate) const EXTERNAL_NAME: u32 = 0x4441_5441;
/// Most extensions that are looked at; QEMU writes three.
const EXTENSIONS: usize = 64;
/// Longest name of a disk below, by the format.
const LONGEST_NAME: u32 = 1023;

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Qcow2 {
    /// Its size for a guest, in bytes.
    pub(crate) virtual_size: u64,
    /// The name of the disk that it lies on.
    pub(crate) backing: Option<String>,
    /// Whether the data lie in another file.
    pub(crate) is_external: bool,
    /// Whether it is encrypted.
    pub(crate) is_encrypted: bool,
    /// Whether it is marked as damaged, or has features that are not known here.
    pub(crate) is_strange: bool,
}

/// Opens a file that is one: a pipe, a device or a directory is refused without a wait for who writes into it.
pub(crate) fn open(path: &Path) -> Result<File> {
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file =
        std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(at("cannot open", path))?;
    let found = file.metadata().map_err(at("cannot look at", path))?;
    if found.is_file() { Ok(file) } else { Err(invalid("the image must be a plain file")) }
}

/// Reads the rest of a header that begins with its magic.
pub(crate) fn read(file: &File, head: &[u8; HEAD]) -> Result<Qcow2> {
    let (version, cluster_bits) = (u32_at(head, 4), u32_at(head, 20));
    if !matches!(version, 2 | 3) || !(9..=21).contains(&cluster_bits) {
        return Err(invalid("the image is no qcow2 of version 2 or 3"));
    }
    let (features, header_length) = match version {
        2 => (0, SHORT),
        _ => (u64_at(head, 72), usize::try_from(u32_at(head, 100)).unwrap_or(usize::MAX)),
    };
    let is_external = features & EXTERNAL != 0 || names_another_file(file, header_length, cluster_bits)?;
    Ok(Qcow2 {
        virtual_size: u64_at(head, 24),
        backing: backing(file, u64_at(head, 8), u32_at(head, 16)),
        is_external,
        is_encrypted: u32_at(head, 32) != 0,
        is_strange: features & !(HARMLESS | EXTERNAL) != 0,
    })
}

fn backing(file: &File, offset: u64, length: u32) -> Option<String> {
    if offset == 0 {
        return None;
    }
    let mut name = vec![0; usize::try_from(length.min(LONGEST_NAME)).unwrap_or(0)];
    let whole = length <= LONGEST_NAME && file.read_exact_at(&mut name, offset).is_ok();
    // What cannot be read is a name all the same, of nothing that is expected.
    Some(if whole { String::from_utf8_lossy(&name).into_owned() } else { String::new() })
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

/// Refuses to start a machine on a disk that is not what it was made as: `below` is how the name of the disk that it
/// lies on ends, if it lies on one. Returns its size for the guest, in bytes.
pub(crate) fn check(path: &Path, below: Option<&Path>) -> Result<u64> {
    let damaged = |what: &str| damaged(path, what);
    let found = header(path)?;
    let is_on = match (&found.backing, below) {
        (None, None) => true,
        (Some(name), Some(below)) => Path::new(name).ends_with(below),
        _ => false,
    };
    if found.is_external || !is_on {
        return Err(damaged("names a file that is not its own"));
    }
    if found.is_encrypted || found.is_strange {
        return Err(damaged("has features that Berth gives no disk"));
    }
    Ok(found.virtual_size)
}

/// What the header of a disk says; refuses what is no qcow2.
pub(crate) fn header(path: &Path) -> Result<Qcow2> {
    let file = open(path)?;
    let mut head = [0; HEAD];
    file.read_exact_at(&mut head, 0).map_err(|_| damaged(path, "has no header"))?;
    if !head.starts_with(MAGIC) {
        return Err(damaged(path, "is no qcow2"));
    }
    read(&file, &head).map_err(|error| damaged(path, &format!("cannot be used: {error}")))
}

fn damaged(path: &Path, what: &str) -> Error {
    Error::Damaged(format!("{} {what}", path.display()))
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
    use crate::sandbox::create_layer;

    fn set(path: &Path, at: u64, bytes: &[u8]) {
        File::options().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
    }

    #[test]
    fn a_disk_is_started_on_only_as_it_was_made() {
        let dir = tempfile::tempdir().unwrap();
        let (lowest, top) = (dir.path().join("lowest.qcow2"), dir.path().join("top.qcow2"));
        create_layer(&lowest, "", 1 << 30).unwrap();
        create_layer(&top, "lowest.qcow2", 1 << 30).unwrap();
        let below = Some(Path::new("lowest.qcow2"));
        assert_eq!(check(&lowest, None).unwrap(), 1 << 30);
        assert_eq!(check(&top, below).unwrap(), 1 << 30);
        for (path, below) in [(&lowest, below), (&top, None), (&top, Some(Path::new("other.qcow2")))] {
            let error = check(path, below).unwrap_err().to_string();
            assert!(error.contains("names a file that is not its own"), "{error}");
        }
    }

    #[test]
    fn what_a_guest_wrote_into_a_header_is_not_followed() {
        let (external, encrypted, corrupt, unknown) = ([0, 0, 0, 4], [0, 0, 0, 1], [0, 0, 0, 2], [0, 0, 0, 32]);
        for (at, bytes) in [
            (76, external),
            (104, EXTERNAL_NAME.to_be_bytes()),
            (32, encrypted),
            (76, corrupt),
            (76, unknown),
            (0, [0; 4]),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let disk = dir.path().join("disk.qcow2");
            create_layer(&disk, "", 1 << 30).unwrap();
            check(&disk, None).unwrap();
            set(&disk, at, &bytes);
            assert!(matches!(check(&disk, None), Err(Error::Damaged(_))), "{at} {bytes:?}");
        }
    }

    #[test]
    fn what_is_no_file_is_refused_without_a_wait() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(check(&pipe, None).is_err());
        assert!(check(&dir.path().join("none"), None).is_err());
    }
}
