//! An archive as it arrives: passes the body of a request in chunks to the thread that reads it.

use std::io::{self, Read};

use berth_domain::agent::error::code;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::mpsc;

use crate::error::Refusal;

/// Chunks of the body that wait for the disk.
pub const AHEAD: usize = 4;

/// Passes the body on until it ends or the reader is gone.
pub async fn feed(mut body: Incoming, chunks: mpsc::Sender<io::Result<Bytes>>) {
    while let Some(frame) = body.frame().await {
        let chunk = frame.map(|frame| frame.into_data().unwrap_or_default());
        let failed = chunk.is_err();
        if chunks.send(chunk.map_err(io::Error::other)).await.is_err() || failed {
            return;
        }
    }
}

/// A body that a thread reads.
pub struct In {
    /// Chunks as they come.
    pub chunks: mpsc::Receiver<io::Result<Bytes>>,
    /// The rest of the last one.
    pub current: Bytes,
}

impl Read for In {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.chunks.blocking_recv() {
                Some(chunk) => self.current = chunk?,
                None => return Ok(0),
            }
        }
        let n = self.current.len().min(buffer.len());
        buffer[..n].copy_from_slice(&self.current.split_to(n));
        Ok(n)
    }
}

/// The refusal of an archive that cannot be unpacked.
pub fn broken(what: impl std::fmt::Display) -> Refusal {
    Refusal::new(code::INVALID_ARCHIVE, format!("The body is not a tar archive that can be unpacked: {what}."))
}
