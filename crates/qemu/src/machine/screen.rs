//! What a machine's screen shows, and whoever looks at it and types there.
//!
//! Whoever reaches the socket sees and types; there is no password, since only the service reaches it. A picture is written
//! to a file in memory that QEMU is handed open: it has no way to any other.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::json;
use tokio::net::UnixStream;

pub use super::card::MOST_VIEWERS;
use super::files::{COMMANDS, SCREEN};
use super::memory::release;
use crate::host::Release;
use crate::qmp::{Qmp, connect_in};
use crate::{Error, Result};

/// The first release that makes pictures as PNG (QEMU, qapi/ui.json, `screendump`).
const MAKES_PNG: Release = (7, 1);
/// The longest picture, in bytes: three times what 1920 by 1080 points of noise take.
pub const PICTURE_BYTES: usize = 20 << 20;
/// How a file begins that is a PNG (W3C, Portable Network Graphics, 5.2).
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
/// By which words QEMU gets the file of a picture.
const NAME: &str = "picture";
/// What is said of a machine that has none.
const NONE: &str = "the VM was started by an older version, whose machines have no screen; restart it first";

/// Connects to the screen of a running machine: VNC's bytes (RFC 6143).
///
/// # Errors
/// [`Error::Invalid`] where the machine has none.
pub async fn connect(dir: &Path) -> Result<UnixStream> {
    require(dir)?;
    connect_in(dir, SCREEN).await
}

/// A picture of the screen of a running machine, as PNG.
///
/// # Errors
/// [`Error::Invalid`] where the machine has no screen, or QEMU makes no such picture.
pub async fn picture(dir: &Path) -> Result<Vec<u8>> {
    require(dir)?;
    let mut qmp = Qmp::connect(dir, COMMANDS).await?;
    let (major, minor) = release(&mut qmp).await?;
    if (major, minor) < MAKES_PNG {
        let text =
            format!("the host's QEMU {major}.{minor} makes no pictures of screens; that takes QEMU 7.1 or later");
        return Err(Error::Invalid(text));
    }
    let file = blank().map_err(|e| Error::io("cannot make a picture's file", e))?;
    let path = qmp.give_named(NAME, &file.for_writing).await?;
    let shot = qmp.execute("screendump", json!({"filename": path, "format": "png"})).await;
    // What it holds takes room; one that is gone has let go of it.
    let _ = qmp.take_back(NAME).await;
    shot.map_err(|error| match error {
        Error::Qemu(reason) if reason.to_lowercase().contains("png") => {
            Error::Invalid(format!("the host's QEMU makes no pictures of screens: {reason}"))
        }
        other => other,
    })?;
    read(file.whole)
}

fn require(dir: &Path) -> Result<()> {
    let is_there = std::fs::symlink_metadata(dir.join(SCREEN)).is_ok();
    if is_there { Ok(()) } else { Err(Error::Invalid(NONE.into())) }
}

/// A file in memory, and the same for QEMU, which looks for one that can be written to and not read.
struct Blank {
    whole: File,
    for_writing: File,
}

fn blank() -> std::io::Result<Blank> {
    let whole = File::from(memfd_create("picture", MemfdFlags::CLOEXEC)?);
    let for_writing = File::options().write(true).open(format!("/proc/self/fd/{}", whole.as_raw_fd()))?;
    Ok(Blank { whole, for_writing })
}

/// Reads what QEMU wrote, of which nothing is trusted but that it is a picture of a size that is passed on.
fn read(mut file: File) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = PICTURE_BYTES as u64 + 1;
    let read = std::io::Seek::rewind(&mut file).and_then(|()| file.take(most).read_to_end(&mut bytes));
    read.map_err(|e| Error::io("cannot read a picture", e))?;
    match bytes.len() {
        length if length > PICTURE_BYTES => Err(Error::Invalid("the picture of the screen is too large".into())),
        _ if !bytes.starts_with(PNG) => Err(Error::Qemu("it made no picture".into())),
        _ => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn written(length: usize) -> Result<Vec<u8>> {
        let mut file = blank().unwrap();
        file.for_writing.write_all(PNG).unwrap();
        file.whole.set_len(length as u64).unwrap();
        read(file.whole)
    }

    #[test]
    fn only_a_picture_of_a_size_that_is_passed_on_is_one() {
        assert_eq!(written(PICTURE_BYTES).unwrap().len(), PICTURE_BYTES);
        assert!(matches!(written(PICTURE_BYTES + 1), Err(Error::Invalid(_))));
        assert!(matches!(written(PNG.len() - 1), Err(Error::Qemu(_))));
        assert_eq!(written(PNG.len()).unwrap(), PNG);
    }

    #[tokio::test]
    async fn a_machine_of_an_older_version_has_none() {
        let dir = tempfile::tempdir().unwrap();
        for error in [connect(dir.path()).await.err(), picture(dir.path()).await.err()] {
            assert!(matches!(error, Some(Error::Invalid(text)) if text.contains("restart")));
        }
    }
}
