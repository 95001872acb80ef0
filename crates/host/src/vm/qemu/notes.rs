//! Files of one line, each of which says what another file lies on or is to be: whole, or not there.

use std::fs::File;
use std::io::{Error, ErrorKind, Result, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};

/// What such a file says; none where there is none. One without a word was never written as [`write`] does, so nobody knows
/// what it was to say: that is an error.
pub(super) fn read(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim().is_empty() => {
            Err(Error::new(ErrorKind::InvalidData, format!("{} says nothing", path.display())))
        }
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::new(error.kind(), format!("cannot read {}: {error}", path.display()))),
    }
}

/// Writes such a file, in the place of one that is there. It outlives a loss of power when this returns.
pub(super) fn write(path: &Path, text: &[u8]) -> Result<()> {
    let mut half = path.as_os_str().to_owned();
    half.push(".tmp");
    let half = PathBuf::from(half);
    let mut file = File::create(&half)?;
    file.write_all(text)?;
    file.sync_all()?;
    std::fs::rename(&half, path)?;
    File::open(path.parent().unwrap_or(path))?.sync_all()
}

/// Has a file or a folder say that it was used now, by its time; fine where there is none.
pub(super) fn make_young(path: &Path) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    // Without it, it goes a little earlier.
    let _ = utimensat(CWD, path, &Timestamps { last_access: now, last_modification: now }, AtFlags::empty());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_what_was_written_is_not_there_or_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.base");
        assert_eq!(read(&path).unwrap(), None);
        for text in ["first", "second"] {
            write(&path, text.as_bytes()).unwrap();
            assert_eq!(read(&path).unwrap().as_deref(), Some(text));
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        std::fs::write(&path, "\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("says nothing"));
        std::fs::create_dir(dir.path().join("b.base")).unwrap();
        assert!(read(&dir.path().join("b.base")).is_err(), "what cannot be read is not what is not there");
    }
}
