//! A store of Ceph that a test starts: one monitor and one place of its disks, on the loopback.
//!
//! It ends however its test ends. A shell beside it reads from a pipe that this process has: when that closes, it ends
//! whatever the folder names and removes the folder.

use std::net::Ipv4Addr;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use berth_host::vm::Store;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use uuid::Uuid;

use crate::port::free_port;
use crate::service::eventually;

/// The pool, and the user that may use it and no other.
const POOL: &str = "rbd";
const USER: &str = "berth";
/// What ends and removes all. It outlives what a terminal sends to all of its programs.
const KEEPER: &str = r#"trap "" INT TERM HUP; read -r _; kill -9 $(cat "$1"/*.pid) 2>/dev/null; rm -rf "$1""#;

/// A store, which ends with this value.
pub struct Ceph {
    folder: PathBuf,
    address: Ipv4Addr,
    port: u16,
    key: String,
    keeper: Mutex<Child>,
    daemons: Vec<Child>,
    _held: UnixDatagram,
}

impl Ceph {
    /// A store with an empty pool.
    ///
    /// # Panics
    /// Where its programs are not there, or it does not come up.
    pub fn started() -> Self {
        Self::started_at(Ipv4Addr::LOCALHOST)
    }

    /// The same at another address of this host.
    ///
    /// # Panics
    /// As [`Self::started`].
    pub fn started_at(address: Ipv4Addr) -> Self {
        let folder = tempfile::Builder::new().prefix("berth-ceph-").tempdir_in("/var/tmp").expect("a folder");
        let folder = TempDir::keep(folder);
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEPER, "sh"]).arg(&folder).stdin(Stdio::piped()).stdout(Stdio::null());
        let keeper = Mutex::new(keeper.spawn().expect("a shell"));
        let (port, held) = free_port();
        let mut ceph = Self { folder, address, port, key: String::new(), keeper, daemons: Vec::new(), _held: held };
        ceph.begin_monitor();
        ceph.begin_disks();
        ceph.admin(&["osd", "pool", "create", POOL, "8"]);
        ceph.admin(&["osd", "pool", "application", "enable", POOL, "rbd"]);
        let may = format!("profile rbd pool={POOL}");
        ceph.key = ceph.admin(&["auth", "get-or-create-key", "client.berth", "mon", "profile rbd", "osd", &may]);
        ceph
    }

    /// What a host is told of it.
    ///
    /// # Panics
    /// Where Ceph says no key.
    pub fn store(&self) -> Store {
        Store {
            name: "pool-a".into(),
            monitors: vec![format!("{}:{}", self.address, self.port)],
            pool: POOL.into(),
            user: USER.into(),
            key: self.key.clone().try_into().expect("a key"),
        }
    }

    /// The key of the user who may have it refuse hosts.
    pub fn fence_key(&self) -> String {
        let may = "allow r, allow command \"osd blocklist\"";
        self.admin(&["auth", "get-or-create-key", "client.fence", "mon", may])
    }

    /// What it refuses: addresses with their ports and numbers of programs, a line each.
    pub fn shut_out(&self) -> String {
        self.admin(&["osd", "blocklist", "ls"])
    }

    /// The names of all images.
    pub fn images(&self) -> Vec<String> {
        self.run("rbd", &["ls", POOL]).lines().map(str::to_owned).collect()
    }

    /// Nothing of it answers any more, or everything does again.
    ///
    /// # Panics
    /// Where it is not there.
    pub fn answer(&self, answers: bool) {
        self.daemons.iter().for_each(|daemon| signal(daemon, answers));
    }

    /// The place of its disks answers no more, while the monitor does; or it does again.
    ///
    /// # Panics
    /// Where it is not there.
    pub fn answer_of_disks(&self, answers: bool) {
        signal(self.daemons.last().expect("a place of disks"), answers);
    }

    /// Gives an image another size, in MiB.
    pub fn resize(&self, image: &str, mib: u64) {
        let (size, image) = (mib.to_string(), format!("{POOL}/{image}"));
        self.run("rbd", &["resize", "--no-progress", "--allow-shrink", "--size", &size, &image]);
    }

    /// The image from which another one reads what it does not have itself.
    ///
    /// # Panics
    /// Where there is no such image.
    pub fn reads_from(&self, image: &str) -> Option<String> {
        let said = self.run("rbd", &["info", "--format", "json", &format!("{POOL}/{image}")]);
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        said["parent"]["image"].as_str().map(str::to_owned)
    }

    /// How many moments of an image are kept.
    ///
    /// # Panics
    /// Where there is no such image.
    pub fn moments(&self, image: &str) -> usize {
        let said = self.run("rbd", &["snap", "ls", "--all", "--format", "json", &format!("{POOL}/{image}")]);
        let said: Vec<serde_json::Value> = serde_json::from_str(&said).expect("JSON");
        said.len()
    }

    fn begin_monitor(&mut self) {
        let (at, fsid) = (format!("[v2:{}:{}]", self.address, self.port), Uuid::now_v7().to_string());
        std::fs::write(self.folder.join("ceph.conf"), settings(&self.folder, self.address, &at, &fsid))
            .expect("settings");
        for dir in ["mon", "osd"] {
            std::fs::create_dir(self.folder.join(dir)).expect("a folder");
        }
        let all = ["--cap", "mon", "allow *"];
        let first = ["-C", "first", "--gen-key", "-n", "mon."];
        self.run("ceph-authtool", &[&first[..], &all].concat());
        let admin = ["-C", "keyring", "--gen-key", "-n", "client.admin", "--cap", "osd", "allow *"];
        self.run("ceph-authtool", &[&admin[..], &all].concat());
        self.run("ceph-authtool", &["first", "--import-keyring", "keyring"]);
        self.run("monmaptool", &["--create", "--fsid", &fsid, "--addv", "a", &at, "map"]);
        self.run("ceph-mon", &["--mkfs", "-i", "a", "--monmap", "map", "--keyring", "first"]);
        self.begin("ceph-mon", "a");
    }

    fn begin_disks(&mut self) {
        let (id, key) = (Uuid::now_v7().to_string(), self.run("ceph-authtool", &["--gen-print-key"]));
        std::fs::write(self.folder.join("secret"), format!(r#"{{"cephx_secret":"{key}"}}"#)).expect("a file");
        self.admin(&["osd", "new", &id, "-i", "secret"]);
        self.run("ceph-authtool", &["-C", "osd/keyring", "--name", "osd.0", "--add-key", &key]);
        self.run("ceph-osd", &["-i", "0", "--mkfs", "--osd-uuid", &id]);
        self.begin("ceph-osd", "0");
        eventually("the store is up", 60, || self.admin(&["osd", "stat"]).contains("1 up").then_some(()));
    }

    fn begin(&mut self, program: &str, id: &str) {
        let out = std::fs::File::create(self.folder.join(format!("{program}.out"))).expect("a file");
        let mut command = self.command(program);
        command.args(["-f", "-i", id]).stdout(out.try_clone().expect("a file")).stderr(out);
        let daemon = command.spawn().expect("a program");
        std::fs::write(self.folder.join(format!("{program}.pid")), format!("{}\n", daemon.id())).expect("a file");
        self.daemons.push(daemon);
    }

    fn admin(&self, arguments: &[&str]) -> String {
        self.run("ceph", &[&["--connect-timeout", "30"], arguments].concat())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.folder).env("CEPH_CONF", self.folder.join("ceph.conf")).stdin(Stdio::null());
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.command(program).args(arguments).output();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}; type: script/bootstrap --test"));
        assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

/// What its programs are told: one copy of everything, in a file that takes little room, and nothing of the host's own.
fn settings(folder: &Path, address: Ipv4Addr, at: &str, fsid: &str) -> String {
    let folder = folder.display();
    format!(
        "[global]
fsid = {fsid}
mon host = {at}
public addr = {address}
cluster addr = {address}
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
auth allow insecure global id reclaim = false
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
osd crush chooseleaf type = 0
osd pool default pg autoscale mode = off
osd objectstore = bluestore
bluestore block size = 4294967296
osd memory target = 939524096
mon data avail warn = 1
mon data avail crit = 1
mon data = {folder}/mon
osd data = {folder}/osd
log file = {folder}/$name.log
run dir = {folder}
admin socket =
keyring = {folder}/keyring
[mon]
keyring = {folder}/mon/keyring
[osd]
keyring = {folder}/osd/keyring
"
    )
}

fn signal(daemon: &Child, answers: bool) {
    let pid = i32::try_from(daemon.id()).ok().and_then(Pid::from_raw).expect("a process");
    kill_process(pid, if answers { Signal::CONT } else { Signal::STOP }).expect("a process");
}

impl Drop for Ceph {
    fn drop(&mut self) {
        let keeper = self.keeper.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(keeper.stdin.take());
        let _ = keeper.wait();
        for daemon in &mut self.daemons {
            let _ = daemon.wait();
        }
    }
}
