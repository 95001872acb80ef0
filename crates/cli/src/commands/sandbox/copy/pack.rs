//! Packs a directory of this machine into a tar stream.

use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bytes::Bytes;
use tar::{Builder, EntryType, Header};
use tokio::sync::mpsc::Sender;
use walkdir::{DirEntry, WalkDir};

/// Bytes of one piece.
const PIECE: usize = 128 * 1024;

/// Chooses which entries of a directory to pack, by their paths from there.
pub trait Choice {
    /// Whether to pack an entry.
    fn wants(&self, path: &Path) -> bool;

    /// Whether to look below a directory that is not packed itself.
    fn wants_below(&self, directory: &Path) -> bool;
}

/// Chooses everything.
pub struct All;

impl Choice for All {
    fn wants(&self, _: &Path) -> bool {
        true
    }

    fn wants_below(&self, _: &Path) -> bool {
        true
    }
}

/// Packs the entries of a directory, with names relative to it. Links are packed as links; pipes, sockets and devices
/// are skipped, and so are entries that are not chosen.
pub fn pack(directory: &Path, choice: &impl Choice, pieces: Sender<io::Result<Bytes>>) -> io::Result<()> {
    let mut builder = Builder::new(Out { pieces: pieces.clone(), pending: Vec::new() });
    let packed = add_wanted(&mut builder, directory, choice);
    let packed = packed.and_then(|()| builder.into_inner()?.flush());
    if packed.is_err() {
        // The service must not take half an archive for a whole one.
        let _ = pieces.blocking_send(Err(io::Error::other("the archive is not whole")));
    }
    packed
}

fn add_wanted(builder: &mut Builder<Out>, directory: &Path, choice: &impl Choice) -> io::Result<()> {
    let may_hold = |found: &DirEntry| {
        let name = name_from(directory, found.path());
        choice.wants(name) || (found.file_type().is_dir() && choice.wants_below(name))
    };
    let found = WalkDir::new(directory).min_depth(1).sort_by_file_name().into_iter().filter_entry(may_hold);
    for found in found {
        let found = match found {
            Ok(found) => found,
            // An entry that is not chosen need not be readable.
            Err(error) if is_of_unwanted(&error, directory, choice) => continue,
            Err(error) => return Err(error.into()),
        };
        let name = name_from(directory, found.path());
        if !choice.wants(name) {
            continue;
        }
        add(builder, &found, name).map_err(|error| {
            io::Error::new(error.kind(), format!("{} cannot be copied: {error}", found.path().display()))
        })?;
    }
    Ok(())
}

/// The path of an entry from the directory.
fn name_from<'a>(directory: &Path, path: &'a Path) -> &'a Path {
    path.strip_prefix(directory).unwrap_or(path)
}

fn is_of_unwanted(error: &walkdir::Error, directory: &Path, choice: &impl Choice) -> bool {
    error.depth() > 0 && error.path().is_some_and(|path| !choice.wants(name_from(directory, path)))
}

fn add(builder: &mut Builder<Out>, found: &DirEntry, name: &Path) -> io::Result<()> {
    let kind = found.file_type();
    if kind.is_dir() {
        let mut header = header(&found.metadata()?, EntryType::Directory, 0);
        return builder.append_data(&mut header, name, io::empty());
    }
    if kind.is_symlink() {
        let mut header = header(&found.metadata()?, EntryType::Symlink, 0);
        return builder.append_link(&mut header, name, std::fs::read_link(found.path())?);
    }
    if !kind.is_file() {
        return Ok(());
    }
    let file = File::open(found.path())?;
    let metadata = file.metadata()?;
    let mut header = header(&metadata, EntryType::Regular, metadata.len());
    builder.append_data(&mut header, name, Exactly { file, left: metadata.len() })
}

fn header(metadata: &Metadata, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(metadata.mode() & 0o777);
    header.set_mtime(u64::try_from(metadata.mtime()).unwrap_or(0));
    header.set_size(size);
    header
}

/// Exactly as many bytes of a file as its header said.
struct Exactly {
    file: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 || buffer.is_empty() {
            return Ok(0);
        }
        let wanted = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read(&mut buffer[..wanted])?;
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it became shorter meanwhile"));
        }
        self.left -= read as u64;
        Ok(read)
    }
}

/// Gathers bytes into pieces; fails once the receiver is gone.
struct Out {
    pieces: Sender<io::Result<Bytes>>,
    pending: Vec<u8>,
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        if self.pending.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let piece = Bytes::from(std::mem::take(&mut self.pending));
        self.pieces.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    fn packed(directory: &Path, choice: &impl Choice) -> (io::Result<()>, Vec<io::Result<Bytes>>) {
        let (sender, mut receiver) = tokio::sync::mpsc::channel(1000);
        let done = pack(directory, choice, sender);
        let mut pieces = Vec::new();
        while let Ok(piece) = receiver.try_recv() {
            pieces.push(piece);
        }
        (done, pieces)
    }

    /// The members of an archive: kind, size and permissions by path.
    fn members(pieces: Vec<io::Result<Bytes>>) -> BTreeMap<String, (EntryType, u64, u32)> {
        let bytes: Vec<u8> = pieces.into_iter().flat_map(|piece| piece.unwrap().to_vec()).collect();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let entries = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let path = entry.path().unwrap().to_string_lossy().trim_end_matches('/').to_owned();
            (path, (entry.header().entry_type(), entry.size(), entry.header().mode().unwrap()))
        });
        entries.collect()
    }

    #[test]
    fn a_tree_is_packed_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join("a/empty")).unwrap();
        std::fs::write(root.join("a/run"), "x").unwrap();
        std::fs::set_permissions(root.join("a/run"), std::fs::Permissions::from_mode(0o4755)).unwrap();
        std::fs::write(root.join("n".repeat(200)), vec![7; 300_000]).unwrap();
        symlink("a/run", root.join("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
        let (done, pieces) = packed(root, &All);
        done.unwrap();
        let found = members(pieces);
        assert_eq!(found.len(), 5, "{found:?}");
        assert_eq!(found["a/run"], (EntryType::Regular, 1, 0o755));
        assert_eq!(found["link"].0, EntryType::Symlink);
        assert_eq!(found[&"n".repeat(200)].1, 300_000);
        assert!(found.contains_key("a/empty"), "{found:?}");
    }

    /// Chooses some paths and looks below some directories. Removes a directory `gone` in one of those.
    struct Picked {
        root: PathBuf,
        wanted: &'static [&'static str],
        looks_below: &'static [&'static str],
        asked: RefCell<Vec<String>>,
    }

    impl Choice for Picked {
        fn wants(&self, path: &Path) -> bool {
            let path = path.to_str().unwrap();
            self.asked.borrow_mut().push(path.to_owned());
            self.wanted.contains(&path)
        }

        fn wants_below(&self, directory: &Path) -> bool {
            let looks_below = self.looks_below.contains(&directory.to_str().unwrap());
            if looks_below {
                let _ = std::fs::remove_dir(self.root.join(directory).join("gone"));
            }
            looks_below
        }
    }

    fn picked(
        root: &Path,
        wanted: &'static [&'static str],
        looks_below: &'static [&'static str],
    ) -> (io::Result<()>, Vec<String>, Vec<String>) {
        for folder in ["left/out/deep", "left/gone"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        for file in ["kept", "secret", "left/back", "left/out/deep/file"] {
            std::fs::write(root.join(file), file).unwrap();
        }
        let choice = Picked { root: root.to_owned(), wanted, looks_below, asked: RefCell::default() };
        let (done, pieces) = packed(root, &choice);
        let found = if done.is_ok() { members(pieces).into_keys().collect() } else { Vec::new() };
        (done, found, choice.asked.into_inner())
    }

    #[test]
    fn what_is_not_wanted_is_not_packed_and_not_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let (done, found, asked) = picked(dir.path(), &["kept"], &[]);
        done.unwrap();
        assert_eq!(found, ["kept"]);
        assert!(asked.iter().all(|path| !path.starts_with("left/")), "{asked:?}");
        // Something below may still be chosen; nothing else there need be readable.
        let (done, found, asked) = picked(dir.path(), &["kept", "left/back"], &["left", "left/gone"]);
        done.unwrap();
        assert_eq!(found, ["kept", "left/back"]);
        assert!(!dir.path().join("left/gone").exists());
        assert!(asked.iter().all(|path| !path.starts_with("left/out/")), "{asked:?}");
        let (done, _, _) = picked(dir.path(), &["kept", "left/gone"], &["left"]);
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_became_shorter_is_no_archive() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(10).unwrap();
        let mut read = Vec::new();
        assert!(Exactly { file: file.try_clone().unwrap(), left: 11 }.read_to_end(&mut read).is_err());
        let mut read = Vec::new();
        let file = tempfile::tempfile().unwrap();
        file.set_len(10).unwrap();
        assert_eq!(Exactly { file, left: 9 }.read_to_end(&mut read).unwrap(), 9);
        let (done, pieces) = packed(Path::new("/nonexistent"), &All);
        assert!(done.is_err() && pieces.last().unwrap().is_err());
    }
}
