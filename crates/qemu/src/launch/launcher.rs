//! The launcher's own life: one thread, one order, one process.

use std::fmt::Display;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use berth_process::Note;
use rustix::io::Errno;

use super::lend::{self, Lender};
use super::order::{NOTE, Order, Part};
use super::{namespaces, rights, tree};

/// What a process of the launcher ends with that has said why.
const SAID: Errno = Errno::CANCELED;

/// What a step came to: an error has been written to the log.
type Step<T = ()> = Result<T, String>;

fn said<T, E: Display>(what: &str, outcome: Result<T, E>) -> Step<T> {
    outcome.map_err(|error| format!("{what}: {error}"))
}

/// Reads an order and does it; the exit code.
pub(super) fn run() -> ExitCode {
    close_others();
    let mut text = Vec::new();
    let read = io::stdin().take(64 << 20).read_to_end(&mut text).map_err(|e| e.to_string());
    let order = read.and_then(|_| serde_json::from_slice::<Order>(&text).map_err(|e| e.to_string()));
    match order.and_then(launch) {
        Ok(()) => ExitCode::SUCCESS,
        Err(line) => {
            say(&line);
            ExitCode::FAILURE
        }
    }
}

/// Closes what whoever started the service handed down to everybody: a machine has the descriptors that it is given.
#[expect(unsafe_code, reason = "nothing in this process owns a descriptor that it does not know of")]
fn close_others() {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<i32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // The folder itself was one of them while it was read.
    let is_open = |number: &i32| std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok();
    for number in numbers.into_iter().filter(|number| *number > 2).filter(is_open) {
        // SAFETY: this process has just begun and has opened nothing itself but the folder above, which is closed: nobody
        // uses one of these numbers.
        unsafe { rustix::io::close(number) };
    }
}

fn say(line: &str) {
    if !line.is_empty() {
        eprintln!("berth: {line}");
    }
}

fn launch(order: Order) -> Step {
    // In a session of its own it outlives the service and its terminal.
    said("cannot begin a session", rustix::process::setsid())?;
    for group in &order.groups {
        said("cannot join the control group", join(group))?;
    }
    if !order.parts.is_empty() {
        said("cannot have namespaces of its own", namespaces::enter(&order.parts))?;
    }
    let log = said("cannot use the log", io::stderr().as_fd().try_clone_to_owned())?;
    let mut command = Command::new(&order.program);
    command.args(&order.arguments).current_dir(&order.dir).stdin(Stdio::null()).stdout(log);
    // Its threads allocate little, and glibc would give each of them a heap of its own.
    command.env_clear().env("MALLOC_ARENA_MAX", "1");
    let lender = order.lend.as_deref().map(|name| Lender::new(&order.dir, name));
    let lender = said("cannot lend a file", lender.transpose())?;
    let asked = said("cannot lend a file", lender.as_ref().map(Lender::end).transpose())?;
    before_exec(&mut command, order.clone(), asked);
    match command.spawn() {
        Ok(_) => said("cannot lend a file", lender.map_or(Ok(()), Lender::serve)),
        Err(error) if error.raw_os_error() == Some(SAID.raw_os_error()) => Err(String::new()),
        Err(error) => Err(format!("cannot start {}: {error}", order.program.display())),
    }
}

/// Has the process take its last steps before it becomes the program.
#[expect(unsafe_code, reason = "the standard library has no other way to act between fork and exec")]
fn before_exec(command: &mut Command, order: Order, asked: Option<OwnedFd>) {
    let steps = move || {
        become_machine(&order, asked.as_ref()).map_err(|line| {
            say(&line);
            SAID.into()
        })
    };
    // SAFETY: the launcher has one thread, so that nothing of its memory is in the middle of a change, and no lock is
    // held by somebody who is not there after the fork.
    unsafe { command.pre_exec(steps) };
}

fn become_machine(order: &Order, asked: Option<&OwnedFd>) -> Step {
    said("cannot note the process", Note::of_self(&order.dir).and_then(|note| note.write(&order.dir.join(NOTE))))?;
    if order.parts.contains(&Part::Files) {
        tree::enter(order)?;
    }
    said("cannot give up rights", rights::reduce(order))?;
    said("cannot have a file lent", asked.map_or(Ok(()), lend::have_asked))
}

/// Moves this process into a control group; what it starts is there from its first instruction.
fn join(group: &Path) -> io::Result<()> {
    std::fs::write(group.join("cgroup.procs"), "0")
}
