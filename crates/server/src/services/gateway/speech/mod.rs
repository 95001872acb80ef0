//! This machine's own speech: espeak-ng and ffmpeg as processes.
//!
//! As many texts are at work as there are cores. A task reads the sound ahead of the client, up to a bound, so that
//! most texts are done at once and their programs end. A text whose client is slower gives its place away while it
//! waits, so that slow readers never keep others from speaking. Dropping the stream ends the programs. Organizations
//! share the room and the places at work ([`turn`]).
//!
//! This room may use the queue of `upstream`, since requests share its places as they share an upstream's, and no
//! other.

mod encode;
mod process;
mod sandbox;
#[cfg(test)]
mod tests;
mod text;
mod turn;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_domain::gateway::speech::{Format, Speech};
use berth_domain::{Error, Result, sse};
use bytes::{Bytes, BytesMut};
use futures::stream::{self, BoxStream, StreamExt};
use serde_json::json;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::task::AbortOnDropHandle;

use crate::http::openai;
use process::{Making, Order};
use sandbox::Sandbox;
pub use turn::Asker;
use turn::{Turn, Turns};

/// Audio as the programs make it. An error in the middle is logged, and is the last item.
pub type SpeechStream = BoxStream<'static, Result<Bytes>>;

/// Most texts that may wait beside those at work.
const QUEUE: usize = 64;
/// Bytes of sound that may be ready ahead of a client.
const AHEAD: usize = 2 << 20;
/// Bytes of WAV that are kept while their length is not known.
const KEPT: usize = 4 << 20;
/// Size of a piece of a kept WAV.
const PIECE: usize = 64 << 10;
/// How long a client may take to read.
pub const HELD: Duration = Duration::from_mins(10);

/// Speaks texts. Clones share the places.
#[derive(Clone)]
pub struct Speaker {
    turns: Arc<Turns>,
    sandbox: Arc<OnceCell<Sandbox>>,
}

impl Default for Speaker {
    fn default() -> Self {
        Self::new()
    }
}

impl Speaker {
    /// A speaker with a place for each core, at least two.
    pub fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self::with(cores.max(2), QUEUE)
    }

    fn with(places: usize, queue: usize) -> Self {
        Self { turns: Turns::new(places, queue), sandbox: Arc::default() }
    }

    /// Speaks a text for an asker with a voice of espeak-ng. Returns once the first piece is made, so that a failure
    /// still has a status: 429 where too many wait, 503 where a program is not installed.
    pub async fn speak(&self, asker: Asker, speech: &Speech, voice: &str) -> Result<SpeechStream> {
        let turn = self.turns.begin(asker).await?;
        let sandbox = self.sandbox.get_or_try_init(Sandbox::strictest).await?;
        let order = Order::new(sandbox, speech, voice)?;
        if speech.format == Format::Wav {
            return wav(&order, turn).await;
        }
        let mut making = order.start()?;
        let first = making.next().await?;
        Ok(stream_of(making, first, turn, None))
    }
}

/// WAV begins with its length. A short sound is kept until its length is known; a long one is made twice, so that it
/// needs no memory.
async fn wav(order: &Order, turn: Turn) -> Result<SpeechStream> {
    let (length, kept) = measured(order.start()?).await?;
    let header = encode::wav_header(u32::try_from(length).map_err(Error::internal)?);
    if let Some(mut kept) = kept {
        kept[..encode::WAV_HEADER].copy_from_slice(&header);
        return Ok(pieces(kept.freeze()));
    }
    let mut making = order.start()?;
    let first = making.next().await?;
    let header = stream::iter([Ok(Bytes::copy_from_slice(&header))]);
    Ok(header.chain(stream_of(making, first, turn, Some(length))).boxed())
}

/// Measures a sound; returns the sound itself, too, if it is short, behind room for a header.
async fn measured(mut making: Making) -> Result<(usize, Option<BytesMut>)> {
    let mut length = 0;
    let mut kept = Some(BytesMut::zeroed(encode::WAV_HEADER));
    while let Some(piece) = making.next().await? {
        length += piece.len();
        match &mut kept {
            Some(bytes) if length <= KEPT => bytes.extend_from_slice(&piece),
            _ => kept = None,
        }
    }
    Ok((length, kept))
}

fn pieces(mut bytes: Bytes) -> SpeechStream {
    let next = move || (!bytes.is_empty()).then(|| Ok(bytes.split_to(bytes.len().min(PIECE))));
    stream::iter(std::iter::from_fn(next)).boxed()
}

/// A piece, and its permit from the room for sound made ahead.
type Ahead = (Result<Bytes>, Option<OwnedSemaphorePermit>);

/// A stream of the sound, which a task reads from the programs. The task ends with the stream.
fn stream_of(making: Making, first: Option<Bytes>, turn: Turn, length: Option<usize>) -> SpeechStream {
    let (sender, mut receiver) = mpsc::unbounded_channel::<Ahead>();
    let task = AbortOnDropHandle::new(tokio::spawn(async move {
        let filled = tokio::time::timeout(HELD, fill(making, first, turn, length, &sender)).await;
        if let Err(error) = filled.unwrap_or_else(|_| Err(Error::internal("the client reads too slowly"))) {
            tracing::error!(%error, "speech ended early");
            // Sending fails only where the client is gone.
            let _ = sender.send((Err(error), None));
        }
    }));
    let stream = async_stream::stream! {
        let _task = task;
        while let Some((piece, _room)) = receiver.recv().await {
            yield piece;
        }
    };
    stream.boxed()
}

async fn fill(
    mut making: Making,
    mut next: Option<Bytes>,
    mut turn: Turn,
    length: Option<usize>,
    to: &mpsc::UnboundedSender<Ahead>,
) -> Result<()> {
    let ahead = Arc::new(Semaphore::new(AHEAD));
    let mut made = 0;
    while let Some(piece) = next {
        made += piece.len();
        let room = room(&ahead, piece.len(), &mut turn).await?;
        if to.send((Ok(piece), Some(room))).is_err() {
            return Ok(());
        }
        next = making.next().await?;
    }
    match length {
        Some(length) if length != made => Err(Error::internal(format!("{made} bytes were made, {length} before"))),
        _ => Ok(()),
    }
}

/// Takes room for so many bytes. While it has to wait, it lets others have the place at work.
async fn room(ahead: &Arc<Semaphore>, bytes: usize, turn: &mut Turn) -> Result<OwnedSemaphorePermit> {
    let bytes = u32::try_from(bytes.min(AHEAD)).map_err(Error::internal)?;
    if let Ok(room) = ahead.clone().try_acquire_many_owned(bytes) {
        return Ok(room);
    }
    turn.pause();
    let room = ahead.clone().acquire_many_owned(bytes).await.map_err(Error::internal)?;
    turn.resume().await?;
    Ok(room)
}

/// The audio as events; the last one tells the usage, or the error.
pub fn as_events(mut audio: SpeechStream, characters: usize) -> SpeechStream {
    let stream = async_stream::stream! {
        while let Some(piece) = audio.next().await {
            match piece {
                Ok(piece) => yield Ok(event(&json!({"type": "speech.audio.delta", "audio": STANDARD.encode(&piece)}))),
                Err(error) => {
                    yield Ok(openai::event(&openai::refusal(&error)));
                    return;
                }
            }
        }
        let usage = json!({"input_tokens": characters, "output_tokens": 0, "total_tokens": characters});
        yield Ok(event(&json!({"type": "speech.audio.done", "usage": usage})));
    };
    stream.boxed()
}

fn event(value: &serde_json::Value) -> Bytes {
    sse::event(None, &value.to_string()).into()
}
