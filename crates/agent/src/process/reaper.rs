//! Collects every process that ends: children for which a task waits, and orphans, which the first process inherits.
//!
//! Only this place waits for processes, and it hands each exit to the task that asked. While a program is being
//! started, it checks only known children, one by one, because the standard library itself waits for a child whose
//! program could not be run.

use std::collections::HashMap;
use std::io;
use std::process::Command;
use std::sync::Mutex;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use tokio::sync::oneshot;

use crate::lock::lock;

/// How a process ended: exactly one of the two is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code.
    pub code: Option<i32>,
    /// The number of the signal that ended it.
    pub signal: Option<i32>,
}

impl From<WaitStatus> for Ended {
    fn from(status: WaitStatus) -> Self {
        Self { code: status.exit_status(), signal: status.terminating_signal() }
    }
}

/// Receives the end of a process, once.
pub type Ending = oneshot::Receiver<Ended>;

struct Known {
    tell: oneshot::Sender<Ended>,
    /// Whether to kill its group when it ends.
    whole_group: bool,
}

#[derive(Default)]
struct State {
    children: HashMap<i32, Known>,
    starting: usize,
}

/// Waits for processes.
#[derive(Default)]
pub struct Reaper {
    state: Mutex<State>,
}

impl Reaper {
    /// Starts a program. Blocks until it runs.
    pub fn spawn(&self, command: &mut Command) -> io::Result<(Pid, Ending)> {
        self.start(|| {
            let id = command.spawn()?.id();
            Pid::from_raw(id.cast_signed()).ok_or_else(|| io::Error::other("a child without an id"))
        })
    }

    /// Registers a child from its birth. A child that fails to start has been waited for.
    pub fn start(&self, start: impl FnOnce() -> io::Result<Pid>) -> io::Result<(Pid, Ending)> {
        lock(&self.state).starting += 1;
        let started = start();
        let mut state = lock(&self.state);
        state.starting -= 1;
        let result = started.map(|child| {
            let (tell, ending) = oneshot::channel();
            state.children.insert(child.as_raw_pid(), Known { tell, whole_group: false });
            (child, ending)
        });
        collect(&mut state);
        result
    }

    /// Collects every ended process. The agent calls this at every SIGCHLD.
    pub fn collect(&self) {
        collect(&mut lock(&self.state));
    }

    /// Sends a signal to the group of a child that is not collected yet; returns whether it was.
    pub fn signal_group(&self, pid: i32, signal: Signal) -> bool {
        let state = lock(&self.state);
        state.children.contains_key(&pid) && kill_group(pid, signal)
    }

    /// Signals a child's group to end. When the child ends, the rest of the group is killed.
    pub fn end_group(&self, pid: i32, signal: Signal) {
        let mut state = lock(&self.state);
        if let Some(known) = state.children.get_mut(&pid) {
            known.whole_group = true;
            kill_group(pid, signal);
        }
    }

    /// How many children are alive.
    pub fn living(&self) -> usize {
        lock(&self.state).children.len()
    }

    /// Kills every child's group, when the agent of a test ends.
    pub fn kill_all(&self) {
        for pid in lock(&self.state).children.keys() {
            kill_group(*pid, Signal::KILL);
        }
    }
}

fn kill_group(pid: i32, signal: Signal) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| rustix::process::kill_process_group(pid, signal).is_ok())
}

fn collect(state: &mut State) {
    if state.starting > 0 {
        let known = state.children.keys().copied().collect::<Vec<_>>();
        for pid in known {
            if let Ok(Some((_, status))) = rustix::process::waitpid(Pid::from_raw(pid), WaitOptions::NOHANG) {
                deliver(state, pid, status);
            }
        }
        return;
    }
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        deliver(state, pid.as_raw_nonzero().get(), status);
    }
}

fn deliver(state: &mut State, pid: i32, status: WaitStatus) {
    let Some(known) = state.children.remove(&pid) else { return };
    if known.whole_group {
        kill_group(pid, Signal::KILL);
    }
    // The receiver may have stopped waiting.
    let _ = known.tell.send(status.into());
}
