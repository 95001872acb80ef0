//! Starts a program as a user, in a session, a group and a cgroup of its own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use berth_domain::agent::error::code;
use berth_domain::sandbox::dockerfile::config::DEFAULT_PATH;
use rustix::io::Errno;
use rustix::process::{Gid, Pid, Uid};

use crate::accounts::Account;
use crate::error::{Refusal, Result};
use crate::process::reaper::{Ending, Reaper};
use crate::process::vfork::Program;

/// A program to start, and its settings.
pub struct Launch {
    /// The program; looked up in `PATH` where it has no slash.
    pub program: OsString,
    /// The name that it gets as its first argument, if another one.
    pub name: Option<OsString>,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Its whole environment.
    pub env: BTreeMap<String, String>,
    /// Its working directory.
    pub cwd: OwnedFd,
    /// Its account.
    pub account: Account,
    /// The `cgroup.procs` of its cgroup.
    pub cgroup: Option<Arc<OwnedFd>>,
    /// Whether its input is a terminal that it is to control.
    pub terminal: bool,
    /// Whether it has no network, not even the loopback.
    pub isolated: bool,
}

/// The environment with which every command of an account begins.
pub fn base_env(account: &Account) -> BTreeMap<String, String> {
    let pairs = [
        ("PATH", DEFAULT_PATH),
        ("HOME", &account.home),
        ("USER", &account.name),
        ("LOGNAME", &account.name),
        ("SHELL", &account.shell),
        ("LANG", "C.UTF-8"),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// What a child does between fork and exec: only system calls, on data prepared before.
struct Settle {
    cwd: OwnedFd,
    cgroup: Option<Arc<OwnedFd>>,
    terminal: bool,
    isolated: bool,
    groups: Option<Vec<Gid>>,
    uid: Uid,
    gid: Gid,
}

impl Settle {
    fn settle(&self) -> io::Result<()> {
        rustix::process::setsid()?;
        if self.terminal {
            rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        if let Some(procs) = &self.cgroup {
            rustix::io::write(procs.as_fd(), b"0")?;
        }
        if self.isolated {
            #[expect(unsafe_code, reason = "one process leaves the machine's network; nothing else is unshared")]
            // SAFETY: a new network namespace changes neither memory nor descriptors that are open.
            unsafe {
                rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET)?;
            }
        }
        if let Some(groups) = &self.groups {
            rustix::thread::set_thread_groups(groups)?;
            rustix::thread::set_thread_res_gid(self.gid, self.gid, self.gid)?;
            rustix::thread::set_thread_res_uid(self.uid, self.uid, self.uid)?;
        }
        rustix::process::fchdir(&self.cwd)?;
        Ok(())
    }
}

/// Starts the program. Blocks until it runs.
pub fn launch(reaper: &Reaper, launch: Launch, streams: [OwnedFd; 3]) -> Result<(Pid, Ending)> {
    let name = launch.name.as_ref().unwrap_or(&launch.program);
    let arguments = std::iter::once(name).chain(&launch.arguments).map(OsString::as_os_str);
    let env = launch.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let program = Program::new(&launch.program, arguments, env, streams);
    let privileged = rustix::process::geteuid().is_root();
    let settle = Settle {
        cwd: launch.cwd,
        cgroup: launch.cgroup,
        terminal: launch.terminal,
        isolated: launch.isolated,
        groups: privileged.then(|| launch.account.all_groups()),
        uid: launch.account.uid(),
        gid: launch.account.gid(),
    };
    let started = program.and_then(|program| reaper.start(|| program.start(|| settle.settle())));
    started.map_err(|error| refusal(&launch.program, &error))
}

fn refusal(program: &OsString, error: &io::Error) -> Refusal {
    let program = program.to_string_lossy();
    match Errno::from_io_error(error) {
        Some(Errno::NOENT) => {
            let message = format!("There is no program {program:?}; name one that is installed, or its path.");
            Refusal::new(code::COMMAND_NOT_FOUND, message)
        }
        Some(Errno::ACCESS | Errno::PERM) => {
            let message = format!("{program:?} may not be run by this user, or not in this directory.");
            Refusal::new(code::SPAWN_FAILED, message)
        }
        _ => Refusal::new(code::SPAWN_FAILED, format!("{program:?} could not be started: {error}.")),
    }
}
