//! Files that hold a secret: only the service's user may read them, and they are there whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes a file of mode 0600, in the place of one that is there. It is on the disk when this returns.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".part");
    let part = folder.join(name);
    // One that an interrupted start left may be anybody's to read.
    match fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&part, path));
    if let Err(error) = written {
        // A full disk, mostly, on which half a secret helps nobody.
        let _ = fs::remove_file(&part);
        return Err(error);
    }
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn nobody_else_may_read_it_whatever_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        for left in ["key", ".key.part"] {
            fs::write(folder.path().join(left), "old").unwrap();
            fs::set_permissions(folder.path().join(left), fs::Permissions::from_mode(0o644)).unwrap();
        }
        write(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
