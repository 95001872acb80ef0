//! Servers of PostgreSQL that a test starts, kills and promotes.

use std::io::{ErrorKind, Read, Seek};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

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
    folder: TempDir,
    /// The folder of its rows.
    data: String,
    port: u16,
    _held: UnixDatagram,
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
fn ran(name: &str, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(postgres_program(name));
    command.args(arguments).current_dir("/").stdin(Stdio::null());
    if rustix::process::geteuid().is_root() {
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

fn run(name: &str, arguments: &[&str]) {
    let (done, said) = ran(name, arguments);
    assert!(done, "{name} {arguments:?}: {said}");
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
        Self { folder, data, port, _held: held }
    }

    /// A server that leads, with an empty database `berth`.
    pub fn started() -> Self {
        Self::made(None)
    }

    /// The same that listens at another address, too, in a network of the test's own: it lets in whoever comes.
    pub fn started_at(address: &str) -> Self {
        Self::made(Some(address))
    }

    fn made(at: Option<&str>) -> Self {
        let server = Self::in_a_folder();
        run("initdb", &["-D", &server.data, "-U", "berth", "--auth=trust", "--no-sync"]);
        server.tell("postgresql.conf", SETTINGS);
        if let Some(address) = at {
            server.tell("postgresql.conf", &format!("listen_addresses = '127.0.0.1,{address}'\n"));
            server.tell("pg_hba.conf", "host all all all trust\n");
        }
        server.start();
        server.sql("postgres", "CREATE DATABASE berth");
        server
    }

    /// Adds to one of its files of settings.
    fn tell(&self, file: &str, text: &str) {
        let file = std::fs::OpenOptions::new().append(true).open(format!("{}/{file}", self.data));
        std::io::Write::write_all(&mut file.expect("a file"), text.as_bytes()).expect("settings");
    }

    /// A server that follows this one, which from now on acknowledges a change once the other one has it.
    pub fn standby(&self) -> Self {
        let standby = Self::in_a_folder();
        let port = self.port.to_string();
        let from = ["-h", "127.0.0.1", "-p", &port, "-U", "berth", "-c", "fast"];
        run("pg_basebackup", &[&["-D", &standby.data, "-R"], &from[..]].concat());
        standby.start();
        self.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.sql("postgres", "SELECT pg_reload_conf()");
        let awaited = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'";
        eventually("a standby that commits wait for", 60, || (self.sql("postgres", awaited) == "1").then_some(()));
        standby
    }

    fn start(&self) {
        let folder = self.folder.path().display();
        let (log, options) = (format!("{folder}/log"), format!("-p {} -k {folder}", self.port));
        run("pg_ctl", &["-D", &self.data, "-w", "-l", &log, "-o", &options, "start"]);
    }

    /// Has a follower lead.
    pub fn promote(&self) {
        run("pg_ctl", &["-D", &self.data, "-w", "promote"]);
    }

    /// Ends it as a power failure would.
    pub fn kill(&self) {
        let note = std::fs::read_to_string(format!("{}/postmaster.pid", self.data)).expect("a note of its process");
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
        let (done, said) = ran("psql", &arguments);
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
        let _ = ran("pg_ctl", &["-D", &self.data, "-m", "immediate", "stop"]);
    }
}
