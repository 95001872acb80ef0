//! Accompanies a process from its start to its end: its output into the log, its time limit, its exit.

use std::cell::RefCell;
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use berth_domain::agent::runtime::Exit;
use rustix::process::Signal;
use tokio::net::unix::pipe::Receiver;
use tokio::time::{Instant, sleep_until};

use crate::lock::lock;
use crate::process::hold::{AHEAD, LAST};
use crate::process::reaper::{Ended, Ending, Reaper};
use crate::process::{Process, Processes, signal_name};
use crate::terminal::Device;

/// How long to wait for output after the process ended, if other processes hold its streams.
const GRACE: Duration = Duration::from_millis(100);
/// Time between TERM and KILL.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a process waits for a reader that left, or has not come yet.
const AWAY: Duration = Duration::from_mins(1);
/// Reads from one stream before the other one and the timers get their turn.
const TURN: usize = 16;

thread_local! {
    /// The buffer for reads; nothing stays in it between two.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; 64 * 1024]);
}

enum Stream {
    Pipe(Receiver),
    Terminal(Arc<Device>),
}

impl Stream {
    async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Pipe(pipe) => pipe.readable().await,
            Self::Terminal(device) => device.readable().await,
        }
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => pipe.try_read(buffer),
            Self::Terminal(device) => device.try_read(buffer),
        }
    }
}

/// One stream of a process.
pub struct Source {
    stream: Option<Stream>,
    stderr: bool,
    /// Whether no process has a terminal's other end open. One may open it again, which shows when the process has
    /// ended.
    shut: bool,
}

impl Source {
    /// The stream of a pipe.
    pub fn pipe(pipe: Receiver, stderr: bool) -> Self {
        Self { stream: Some(Stream::Pipe(pipe)), ..Self::none(stderr) }
    }

    /// What a terminal shows.
    pub fn terminal(device: Arc<Device>) -> Self {
        Self { stream: Some(Stream::Terminal(device)), ..Self::none(false) }
    }

    /// No stream.
    pub fn none(stderr: bool) -> Self {
        Self { stream: None, stderr, shut: false }
    }

    /// The stream, if there may be something to read.
    fn open(&self) -> Option<&Stream> {
        self.stream.as_ref().filter(|_| !self.shut)
    }

    async fn readable(&self) {
        match self.open() {
            // An error shows at the next read.
            Some(stream) => drop(stream.readable().await),
            None => pending().await,
        }
    }

    /// Reads available output into the log, until the reader is more than so many bytes behind. Returns whether there
    /// was any.
    fn take(&mut self, process: &Process, ahead: u64) -> bool {
        let mut any = false;
        for _ in 0..TURN {
            let Some(stream) = self.open().filter(|_| !process.waits(ahead)) else { break };
            let read = BUFFER.with_borrow_mut(|buffer| {
                let read = stream.try_read(buffer);
                if let Ok(n) = read {
                    lock(&process.log).append(self.stderr, &buffer[..n]);
                }
                read
            });
            match read {
                Ok(n) if n > 0 => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Ok(_) | Err(_) => self.close(),
            }
            any = true;
        }
        any
    }

    fn close(&mut self) {
        match self.stream {
            Some(Stream::Terminal(_)) => self.shut = true,
            _ => self.stream = None,
        }
    }
}

/// What remains to do for a running process.
pub struct Pump {
    /// The process.
    pub process: Arc<Process>,
    /// The list of processes that has it.
    pub processes: Arc<Processes>,
    /// Signals it.
    pub reaper: Arc<Reaper>,
    /// Its output and its errors.
    pub sources: [Source; 2],
    /// Receives its end.
    pub ending: Ending,
    /// Its time limit.
    pub deadline: Option<Instant>,
}

/// Times at which something is due.
#[derive(Default)]
struct Timers {
    timeout: Option<Instant>,
    kill: Option<Instant>,
    release: Option<Instant>,
}

impl Timers {
    fn next(&self) -> Option<Instant> {
        [self.timeout, self.kill, self.release].into_iter().flatten().min()
    }
}

impl Pump {
    /// Runs until the process has ended and its streams are closed.
    pub async fn run(mut self) {
        let (ended, timed_out) = self.until_end().await;
        self.drain(Instant::now() + GRACE).await;
        let exit = match ended {
            Some(Ended { code, signal }) => Exit { code, signal: signal.map(signal_name), timed_out },
            // The reaper lives as long as the agent, so this is not reached.
            None => Exit { code: None, signal: None, timed_out },
        };
        *lock(&self.process.exit) = Some(exit);
        self.processes.ended(&self.process);
        self.process.changed.send_replace(());
        *self.process.stdin.lock().await = None;
        *lock(&self.process.terminal) = None;
        self.discard();
    }

    async fn until_end(&mut self) -> (Option<Ended>, bool) {
        let mut timers = Timers { timeout: self.deadline, ..Timers::default() };
        let mut timed_out = false;
        loop {
            let waits = self.process.waits(AHEAD);
            let away = lock(&self.process.hold).is_away();
            timers.release = away.then(|| timers.release.unwrap_or_else(|| Instant::now() + AWAY));
            let [out, err] = &self.sources;
            tokio::select! {
                ended = &mut self.ending => return (ended.ok(), timed_out),
                () = out.readable(), if !waits => self.take(0),
                () = err.readable(), if !waits => self.take(1),
                () = self.process.progress.notified() => {}
                () = self.process.end.notified() => self.begin_end(&mut timers),
                () = at(timers.next()) => timed_out |= self.due(&mut timers),
            }
        }
    }

    fn take(&mut self, index: usize) {
        if self.sources[index].take(&self.process, AHEAD) {
            self.process.changed.send_replace(());
        }
    }

    fn begin_end(&self, timers: &mut Timers) {
        if timers.kill.is_none() {
            self.reaper.end_group(self.process.pid, Signal::TERM);
            timers.kill = Some(Instant::now() + PATIENCE);
        }
    }

    /// Does what is due; returns whether the time limit has passed.
    fn due(&mut self, timers: &mut Timers) -> bool {
        let now = Instant::now();
        let is_due = |timer: &mut Option<Instant>| timer.take_if(|at| *at <= now).is_some();
        if is_due(&mut timers.release) {
            lock(&self.process.hold).release();
        }
        if is_due(&mut timers.kill) {
            self.reaper.end_group(self.process.pid, Signal::KILL);
        }
        let timed_out = is_due(&mut timers.timeout);
        if timed_out {
            self.begin_end(timers);
        }
        timed_out
    }

    /// Reads the output from before the end. Another process that holds the streams may write on for a moment, but no
    /// more than the reader for which the process waits can still read.
    async fn drain(&mut self, deadline: Instant) {
        let open = |sources: &[Source]| sources.iter().any(|source| source.open().is_some());
        self.sources.iter_mut().for_each(|source| source.shut = false);
        loop {
            let mut any = false;
            for source in &mut self.sources {
                any |= source.take(&self.process, LAST);
            }
            if any {
                self.process.changed.send_replace(());
            }
            // Checked after the first read, so that existing output is read however late this task runs.
            if !open(&self.sources) || self.process.waits(LAST) || Instant::now() >= deadline {
                return;
            }
            if any {
                tokio::task::yield_now().await;
                continue;
            }
            let [out, err] = &self.sources;
            tokio::select! {
                () = out.readable() => {}
                () = err.readable() => {}
                () = sleep_until(deadline) => {}
            }
        }
    }

    /// Reads and discards what processes write that inherited the streams, so that they are not killed by a closed
    /// pipe.
    fn discard(self) {
        for Source { stream, .. } in self.sources {
            let Some(stream) = stream else { continue };
            tokio::spawn(async move {
                while stream.readable().await.is_ok() {
                    let read = BUFFER.with_borrow_mut(|buffer| stream.try_read(buffer));
                    match read {
                        Ok(n) if n > 0 => tokio::task::yield_now().await,
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                        Ok(_) | Err(_) => break,
                    }
                }
            });
        }
    }
}

async fn at(when: Option<Instant>) {
    match when {
        Some(when) => sleep_until(when).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::pipe::{PipeFlags, pipe_with};
    use tokio::sync::oneshot;

    use super::*;
    use crate::process::Log;
    use crate::process::hold::Hold;

    /// A process that ended, and its output, which another process inherited.
    fn ended() -> (Pump, OwnedFd) {
        let (ours, inherited) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let output = Source::pipe(Receiver::from_owned_fd(ours).unwrap(), false);
        let pump = Pump {
            process: Process::sample(1, Log::default(), Hold::default()),
            processes: Arc::default(),
            reaper: Arc::default(),
            sources: [output, Source::none(true)],
            ending: oneshot::channel().1,
            deadline: None,
        };
        (pump, inherited)
    }

    fn said(pump: &Pump) -> Vec<u8> {
        lock(&pump.process.log).read(0, 100).map(|run| run.bytes.to_vec()).unwrap_or_default()
    }

    #[tokio::test]
    async fn what_an_inherited_stream_says_at_once_is_not_lost() {
        let (mut pump, inherited) = ended();
        // The writer writes after the first read found nothing; then no one holds the stream any more.
        let says = async move { rustix::io::write(&inherited, b"through").unwrap() };
        tokio::join!(biased; pump.drain(Instant::now() + AWAY), says);
        assert_eq!(said(&pump), b"through");
    }

    #[tokio::test]
    async fn what_was_said_is_taken_however_late() {
        let (mut pump, inherited) = ended();
        rustix::io::write(&inherited, b"through").unwrap();
        pump.sources[0].readable().await;
        pump.drain(Instant::now()).await;
        assert_eq!(said(&pump), b"through");
    }
}
