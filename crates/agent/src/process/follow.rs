//! A process's log as server-sent events, at the reader's pace.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use berth_domain::agent::runtime::{Output, OutputEvent};
use bytes::Bytes;
use tokio::sync::watch;

use crate::agent::lock;
use crate::events::{self, Feed};
use crate::process::Process;
use crate::process::log::{Cursor, Record};

/// Bytes of events gathered for one frame.
const BATCH: usize = 64 * 1024;

/// Which of the streams is read.
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
    fn has(self, record: &Record<'_>) -> bool {
        self == Self::Both || (self == Self::Stderr) == record.stderr
    }
}

/// Ends a command when its reader goes away before its end.
pub struct Leash(pub Arc<Process>);

impl Drop for Leash {
    fn drop(&mut self) {
        self.0.release();
        self.0.end.notify_one();
    }
}

/// A place among those whom a process waits for.
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
    cursor: Cursor,
    which: Which,
    /// Whether it waits for what is to come.
    waits: bool,
    /// Whether its first event tells the process.
    introduce: bool,
    /// Where it is waited for.
    seat: Option<Seat>,
    /// Held, not read: dropping it is what counts.
    _leash: Option<Leash>,
    done: bool,
}

impl Follow {
    /// Reads from an offset; with `follow` to the end of the process.
    pub fn new(process: Arc<Process>, offset: u64, which: Which, follow: bool) -> Self {
        let changes = process.changed.subscribe();
        let cursor = Cursor::at(offset);
        let (waits, introduce, done) = (follow, false, false);
        Self { process, changes, cursor, which, waits, introduce, seat: None, _leash: None, done }
    }

    /// Becomes the reader whom the process waits for, if it was started to wait for one.
    pub fn holding(mut self) -> Self {
        // The one before it leaves only then.
        self.seat = Some(Seat::take(&self.process, self.cursor.offset));
        self
    }

    /// The reader who started a command: from the beginning, with a `start`.
    pub fn command(process: Arc<Process>, leash: Option<Leash>) -> Self {
        Self { _leash: leash, introduce: true, ..Self::new(process, 0, Which::Both, true).holding() }
    }

    /// Whose log it is.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// What there is to tell now.
    fn batch(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if std::mem::take(&mut self.introduce) {
            write(&mut out, &OutputEvent::Start { pid: self.process.pid });
        }
        // The order matters: who sees the exit then sees the whole log.
        let exit = lock(&self.process.exit).clone();
        let log = lock(&self.process.log);
        if let Some(from) = log.catch_up(&mut self.cursor) {
            write(&mut out, &OutputEvent::Truncated { from });
        }
        while out.len() < BATCH {
            match log.next(&mut self.cursor) {
                Some(record) if self.which.has(&record) => write(&mut out, &event(&record)),
                Some(_) => {}
                None => {
                    if let Some(exit) = exit {
                        write(&mut out, &OutputEvent::Exit(exit));
                        self.done = true;
                    }
                    self.done |= !self.waits;
                    break;
                }
            }
        }
        out
    }
}

impl Feed for Follow {
    const KEEP_ALIVE: Option<Duration> = Some(events::KEEP_ALIVE);

    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if self.done {
                return None;
            }
            self.changes.mark_unchanged();
            let batch = self.batch();
            if let Some(seat) = &self.seat {
                seat.moved(self.cursor.offset);
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

fn event(record: &Record<'_>) -> OutputEvent {
    let (line, base64) = match std::str::from_utf8(record.bytes) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(BASE64_STANDARD.encode(record.bytes))),
    };
    let output = Output { line, base64, offset: record.offset, partial: !record.newline };
    OutputEvent::Output { stderr: record.stderr, output }
}

fn write(out: &mut Vec<u8>, event: &OutputEvent) {
    events::write(out, None, event.name(), &event.data());
}
