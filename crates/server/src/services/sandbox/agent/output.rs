//! What a program writes, as an agent tells it: server-sent events, of which each is bounded.

use berth_domain::agent::runtime::OutputEvent;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::{AgentError, gone, nonsense};

/// The largest event: a line of 64 KiB as JSON.
const LARGEST: usize = 1 << 20;
/// What ends an event.
const END: &[u8] = b"\n\n";

/// Events of a program as they come.
pub struct Output {
    body: Incoming,
    blocks: Blocks,
}

impl Output {
    /// Those of an answer.
    pub fn of(body: Incoming) -> Self {
        Self { body, blocks: Blocks::default() }
    }

    /// The next event; an exit or an error is the last one. It is an error when there is none.
    pub async fn next(&mut self) -> Result<OutputEvent, AgentError> {
        loop {
            while let Some(block) = self.blocks.next()? {
                if let Some(event) = parse(&block)? {
                    return Ok(event);
                }
            }
            let Some(frame) = self.body.frame().await else {
                return Err(gone("a program's output ended before the program"));
            };
            self.blocks.feed(&frame.map_err(gone)?.into_data().unwrap_or_default());
        }
    }
}

/// The event in a block; none in a comment.
fn parse(block: &[u8]) -> Result<Option<OutputEvent>, AgentError> {
    let block = String::from_utf8_lossy(block);
    let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
    match (field("event: "), field("data: ")) {
        (Some(name), Some(data)) => OutputEvent::parse(name, data).map(Some).map_err(nonsense),
        _ => Ok(None),
    }
}

/// Blocks of a stream that comes in pieces of any size. Each byte is looked at twice at most: a hostile guest sends an
/// event of a megabyte byte by byte.
#[derive(Default)]
struct Blocks {
    buffer: BytesMut,
    /// Bytes of the buffer in which no block ends.
    scanned: usize,
    #[cfg(test)]
    looked_at: usize,
}

impl Blocks {
    fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole block with its end.
    fn next(&mut self) -> Result<Option<Bytes>, AgentError> {
        // Half an end may have been there.
        let from = self.scanned.saturating_sub(END.len() - 1);
        #[cfg(test)]
        {
            self.looked_at += self.buffer.len() - from;
        }
        match self.buffer[from..].windows(END.len()).position(|two| two == END) {
            Some(at) => {
                self.scanned = 0;
                Ok(Some(self.buffer.split_to(from + at + END.len()).freeze()))
            }
            None if self.buffer.len() > LARGEST => Err(AgentError::Nonsense),
            None => {
                self.scanned = self.buffer.len();
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_event_that_comes_byte_by_byte_is_looked_at_once() {
        let mut blocks = Blocks::default();
        for _ in 0..LARGEST {
            blocks.feed(b"a");
            assert!(blocks.next().unwrap().is_none());
        }
        assert!(blocks.looked_at <= 2 * LARGEST, "{}", blocks.looked_at);
        blocks.feed(b"a");
        assert!(blocks.next().is_err(), "it is too large");
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(text in "[ab\n]{0,60}", cuts in prop::collection::vec(0..60_usize, 0..8)) {
            let whole: Vec<&str> = text.split_inclusive("\n\n").filter(|block| block.ends_with("\n\n")).collect();
            let mut cuts = cuts;
            cuts.push(text.len());
            cuts.sort_unstable();
            let (mut blocks, mut found, mut at) = (Blocks::default(), Vec::new(), 0);
            for cut in cuts.into_iter().map(|cut| cut.min(text.len())) {
                blocks.feed(&text.as_bytes()[at..cut]);
                at = cut;
                while let Some(block) = blocks.next().unwrap() {
                    found.push(String::from_utf8(block.to_vec()).unwrap());
                }
            }
            prop_assert_eq!(found, whole);
        }
    }
}
