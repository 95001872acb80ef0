//! A stream on its way to the client: event for event as it comes, and never complete in appearance when it is not.
//!
//! Events go on as the bytes they are. The relay holds back an event that has not ended yet, so that an error is always
//! an event of its own, and the event with the usage where the client did not ask for it.

use berth_domain::gateway::chunk::{self, Chunk, DONE};
use berth_domain::gateway::refusal;
use berth_domain::{Code, Error, sse};
use bytes::{Buf, Bytes, BytesMut};
use tokio::time::Instant;

use super::attempt::{Begun, EVENT, Failure, Patience, read};
use crate::http::openai;
use crate::services::gateway::books::bill::Bill;
use crate::services::gateway::upstream::client::Body;
use crate::services::gateway::upstream::slot::Slot;

/// What the relay does with an event.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Passes it on.
    Pass,
    /// Hides it: the client did not ask for it.
    Hide,
    /// The stream is complete.
    Done,
    /// The upstream failed; with its error, if it sent one.
    Broken(Option<Vec<u8>>),
}

/// What the relay has seen of a stream: enough to tell a proper end.
#[derive(Clone, Copy, Default)]
struct Seen {
    begun: u64,
    ended: u64,
}

impl Seen {
    /// A choice that began and did not finish was cut off.
    const fn is_whole(self) -> bool {
        self.begun & !self.ended == 0
    }
}

/// What comes out of the relay next.
pub enum Out {
    /// Bytes for the client.
    Bytes(Bytes),
    /// The last bytes for the client.
    Last(Bytes),
}

/// A stream on its way.
pub struct Relay {
    body: Body,
    held: BytesMut,
    searched: usize,
    /// The first event with content, which was parsed before, until the relay comes to it.
    first: Option<Chunk>,
    seen: Seen,
    hides_usage: bool,
    patience: Patience,
    // The bill closes before the place is free: whoever sees that nothing is under way finds the request in the books.
    bill: Bill,
    slot: Slot,
}

impl Relay {
    /// Relays what an upstream began to send.
    pub fn new(begun: Begun, hides_usage: bool, patience: Patience, slot: Slot, mut bill: Bill) -> Self {
        bill.begin();
        let Begun { body, held, first } = begun;
        let (first, seen) = (Some(first), Seen::default());
        Self { body, held, searched: 0, first, seen, hides_usage, patience, slot, bill }
    }

    /// When its time is over.
    pub const fn deadline(&self) -> Instant {
        self.patience.deadline
    }

    /// The next output; `None` if nothing came until then. [`Out::Last`] is the last.
    pub async fn next(&mut self, until: Instant) -> Option<Out> {
        loop {
            if let Some(out) = self.digest() {
                return Some(out);
            }
            let next = self.patience.next();
            match read(&mut self.body, &mut self.held, next.min(until)).await {
                Ok(true) => {}
                Ok(false) => return Some(self.ended()),
                Err(Failure::Timeout) if Instant::now() < next => return None,
                Err(failure) => return Some(self.broken(failure, None)),
            }
        }
    }

    /// Takes as many whole events as may go out together.
    fn digest(&mut self) -> Option<Out> {
        let mut ready = 0;
        loop {
            let Some(end) = sse::end_of_event(&self.held[ready..], self.searched) else {
                // The bytes of a blank line may be split between two pieces.
                self.searched = (self.held.len() - ready).saturating_sub(3);
                break;
            };
            self.searched = 0;
            match self.judge(ready, ready + end) {
                Verdict::Pass => ready += end,
                Verdict::Hide => {
                    let before = self.held.split_to(ready);
                    self.held.advance(end);
                    if ready > 0 {
                        return Some(Out::Bytes(before.freeze()));
                    }
                }
                Verdict::Done => return Some(self.done(ready + end)),
                // What stands before this event goes out first; the next call looks at the event again.
                Verdict::Broken(_) if ready > 0 => break,
                Verdict::Broken(told) => return Some(self.broken(Failure::Body, told)),
            }
        }
        if ready > 0 {
            return Some(Out::Bytes(self.held.split_to(ready).freeze()));
        }
        (self.held.len() > EVENT).then(|| self.broken(Failure::Body, None))
    }

    fn judge(&mut self, begin: usize, end: usize) -> Verdict {
        let Some(data) = sse::data(&self.held[begin..end]) else { return Verdict::Pass };
        if let Some(chunk) = self.first.take() {
            return self.count(&chunk);
        }
        if *data == *DONE.as_bytes() {
            return if self.seen.is_whole() { Verdict::Done } else { Verdict::Broken(None) };
        }
        let Some(chunk) = chunk::read(&data) else { return Verdict::Broken(None) };
        if chunk.failed {
            return Verdict::Broken(Some(data.into_owned()));
        }
        self.count(&chunk)
    }

    /// Counts a good chunk.
    fn count(&mut self, chunk: &Chunk) -> Verdict {
        self.seen.begun |= chunk.begun;
        self.seen.ended |= chunk.ended;
        self.bill.note(chunk);
        if chunk.only_usage && self.hides_usage { Verdict::Hide } else { Verdict::Pass }
    }

    /// The upstream's body came to a clean end.
    fn ended(&mut self) -> Out {
        // Some servers forget the last line break.
        let is_done = sse::data(&self.held).is_some_and(|data| *data == *DONE.as_bytes());
        let has_answered = self.seen.ended != 0 && self.held.is_empty();
        if self.seen.is_whole() && (has_answered || is_done) {
            self.held.clear();
            self.held.extend_from_slice(&sse::event(None, DONE));
            return self.done(self.held.len());
        }
        self.broken(Failure::Unreachable, None)
    }

    fn done(&mut self, end: usize) -> Out {
        self.slot.told(self.bill.completion());
        self.bill.close(200);
        self.body.finish();
        Out::Last(self.held.split_to(end).freeze())
    }

    /// Ends the stream with an event that tells the client of the failure.
    fn broken(&mut self, failure: Failure, told: Option<Vec<u8>>) -> Out {
        self.slot.failed();
        let code = if failure == Failure::Timeout { Code::UpstreamTimeout } else { Code::UpstreamError };
        tracing::info!(model = %self.slot.entry.name, ?failure, "a stream broke off");
        self.bill.close(code.status());
        let told = told.map(|body| {
            let address = self.slot.upstream.address();
            refusal::read(code.status(), &body, &address.as_ref().map(|a| a.secrets()).unwrap_or_default())
        });
        Out::Last(openai::event(&told.unwrap_or_else(|| openai::refusal(&broke_off(code)))))
    }
}

/// The error for a stream that broke off.
pub fn broke_off(code: Code) -> Error {
    let message = match code {
        Code::UpstreamTimeout => {
            "The model's server fell silent in the middle of its answer. What came is not all of it."
        }
        _ => "The model's server broke off in the middle of its answer. What came is not all of it.",
    };
    Error::new(code, message)
}
