//! What a program writes, as an agent tells it: server-sent events, of which each is bounded.

use berth_domain::agent::runtime::OutputEvent;
use berth_domain::sse::{Bounds, MESSAGE, Reader};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::{AgentError, gone, nonsense};

/// The largest event: a line of 64 KiB as JSON.
const LARGEST: usize = 1 << 20;
/// What an agent's events have to fit into.
pub const BOUNDS: Bounds = Bounds { line: LARGEST, event: LARGEST };

/// Events of a program as they come.
pub struct Output {
    body: Incoming,
    reader: Reader,
}

impl Output {
    /// Those of an answer.
    pub const fn of(body: Incoming) -> Self {
        Self { body, reader: Reader::new(BOUNDS) }
    }

    /// The next event; an exit or an error is the last one. It is an error when there is none.
    pub async fn next(&mut self) -> Result<OutputEvent, AgentError> {
        loop {
            while let Some(event) = self.reader.pop().map_err(nonsense)? {
                // What has no name tells nothing of the program.
                if event.name != MESSAGE {
                    return OutputEvent::parse(&event.name, &event.data).map_err(nonsense);
                }
            }
            let Some(frame) = self.body.frame().await else {
                return Err(gone("a program's output ended before the program"));
            };
            self.reader.feed(&frame.map_err(gone)?.into_data().unwrap_or_default());
        }
    }
}
