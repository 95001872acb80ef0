//! What a simulated host sends of disks: bytes that follow from what they are of.

use std::fmt::Debug;

use berth_host::vm::{Exported, Part};
use berth_host::{EngineError, Result};

/// Bytes of each file: more than is under way at a time.
const BYTES: usize = 300_000;

/// The file of a source.
pub fn file(of: &impl Debug) -> Vec<u8> {
    let text = format!("{of:?} ");
    b"QFI\xfb".iter().chain(text.as_bytes().iter().cycle()).copied().take(BYTES).collect()
}

/// What is said of a file.
pub fn about(file: &[u8]) -> Exported {
    let path = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(path.path(), file).expect("a file that is written");
    let sha256 = berth_qemu::image::hash(&mut path.reopen().expect("a file")).expect("a hash");
    Exported { bytes: file.len() as u64, sha256 }
}

/// A part of a file that hashes to this.
pub fn part(file: &[u8], sha256: &str, part: Part) -> Result<Vec<u8>> {
    let about = about(file);
    if about.sha256 != sha256 {
        return Err(EngineError::Transient("the file is not there any more; ask for it again".into()));
    }
    if !about.has(part) {
        return Err(EngineError::Permanent("the file has no such part".into()));
    }
    let at = |byte: u64| usize::try_from(byte).expect("a place");
    Ok(file[at(part.from)..at(part.from + part.bytes)].to_vec())
}
