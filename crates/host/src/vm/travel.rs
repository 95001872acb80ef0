//! Carrying an image of the platform from one host to another one.
//!
//! ```text
//!   source: files, each with its hash ── target: expect ── for each file: read here, write there ── target: adopt
//! ```
//!
//! Whoever carries stores nothing. What comes lies apart until all of it is there and hashes to what the source said; then it
//! becomes the image by a rename. Whatever breaks off before that leaves nothing that anybody sees, and the next try begins anew.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use uuid::Uuid;

use super::{Arrival, Content, Edition, Engine};
use crate::error::transient;
use crate::{EngineError, Result, fault};

/// How long nothing may come of a file that is under way.
pub const SILENCE: Duration = Duration::from_secs(30);

/// How far an image has come.
#[derive(Debug, Default)]
pub struct Progress {
    /// How many bytes it has.
    pub bytes: AtomicU64,
    /// How many of them were read from its source.
    pub carried: AtomicU64,
}

/// Carries an edition from a host to another one. Whoever drops this ends it; of what was carried nothing is seen then.
pub async fn carry(from: &dyn Engine, to: &dyn Engine, edition: &Edition, progress: &Arc<Progress>) -> Result<u64> {
    let files = from.image_files(edition).await?;
    let arrival = Arrival { travel: Uuid::now_v7(), edition: edition.clone(), files };
    arrival.check().map_err(|why| EngineError::Permanent(format!("the image cannot travel: {why}")))?;
    progress.bytes.store(arrival.bytes(), Ordering::Relaxed);
    to.expect_image(&arrival).await?;
    fault::point("image.travel.expected").await.map_err(transient)?;
    for file in &arrival.files {
        let content = from.image_file(edition, file).await?;
        let counted = Counted { content, progress: progress.clone() };
        to.take_image_file(arrival.travel, &edition.id, file, Box::new(counted)).await?;
        fault::point("image.travel.taken").await.map_err(transient)?;
    }
    to.adopt_image(&arrival).await?;
    fault::point("image.travel.adopted").await.map_err(transient)?;
    Ok(arrival.bytes())
}

/// Less of a file came than it has.
pub(crate) fn broken_off(error: &io::Error) -> EngineError {
    EngineError::Transient(format!("an image that is under way broke off: {error}"))
}

/// Nothing came of a file for too long.
pub(crate) fn stalled() -> EngineError {
    EngineError::Transient("nothing has come of an image that is under way".into())
}

/// A file whose bytes are counted as they are read.
struct Counted {
    content: Box<dyn Content>,
    progress: Arc<Progress>,
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.content).poll_read(cx, into);
        self.progress.carried.fetch_add((into.filled().len() - before) as u64, Ordering::Relaxed);
        read
    }
}
