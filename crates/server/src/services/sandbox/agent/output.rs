//! What a program writes, as an agent tells it: server-sent events, of which each is bounded.

use berth_domain::agent::runtime::OutputEvent;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::{AgentError, gone, nonsense};

/// The largest event: a line of 64 KiB as JSON.
const LARGEST: usize = 1 << 20;

/// Events of a program as they come.
pub struct Output {
    body: Incoming,
    buffer: Vec<u8>,
}

impl Output {
    /// Those of an answer.
    pub fn of(body: Incoming) -> Self {
        Self { body, buffer: Vec::new() }
    }

    /// The next event; an exit or an error is the last one. It is an error when there is none.
    pub async fn next(&mut self) -> Result<OutputEvent, AgentError> {
        loop {
            if let Some(event) = take(&mut self.buffer)? {
                return Ok(event);
            }
            let Some(frame) = self.body.frame().await else {
                return Err(gone("a program's output ended before the program"));
            };
            self.buffer.extend_from_slice(&frame.map_err(gone)?.into_data().unwrap_or_default());
        }
    }
}

/// Takes the first whole event out of a buffer. What is none, such as a comment, is passed over.
fn take(buffer: &mut Vec<u8>) -> Result<Option<OutputEvent>, AgentError> {
    loop {
        let Some(end) = buffer.windows(2).position(|two| two == b"\n\n") else {
            return if buffer.len() > LARGEST { Err(AgentError::Nonsense) } else { Ok(None) };
        };
        let block = buffer.drain(..end + 2).collect::<Vec<_>>();
        let block = String::from_utf8_lossy(&block);
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
        if let (Some(name), Some(data)) = (field("event: "), field("data: ")) {
            return OutputEvent::parse(name, data).map(Some).map_err(nonsense);
        }
    }
}
