//! The launcher's own life: one thread, one order, one process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use berth_process::{Note, close_inherited};
use rustix::io::Errno;

use super::failure::{Failure, HOST_LACKS, Step};
use super::lend::{self, Lender};
use super::order::{NOTE, Order, Part};
use super::{given, namespaces, rights, tree};

/// What a process of the launcher ends with that has said why, and one whose host does not have what was ordered.
const SAID: Errno = Errno::CANCELED;
const LACKS: Errno = Errno::OWNERDEAD;

/// What is said of a service that may not have a machine lock its memory: without `CAP_SYS_RESOURCE` it has to be allowed.
const MAY_NOT_LOCK: &str =
    "cannot lock the guest's memory for its devices; put LimitMEMLOCK=infinity into the service's unit";

fn said<T, E: Into<io::Error>>(what: &str, outcome: Result<T, E>) -> Step<T> {
    outcome.map_err(|error| Failure::of(what, error.into()))
}

/// Reads an order and does it; the exit code.
pub(super) fn run() -> ExitCode {
    close_inherited();
    match ordered().and_then(|(order, _given)| launch(order)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say(&failure.line);
            if failure.host_lacks { ExitCode::from(HOST_LACKS) } else { ExitCode::FAILURE }
        }
    }
}

/// Reads an order; the descriptors that come with it are the program's, too.
fn ordered() -> Step<(Order, Vec<OwnedFd>)> {
    let what = "cannot read the order";
    let (text, given) = said(what, given::receive(io::stdin()))?;
    let order = said(what, serde_json::from_slice::<Order>(&text))?;
    said(what, given::check(&given, order.given))?;
    Ok((order, given))
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
        namespaces::enter(&order.parts).map_err(|e| Failure::of_part("cannot have namespaces of its own", e))?;
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
        Ok(_) => lender.map_or(Ok(()), Lender::serve).map_err(|e| Failure::of_part("cannot lend a file", e)),
        Err(error) if error.raw_os_error() == Some(SAID.raw_os_error()) => Err(Failure::default()),
        Err(error) if error.raw_os_error() == Some(LACKS.raw_os_error()) => {
            Err(Failure { host_lacks: true, ..Failure::default() })
        }
        Err(error) => Err(Failure::of(&format!("cannot start {}", order.program.display()), error)),
    }
}

/// Has the process take its last steps before it becomes the program.
#[expect(unsafe_code, reason = "the standard library has no other way to act between fork and exec")]
fn before_exec(command: &mut Command, order: Order, asked: Option<OwnedFd>) {
    let steps = move || {
        become_machine(&order, asked.as_ref()).map_err(|failure| {
            say(&failure.line);
            if failure.host_lacks { LACKS.into() } else { SAID.into() }
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
    if let Some(bytes) = order.locked_bytes {
        said(MAY_NOT_LOCK, rights::let_lock(bytes))?;
    }
    said("cannot give up rights", rights::reduce(order))?;
    asked.map_or(Ok(()), lend::have_asked).map_err(|e| Failure::of_part("cannot have a file lent", e))
}

/// Moves this process into a control group; what it starts is there from its first instruction.
fn join(group: &Path) -> io::Result<()> {
    std::fs::write(group.join("cgroup.procs"), "0")
}
