//! Server-sent events of what is somebody's, a sandbox, a build or a model: bounded in size, and never silent for long.

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
/// A stream says something every 15 s, if only that it is there. One that is silent for this long is gone.
pub(super) const SILENCE: Duration = Duration::from_mins(1);

/// Why there are no more events.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    /// The connection ended, and another one may do better.
    #[error("{0}")]
    Connection(String),
    /// What came is no event.
    #[error("what came is no event: {0}")]
    Nonsense(String),
}

/// Events as they come.
pub(crate) type Events = BoxStream<'static, Result<Event, Broken>>;

/// The events of an answer out of a sandbox.
pub(crate) fn events(response: Response) -> Events {
    events_within(response, LONGEST)
}

/// The events of an answer, whose lines have so many bytes at most.
pub(crate) fn events_within(response: Response, longest: usize) -> Events {
    patient_events(response, longest, SILENCE)
}

/// The same of an answer that may be silent for as long as this.
pub(crate) fn patient_events(response: Response, longest: usize, silence: Duration) -> Events {
    read(patient(response.bytes_stream(), silence), longest)
}

/// The events of an answer that says something only when something happens, and may be silent for ever.
pub(crate) fn lasting_events(response: Response) -> Events {
    let bytes = response.bytes_stream();
    read(bytes.map(|chunk| chunk.map_err(|error| Broken::Connection(error.to_string()))), LONGEST)
}

/// The events in bytes, whose lines are no longer than this.
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

/// Bytes that never stay away for longer than this.
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
