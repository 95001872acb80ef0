//! Streams of events out of a sandbox.
//!
//! A stream ends with what ended it, or with an `error` event that says why it broke off: a reader is never
//! left to guess, and no exit code is made up.

use std::pin::pin;

use async_stream::stream;
use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::json;

use super::inside::Inside;

/// What a stream of events is declared as.
pub(super) const CONTENT_TYPE: &str = "text/event-stream";
/// Names of events that nothing follows.
const LAST: [&str; 2] = ["exit", "error"];
/// The longest name of an event that is looked at, in bytes.
const LONGEST_NAME: usize = 64;

/// Relays events as they come, and says so when they end too early.
pub(super) fn guarded(body: Incoming, inside: Inside) -> Body {
    Body::from_stream(stream! {
        let mut frames = body.into_data_stream();
        let mut names = Names::default();
        let mut over = pin!(inside.over());
        let reason = loop {
            let chunk = tokio::select! {
                chunk = futures::StreamExt::next(&mut frames) => chunk,
                () = &mut over => break Some(("unauthorized", "The credential or the role of this stream ended.")),
            };
            match chunk {
                Some(Ok(bytes)) => {
                    names.feed(&bytes);
                    yield Ok::<_, std::convert::Infallible>(bytes);
                }
                None if names.ended() => break None,
                None | Some(Err(_)) => {
                    break Some(("sandbox_interrupted", "The sandbox was interrupted; what ran there was not told its end."));
                }
            }
        };
        if let Some((code, message)) = reason.filter(|_| !names.ended()) {
            yield Ok(last(code, message));
        }
    })
}

/// An event after which nothing comes. It begins a line of its own, whatever was cut off before it.
fn last(code: &str, message: &str) -> Bytes {
    format!("\n\nevent: error\ndata: {}\n\n", json!({"code": code, "message": message})).into()
}

/// Follows the names of the events in a stream.
#[derive(Default)]
struct Names {
    line: Vec<u8>,
    last: bool,
    whole: bool,
}

impl Names {
    fn feed(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte != b'\n' {
                if self.line.len() < LONGEST_NAME {
                    self.line.push(*byte);
                }
                continue;
            }
            if self.line.is_empty() {
                self.whole |= self.last;
            } else if let Some(name) = self.line.strip_prefix(b"event: ") {
                self.last = LAST.iter().any(|last| last.as_bytes() == name);
            }
            self.line.clear();
        }
    }

    /// Whether an event that nothing follows came through whole.
    fn ended(&self) -> bool {
        self.whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(text: &str) -> bool {
        let mut names = Names::default();
        for chunk in text.as_bytes().chunks(3) {
            names.feed(chunk);
        }
        names.ended()
    }

    #[test]
    fn only_a_whole_last_event_ends_a_stream() {
        assert!(ended("event: start\ndata: {}\n\nevent: exit\ndata: {\"code\":0}\n\n"));
        assert!(ended("event: error\ndata: {}\n\n"));
        assert!(!ended("event: exit\ndata: {\"code\":0}\n"));
        assert!(!ended("event: stdout\ndata: {\"line\":\"event: exit\"}\n\n"));
        assert!(!ended(&format!("event: {}\n\n", "x".repeat(1000))));
        assert!(!ended(""));
    }
}
