//! Servers of PostgreSQL that a test starts, kills and promotes.

use std::ffi::OsStr;
use std::io::{ErrorKind, Read, Seek};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::eventually;
use crate::port::free_port;

/// Who runs a server for root, whose PostgreSQL refuses to be.
const NOBODY: u32 = 65_534;
/// What a server is told: nothing of it has to survive its host.
const SETTINGS: &str = "listen_addresses = '127.0.0.1'\nfsync = off\nfull_page_writes = off\nautovacuum = off\njit = off\n\
                        max_connections = 50\nshared_buffers = 16MB\nmax_wal_size = 128MB\n";

/// A server, which ends with this value.
pub struct Postgres {
    /// What begins its programs.
    launcher: Vec<String>,
    folder: TempDir,
    /// The folder of its rows.
    data: String,
    port: u16,
    disk: Option<SmallDisk>,
    _held: UnixDatagram,
}

/// A file system of its own below a folder, in a mount namespace that is there for as long as this is.
struct SmallDisk {
    holder: Child,
}

impl SmallDisk {
    fn mounted(at: &Path, megabytes: u32) -> Self {
        let script =
            format!("mount -t tmpfs -o size={megabytes}m,mode=0700,uid={NOBODY} tmpfs \"$1\" && echo && exec cat");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "unshare", "--mount", "sh", "-c", &script, "sh"]).arg(at);
        let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a namespace");
        let mut said = [0];
        holder.stdout.take().expect("a pipe").read_exact(&mut said).expect("it is mounted");
        Self { holder }
    }

    fn launcher(&self) -> Vec<String> {
        let space = format!("--mount=/proc/{}/ns/mnt", self.holder.id());
        let nobody = NOBODY.to_string();
        ["nsenter", &space, "setpriv", "--reuid", &nobody, "--regid", &nobody, "--clear-groups"]
            .map(str::to_owned)
            .to_vec()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// One of PostgreSQL's programs, of the latest release that is there.
///
/// # Panics
/// Where no release has it.
pub fn postgres_program(name: &str) -> PathBuf {
    let entries = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let releases = entries.filter_map(|entry| {
        let release = entry.file_name().to_str()?.parse::<u32>().ok()?;
        Some((release, entry.path().join("bin").join(name)))
    });
    let found = releases.filter(|(_, path)| path.is_file()).max();
    let (_, path) =
        found.unwrap_or_else(|| panic!("no {name} below /usr/lib/postgresql; type: script/bootstrap --test"));
    path
}

/// Runs such a program to its end; returns whether it did what it was to do, and what it said.
fn ran(launcher: &[String], name: &str, arguments: &[&str]) -> (bool, String) {
    let program = postgres_program(name);
    let mut words = launcher.iter().map(OsStr::new).chain([program.as_os_str()]);
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words).args(arguments).current_dir("/").stdin(Stdio::null());
    if launcher.is_empty() && rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    // A server that the program leaves behind would hold a pipe open.
    let mut said = tempfile::tempfile().expect("a file");
    let into = || said.try_clone().expect("a file");
    let status = command.stdout(into()).stderr(into()).status().expect("a program");
    let mut text = String::new();
    said.rewind().and_then(|()| said.read_to_string(&mut text)).expect("what was said");
    (status.success(), text)
}

impl Postgres {
    fn in_a_folder() -> Self {
        // As script/test calls its own: after three hours it ends and removes what a killed test leaves of this name.
        let folder = tempfile::Builder::new().prefix("berth-postgres-").tempdir_in("/var/tmp").expect("a folder");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).expect("a folder of nobody's");
        }
        let data = folder.path().join("data").to_string_lossy().into_owned();
        let (port, held) = free_port();
        Self { launcher: Vec::new(), folder, data, port, disk: None, _held: held }
    }

    fn run(&self, name: &str, arguments: &[&str]) {
        let (done, said) = ran(&self.launcher, name, arguments);
        assert!(done, "{name} {arguments:?}: {said}");
    }

    /// A server that leads, with an empty database `berth`.
    pub fn started() -> Self {
        Self::in_a_folder().made(None)
    }

    /// The same on a file system of so many megabytes of its own, which only root can make.
    pub fn started_on_a_small_disk(megabytes: u32) -> Self {
        let mut server = Self::in_a_folder();
        let disk = SmallDisk::mounted(server.folder.path(), megabytes);
        (server.launcher, server.disk) = (disk.launcher(), Some(disk));
        server.made(None)
    }

    /// Its folder, as whoever is not in its mount namespace sees it.
    pub fn folder(&self) -> PathBuf {
        let folder = self.folder.path();
        let Some(disk) = &self.disk else { return folder.to_owned() };
        Path::new(&format!("/proc/{}/root", disk.holder.id())).join(folder.strip_prefix("/").unwrap_or(folder))
    }

    /// The same that listens at another address, too, in a network of the test's own: it lets in whoever comes.
    pub fn started_at(address: &str) -> Self {
        Self::in_a_folder().made(Some(address))
    }

    fn made(self, at: Option<&str>) -> Self {
        self.run("initdb", &["-D", &self.data, "-U", "berth", "--auth=trust", "--no-sync"]);
        self.tell("postgresql.conf", SETTINGS);
        if let Some(address) = at {
            self.tell("postgresql.conf", &format!("listen_addresses = '127.0.0.1,{address}'\n"));
            self.tell("pg_hba.conf", "host all all all trust\n");
        }
        self.start();
        self.sql("postgres", "CREATE DATABASE berth");
        self
    }

    /// Adds to one of its files of settings.
    fn tell(&self, file: &str, text: &str) {
        let file = std::fs::OpenOptions::new().append(true).open(self.folder().join("data").join(file));
        std::io::Write::write_all(&mut file.expect("a file"), text.as_bytes()).expect("settings");
    }

    /// A server that follows this one, which from now on acknowledges a change once the other one has it.
    pub fn standby(&self) -> Self {
        let standby = Self::in_a_folder();
        let port = self.port.to_string();
        let from = ["-h", "127.0.0.1", "-p", &port, "-U", "berth", "-c", "fast"];
        standby.run("pg_basebackup", &[&["-D", &standby.data, "-R"], &from[..]].concat());
        standby.start();
        self.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.sql("postgres", "SELECT pg_reload_conf()");
        let awaited = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'";
        eventually("a standby that commits wait for", 60, || (self.sql("postgres", awaited) == "1").then_some(()));
        standby
    }

    /// Starts it again, where it has ended; whether it runs then.
    pub fn runs(&self) -> bool {
        ran(&self.launcher, "pg_ctl", &["-D", &self.data, "status"]).0 || self.starts()
    }

    fn start(&self) {
        assert!(self.starts(), "{}", std::fs::read_to_string(self.folder().join("log")).unwrap_or_default());
    }

    fn starts(&self) -> bool {
        let folder = self.folder.path().display();
        let (log, options) = (format!("{folder}/log"), format!("-p {} -k {folder}", self.port));
        ran(&self.launcher, "pg_ctl", &["-D", &self.data, "-w", "-l", &log, "-o", &options, "start"]).0
    }

    /// Has a follower lead.
    pub fn promote(&self) {
        self.run("pg_ctl", &["-D", &self.data, "-w", "promote"]);
    }

    /// Ends it as a power failure would.
    pub fn kill(&self) {
        let note = std::fs::read_to_string(self.folder().join("data/postmaster.pid")).expect("a note of its process");
        let pid = note.lines().next().and_then(|line| line.parse().ok()).and_then(Pid::from_raw).expect("an id");
        kill_process(pid, Signal::KILL).expect("a process");
        // Its children listen for as long as they have not noticed.
        let refuses = || TcpStream::connect(("127.0.0.1", self.port)).err().map(|error| error.kind());
        eventually("nobody at its port", 60, || (refuses() == Some(ErrorKind::ConnectionRefused)).then_some(()));
    }

    /// Runs a statement in a database; what it answers, a line for each row.
    pub fn sql(&self, database: &str, statement: &str) -> String {
        let port = self.port.to_string();
        let arguments = ["-XAtq", "-h", "127.0.0.1", "-p", &port, "-U", "berth", "-d", database, "-c", statement];
        let (done, said) = ran(&self.launcher, "psql", &arguments);
        assert!(done, "{statement}: {said}");
        said.trim().to_owned()
    }

    /// Its port at the loopback.
    pub const fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = ran(&self.launcher, "pg_ctl", &["-D", &self.data, "-m", "immediate", "stop"]);
    }
}
