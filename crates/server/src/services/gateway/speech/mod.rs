//! Speech of this machine's own, by espeak-ng and ffmpeg as processes.
//!
//! As many are at work as there are cores. What they make is read ahead of the client, up to a bound, so that most
//! texts are done at once and their programs gone. One whose client is slower than that gives its place away while it
//! waits, so that slow readers never keep others from speaking; and whoever drops the stream ends the programs.
//! Organizations share what is let in and the places at work ([`turn`]).
//!
//! This room may use the queue of `upstream`, since its places are shared like an upstream's, and no other.

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

/// Audio as it is made. An error in the middle is in the log, and is its last item.
pub type SpeechStream = BoxStream<'static, Result<Bytes>>;

/// Most that are let in beside those at work.
const QUEUE: usize = 64;
/// Bytes that are made ahead of a client.
const AHEAD: usize = 2 << 20;
/// Bytes of WAV that are kept until their length is known.
const KEPT: usize = 4 << 20;
/// Bytes of a piece of what was kept.
const PIECE: usize = 64 << 10;
/// How long a client may take.
pub const HELD: Duration = Duration::from_mins(10);

/// Who speaks. Clones share the places.
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

    /// Speaks for somebody with a voice of espeak-ng. The first piece was made when this returns, so that what fails is
    /// a status: 429 where too many wait, 503 where a program is not installed.
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

/// WAV begins with its length. What is short is kept until it is known; what is long is made twice, so that no
/// length needs memory.
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

/// The length of what is made, and itself behind room for a header if it is short.
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

/// A piece, and its part of what may be made ahead.
type Ahead = (Result<Bytes>, Option<OwnedSemaphorePermit>);

/// What is being made, read by a task that ends with the stream.
fn stream_of(making: Making, first: Option<Bytes>, turn: Turn, length: Option<usize>) -> SpeechStream {
    let (sender, mut receiver) = mpsc::unbounded_channel::<Ahead>();
    let task = AbortOnDropHandle::new(tokio::spawn(async move {
        let filled = tokio::time::timeout(HELD, fill(making, first, turn, length, &sender)).await;
        if let Err(error) = filled.unwrap_or_else(|_| Err(Error::internal("the client reads too slowly"))) {
            tracing::error!(%error, "speech ended early");
            // Where nobody listens any more, nobody needs it.
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

/// Room for so many bytes. Who has to wait for it gives its place away meanwhile.
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

/// The audio as events, with what was used at the end. An error is an event, too, and the last one.
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
