//! Starts a process and what goes with it: its streams, its log, and who accompanies it.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::pipe::PipeFlags;
use rustix::termios::Winsize;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::accounts::Account;
use crate::agent::Agent;
use crate::clock;
use crate::error::{Refusal, Result};
use crate::process::hold::Hold;
use crate::process::input::Input;
use crate::process::pump::{Pump, Source};
use crate::process::{Asked, Launch, Process, launch};
use crate::terminal::{Device, open};

/// Options of a process to start.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Whether it has an input.
    pub stdin: bool,
    /// The size of its terminal, if it has one, which is its input, too.
    pub pty: Option<Winsize>,
    /// Its time limit, in seconds.
    pub timeout: Option<u64>,
    /// Whether it waits for the reader of its output.
    pub held: bool,
}

/// Starts a prepared program, and counts it as running.
pub async fn begin(
    agent: &Arc<Agent>,
    prepared: impl Future<Output = Result<(Asked, Launch)>>,
    how: How,
) -> Result<Arc<Process>> {
    agent.processes.reserve()?;
    let started = async {
        let (asked, launched) = prepared.await?;
        spawn(agent, asked, launched, how).await
    };
    let started = started.await;
    if started.is_err() {
        agent.processes.give_back();
    }
    let (process, pump) = started?;
    agent.processes.add(process.clone());
    tokio::spawn(pump.run());
    Ok(process)
}

/// The streams between a process and the agent.
struct Streams {
    theirs: [OwnedFd; 3],
    sources: [Source; 2],
    stdin: Option<Input>,
    terminal: Option<Arc<Device>>,
}

impl Streams {
    fn pipes(with_input: bool) -> Result<Self> {
        let (stdout, stdout_there) = output()?;
        let (stderr, stderr_there) = output()?;
        let (stdin, stdin_there) = if with_input { input()? } else { (None, nothing_to_read()?) };
        Ok(Self {
            theirs: [stdin_there, stdout_there, stderr_there],
            sources: [Source::pipe(stdout, false), Source::pipe(stderr, true)],
            stdin,
            terminal: None,
        })
    }

    fn terminal(size: Winsize, account: &Account) -> Result<Self> {
        let (device, theirs) = open(size, account).map_err(Refusal::internal)?;
        let device = Arc::new(device);
        Ok(Self {
            theirs,
            sources: [Source::terminal(device.clone()), Source::none(true)],
            stdin: Some(Input::Terminal(device.clone())),
            terminal: Some(device),
        })
    }
}

async fn spawn(agent: &Arc<Agent>, asked: Asked, launched: Launch, how: How) -> Result<(Arc<Process>, Pump)> {
    let Streams { theirs, sources, stdin, terminal } = match how.pty {
        Some(size) => Streams::terminal(size, &launched.account)?,
        None => Streams::pipes(how.stdin)?,
    };
    let reaper = agent.reaper.clone();
    let spawned = tokio::task::spawn_blocking(move || launch(&reaper, launched, theirs));
    let (child, ending) = spawned.await.map_err(Refusal::internal)??;
    let process = Arc::new(Process {
        pid: child.as_raw_pid(),
        asked,
        pty: terminal.is_some(),
        started_at: clock::now(),
        log: Mutex::default(),
        hold: Mutex::new(if how.held { Hold::from_start() } else { Hold::default() }),
        progress: Notify::new(),
        exit: Mutex::default(),
        changed: watch::Sender::new(()),
        end: Notify::new(),
        stdin: tokio::sync::Mutex::new(stdin),
        terminal: Mutex::new(terminal),
    });
    let pump = Pump {
        process: process.clone(),
        processes: agent.processes.clone(),
        reaper: agent.reaper.clone(),
        sources,
        ending,
        deadline: how.timeout.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
    };
    Ok((process, pump))
}

fn output() -> Result<(Receiver, OwnedFd)> {
    let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(Refusal::internal)?;
    Ok((Receiver::from_owned_fd(ours).map_err(Refusal::internal)?, theirs))
}

fn input() -> Result<(Option<Input>, OwnedFd)> {
    let (theirs, ours) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(Refusal::internal)?;
    let ours = Sender::from_owned_fd(ours).map_err(Refusal::internal)?;
    Ok((Some(Input::Pipe(ours)), theirs))
}

fn nothing_to_read() -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open("/dev/null", flags, Mode::empty()).map_err(Refusal::internal)
}
