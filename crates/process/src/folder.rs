//! Files of a folder in which a machine's process may have put what it likes.
//!
//! QEMU without a user of its own may write to its machine's folder, and until it has become one as root, too. One that its
//! guest took over can leave a symbolic link there, a pipe or another socket, and wait for the service to follow it. So
//! what the service opens there, it opens here: the folder is the service's and every folder above it, and of what lies in
//! it the name is not followed, the opening waits for nobody, and what was opened is a plain file or a socket. Nothing is
//! written to what is found: what is written is made anew under the name.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};
use tokio::net::UnixStream;

/// How much of a log is read for what was said last, in bytes.
pub const END_OF_LOG: u64 = 64 << 10;

/// Opens a plain file to read it.
///
/// # Errors
/// There is none, or what is there is something else.
pub fn open(path: &Path) -> io::Result<File> {
    plain(path, OFlags::RDONLY)
}

/// The content of a file of so many bytes at most.
///
/// # Errors
/// As of [`open`], or it is longer.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open(path)?.take(most.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > most {
        return Err(io::Error::new(ErrorKind::FileTooLarge, "the file is longer than it may be"));
    }
    Ok(content)
}

/// The last bytes of a file.
///
/// # Errors
/// As of [`open`].
pub fn tail(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
    let mut content = Vec::new();
    file.take(most).read_to_end(&mut content)?;
    Ok(content)
}

/// Length of a plain file in bytes; 0 where there is none.
pub fn length(path: &Path) -> u64 {
    fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file).map_or(0, |file| file.len())
}

/// Makes a file in the place of what is there, to read and to append to; what others say in it, too, mixes with nothing.
///
/// # Errors
/// What is there cannot be removed, or the file cannot be made.
pub fn create(path: &Path) -> io::Result<File> {
    make(path, OFlags::APPEND)
}

/// Makes a file in the place of what is there, to read and to write to anywhere.
///
/// # Errors
/// As of [`create`].
pub fn create_blank(path: &Path) -> io::Result<File> {
    make(path, OFlags::empty())
}

/// Writes a file, whole or not at all: what is there goes when the new one is ready.
///
/// # Errors
/// The file or the one beside it, with the extension `tmp`, cannot be written.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let whole = path.with_extension("tmp");
    create(&whole)?.write_all(content)?;
    fs::rename(whole, path)
}

/// Empties a plain file that somebody appends to.
///
/// # Errors
/// As of [`open`].
pub fn empty(path: &Path) -> io::Result<()> {
    plain(path, OFlags::WRONLY)?.set_len(0)
}

/// Makes a folder where there is none.
///
/// # Errors
/// It cannot be made, or something else is there.
pub fn make_folder(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && fs::symlink_metadata(path)?.is_dir() => Ok(()),
        outcome => outcome,
    }
}

/// Connects to a socket, however long its path is.
///
/// # Errors
/// There is none, what is there is something else, or nobody listens.
pub async fn connect(path: &Path) -> io::Result<UnixStream> {
    let socket = fs::File::from(held(path, OFlags::PATH)?);
    if !socket.metadata()?.file_type().is_socket() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "there is no socket but something else"));
    }
    UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await
}

fn plain(path: &Path, access: OFlags) -> io::Result<File> {
    let file = File::from(held(path, access | OFlags::NONBLOCK | OFlags::NOCTTY)?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "there is no plain file but something else"));
    }
    Ok(file)
}

fn make(path: &Path, how: OFlags) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC | how;
    Ok(openat(CWD, path, flags, Mode::RUSR | Mode::WUSR)?.into())
}

fn held(path: &Path, access: OFlags) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, access | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use rustix::fs::{FileType, mknodat};

    use super::*;

    /// A folder with a file of somebody else beside it, and a link to that, a pipe and a folder in it.
    fn folder() -> (tempfile::TempDir, std::path::PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let (others, dir) = (root.path().join("others"), root.path().join("machine"));
        fs::write(&others, "a secret").unwrap();
        fs::create_dir(&dir).unwrap();
        symlink(&others, dir.join("link")).unwrap();
        mknodat(CWD, dir.join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        fs::create_dir(dir.join("folder")).unwrap();
        (root, dir)
    }

    #[test]
    fn only_plain_files_are_opened() {
        let (root, dir) = folder();
        for name in ["link", "pipe", "folder", "none"] {
            let path = dir.join(name);
            assert!(open(&path).is_err() && read(&path, 9).is_err() && tail(&path, 9).is_err(), "{name}");
            assert!(empty(&path).is_err() && length(&path) == 0, "{name}");
        }
        assert_eq!(open(&dir.join("none")).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(fs::read(root.path().join("others")).unwrap(), b"a secret");
        fs::write(dir.join("file"), "12345").unwrap();
        let file = dir.join("file");
        assert_eq!((tail(&file, 2).unwrap(), tail(&file, 9).unwrap()), (b"45".to_vec(), b"12345".to_vec()));
        assert_eq!(read(&file, 5).unwrap(), b"12345");
        assert_eq!(read(&file, 4).unwrap_err().kind(), ErrorKind::FileTooLarge);
        empty(&file).unwrap();
        assert_eq!(length(&file), 0);
    }

    #[test]
    fn what_is_written_is_made_anew() {
        let (root, dir) = folder();
        symlink(root.path().join("others"), dir.join("note.tmp")).unwrap();
        symlink(root.path().join("others"), dir.join("note.json")).unwrap();
        write(&dir.join("note.json"), b"a note").unwrap();
        create(&dir.join("link")).unwrap().write_all(b"a log").unwrap();
        create_blank(&dir.join("pipe")).unwrap().set_len(3).unwrap();
        assert_eq!(fs::read(root.path().join("others")).unwrap(), b"a secret");
        assert_eq!(read(&dir.join("note.json"), 9).unwrap(), b"a note");
        assert_eq!(read(&dir.join("link"), 9).unwrap(), b"a log");
        assert_eq!(length(&dir.join("pipe")), 3);
        symlink(root.path(), dir.join("elsewhere")).unwrap();
        assert!(make_folder(&dir.join("elsewhere")).is_err() && make_folder(&dir.join("link")).is_err());
        make_folder(&dir.join("folder")).unwrap();
    }

    #[tokio::test]
    async fn only_a_socket_in_the_folder_is_connected_to() {
        let (root, dir) = folder();
        let others = UnixListener::bind(root.path().join("others.sock")).unwrap();
        others.set_nonblocking(true).unwrap();
        symlink(root.path().join("others.sock"), dir.join("link.sock")).unwrap();
        for name in ["link.sock", "link", "pipe", "none"] {
            assert!(connect(&dir.join(name)).await.is_err(), "{name}");
        }
        assert!(others.accept().is_err(), "somebody came");
        // A path of a socket may have 108 bytes; these are more.
        let deep = dir.join("x".repeat(100));
        fs::create_dir(&deep).unwrap();
        let short = dir.join("own.sock");
        let own = UnixListener::bind(&short).unwrap();
        fs::rename(short, deep.join("own.sock")).unwrap();
        connect(&deep.join("own.sock")).await.unwrap();
        own.accept().unwrap();
    }
}
