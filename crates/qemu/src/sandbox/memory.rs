//! Memory files: sparse images of a guest's memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use berth_process::folder;
use rustix::fs::{SeekFrom, copy_file_range, ioctl_ficlone, seek};
use rustix::io::Errno;

use crate::error::at;
use crate::{Error, Result};

/// Bytes of a MiB.
const MIB: u64 = 1 << 20;
/// What is copied at a time where the kernel cannot do it by itself.
const PIECE: usize = 1 << 20;

/// Makes an empty memory.
pub fn empty(path: &Path, memory_mb: u32) -> Result<()> {
    let file = folder::create_blank(path).map_err(at("cannot create", path))?;
    file.set_len(u64::from(memory_mb) * MIB).map_err(at("cannot size", path))
}

/// Copies a memory of so many bytes at most, its holes as holes; by reference where the file system can.
pub fn copy(from: &Path, to: &Path, most: u64) -> Result<File> {
    let source = folder::open(from).map_err(at("cannot open", from))?;
    let size = source.metadata().map_err(at("cannot look at", from))?.len();
    if size > most {
        return Err(Error::Qemu("its memory is larger than it was made".into()));
    }
    let target = folder::create_blank(to).map_err(at("cannot create", to))?;
    if ioctl_ficlone(&target, &source).is_ok() {
        return Ok(target);
    }
    target.set_len(size).map_err(at("cannot size", to))?;
    let mut at_byte = 0;
    while let Some((start, end)) = data_from(&source, at_byte, size)? {
        copy_range(&source, &target, start, end).map_err(at("cannot copy to", to))?;
        at_byte = end;
    }
    Ok(target)
}

/// The next stretch of a file that is no hole.
fn data_from(file: &File, from: u64, size: u64) -> Result<Option<(u64, u64)>> {
    let failed = |e: Errno| Error::io("cannot look for holes", e.into());
    match seek(file, SeekFrom::Data(from)) {
        Err(Errno::NXIO) => Ok(None),
        Err(Errno::INVAL) => Ok((from < size).then_some((from, size))),
        Err(error) => Err(failed(error)),
        Ok(start) => Ok(Some((start, seek(file, SeekFrom::Hole(start)).map_err(failed)?))),
    }
}

fn copy_range(source: &File, target: &File, start: u64, end: u64) -> std::io::Result<()> {
    let (mut from, mut to) = (start, start);
    while from < end {
        let length = usize::try_from(end - from).unwrap_or(usize::MAX);
        match copy_file_range(source, Some(&mut from), target, Some(&mut to), length) {
            Ok(0) => break,
            Ok(_) => {}
            Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => {
                return copy_bytes(source, target, from, end);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn copy_bytes(source: &File, target: &File, start: u64, end: u64) -> std::io::Result<()> {
    let mut buffer = vec![0; PIECE];
    let mut position = start;
    while position < end {
        let length = PIECE.min(usize::try_from(end - position).unwrap_or(PIECE));
        source.read_exact_at(&mut buffer[..length], position)?;
        target.write_all_at(&buffer[..length], position)?;
        position += length as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn holes_stay_holes() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        empty(&from, 64).unwrap();
        let file = File::options().write(true).open(&from).unwrap();
        file.write_all_at(b"begin", 0).unwrap();
        file.write_all_at(b"end", 64 * MIB - 3).unwrap();
        assert!(copy(&from, &to, 64 * MIB - 1).is_err(), "it has grown");
        assert!(!to.exists());
        copy(&from, &to, 64 * MIB).unwrap();
        assert_eq!(std::fs::read(&from).unwrap(), std::fs::read(&to).unwrap());
        assert!(std::fs::metadata(&to).unwrap().blocks() * 512 < MIB);
    }

    #[test]
    fn a_memory_that_is_a_link_is_not_copied() {
        let dir = tempfile::tempdir().unwrap();
        let [others, from, to] = ["others", "from", "to"].map(|name| dir.path().join(name));
        std::fs::write(&others, "a secret").unwrap();
        std::os::unix::fs::symlink(&others, &from).unwrap();
        assert!(copy(&from, &to, MIB).is_err());
        assert!(!to.exists());
    }
}
