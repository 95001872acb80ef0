//! Loads one blob from a registry into a store.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use futures::StreamExt;
use reqwest::header::{CONTENT_RANGE, RANGE};
use reqwest::{Response, StatusCode};
use sha2::{Digest, Sha256};

use super::puller::{Progress, Pull};
use crate::blobs::Sha;
use crate::{Error, Result};

/// Pause before checking again whether another pull has finished a blob.
const AGAIN: Duration = Duration::from_millis(200);

impl Pull<'_> {
    /// Loads a blob into a store, unless the store has it.
    pub(super) async fn blob(
        &self,
        sha: &Sha,
        size: u64,
        store: &Path,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<()> {
        let place = store.join(sha.path());
        let partial = place.with_extension("part");
        progress(Progress::Blob { digest: format!("sha256:{}", sha.0), size });
        let Some(file) = claim(&partial, &place, size).await? else { return Ok(()) };
        let (mut file, mut hasher, mut have) =
            tokio::task::spawn_blocking(move || resume(file, size)).await.map_err(gone)??;
        if have < size {
            let response = self.ask(sha, have).await?;
            if have > 0 && !continues(&response, have) {
                // The registry sends the whole blob, whatever range was asked for.
                file.set_len(0)?;
                std::io::Seek::rewind(&mut file)?;
                (hasher, have) = (Sha256::new(), 0);
            }
            let mut body = response.bytes_stream();
            while let Some(chunk) = body.next().await {
                let chunk = chunk.map_err(|error| self.unreachable(&error))?;
                have += chunk.len() as u64;
                if have > size {
                    break;
                }
                (file, hasher) = tokio::task::spawn_blocking(move || {
                    file.write_all(&chunk)?;
                    hasher.update(&chunk);
                    Ok::<_, std::io::Error>((file, hasher))
                })
                .await
                .map_err(gone)??;
            }
        }
        if have < size {
            return Err(Error::Unreachable("The registry broke off amid the image; try again to go on.".into()));
        }
        if have > size || Sha::finished(hasher) != *sha {
            // The task holds the lock until the file is removed, even if this pull is dropped meanwhile.
            let discard = move || std::fs::remove_file(partial).map(|()| drop(file));
            tokio::task::spawn_blocking(discard).await.map_err(gone)??;
            return Err(sha.broken());
        }
        // The task holds the lock until the file has its name: another pull that opened the file earlier would else use
        // it.
        let keep = move || file.sync_all().and_then(|()| std::fs::rename(partial, place));
        Ok(tokio::task::spawn_blocking(keep).await.map_err(gone)??)
    }

    async fn ask(&self, sha: &Sha, have: u64) -> Result<Response> {
        let digest = format!("sha256:{}", sha.0);
        let url = self.url("blobs", &digest)?;
        let request = || {
            let request = self.puller.client.get(url.clone());
            if have > 0 { request.header(RANGE, format!("bytes={have}-")) } else { request }
        };
        let response = self.send(request).await?;
        self.granted(response, &digest)
    }
}

/// Whether an answer begins at the requested byte.
fn continues(response: &Response, have: u64) -> bool {
    let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    response.status() == StatusCode::PARTIAL_CONTENT && range.starts_with(&format!("bytes {have}-"))
}

fn gone(error: impl std::fmt::Display) -> Error {
    Error::Io(std::io::Error::other(error.to_string()))
}

/// Opens the file for loading a blob, exclusively; none if the store has the blob, perhaps by now from another pull.
async fn claim(partial: &Path, place: &Path, size: u64) -> Result<Option<File>> {
    let is_there = || place.metadata().is_ok_and(|found| found.is_file() && found.len() == size);
    while !is_there() {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(partial)?;
        match file.try_lock() {
            // The former holder has meanwhile given the file its final name.
            Ok(()) if !is_at(&file, partial) => {}
            // The former holder finished the blob before this file was made.
            Ok(()) if is_there() => std::fs::remove_file(partial)?,
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) => tokio::time::sleep(AGAIN).await,
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// Whether a path still names this file.
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    matches!((file.metadata(), path.metadata()), (Ok(a), Ok(b)) if (a.dev(), a.ino()) == (b.dev(), b.ino()))
}

/// The part of a blob that is already loaded, and its digest so far.
fn resume(mut file: File, size: u64) -> Result<(File, Sha256, u64)> {
    let mut hasher = Sha256::new();
    let mut have = file.metadata()?.len();
    if have > size {
        file.set_len(0)?;
        have = 0;
    }
    let mut buffer = vec![0; 128 * 1024];
    let mut left = have;
    while left > 0 {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        hasher.update(&buffer[..n]);
        left = left.saturating_sub(n as u64);
    }
    Ok((file, hasher, have))
}

/// Puts a verified manifest into a store.
pub async fn keep(store: &Path, manifest: &(Sha, Vec<u8>)) -> Result<()> {
    let (sha, bytes) = (manifest.0.clone(), manifest.1.clone());
    let place = store.join(sha.path());
    let folder = store.to_owned();
    let write = move || {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(&bytes)?;
        file.as_file().sync_all()?;
        file.persist(place).map(drop).map_err(|error| error.error)
    };
    Ok(tokio::task::spawn_blocking(write).await.map_err(gone)??)
}
