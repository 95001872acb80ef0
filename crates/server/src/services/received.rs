//! Bodies that are received into files: images, disks and archives.
//!
//! A file is nobody's until a row names it. Whoever leaves before that leaves none, and what a death leaves is swept at the next
//! start.

use std::path::{Path, PathBuf};

use berth_domain::{Code, Error, Result, Timestamp};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;

use crate::db::Db;
use crate::http::auth::Scope;
use crate::http::idempotency::{Idempotency, Outcome};

/// Bytes after which it is asked again whether there is room.
const ASK_AGAIN: u64 = 16 << 20;

/// What was received.
pub struct Received {
    /// How many bytes.
    pub bytes: u64,
    /// What they hash to, where that was wanted.
    pub sha256: Option<[u8; 32]>,
}

/// How a body is received.
pub struct Receiving<'a> {
    /// Where it is written; nowhere where only its hash matters.
    pub file: Option<&'a Path>,
    /// Whether it is hashed.
    pub is_hashed: bool,
}

impl Receiving<'_> {
    /// Receives a body: of as many bytes as `admits` allows, and as long as the host has room for what is written.
    ///
    /// # Errors
    /// Those of the body and of the two judges, and 503 where the file cannot be written.
    pub async fn of<F: Future<Output = Result<()>>>(
        self,
        mut body: impl Stream<Item = Result<Bytes>> + Unpin,
        admits: impl Fn(u64) -> Result<()>,
        has_room: impl Fn() -> F,
    ) -> Result<Received> {
        let no_space = |error: std::io::Error| Error::unavailable(format!("the upload cannot be written: {error}"));
        let mut out = match self.file {
            Some(file) => Some(tokio::fs::File::create(file).await.map_err(Error::internal)?),
            None => None,
        };
        let mut hasher = self.is_hashed.then(Sha256::new);
        let (mut bytes, mut asked) = (0_u64, 0_u64);
        while let Some(chunk) = body.next().await {
            let chunk = chunk?;
            bytes += chunk.len() as u64;
            admits(bytes)?;
            if out.is_some() && bytes - asked > ASK_AGAIN {
                asked = bytes;
                has_room().await?;
            }
            if let Some(hasher) = &mut hasher {
                hasher.update(&chunk);
            }
            if let Some(out) = &mut out {
                out.write_all(&chunk).await.map_err(no_space)?;
            }
        }
        // It is named by a row from now on, so it has to outlive a power cut.
        if let Some(mut out) = out {
            // Only this tells what became of the last write.
            out.flush().await.map_err(no_space)?;
            out.sync_all().await.map_err(no_space)?;
        }
        Ok(Received { bytes, sha256: hasher.map(|hasher| hasher.finalize().into()) })
    }
}

/// Whether a body was received with this key, whatever it had: it is read once more, and nothing of it is kept.
pub async fn was_received(db: &Db, scope: &Scope, key: &Idempotency, now: Timestamp) -> Result<bool> {
    if !key.is_given() {
        return Ok(false);
    }
    let mut tx = db.begin_as(scope).await?;
    key.is_kept(&mut tx, now).await
}

/// The answer to a body that was received with this key before: what people call it, and what of it its key remembers.
///
/// # Errors
/// 422 where the body is another one, and 409 where the answer is not kept any more.
pub async fn again<V>(
    db: &Db,
    scope: &Scope,
    key: Idempotency,
    (what, told): (&str, &str),
    now: Timestamp,
) -> Result<Outcome<V>> {
    let key = key.of_body(told);
    let mut tx = db.begin_as(scope).await?;
    let replayed = key.replay(&mut tx, now).await?;
    let message = || format!("The first answer is not kept any more; send the {what} again.");
    replayed.ok_or_else(|| Error::new(Code::Conflict, message()))
}

/// A file that goes where nobody claims it, also when a request is dropped half way.
pub struct Unclaimed(Option<PathBuf>);

impl Unclaimed {
    /// A file that is to be written.
    pub const fn new(file: PathBuf) -> Self {
        Self(Some(file))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.as_deref().unwrap_or(Path::new(""))
    }

    /// Leaves the file to the row that names it, and says where it is. To be called before the commit, which goes on where its caller leaves: a file
    /// that stays without its row is swept at the next start.
    pub fn claim(mut self) -> PathBuf {
        self.0.take().unwrap_or_default()
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            // What stays is swept at the next start.
            let _ = std::fs::remove_file(file);
        }
    }
}
