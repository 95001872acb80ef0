//! A file that comes from another host, written as it comes and judged by what it hashes to.

use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use berth_domain::hex;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::error::transient;
use crate::vm::travel::{SILENCE, broken_off, stalled};
use crate::vm::{Content, ImageFile};
use crate::{EngineError, Result};

/// Bytes that are read at a time, and after how many the disk is made to have them, so that the last time takes no longer.
const CHUNK: usize = 128 << 10;
const SYNCED: u64 = 64 << 20;

/// Writes a file as it comes, for every user of the host to read, and judges it.
pub async fn receive(part: &Path, file: &ImageFile, mut content: Box<dyn Content>) -> Result<()> {
    let mut into = tokio::fs::File::create(part).await.map_err(|_| superseded())?;
    let (mut hasher, mut chunk, mut left, mut unsynced) = (Sha256::new(), vec![0; CHUNK], file.bytes, 0);
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        let came = timeout(SILENCE, content.read(&mut chunk[..most])).await.map_err(|_| stalled())?;
        let read = came.map_err(|error| broken_off(&error))?;
        if read == 0 {
            return Err(broken_off(&ErrorKind::UnexpectedEof.into()));
        }
        hasher.update(&chunk[..read]);
        into.write_all(&chunk[..read]).await.map_err(transient)?;
        (left, unsynced) = (left - read as u64, unsynced + read as u64);
        if unsynced >= SYNCED {
            into.sync_data().await.map_err(transient)?;
            unsynced = 0;
        }
    }
    // Machines of other users read it.
    into.set_permissions(Permissions::from_mode(0o644)).await.map_err(transient)?;
    into.sync_all().await.map_err(transient)?;
    if hex::encode(&hasher.finalize()).eq_ignore_ascii_case(&file.sha256) {
        return Ok(());
    }
    Err(EngineError::Transient(format!("the file {} is not what it was sent as", file.name)))
}

/// Somebody else has begun to bring the same, or this try's files were removed.
pub fn superseded() -> EngineError {
    EngineError::Transient("what comes is not expected any more; it has to be sent anew".into())
}
