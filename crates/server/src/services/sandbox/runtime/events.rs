//! Streams of events out of a sandbox.
//!
//! A stream ends with what ended it, or with an `error` event that says why it broke off: a reader is never
//! left to guess, and no exit code is made up.

use std::pin::pin;

use async_stream::stream;
use axum::body::Body;
use axum::http::HeaderValue;
use berth_domain::agent::output;
use berth_domain::sse::{self, Reader, Unreadable};
use berth_host::sandbox::agent::BOUNDS;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::json;

use super::frames::{self, Frames};
use super::inside::Inside;

/// What a stream of events is declared as.
pub(super) const CONTENT_TYPE: &str = "text/event-stream";
/// Names of events that nothing follows.
const LAST: [&str; 2] = ["exit", "error"];

/// How a stream ends that nothing broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// With an event that nothing follows.
    Event,
    /// Where there is no more: a log as it is now.
    Silence,
}

/// Relays events as they come, and says so when they end too early.
pub(super) fn guarded(body: Incoming, inside: Inside, ending: Ending, mut form: Form) -> Body {
    Body::from_stream(stream! {
        let mut frames = body.into_data_stream();
        let mut over = pin!(inside.over());
        let reason = loop {
            let chunk = tokio::select! {
                chunk = futures::StreamExt::next(&mut frames) => chunk,
                () = &mut over => break Some(("unauthorized", "The credential or the role of this stream ended.")),
            };
            let passed = match chunk {
                Some(Ok(bytes)) => form.pass(bytes),
                None if ending == Ending::Silence => break None,
                None | Some(Err(_)) => None,
            };
            let Some(passed) = passed else {
                break Some(("sandbox_interrupted", "The sandbox was interrupted; what ran there was not told its end."));
            };
            yield Ok::<_, std::convert::Infallible>(passed);
            if form.ended() {
                break None;
            }
        };
        if let Some((code, message)) = reason {
            yield Ok(form.last(code, message));
        }
    })
}

/// What a stream is made of.
pub(super) enum Form {
    /// Server-sent events.
    Events(Names),
    /// Frames of output.
    Frames(Frames),
}

impl Form {
    /// Of an answer that is declared as this; none where it is no stream that has an end of its own.
    pub(super) fn of(kind: &HeaderValue) -> Option<Self> {
        if kind == CONTENT_TYPE {
            Some(Self::Events(Names::default()))
        } else if kind == output::CONTENT_TYPE {
            Some(Self::Frames(Frames::default()))
        } else {
            None
        }
    }

    /// What of these bytes goes on; nothing where they make no sense.
    fn pass(&mut self, bytes: Bytes) -> Option<Bytes> {
        match self {
            Self::Events(names) => names.feed(&bytes).ok().map(|()| bytes),
            Self::Frames(frames) => frames.pass(&bytes).ok(),
        }
    }

    /// Whether an event that nothing follows came through whole.
    fn ended(&self) -> bool {
        match self {
            Self::Events(names) => names.ended,
            Self::Frames(frames) => frames.ended(),
        }
    }

    fn last(&self, code: &str, message: &str) -> Bytes {
        match self {
            Self::Events(_) => last(code, message),
            Self::Frames(_) => frames::last(code, message),
        }
    }
}

/// An event after which nothing comes. It begins a line of its own, whatever was cut off before it.
fn last(code: &str, message: &str) -> Bytes {
    let event = sse::event(Some("error"), &json!({"code": code, "message": message}).to_string());
    [&b"\n\n"[..], &event].concat().into()
}

/// Follows the names of the events in a stream.
pub(super) struct Names {
    reader: Reader,
    /// Whether an event that nothing follows came through whole.
    ended: bool,
}

impl Default for Names {
    fn default() -> Self {
        Self { reader: Reader::new(BOUNDS), ended: false }
    }
}

impl Names {
    /// Reads what goes by. An agent writes nothing that cannot be read.
    fn feed(&mut self, bytes: &[u8]) -> Result<(), Unreadable> {
        self.reader.feed(bytes);
        while let Some(event) = self.reader.pop()? {
            self.ended |= LAST.contains(&event.name.as_str());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(text: &str) -> bool {
        let mut names = Names::default();
        text.as_bytes().chunks(3).all(|chunk| names.feed(chunk).is_ok()) && names.ended
    }

    #[test]
    fn only_a_whole_last_event_ends_a_stream() {
        assert!(ended("event: start\ndata: {}\n\nevent: exit\ndata: {\"code\":0}\n\n"));
        assert!(ended("event: error\ndata: {}\n\n"));
        assert!(!ended("event: exit\ndata: {\"code\":0}\n"));
        assert!(!ended("event: stdout\ndata: {\"line\":\"event: exit\"}\n\n"));
        assert!(!ended(&format!("event: {}\ndata: {{}}\n\n", "x".repeat(1000))));
        assert!(!ended(""));
    }

    #[test]
    fn what_no_agent_writes_does_not_pass() {
        let pass = |bytes: Vec<u8>| Form::Events(Names::default()).pass(bytes.into()).is_some();
        assert!(pass(b"event: stdout\ndata: {}\n\n".to_vec()) && pass(vec![b'x'; BOUNDS.line]));
        assert!(!pass(vec![b'x'; BOUNDS.line + 1]) && !pass(b"data: \xff\n\n".to_vec()));
    }

    #[test]
    fn a_broken_stream_ends_with_an_event_of_its_own() {
        let text = "\n\nevent: error\ndata: {\"code\":\"c\",\"message\":\"m\"}\n\n";
        assert_eq!(last("c", "m"), text);
    }
}
