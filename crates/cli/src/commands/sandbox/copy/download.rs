//! Copies out of a sandbox.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use berth_client::{EntryType, FileContent, Runtime};
use bytes::{Buf, Bytes};
use tokio::sync::mpsc;

use super::look::look;
use super::place::{Place, last_part, plain};
use super::unpack::unpack;
use crate::failure::Failure;
use crate::progress::Meter;

/// Pieces that wait for the disk.
const AHEAD: usize = 4;

/// Copies a path inside to a path of this machine, or to standard output.
pub async fn download(runtime: &Runtime, from: &str, to: Place) -> Result<ExitCode> {
    let from = plain(from);
    let missing = || Failure::not_found(format!("There is no '{from}' in the sandbox."));
    let entry = look(runtime, from).await?.ok_or_else(missing)?;
    let is_directory = entry.kind == EntryType::Directory;
    let content = if is_directory { runtime.archive(from).await? } else { runtime.read_file(from).await? };
    let Place::Local(to) = to else {
        write(content, &Meter::new(from, None), &mut io::stdout()).await?;
        return Ok(ExitCode::SUCCESS);
    };
    let target = target(&to, from)?;
    let meter = Meter::new(&target.to_string_lossy(), content.length());
    if is_directory {
        return directory(content, meter, target).await;
    }
    let mode = u32::from_str_radix(&entry.mode, 8).unwrap_or(0o644) & 0o777;
    file(content, &meter, &target, mode).await?;
    Ok(ExitCode::SUCCESS)
}

/// Where a copy goes: into a directory that exists or was typed as one.
fn target(to: &Path, from: &str) -> Result<PathBuf> {
    if !to.is_dir() && !to.as_os_str().as_encoded_bytes().ends_with(b"/") {
        return Ok(to.to_owned());
    }
    std::fs::create_dir_all(to).with_context(|| format!("{} cannot be made", to.display()))?;
    // The workspace itself has no name: its content goes into the directory.
    Ok(last_part(from).map_or_else(|| to.to_owned(), |name| to.join(name)))
}

async fn write(mut content: FileContent, meter: &Meter, to: &mut impl Write) -> Result<()> {
    while let Some(bytes) = content.next().await? {
        meter.add(bytes.len());
        to.write_all(&bytes)?;
    }
    Ok(to.flush()?)
}

/// Writes a file, whole or not at all.
async fn file(content: FileContent, meter: &Meter, to: &Path, mode: u32) -> Result<()> {
    let there = std::fs::metadata(to).ok();
    let cannot = || format!("{} cannot be written", to.display());
    if there.as_ref().is_some_and(|there| !there.is_file()) {
        ensure!(!there.is_some_and(|there| there.is_dir()), "{} is a directory", to.display());
        let mut open = std::fs::OpenOptions::new().write(true).open(to).with_context(cannot)?;
        return write(content, meter, &mut open).await;
    }
    // An existing link stays, and leads to the new file.
    let to = to.canonicalize().unwrap_or_else(|_| to.to_owned());
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mode = std::fs::Permissions::from_mode(mode);
    let mut half = tempfile::Builder::new().permissions(mode).tempfile_in(folder).with_context(cannot)?;
    write(content, meter, &mut half).await?;
    half.persist(&to).with_context(cannot)?;
    Ok(())
}

async fn directory(mut content: FileContent, meter: Meter, to: PathBuf) -> Result<ExitCode> {
    std::fs::create_dir_all(&to).with_context(|| format!("{} cannot be made", to.display()))?;
    let (sender, receiver) = mpsc::channel(AHEAD);
    let unpacking = tokio::task::spawn_blocking(move || unpack(In { pieces: receiver, current: Bytes::new() }, &to));
    loop {
        let piece = content.next().await;
        let (over, piece) = match piece {
            Ok(Some(bytes)) => {
                meter.add(bytes.len());
                (false, Ok(bytes))
            }
            Ok(None) => break,
            Err(error) => (true, Err(io::Error::other(error.to_string()))),
        };
        // The receiver leaves if it has everything; if it failed, its own error says why.
        if sender.send(piece).await.is_err() || over {
            break;
        }
    }
    drop(sender);
    let done = unpacking.await??;
    drop(meter);
    for reason in &done.reasons {
        eprintln!("berth: {reason}");
    }
    if done.refused == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("berth: {} entries were left out; all else was copied.", done.refused);
    Ok(ExitCode::FAILURE)
}

/// Pieces of an archive as they come.
struct In {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    current: Bytes,
}

impl Read for In {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.current = piece.map_err(|e| io::Error::new(ErrorKind::UnexpectedEof, e))?,
                None => return Ok(0),
            }
        }
        let length = self.current.len().min(buffer.len());
        self.current.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_go_into_directories() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert_eq!(target(&root.join("new"), "a/b").unwrap(), root.join("new"));
        assert_eq!(target(root, "a/b").unwrap(), root.join("b"));
        assert_eq!(target(root, ".").unwrap(), root);
        let slash = PathBuf::from(format!("{}/made/", root.display()));
        assert_eq!(target(&slash, "a/b").unwrap(), root.join("made/b"));
        assert!(root.join("made").is_dir());
    }
}
