//! Commands and processes.
//!
//! Both are the same thing: a program in a session, a group and the user's cgroup, whose output goes into a bounded
//! log. A command is a process whose first reader is the client that started it, and which ends when that reader
//! leaves. It waits for that reader, as a process that was started with `hold` does; no other reader delays a process.
//!
//! ```text
//!  launch ──► running ──────────────────────────────► exited (kept with its log, the last 256)
//!               │  time is up, client left, DELETE        ▲
//!               └──► ending: TERM, after 5 s KILL ────────┘
//! ```

pub mod api;
mod follow;
mod hold;
mod input;
mod launch;
mod lines;
mod log;
mod pump;
mod reaper;
mod request;
mod signals;
mod spawn;
mod vfork;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use berth_domain::agent::error::code;
use berth_domain::agent::runtime::{Exit, Process as View, ProcessState};
use berth_domain::time::Timestamp;
use tokio::sync::{Notify, watch};

use crate::error::{Refusal, Result};
use crate::lock::lock;
use crate::query::decoded;
use crate::terminal::Device;

pub use follow::{Follow, Form, Leash};
use hold::Hold;
use input::Input;
pub use launch::{Launch, base_env, launch};
pub use log::Log;
pub use reaper::{Ended, Ending, Reaper};
pub use request::{arguments, environment as environment_rule, quoted};
pub use signals::{by_name as signal_by_name, name as signal_name};
pub use spawn::{How, begin};

/// What stands before a tag in place of a number: it names the newest process with that tag that runs.
const TAG: &str = "tag:";
/// Commands and processes that run at once.
const MAX_RUNNING: usize = 1024;
/// Ended processes that are kept.
const MAX_ENDED: usize = 256;
/// Memory that the logs of ended processes take together, in bytes, without those that a client still reads.
const MAX_ENDED_LOGS: usize = 64 * 1024 * 1024;

/// What was asked for when a process was started.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The command line; of a program and its arguments, as a shell would take them.
    pub cmd: String,
    /// The program and its arguments, if it was started by them.
    pub argv: Option<Vec<String>>,
    /// Its working directory.
    pub cwd: Option<String>,
    /// Its own variables.
    pub env: BTreeMap<String, String>,
    /// A name by which it is found.
    pub tag: Option<String>,
}

/// A process, running or not.
pub struct Process {
    /// Its number, and that of its group.
    pub pid: i32,
    /// What was asked for.
    pub asked: Asked,
    /// Whether it has, or had, a terminal.
    pub pty: bool,
    /// When it was started.
    pub started_at: Timestamp,
    /// Its output.
    pub log: Mutex<Log>,
    /// The reader for which it waits.
    pub hold: Mutex<Hold>,
    /// Notified when it need not wait any more, or when its reader changed.
    pub progress: Notify,
    /// How it ended.
    pub exit: Mutex<Option<Exit>>,
    /// Notified at every change of the log or the exit.
    pub changed: watch::Sender<()>,
    /// Notified when it is to end.
    pub end: Notify,
    /// Its input, while it is open.
    pub stdin: tokio::sync::Mutex<Option<Input>>,
    /// Its terminal, if it has one, until it has ended.
    pub terminal: Mutex<Option<Arc<Device>>>,
}

impl Process {
    /// Its public view, with its variables or without.
    pub fn view(&self, env: bool) -> View {
        let exit = lock(&self.exit).clone();
        let asked = &self.asked;
        View {
            pid: self.pid,
            cmd: asked.cmd.clone(),
            state: if exit.is_some() { ProcessState::Exited } else { ProcessState::Running },
            started_at: self.started_at.to_string(),
            exit,
            argv: asked.argv.clone(),
            cwd: asked.cwd.clone(),
            tag: asked.tag.clone(),
            pty: self.pty,
            output_bytes: lock(&self.log).end(),
            env: env.then(|| asked.env.clone()),
        }
    }

    /// Whether it runs.
    pub fn runs(&self) -> bool {
        lock(&self.exit).is_none()
    }

    /// Whether its reader is more than so many bytes behind.
    pub fn waits(&self, ahead: u64) -> bool {
        let end = lock(&self.log).end();
        lock(&self.hold).is_behind(end, ahead)
    }

    /// Whether the reader for which it waits is there, and has not seen everything.
    pub fn is_read(&self) -> bool {
        self.waits(0) && !lock(&self.hold).is_away()
    }

    /// Stops waiting for readers.
    pub fn release(&self) {
        lock(&self.hold).release();
        self.progress.notify_one();
    }

    /// Waits until it has ended.
    pub async fn ended(&self) {
        let mut changes = self.changed.subscribe();
        while self.runs() && changes.changed().await.is_ok() {}
    }
}

#[cfg(test)]
impl Process {
    /// A process for tests.
    fn sample(pid: i32, log: Log, hold: Hold) -> Arc<Self> {
        Arc::new(Self {
            pid,
            asked: Asked::default(),
            pty: false,
            started_at: crate::clock::now(),
            log: Mutex::new(log),
            hold: Mutex::new(hold),
            progress: Notify::new(),
            exit: Mutex::default(),
            changed: watch::Sender::new(()),
            end: Notify::new(),
            stdin: tokio::sync::Mutex::new(None),
            terminal: Mutex::new(None),
        })
    }
}

#[derive(Default)]
struct Table {
    by_pid: BTreeMap<i32, Arc<Process>>,
    /// Ended processes, the oldest first.
    ended: VecDeque<Arc<Process>>,
    running: usize,
}

/// All processes.
#[derive(Default)]
pub struct Processes {
    table: Mutex<Table>,
}

impl Processes {
    /// Reserves a place for one more, or refuses. [`Self::add`] or [`Self::give_back`] must follow.
    pub fn reserve(&self) -> Result<()> {
        let mut table = lock(&self.table);
        if table.running >= MAX_RUNNING {
            let message = format!("At most {MAX_RUNNING} commands run at once; end some and try again.");
            return Err(Refusal::new(code::TOO_MANY, message));
        }
        table.running += 1;
        Ok(())
    }

    /// Gives a reserved place back.
    pub fn give_back(&self) {
        lock(&self.table).running -= 1;
    }

    /// Adds a process in a reserved place. Forgets an ended one with the same number.
    pub fn add(&self, process: Arc<Process>) {
        let mut table = lock(&self.table);
        if let Some(old) = table.by_pid.insert(process.pid, process) {
            table.ended.retain(|ended| !Arc::ptr_eq(ended, &old));
        }
    }

    /// Notes that a process ended, and forgets the oldest if there are too many.
    pub fn ended(&self, process: &Arc<Process>) {
        let mut table = lock(&self.table);
        table.running -= 1;
        table.ended.push_back(process.clone());
        while table.ended.len() > MAX_ENDED {
            if let Some(old) = table.ended.pop_front() {
                table.by_pid.remove(&old.pid);
            }
        }
        let mut memory = table.ended.iter().map(|process| lock(&process.log).memory()).sum::<usize>();
        for old in &table.ended {
            if memory <= MAX_ENDED_LOGS {
                break;
            }
            if old.is_read() {
                continue;
            }
            memory -= lock(&old.log).memory();
            lock(&old.log).clear();
        }
    }

    /// Forgets a process that ended.
    pub fn forget(&self, pid: i32) {
        let mut table = lock(&self.table);
        if let Some(old) = table.by_pid.remove(&pid) {
            table.ended.retain(|ended| !Arc::ptr_eq(ended, &old));
        }
    }

    /// The process that a path names: by its number, or by its tag, as [`TAG`] says.
    pub fn get(&self, name: &str) -> Result<Arc<Process>> {
        let name = decoded(name);
        let found = match name.strip_prefix(TAG) {
            Some(tag) => {
                self.all().into_iter().find(|process| process.asked.tag.as_deref() == Some(tag) && process.runs())
            }
            None => name.parse().ok().and_then(|pid: i32| lock(&self.table).by_pid.get(&pid).cloned()),
        };
        found.ok_or_else(|| Refusal::not_found("There is no such process; 'GET processes' lists those there are."))
    }

    /// All, the newest first.
    pub fn all(&self) -> Vec<Arc<Process>> {
        let mut all = lock(&self.table).by_pid.values().cloned().collect::<Vec<_>>();
        all.sort_by_key(|process| std::cmp::Reverse((process.started_at, process.pid)));
        all
    }

    /// How many run.
    pub fn running(&self) -> usize {
        lock(&self.table).running
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_names_the_newest_that_runs() {
        let processes = Processes::default();
        let add = |pid: i32, tag: Option<&str>| {
            let sample = Process::sample(pid, Log::default(), Hold::default());
            let mut process = Arc::into_inner(sample).unwrap();
            process.asked.tag = tag.map(ToOwned::to_owned);
            process.started_at.0 += i64::from(pid);
            processes.reserve().unwrap();
            processes.add(Arc::new(process));
        };
        for (pid, tag) in [(1, Some("a b/c")), (2, Some("a b/c")), (3, Some("other")), (4, None)] {
            add(pid, tag);
        }
        let found = |name: &str| processes.get(name).map(|process| process.pid).ok();
        assert_eq!((found("tag:a%20b%2Fc"), found("tag%3Aother"), found("3")), (Some(2), Some(3), Some(3)));
        assert_eq!((found("tag:none"), found("tag:"), found("tag"), found("7")), (None, None, None, None));
        let exit = Exit { code: Some(0), signal: None, timed_out: false };
        *lock(&processes.get("2").unwrap().exit) = Some(exit);
        assert_eq!(found("tag:a%20b%2Fc"), Some(1));
    }

    /// A process that ended; the limit has room for the logs of seven such.
    fn end(processes: &Processes, pid: i32, hold: Hold) -> Arc<Process> {
        let mut log = Log::default();
        for _ in 0..log::KEPT / 4096 {
            log.append(false, &[b'x'; 4096]);
        }
        let process = Process::sample(pid, log, hold);
        processes.reserve().unwrap();
        processes.add(process.clone());
        processes.ended(&process);
        process
    }

    #[test]
    fn the_oldest_logs_go_but_none_that_is_being_read() {
        let processes = Processes::default();
        let kept = |process: &Process| lock(&process.log).memory() > 0;
        let mut hold = Hold::from_start();
        let reader = hold.attach(0);
        let read = end(&processes, 1, hold);
        let away = end(&processes, 2, Hold::from_start());
        let others = (3..=7).map(|pid| end(&processes, pid, Hold::default())).collect::<Vec<_>>();
        assert!(kept(&read) && kept(&away), "there is room for all of them");
        end(&processes, 8, Hold::default());
        assert!(kept(&read) && !kept(&away) && kept(&others[0]), "nobody reads what waits for somebody to come");
        let end_of_log = lock(&read.log).end();
        lock(&read.hold).moved(reader, end_of_log, end_of_log);
        end(&processes, 9, Hold::default());
        assert!(!kept(&read) && kept(&others[0]), "now it was read");
    }
}
