//! A process's log at the reader's pace: as server-sent events of a line each, or as frames of bytes.
//!
//! A line is one event, however long its program pauses in it; a client that wants to see a prompt reads bytes. The
//! reader cuts a line if it is longer than 64 KiB, if the other stream writes in the middle of it (since the bytes of
//! an event are contiguous), or if the process ends.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use berth_domain::agent::output::{self, Header, Kind};
use berth_domain::agent::runtime::{Output, OutputEvent};
use berth_domain::sse;
use bytes::Bytes;
use http::{HeaderMap, header};
use tokio::sync::watch;

use crate::events::{self, Feed};
use crate::lock::lock;
use crate::process::Process;
use crate::process::lines::Lines;
use crate::process::log::Log;

/// Bytes of events gathered for one frame of HTTP.
const BATCH: usize = 64 * 1024;
/// Bytes that are cut into lines at a time; every byte may be an event.
const PIECE: usize = 4 * 1024;

/// Which streams a reader wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Both.
    Both,
    /// Output only.
    Stdout,
    /// Errors only.
    Stderr,
}

impl Which {
    fn has(self, stderr: bool) -> bool {
        self == Self::Both || (self == Self::Stderr) == stderr
    }
}

/// The form in which a reader gets output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Server-sent events, one for each line.
    Lines,
    /// Frames ([`output`]) of bytes as they came.
    Frames,
}

impl Form {
    /// The form that a request asks for.
    pub fn of(headers: &HeaderMap) -> Self {
        match headers.get(header::ACCEPT) {
            Some(accept) if accept == output::CONTENT_TYPE => Self::Frames,
            _ => Self::Lines,
        }
    }

    /// The content type of an answer.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Lines => "text/event-stream",
            Self::Frames => output::CONTENT_TYPE,
        }
    }

    fn event(self, out: &mut Vec<u8>, event: &OutputEvent) {
        match self {
            Self::Lines => sse::write(out, None, Some(event.name()), &event.data()),
            Self::Frames => output::write_event(out, event),
        }
    }
}

/// A line that has not ended yet.
#[derive(Default)]
struct Line {
    lines: Lines,
    stderr: bool,
    /// Where it begins.
    offset: u64,
}

impl Line {
    /// Adds the next bytes; writes every complete line.
    fn feed(&mut self, out: &mut Vec<u8>, offset: u64, stderr: bool, bytes: &[u8]) {
        if self.lines.pending() > 0 && (self.stderr != stderr || self.end() != offset) {
            self.finish(out);
        }
        if self.lines.pending() == 0 {
            self.offset = offset;
        }
        self.stderr = stderr;
        let at = &mut self.offset;
        self.lines.feed(bytes, |piece, newline| write_piece(out, stderr, at, piece, newline));
    }

    fn end(&self) -> u64 {
        self.offset + self.lines.pending() as u64
    }

    /// Writes the unfinished line.
    fn finish(&mut self, out: &mut Vec<u8>) {
        let (stderr, at) = (self.stderr, &mut self.offset);
        self.lines.finish(|piece, newline| write_piece(out, stderr, at, piece, newline));
    }
}

fn write_piece(out: &mut Vec<u8>, stderr: bool, at: &mut u64, piece: &[u8], newline: bool) {
    let (line, base64) = match std::str::from_utf8(piece) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(BASE64_STANDARD.encode(piece))),
    };
    let output = Output { line, base64, offset: *at, partial: !newline };
    Form::Lines.event(out, &OutputEvent::Output { stderr, output });
    *at += piece.len() as u64 + u64::from(newline);
}

/// Ends a command if its reader leaves before the command's end.
pub struct Leash(pub Arc<Process>);

impl Drop for Leash {
    fn drop(&mut self) {
        self.0.release();
        self.0.end.notify_one();
    }
}

/// A reader's registration with a process that waits for readers.
struct Seat {
    process: Arc<Process>,
    number: u64,
}

impl Seat {
    fn take(process: &Arc<Process>, offset: u64) -> Self {
        let number = lock(&process.hold).attach(offset);
        process.progress.notify_one();
        Self { process: process.clone(), number }
    }

    fn moved(&self, offset: u64) {
        let end = lock(&self.process.log).end();
        if lock(&self.process.hold).moved(self.number, offset, end) {
            self.process.progress.notify_one();
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        lock(&self.process.hold).leave(self.number);
        self.process.progress.notify_one();
    }
}

/// A reader of a log.
pub struct Follow {
    process: Arc<Process>,
    changes: watch::Receiver<()>,
    /// The next offset to read.
    offset: u64,
    line: Line,
    which: Which,
    form: Form,
    /// Whether it waits for further output.
    waits: bool,
    /// Whether its first event names the process.
    introduce: bool,
    /// Its registration, if the process waits for it.
    seat: Option<Seat>,
    /// Never read: dropping it ends the command.
    _leash: Option<Leash>,
    done: bool,
}

impl Follow {
    /// Reads from an offset; with `follow` until the end of the process.
    pub fn new(process: Arc<Process>, offset: u64, which: Which, follow: bool, form: Form) -> Self {
        let changes = process.changed.subscribe();
        let (waits, introduce, done) = (follow, false, false);
        let line = Line::default();
        Self { process, changes, offset, line, which, form, waits, introduce, seat: None, _leash: None, done }
    }

    /// Becomes the reader for which the process waits, if it was started to wait for one.
    pub fn holding(mut self) -> Self {
        // The former reader leaves only after this.
        self.seat = Some(Seat::take(&self.process, self.offset));
        self
    }

    /// The reader that started a command: from the beginning, with a `start`.
    pub fn command(process: Arc<Process>, leash: Option<Leash>, form: Form) -> Self {
        Self { _leash: leash, introduce: true, ..Self::new(process, 0, Which::Both, true, form).holding() }
    }

    /// The content type of its answer.
    pub fn content_type(&self) -> &'static str {
        self.form.content_type()
    }

    /// The process that it reads.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// What can be sent now.
    fn batch(&mut self) -> Vec<u8> {
        let (process, mut out) = (self.process.clone(), Vec::new());
        if std::mem::take(&mut self.introduce) {
            self.form.event(&mut out, &OutputEvent::Start { pid: process.pid });
        }
        // The exit is read before the log: a reader that sees the exit then sees the whole log.
        let exit = lock(&process.exit).clone();
        let log = lock(&process.log);
        if self.offset < log.start() {
            self.line.finish(&mut out);
            self.offset = log.start();
            self.form.event(&mut out, &OutputEvent::Truncated { from: self.offset });
        }
        while out.len() < BATCH {
            if self.read(&log, &mut out) {
                continue;
            }
            if exit.is_some() || !self.waits {
                self.line.finish(&mut out);
                self.done = true;
            }
            if let Some(exit) = exit {
                self.form.event(&mut out, &OutputEvent::Exit(exit));
            }
            break;
        }
        out
    }

    /// Writes the next part of the log, if there is one.
    fn read(&mut self, log: &Log, out: &mut Vec<u8>) -> bool {
        let most = if self.form == Form::Lines { PIECE } else { BATCH };
        let Some(run) = log.read(self.offset, most) else { return false };
        self.offset = run.offset + run.bytes.len() as u64;
        match self.form {
            _ if !self.which.has(run.stderr) => {}
            Form::Lines => self.line.feed(out, run.offset, run.stderr, run.bytes),
            Form::Frames => output::write(out, run.stderr, run.offset, run.bytes),
        }
        true
    }
}

impl Feed for Follow {
    const KEEP_ALIVE: Option<Duration> = Some(events::KEEP_ALIVE);

    fn keep_alive(&self) -> Bytes {
        match self.form {
            Form::Lines => Bytes::from_static(sse::KEEP_ALIVE),
            Form::Frames => Bytes::copy_from_slice(&Header { kind: Kind::Nothing, length: 0, offset: 0 }.encode()),
        }
    }

    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if self.done {
                return None;
            }
            self.changes.mark_unchanged();
            let batch = self.batch();
            if let Some(seat) = &self.seat {
                seat.moved(self.offset);
            }
            if !batch.is_empty() {
                return Some(Ok(batch.into()));
            }
            if !self.done && self.changes.changed().await.is_err() {
                return None;
            }
        }
    }
}
