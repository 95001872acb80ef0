//! Disks that somebody sent, images and others: one way to convert them, and what that may cost.
//!
//! What a file's header says of other files is judged before ([`crate::image`]). The program that reads it then has two files
//! and nothing else of the service, no more time than the operator allows, and no more room than the host can spare: few bytes
//! may stand for many.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::disk::{self, run_bounded};
use crate::error::at;
use crate::machine::{Drive, snapshot};
use crate::{Error, Result, host};

/// Between two looks whether the host has room to spare.
const ROOM_LOOK: Duration = Duration::from_millis(100);

/// What a conversion may cost.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Most bytes of the file that a disk becomes.
    pub file_bytes: u64,
    /// The folder in whose file system bytes are kept free, and how many.
    pub kept: (PathBuf, u64),
    /// Longest time.
    pub time: Duration,
    /// The user that reads the file and writes the disk, instead of the service's; both have to be the service's own files then.
    pub user: Option<u32>,
}

/// What a disk becomes.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Its file, which is not there yet.
    pub file: &'a Path,
    /// `qcow2` or `raw`.
    pub format: &'static str,
    /// Who may read and write it, as a file's mode.
    pub mode: u32,
}

/// Copies a disk that somebody sent into a file that lies on no other, or leaves nothing of it.
///
/// # Errors
/// `NoSpace` where the host has no room to spare, `Timeout` where it takes too long, `Invalid` where the disk becomes larger than
/// it may, and those of a program that cannot read it.
pub async fn convert(drive: &Drive, target: Target<'_>, bounds: &Bounds) -> Result<()> {
    let from = File::open(&drive.path).map_err(at("cannot open", &drive.path))?;
    let mut options = File::options();
    let to = options.read(true).write(true).create_new(true).mode(target.mode).open(target.file);
    let to = to.map_err(at("cannot create", target.file))?;
    let half = Half(Some(target.file));
    lent([(&from, &drive.path), (&to, target.file)], bounds, run(drive, (&from, &to), target, bounds)).await?;
    half.keep();
    Ok(())
}

/// A file that goes unless it becomes whole, also where the work on it is dropped.
struct Half<'a>(Option<&'a Path>);

impl Half<'_> {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Half<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.0 {
            // Whoever makes the file again, or deletes its disk, removes what is left.
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Has two files belong to the user who works on them, as long as that goes on.
async fn lent(files: [(&File, &Path); 2], bounds: &Bounds, work: impl Future<Output = Result<()>>) -> Result<()> {
    let mut owners = Vec::new();
    for (file, path) in files {
        owners.push(file.metadata().map_err(at("cannot look at", path))?.uid());
        give(file, bounds.user).map_err(at("cannot give away", path))?;
    }
    let done = work.await;
    for ((file, path), owner) in files.into_iter().zip(owners) {
        give(file, bounds.user.map(|_| owner)).map_err(at("cannot take back", path))?;
    }
    done
}

fn give(file: &File, user: Option<u32>) -> std::io::Result<()> {
    user.map_or(Ok(()), |user| fchown(file, Some(user), None))
}

async fn run(drive: &Drive, (from, to): (&File, &File), target: Target<'_>, bounds: &Bounds) -> Result<()> {
    // The folders above are the service's, so it reaches them by its descriptors.
    let own = |file: &File| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let mut command = snapshot::convert(&Drive { path: own(from), ..drive.clone() }, target.format)?;
    command.arg(own(to));
    disk::leave_service(&mut command, [from.as_raw_fd(), to.as_raw_fd()], bounds.user);
    // Between two looks it cannot write more than there is room for now.
    let room = host::disk(&bounds.kept.0).map_or(u64::MAX, |(_, free)| free.saturating_sub(bounds.kept.1));
    let file_bytes = bounds.file_bytes.min(room);
    let done = tokio::select! {
        biased;
        () = until_full(&bounds.kept) => return Err(Error::NoSpace),
        done = run_bounded(&mut command, file_bytes, bounds.time) => done,
    };
    // The signal of a file that grew too large is ignored where the service's parent ignores it. The write then fails at that
    // very size.
    let is_full = to.metadata().is_ok_and(|file| file.len() >= file_bytes);
    done.map_err(|error| match error {
        Error::NoSpace | Error::Qemu(_) if is_full && file_bytes < bounds.file_bytes => Error::NoSpace,
        Error::NoSpace | Error::Qemu(_) if is_full => {
            let most = bounds.file_bytes;
            Error::Invalid(format!("the file's content has more than the {most} bytes that are taken in"))
        }
        other => other,
    })
}

/// Returns once the host has no room to spare.
async fn until_full((folder, bytes): &(PathBuf, u64)) {
    // Who cannot look does not know, and looks again.
    while !host::disk(folder).is_ok_and(|(_, free)| free < *bytes) {
        tokio::time::sleep(ROOM_LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_become_whole_goes_also_where_the_work_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let [kept, dropped] = ["kept", "dropped"].map(|name| dir.path().join(name));
        for file in [&kept, &dropped] {
            std::fs::write(file, "half").unwrap();
        }
        Half(Some(&kept)).keep();
        drop(Half(Some(&dropped)));
        assert!(kept.exists() && !dropped.exists());
    }
}
