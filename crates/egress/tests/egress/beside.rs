//! The program beside a machine, as a process that a test started.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use berth_domain::sandbox::network_policy::NetworkPolicy;
use berth_egress::program::Control;
use berth_egress::program::process::{self, Executable, Kind, Start};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::guest::Guest;

/// How long anything may take before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// The user that the program becomes, where the test may choose.
pub const USER: u32 = 0x7080_0007;
/// Most private memory of a program whose guest does nothing. Measured: 0.5 MiB.
pub const IDLE_BYTES: u64 = 2 << 20;

/// A program and who started it.
pub struct Beside {
    pub runtime: Runtime,
    pub dir: TempDir,
    pub control: Option<Control>,
}

impl Beside {
    /// A program that was told nothing.
    pub fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let executable = Executable::at(env!("CARGO_BIN_EXE_egress-alone"));
        let user = is_root().then_some(USER);
        let control = runtime.block_on(async {
            let start = Start { executable: &executable, kind: Kind::Machine, dir: dir.path(), id: "a-machine", user };
            process::spawn(start).unwrap().note(dir.path()).unwrap()
        });
        Self { runtime, dir, control: Some(control) }
    }

    /// A program with rules and a guest.
    pub fn linked(network: &NetworkPolicy) -> (Self, Guest) {
        let mut beside = Self::new();
        beside.control(async |control| control.set_rules(network).await).unwrap();
        let guest = beside.link().unwrap();
        (beside, guest)
    }

    pub fn link(&mut self) -> std::io::Result<Guest> {
        let (near, far) = UnixStream::pair().unwrap();
        let far = OwnedFd::from(far);
        self.control(async |control| control.set_link(&far).await).map(|()| Guest::new(near))
    }

    pub fn control<T>(&mut self, ask: impl AsyncFnOnce(&mut Control) -> T) -> T {
        self.runtime.block_on(ask(self.control.as_mut().unwrap()))
    }

    /// The service ends, and another one comes.
    pub fn another_service(&mut self) {
        self.control = None;
        self.control = Some(self.runtime.block_on(process::connect(self.dir.path())).unwrap());
    }

    pub fn lives(&self) -> bool {
        process::find(self.dir.path()).unwrap().is_some()
    }

    pub fn ends(&self) {
        eventually("its end", || (!self.lives()).then_some(()));
    }

    pub fn pid(&self) -> u64 {
        note(self.dir.path())["pid"].as_u64().unwrap()
    }

    /// A file that the kernel shows of it.
    pub fn proc(&self, name: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{name}", self.pid())).unwrap()
    }

    /// Says a line as somebody would who knows nothing of the protocol; what is answered.
    pub fn says(&self, line: &str) -> String {
        let mut stream = UnixStream::connect(self.dir.path().join("egress.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // What is too long is not read to its end.
        let _ = stream.write_all(line.as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let ended = self.runtime.block_on(process::end(self.dir.path()));
        assert!(ended.is_ok() || std::thread::panicking(), "{ended:?}");
    }
}

pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

pub fn note(dir: &Path) -> Value {
    serde_json::from_slice(&fs::read(dir.join("egress.json")).unwrap()).unwrap()
}

pub fn eventually<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(Instant::now() < deadline, "{what} does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}
