//! Opens a terminal, and carries its program's output.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::termios::Winsize;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::acting::Acting;
use crate::agent::Agent;
use crate::error::{Refusal, Result};
use crate::lock::lock;
use crate::process::api::environment;
use crate::process::{Ended, Ending, Launch, launch};
use crate::terminal::Terminal;
use crate::terminal::device::{self, Device, TERM};

/// How long to wait for output once the program ended.
const GRACE: Duration = Duration::from_millis(100);
/// A little more than a terminal holds when its program ends (Linux: 8 KiB in `drivers/tty/pty.c`, 4 KiB in `n_tty.c`).
/// After the grace no more than that is read: another process may go on writing.
const HELD: usize = 64 * 1024;
/// How long to wait for a reader that is far behind.
const READING: Duration = Duration::from_secs(1);
const CHUNK: usize = 16 * 1024;

/// A terminal to open.
pub struct Wanted {
    /// Its size.
    pub size: Winsize,
    /// The program that runs; the login shell by default.
    pub cmd: Option<String>,
    /// Its working directory.
    pub cwd: Option<String>,
    /// As whom it runs, and where the path of its directory begins.
    pub acting: Acting,
}

/// Opens a terminal and starts its program.
pub async fn open(agent: &Arc<Agent>, wanted: Wanted) -> Result<Arc<Terminal>> {
    agent.terminals.make_room()?;
    let place = agent.place()?;
    let (account, cwd) = wanted.acting.settle(agent, wanted.cwd.as_deref()).await?;
    let (ours, theirs) = device::open(wanted.size, &account).map_err(Refusal::internal)?;
    let mut env = environment(agent, &account, &BTreeMap::new());
    env.entry("TERM".to_owned()).or_insert_with(|| TERM.to_owned());
    let has_path = lock(&agent.identity).env.contains_key("PATH");
    let (program, name, arguments) = program(place.shell, &account.shell, wanted.cmd, has_path);
    let cgroup = agent.freezer.cgroup();
    let launched = Launch { program, name, arguments, env, cwd, account, cgroup, terminal: true, isolated: false };
    let reaper = agent.reaper.clone();
    let start = move || launch(&reaper, launched, theirs);
    let (child, ending) = tokio::task::spawn_blocking(start).await.map_err(Refusal::internal)??;
    let terminal = Arc::new(Terminal::of(new_id()?, child.as_raw_pid(), ours));
    agent.terminals.add(terminal.clone());
    tokio::spawn(carry(agent.clone(), terminal.clone(), ending));
    Ok(terminal)
}

/// The program, the name that it gets, and its arguments.
type Program = (OsString, Option<OsString>, Vec<OsString>);

fn program(runner: &str, shell: &str, cmd: Option<String>, has_path: bool) -> Program {
    if let Some(cmd) = cmd {
        return (runner.into(), None, vec!["-c".into(), cmd.into()]);
    }
    // A shell with a name that begins so is a login shell, whose profile sets `PATH`: not if the sandbox has one of its
    // own.
    let name = (!has_path).then(|| format!("-{}", shell.rsplit('/').next().unwrap_or(shell)).into());
    (shell.into(), name, Vec::new())
}

fn new_id() -> Result<String> {
    let mut random = [0; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).map_err(Refusal::internal)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(random)))
}

/// Carries output until the program has ended.
async fn carry(agent: Arc<Agent>, terminal: Arc<Terminal>, mut ending: Ending) {
    let mut buffer = vec![0; CHUNK];
    let ended = loop {
        tokio::select! {
            ended = &mut ending => break ended.ok(),
            taken = take(&terminal, &mut buffer) => if taken == 0 {
                // No process has the other end open any more; the program itself may go on.
                break (&mut ending).await.ok();
            }
        }
    };
    take_the_rest(&terminal, &mut buffer).await;
    *lock(&terminal.exit) = Some(ended.unwrap_or(Ended { code: None, signal: None }));
    terminal.changed.send_replace(());
    agent.terminals.ended(terminal.id.clone());
}

/// Reads what an ended program left. The grace bounds only the wait for the terminal; readers may take their time, in
/// which nothing is lost.
async fn take_the_rest(terminal: &Terminal, buffer: &mut [u8]) {
    let (deadline, mut left) = (Instant::now() + GRACE, HELD);
    while left > 0 {
        room(terminal).await;
        match timeout_at(deadline, read(terminal, buffer)).await {
            Ok(0) | Err(_) => return,
            Ok(_) if Instant::now() < deadline => {}
            Ok(taken) => left = left.saturating_sub(taken),
        }
    }
}

/// Waits for readers that are behind, but not long for one that does not read.
async fn room(terminal: &Terminal) {
    loop {
        let end = lock(&terminal.screen).end();
        if !lock(&terminal.readers).are_behind(end) {
            return;
        }
        if timeout(READING, terminal.progress.notified()).await.is_err() {
            lock(&terminal.readers).give_up(end);
        }
    }
}

/// Reads output once the readers are near; returns the number of bytes. After 0 bytes nothing comes.
async fn take(terminal: &Terminal, buffer: &mut [u8]) -> usize {
    room(terminal).await;
    read(terminal, buffer).await
}

async fn read(terminal: &Terminal, buffer: &mut [u8]) -> usize {
    let read = terminal.device.read(buffer).await;
    if read > 0 {
        lock(&terminal.screen).append(&buffer[..read]);
        terminal.changed.send_replace(());
    }
    read
}

impl Terminal {
    /// The terminal of a process; `device` is the agent's end.
    fn of(id: String, pid: i32, device: Device) -> Self {
        Self {
            id,
            pid,
            device,
            screen: Mutex::default(),
            readers: Mutex::default(),
            progress: Notify::new(),
            exit: Mutex::default(),
            changed: watch::Sender::new(()),
            typing: tokio::sync::Mutex::default(),
        }
    }

    /// Types bytes in.
    pub async fn type_in(&self, bytes: &[u8]) -> io::Result<()> {
        let _alone = self.typing.lock().await;
        self.device.type_in(bytes, || lock(&self.exit).is_some()).await
    }

    /// Sets the window's size; the kernel signals the program.
    pub fn resize(&self, size: Winsize) -> io::Result<()> {
        self.device.resize(size)
    }

    /// Sends a signal to the process in the foreground.
    pub fn signal(&self, signal: rustix::process::Signal) -> io::Result<()> {
        self.device.signal(signal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::device::{pair, size};

    /// What a terminal shows of an ended program that left this in it, to a reader that is behind and does not read.
    async fn shown_to_who_is_behind(left: &[u8]) -> Vec<u8> {
        const BEHIND: usize = 200 * 1024;
        let (ours, theirs) = pair(size(80, 24)).unwrap();
        let terminal = Arc::new(Terminal::of("t".into(), 1, ours));
        lock(&terminal.readers).add(0);
        lock(&terminal.screen).append(&vec![b'x'; BEHIND]);
        assert_eq!(rustix::io::write(&theirs, left).unwrap(), left.len());
        drop(theirs);
        let (tell, ending) = tokio::sync::oneshot::channel();
        tell.send(Ended { code: Some(0), signal: None }).unwrap();
        carry(Arc::new(Agent::new(false)), terminal.clone(), ending).await;
        assert_eq!(lock(&terminal.exit).and_then(|ended| ended.code), Some(0));
        lock(&terminal.screen).read(&mut (BEHIND as u64), usize::MAX)
    }

    #[tokio::test]
    async fn what_a_program_left_when_it_ended_is_shown_to_who_reads_slowly_too() {
        for left in [&b"END"[..], &[b'e'; 4000]] {
            assert_eq!(shown_to_who_is_behind(left).await, left);
        }
    }

    #[test]
    fn the_profile_replaces_no_path_of_the_sandbox() {
        let run = |cmd: Option<&str>, has_path| program("/bin/sh", "/bin/bash", cmd.map(str::to_owned), has_path);
        assert_eq!(run(None, false), ("/bin/bash".into(), Some("-bash".into()), Vec::new()));
        assert_eq!(run(None, true), ("/bin/bash".into(), None, Vec::new()));
        assert_eq!(run(Some("top"), true), ("/bin/sh".into(), None, vec!["-c".into(), "top".into()]));
    }
}
