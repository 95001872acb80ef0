//! Server-sent events from a sandbox, a build or a model, which may be hostile: bounded in size, and never silent for
//! long.

use std::time::Duration;

use async_stream::try_stream;
use berth_domain::sse::{Bounds, Event, Reader};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use reqwest::Response;
use tokio::time::timeout;

/// The longest line of an event out of a sandbox, in bytes: the agent's are below 100 KiB.
const LONGEST: usize = 1 << 20;
/// A stream sends something every 15 s, if only a sign of life. One that is silent for this long is gone.
pub(super) const SILENCE: Duration = Duration::from_mins(1);

/// Why no more events come.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    /// The connection ended; another one may do better.
    #[error("{0}")]
    Connection(String),
    /// The bytes are not an event.
    #[error("what came is no event: {0}")]
    Nonsense(String),
}

/// Events as they come.
pub(crate) type Events = BoxStream<'static, Result<Event, Broken>>;

/// The events of an answer from a sandbox.
pub(crate) fn events(response: Response) -> Events {
    events_within(response, LONGEST)
}

/// The events of an answer, with lines of at most so many bytes.
pub(crate) fn events_within(response: Response, longest: usize) -> Events {
    patient_events(response, longest, SILENCE)
}

/// The same for an answer that may be silent for this long.
pub(crate) fn patient_events(response: Response, longest: usize, silence: Duration) -> Events {
    read(patient(response.bytes_stream(), silence), longest)
}

/// The events of an answer that sends something only when something happens, and may be silent for ever.
pub(crate) fn lasting_events(response: Response) -> Events {
    let bytes = response.bytes_stream();
    read(bytes.map(|chunk| chunk.map_err(|error| Broken::Connection(error.to_string()))), LONGEST)
}

/// Parses events, with lines no longer than this.
fn read(bytes: impl Stream<Item = Result<Bytes, Broken>> + Send + 'static, longest: usize) -> Events {
    let events = try_stream! {
        let mut bytes = std::pin::pin!(bytes);
        let mut reader = Reader::new(Bounds::of_line(longest));
        while let Some(chunk) = bytes.next().await {
            reader.feed(&chunk?);
            while let Some(event) = reader.pop().map_err(|error| Broken::Nonsense(error.to_string()))? {
                yield event;
            }
        }
    };
    events.boxed()
}

/// Fails if no bytes come for this long.
pub(super) fn patient(
    bytes: impl Stream<Item = reqwest::Result<Bytes>> + Send,
    silence: Duration,
) -> impl Stream<Item = Result<Bytes, Broken>> + Send {
    try_stream! {
        let mut bytes = std::pin::pin!(bytes);
        loop {
            let chunk = timeout(silence, bytes.next()).await;
            let chunk = chunk.map_err(|_| Broken::Connection(format!("silent for {} s", silence.as_secs())))?;
            let Some(chunk) = chunk else { return };
            yield chunk.map_err(|error| Broken::Connection(error.to_string()))?;
        }
    }
}
