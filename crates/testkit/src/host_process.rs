//! A host that joined a service, in its own process, over real machines.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::service::{machine_in, processes_in};
use crate::{end_all_in, eventually};

/// A host's folder, and its process while it runs. Dropping it ends its machines and processes, and removes its files.
pub struct HostProcess {
    /// Its data folder.
    pub dir: TempDir,
    /// Where it is asked.
    pub listen: SocketAddr,
    /// Where its next start dies, as `BERTH_FAULT` has it.
    pub fault: &'static str,
    /// Another program, which becomes the host's, that begins its later starts: by its name and arguments.
    pub launcher: Vec<String>,
    binary: PathBuf,
    child: Option<Child>,
}

impl HostProcess {
    /// A host of this program that is not started yet.
    pub fn new(binary: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("berth-test-").tempdir_in("/var/tmp").expect("a folder");
        // An address that no connection begins at.
        let listener = TcpListener::bind("127.79.0.1:0").expect("a port");
        let listen = listener.local_addr().expect("an address");
        Self { dir, listen, fault: "", launcher: Vec::new(), binary: binary.into(), child: None }
    }

    /// Has another version of the program be started from now on.
    pub fn upgrade(&mut self, binary: &str) {
        self.binary = binary.into();
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut launched = self.launcher.iter().map(OsStr::new).chain([self.binary.as_os_str()]);
        let mut command = Command::new(launched.next().expect("a program"));
        command.args(launched).args(words).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.dir.path()).env("BERTH_DATA_DIR", self.dir.path()).env("BERTH_ACCEL", "tcg");
        command.env("BERTH_FAULT", self.fault).stdin(Stdio::null());
        command
    }

    /// Starts it by these words.
    pub fn start(&mut self, words: &[&str]) {
        let log = OpenOptions::new().create(true).append(true).open(self.log_file()).expect("a log");
        let mut command = self.command(words);
        command.stdout(log.try_clone().expect("a log")).stderr(log);
        self.child = Some(command.spawn().expect("the host starts"));
    }

    /// Starts it by the command that `berth admin host add` printed.
    pub fn join(&mut self, typed: &str) {
        let listen = self.listen.to_string();
        let words: Vec<_> = typed.split(' ').skip(1).chain(["--listen", &*listen]).collect();
        self.start(&words);
    }

    fn log_file(&self) -> PathBuf {
        self.dir.path().join("host.log")
    }

    /// Processes that use a folder of its data folder.
    pub fn processes(&self, folder: &str) -> Vec<i32> {
        processes_in(&self.dir.path().join(folder))
    }

    /// The process of a VM's machine, if it has one.
    pub fn machine(&self, vm: &str) -> Option<Pid> {
        machine_in(&self.dir.path().join("machines").join(vm))
    }

    /// The id of its running process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a host").id()
    }

    /// What it said so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// Runs the program in its folder until it ends.
    pub fn ends(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("an end")
    }

    /// Waits until it has ended by itself.
    pub fn died(&mut self) {
        let child = self.child.as_mut().expect("a host");
        eventually("the host's death", 120, || child.try_wait().ok().flatten());
        self.child = None;
    }

    /// Kills it, as a power failure would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Ends it as an operator does; its exit code.
    pub fn stop(&mut self) -> Option<i32> {
        let child = self.child.as_mut().expect("a host");
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process");
        kill_process(pid, Signal::TERM).expect("a signal");
        let status = eventually("the host's end", 60, || child.try_wait().ok().flatten());
        self.child = None;
        status.code()
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        self.kill();
        end_all_in(self.dir.path());
    }
}
