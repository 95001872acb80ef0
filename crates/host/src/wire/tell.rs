//! How a host tells something, and works while somebody waits.

use std::io::{self, ErrorKind};
use std::pin::pin;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, Interval, interval_at, timeout};

use super::frame;
use super::message::{ANSWER, BEAT, SILENCE, Told};
use crate::EngineError;

/// A connection.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for S {}

/// When the host says next that it is at work.
pub fn beat() -> Interval {
    interval_at(Instant::now() + BEAT, BEAT)
}

/// Tells something.
pub async fn tell(stream: &mut (impl AsyncWrite + Unpin), told: &Told) -> io::Result<()> {
    let bytes = frame::of(told, ANSWER)
        .or_else(|error| frame::of(&Told::Failed(EngineError::Permanent(error.to_string())), ANSWER))?;
    timeout(SILENCE, frame::write(stream, &bytes)).await?
}

/// Tells the last of a question.
pub async fn end(stream: &mut (impl AsyncWrite + Unpin), told: Told) -> io::Result<()> {
    tell(stream, &told).await?;
    stream.shutdown().await
}

/// Works while whoever asked waits, and says so; none where they left, and then the work is dropped.
pub async fn attend<T>(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    work: impl Future<Output = T>,
) -> io::Result<Option<T>> {
    let mut work = pin!(work);
    let mut beat = beat();
    loop {
        tokio::select! {
            biased;
            done = &mut work => return Ok(Some(done)),
            _ = beat.tick() => tell(stream, &Told::Working).await?,
            more = stream.read_u8() => match more {
                Ok(_) => return Err(ErrorKind::InvalidData.into()),
                Err(_) => return Ok(None),
            }
        }
    }
}
