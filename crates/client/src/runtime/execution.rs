//! The output of a process, from its start to its end, over as many connections as it takes.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use berth_domain::agent::output::CONTENT_TYPE;
use berth_domain::agent::runtime::{Output, OutputEvent};
use berth_domain::sse::Event;
use futures::StreamExt;
use http::header;
use reqwest::Response;

use super::Runtime;
use super::events::{Broken, Events, events};
use super::frames::Frames;
use super::piece::Piece;
use crate::{Error, Result};

/// How long to reconnect after a connection broke off.
const PATIENCE: Duration = Duration::from_mins(1);
/// Shortest and longest pause between two tries.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// A connection that lived this long does not count in a series of failures, even if nothing came over it.
const LIVED: Duration = Duration::from_secs(5);

/// The wanted form of a program's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// An event for each line, for readers of lines.
    Lines,
    /// The bytes as they come, many lines and parts of one at a time, for readers that pass them on. An older service
    /// sends lines instead.
    Bytes,
}

impl Form {
    pub(super) const fn accept(self) -> &'static str {
        match self {
            Self::Lines => "text/event-stream",
            Self::Bytes => CONTENT_TYPE,
        }
    }
}

/// One connection's stream.
pub(super) enum Stream {
    Events(Events),
    Frames(Frames),
}

impl Stream {
    /// The stream of an answer.
    pub(super) fn of(response: Response) -> Self {
        match response.headers().get(header::CONTENT_TYPE) {
            Some(kind) if kind == CONTENT_TYPE => Self::Frames(Frames::of(response)),
            _ => Self::Events(events(response)),
        }
    }

    async fn next(&mut self) -> Option<std::result::Result<Piece, Broken>> {
        match self {
            Self::Frames(frames) => frames.next().await,
            Self::Events(events) => loop {
                match events.next().await? {
                    Ok(event) => match parse(&event) {
                        Ok(None) => {}
                        Ok(Some(event)) => return Some(Ok(Piece::Event(event))),
                        Err(broken) => return Some(Err(broken)),
                    },
                    Err(broken) => return Some(Err(broken)),
                }
            },
        }
    }
}

/// The content of an event; nothing if a later version added it.
fn parse(event: &Event) -> std::result::Result<Option<OutputEvent>, Broken> {
    if !["start", "truncated", "stdout", "stderr", "exit", "error"].contains(&event.name.as_str()) {
        return Ok(None);
    }
    let read = OutputEvent::parse(&event.name, &event.data);
    read.map(Some).map_err(|error| Broken::Nonsense(format!("an event cannot be read: {error}")))
}

/// Events of a process. If the connection breaks off, this connects again and goes on at the same place, as often as
/// needed. It ends only when the service says so, or after a minute without an answer.
pub struct Execution {
    runtime: Runtime,
    stream: Option<Stream>,
    form: Form,
    pid: Option<i32>,
    offset: u64,
    follow: bool,
    /// Whether the process waits for this reader.
    hold: bool,
    over: bool,
    /// Set from the break of a connection until something comes again.
    trouble: Option<Trouble>,
    /// When the present connection was opened.
    opened: Instant,
}

struct Trouble {
    since: Instant,
    pause: Duration,
    reason: String,
}

impl Execution {
    /// For a command: the first event names the process.
    pub(super) fn command(runtime: Runtime, stream: Stream, hold: bool, form: Form) -> Self {
        Self { stream: Some(stream), pid: None, hold, ..Self::process(runtime, 0, 0, true, form) }
    }

    /// For a process, from an offset on.
    pub(super) fn process(runtime: Runtime, pid: i32, offset: u64, follow: bool, form: Form) -> Self {
        Self {
            runtime,
            stream: None,
            form,
            pid: Some(pid),
            offset,
            follow,
            hold: false,
            over: false,
            trouble: None,
            opened: Instant::now(),
        }
    }

    /// Makes the process wait for this reader.
    pub(super) fn holding(self) -> Self {
        Self { hold: true, ..self }
    }

    /// Where reading goes on, in bytes since the start of the process.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether the last event came.
    pub const fn is_over(&self) -> bool {
        self.over
    }

    /// The next event; `None` after the last one. Dropping its future loses nothing. Bytes become an event of output,
    /// too.
    pub async fn next(&mut self) -> Result<Option<OutputEvent>> {
        Ok(self.next_piece().await?.map(|piece| match piece {
            Piece::Event(event) => event,
            Piece::Bytes { stderr, offset, bytes } => {
                let (line, base64) = match std::str::from_utf8(&bytes) {
                    Ok(text) => (Some(text.to_owned()), None),
                    Err(_) => (None, Some(BASE64_STANDARD.encode(&bytes))),
                };
                OutputEvent::Output { stderr, output: Output { line, base64, offset, partial: true } }
            }
        }))
    }

    /// The next piece; `None` after the last event. Dropping its future loses nothing.
    pub async fn next_piece(&mut self) -> Result<Option<Piece>> {
        while !self.over {
            let Some(stream) = &mut self.stream else {
                self.connect().await?;
                continue;
            };
            match stream.next().await {
                Some(Ok(piece)) => {
                    if self.read(&piece)? {
                        return Ok(Some(piece));
                    }
                }
                None if !self.follow => self.over = true,
                None => self.broke_off("it ended early"),
                Some(Err(Broken::Connection(reason))) => self.broke_off(&reason),
                Some(Err(nonsense)) => return Err(Error::Protocol(nonsense.to_string())),
            }
        }
        Ok(None)
    }

    /// Notes a piece. Returns whether to pass it on: a break that another connection can repair is not passed on.
    fn read(&mut self, piece: &Piece) -> Result<bool> {
        let renewable = matches!(piece, Piece::Event(OutputEvent::Error { code, .. }) if code == "unauthorized");
        if renewable && self.trouble.is_none() && self.pid.is_some() {
            // The stream's access token expired; the next request renews it.
            self.broke_off("the credential ended");
            return Ok(false);
        }
        match piece {
            Piece::Bytes { offset, bytes, .. } => self.offset = offset + bytes.len() as u64,
            Piece::Event(OutputEvent::Start { pid }) => self.pid = Some(*pid),
            Piece::Event(OutputEvent::Truncated { from }) => self.offset = *from,
            Piece::Event(OutputEvent::Output { output, .. }) => self.offset = output.offset + length(output)?,
            Piece::Event(OutputEvent::Exit(_) | OutputEvent::Error { .. }) => self.over = true,
        }
        self.trouble = None;
        Ok(true)
    }

    fn broke_off(&mut self, reason: &str) {
        let lived = self.stream.take().is_some() && self.opened.elapsed() > LIVED;
        if lived {
            self.trouble = None;
        }
        let since = Instant::now();
        let trouble = self.trouble.get_or_insert(Trouble { since, pause: PAUSE.0, reason: String::new() });
        reason.clone_into(&mut trouble.reason);
    }

    async fn connect(&mut self) -> Result<()> {
        let Some(pid) = self.pid else {
            let reason = self.trouble.as_ref().map_or("", |trouble| trouble.reason.as_str());
            return Err(Error::Protocol(format!("the connection broke off before the command was started: {reason}")));
        };
        loop {
            if let Some(trouble) = &mut self.trouble {
                tokio::time::sleep(trouble.pause).await;
                trouble.pause = (trouble.pause * 2).min(PAUSE.1);
            }
            let late = self.trouble.as_ref().is_some_and(|trouble| trouble.since.elapsed() > PATIENCE);
            match self.runtime.open_logs(pid, self.offset, (self.follow, self.hold), self.form).await {
                Ok(stream) if !late => {
                    self.stream = Some(stream);
                    self.opened = Instant::now();
                    return Ok(());
                }
                Ok(_) => {
                    let reason = self.trouble.as_ref().map_or("", |trouble| trouble.reason.as_str());
                    let text = format!("the stream of events breaks off again and again: {reason}");
                    return Err(Error::Protocol(text));
                }
                Err(error) if self.trouble.is_some() && passes(&error) && !late => self.broke_off(&error.to_string()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether a failure may be over soon, as when the service or a proxy before it restarts.
fn passes(error: &Error) -> bool {
    match error {
        Error::Api { status, .. } => matches!(status, 429 | 500 | 502 | 503 | 504),
        Error::Unreachable { .. } | Error::Protocol(_) => true,
        Error::File(_) => false,
    }
}

/// The bytes that a process wrote, with its newline.
pub fn output_bytes(output: &Output) -> Result<Vec<u8>> {
    let mut bytes = match (&output.line, &output.base64) {
        (Some(line), _) => line.clone().into_bytes(),
        (None, Some(text)) => {
            BASE64_STANDARD.decode(text).map_err(|e| Error::Protocol(format!("output is no base64: {e}")))?
        }
        (None, None) => return Err(Error::Protocol("output has no bytes".into())),
    };
    if !output.partial {
        bytes.push(b'\n');
    }
    Ok(bytes)
}

fn length(output: &Output) -> Result<u64> {
    Ok(output_bytes(output)?.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The output of an agent: pieces of lines as [`Output`]s.
    fn outputs(pieces: &[(Vec<u8>, bool)]) -> Vec<Output> {
        let mut offset = 0;
        let cut = pieces.iter().map(|(bytes, newline)| {
            let (line, base64) = match std::str::from_utf8(bytes) {
                Ok(text) => (Some(text.to_owned()), None),
                Err(_) => (None, Some(BASE64_STANDARD.encode(bytes))),
            };
            let output = Output { line, base64, offset, partial: !newline };
            offset += bytes.len() as u64 + u64::from(*newline);
            output
        });
        cut.collect()
    }

    proptest! {
        #[test]
        fn bytes_come_out_as_they_were_written(
            pieces in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..40), any::<bool>()), 0..12)
        ) {
            let written: Vec<u8> =
                pieces.iter().flat_map(|(b, newline)| b.iter().copied().chain(newline.then_some(b'\n'))).collect();
            let mut read = Vec::new();
            for output in outputs(&pieces) {
                prop_assert_eq!(output.offset, read.len() as u64);
                read.extend(output_bytes(&output).unwrap());
            }
            prop_assert_eq!(read, written);
        }
    }

    #[test]
    fn what_is_no_output_is_refused() {
        assert!(output_bytes(&Output::default()).is_err());
        assert!(output_bytes(&Output { base64: Some("%".into()), ..Output::default() }).is_err());
    }
}
