//! A directory of this machine as a tar stream.

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

/// Packs what a directory holds, named from it. Links are packed as links; pipes, sockets and devices are left out, and
/// so is what is not wanted by its path from there.
pub fn pack(directory: &Path, wanted: impl Fn(&Path) -> bool, pieces: Sender<io::Result<Bytes>>) -> io::Result<()> {
    let mut builder = Builder::new(Out { pieces: pieces.clone(), pending: Vec::new() });
    let packed = WalkDir::new(directory).min_depth(1).sort_by_file_name().into_iter().try_for_each(|found| {
        let found = found.map_err(io::Error::from)?;
        let name = found.path().strip_prefix(directory).map_err(io::Error::other)?.to_owned();
        if !wanted(&name) {
            return Ok(());
        }
        add(&mut builder, &found, &name).map_err(|error| {
            io::Error::new(error.kind(), format!("{} cannot be copied: {error}", found.path().display()))
        })
    });
    let packed = packed.and_then(|()| builder.into_inner()?.flush());
    if packed.is_err() {
        // The service must not take half an archive for a whole one.
        let _ = pieces.blocking_send(Err(io::Error::other("the archive is not whole")));
    }
    packed
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

/// As many bytes of a file as its header told.
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

/// Gathers bytes into pieces; an error once nobody wants them.
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
    use std::collections::BTreeMap;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn packed(directory: &Path) -> (io::Result<()>, Vec<io::Result<Bytes>>) {
        let (sender, mut receiver) = tokio::sync::mpsc::channel(1000);
        let done = pack(directory, |_| true, sender);
        let mut pieces = Vec::new();
        while let Ok(piece) = receiver.try_recv() {
            pieces.push(piece);
        }
        (done, pieces)
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
        let (done, pieces) = packed(root);
        done.unwrap();
        let bytes: Vec<u8> = pieces.into_iter().flat_map(|piece| piece.unwrap().to_vec()).collect();
        let mut found = BTreeMap::new();
        for entry in tar::Archive::new(bytes.as_slice()).entries().unwrap() {
            let entry = entry.unwrap();
            let path = entry.path().unwrap().to_string_lossy().into_owned();
            found.insert(path, (entry.header().entry_type(), entry.size(), entry.header().mode().unwrap()));
        }
        assert_eq!(found.len(), 5, "{found:?}");
        assert_eq!(found["a/run"], (EntryType::Regular, 1, 0o755));
        assert_eq!(found["link"].0, EntryType::Symlink);
        assert_eq!(found[&"n".repeat(200)].1, 300_000);
        assert!(found.contains_key("a/empty") || found.contains_key("a/empty/"), "{found:?}");
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
        let (done, pieces) = packed(Path::new("/nonexistent"));
        assert!(done.is_err() && pieces.last().unwrap().is_err());
    }
}
