//! Three members of etcd and Patroni, each on a host of its own, as `docs/postgresql.md` has them.
//!
//! However the test ends, its processes do, too: each is told of the end of the thread that began it, and a member of
//! Patroni is a namespace of processes, which end with its first. What a killed run leaves is a folder, which the next removes.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use berth_testkit::{eventually, postgres_program};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::document::{Own, roles};
use crate::place::{Lan, Place, address};

/// What programs are told of the world.
const ENVIRONMENT: [(&str, &str); 2] = [("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), ("LC_ALL", "C.UTF-8")];
const FOLDERS: &str = "/var/tmp";
const PREFIX: &str = "berth-fleet-";
/// What a member consists of, and what Patroni calls.
const PROGRAMS: [&str; 9] =
    ["etcd", "patroni", "postgres", "setpriv", "unshare", "initdb", "pg_ctl", "pg_basebackup", "pg_rewind"];

/// A host with a member of etcd and one of Patroni.
pub struct Host {
    pub number: u8,
    folder: String,
    programs: String,
    etcd: Option<Child>,
    patroni: Option<Child>,
    /// Last, so that what it began ends before it.
    place: Place,
}

/// The cluster. Dropping it ends it and removes its files.
pub struct Cluster {
    hosts: Vec<Host>,
    folder: PathBuf,
}

impl Cluster {
    /// Starts three members and waits until they follow one, and it has the service's database.
    pub fn start(lan: &Lan) -> Self {
        sweep();
        let folder = Path::new(FOLDERS).join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&folder).expect("a folder");
        let mut cluster = Self { hosts: Vec::new(), folder };
        for number in 1..=3 {
            let host = Host::new(number, lan.host(number), &cluster.folder);
            cluster.hosts.push(host);
        }
        for host in &mut cluster.hosts {
            host.start_etcd();
        }
        for host in &mut cluster.hosts {
            host.start_patroni();
        }
        cluster.is_whole();
        cluster.leader().sql("postgres", roles());
        cluster
    }

    pub fn host(&mut self, number: u8) -> &mut Host {
        self.hosts.iter_mut().find(|host| host.number == number).expect("a host")
    }

    /// Of the members that say of themselves that they lead, the one with the latest timeline, and that; nobody is asked of another
    /// one, because who was cut off says what was before.
    fn leads(&self) -> Option<(u64, &Host)> {
        let leading = self.hosts.iter().filter_map(|host| Some((host.leads_on()?, host)));
        leading.max_by_key(|(timeline, _)| *timeline)
    }

    /// The numbers of the members with a role, by what the leader says.
    pub fn with_role(&self, role: &str) -> Vec<u8> {
        let told = self.leads().and_then(|(_, leader)| leader.ask("/cluster")).unwrap_or_default();
        let members = told["members"].as_array().cloned().unwrap_or_default();
        let has = members.iter().filter(|it| it["role"] == role && is_up(it));
        has.filter_map(|it| it["name"].as_str()?.strip_prefix("db")?.parse().ok()).collect()
    }

    /// The latest timeline on which one leads, as its Patroni says.
    pub fn timeline(&self) -> Option<u64> {
        self.leads().map(|(timeline, _)| timeline).filter(|timeline| *timeline > 0)
    }

    /// The member that leads.
    pub fn leader(&self) -> &Host {
        eventually("a leader", 60, || self.leads()).1
    }

    /// Waits until one leads, one that commits wait for has all that it writes, and one more does.
    pub fn is_whole(&self) {
        let is_whole = || {
            let told = self.leads()?.1.ask("/patroni")?;
            let followers = told["replication"].as_array()?;
            let stream = followers.iter().filter(|it| it["state"] == "streaming").count();
            let awaited = followers.iter().filter(|it| it["sync_state"] == "sync").count();
            ((stream, awaited) == (2, 1) && self.with_role("sync_standby").len() == 1).then_some(())
        };
        eventually("one leader and two that follow", 120, || {
            std::thread::sleep(Duration::from_millis(200));
            is_whole()
        });
    }

    /// Has Patroni hand the lead over to the one that commits wait for.
    pub fn switch_over(&self) {
        let leader = self.leader();
        let config = leader.own().command("ExecStart").pop().expect("a file");
        let to = eventually("a standby", 60, || self.with_role("sync_standby").first().map(|it| format!("db{it}")));
        let arguments = ["-c", &config, "switchover", "--force", "--candidate", &to, "berth"];
        run(Command::new("/usr/bin/patronictl").args(arguments), "");
    }

    /// What each member wrote, for who looks into a failure.
    fn logs(&self) -> String {
        let of = |host: &Host| {
            let text = fs::read_to_string(format!("{}/patroni.log", host.folder)).unwrap_or_default();
            format!("db{}:\n{}\n", host.number, &text[text.len().saturating_sub(3000)..])
        };
        self.hosts.iter().map(of).collect()
    }
}

fn is_up(member: &Value) -> bool {
    member["state"] == "running" || member["state"] == "streaming"
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        self.hosts.clear();
        end_all_in(&self.folder);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Removes what a former run left that was killed.
fn sweep() {
    for entry in fs::read_dir(FOLDERS).expect("a folder").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(run) = name.strip_prefix(PREFIX).and_then(|run| run.parse::<u32>().ok()) else { continue };
        let program = fs::read_link(format!("/proc/{run}/exe")).unwrap_or_default();
        if run == std::process::id() || !program.to_string_lossy().contains("/fleet-") {
            end_all_in(&entry.path());
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Ends the processes of members that work in a folder, and waits for that.
fn end_all_in(folder: &Path) {
    eventually("the end of all in the folder", 30, || {
        let left = processes_in(folder);
        for pid in left.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        left.is_empty().then_some(())
    });
}

/// The processes of members that work in a folder, and not the shell of who looks into it.
fn processes_in(folder: &Path) -> Vec<i32> {
    let pids = fs::read_dir("/proc").expect("processes").flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_there = |pid: &i32| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(folder));
    pids.filter(|pid| is_there(pid) && is_of_member(*pid)).collect()
}

/// Whether a process runs a program of a member's, which may be a script of Python.
fn is_of_member(pid: i32) -> bool {
    let line = words(pid);
    let mut names = line.split(' ').map(|word| word.rsplit('/').next().unwrap_or(word).trim_end_matches(':'));
    let first = names.next().unwrap_or_default();
    let program = if first.starts_with("python") { names.next().unwrap_or_default() } else { first };
    PROGRAMS.contains(&program)
}

/// The process that began another one.
fn parent(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

fn words(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ")
}

/// Sends a signal to a process that still is what its caller took it for.
fn send(pid: i32, program: &str, signal: Signal) {
    assert!(words(pid).contains(program), "{pid} is {}, not {program}", words(pid));
    kill_process(Pid::from_raw(pid).expect("a process"), signal).expect("a signal");
}

fn run(command: &mut Command, input: &str) -> String {
    let command = command.env_clear().envs(ENVIRONMENT).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a program");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("its input");
    let output = child.wait_with_output().expect("its end");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The folder of PostgreSQL's programs.
fn programs() -> String {
    postgres_program("postgres").parent().expect("a folder").to_string_lossy().into_owned()
}

impl Host {
    fn new(number: u8, place: Place, all: &Path) -> Self {
        let folder = all.join(format!("db{number}"));
        fs::create_dir(&folder).expect("a folder");
        // Whoever may enter it: etcd's user and PostgreSQL's have folders of their own.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("a mode");
        let folder = folder.to_string_lossy().into_owned();
        Self { number, folder, programs: programs(), etcd: None, patroni: None, place }
    }

    fn own(&self) -> Own<'_> {
        // The document has three names of this form.
        let name = ["db1", "db2", "db3"][usize::from(self.number) - 1];
        let address = ["10.77.0.1", "10.77.0.2", "10.77.0.3"][usize::from(self.number) - 1];
        Own { name, address, folder: &self.folder, programs: &self.programs }
    }

    fn begin(&self, log: &str, words: &[String], variables: Vec<(String, String)>) -> Child {
        let log = File::options().create(true).append(true).open(format!("{}/{log}", self.folder)).expect("a log");
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(&self.folder).env_clear().envs(ENVIRONMENT).envs(variables);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        self.place.run(move || command.spawn().expect("a program"))
    }

    fn start_etcd(&mut self) {
        let words = "setpriv --reuid nobody --regid nogroup --clear-groups --pdeathsig KILL etcd --logger zap";
        let words: Vec<_> = words.split(' ').map(str::to_owned).collect();
        self.etcd = Some(self.begin("etcd.log", &words, self.own().etcd()));
    }

    /// Starts Patroni as the system's unit does.
    pub fn start_patroni(&mut self) {
        let file = self.own().command("ExecStart").pop().expect("a file");
        fs::write(&file, self.own().patroni()).expect("a file");
        run(Command::new("chown").args(["postgres", &file]), "");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a mode");
        let words = ["setpriv", "--pdeathsig", "KILL"].map(str::to_owned);
        let words: Vec<_> = words.into_iter().chain(self.own().command("ExecStart")).collect();
        self.patroni = Some(self.begin("patroni.log", &words, Vec::new()));
    }

    /// Ends Patroni as the system's unit does, and waits for it.
    pub fn stop_patroni(&mut self) {
        let mut child = self.patroni.take().expect("Patroni");
        let words: Vec<_> = self.own().command("ExecStop");
        let pid = child.id().to_string();
        let words: Vec<_> = words.iter().map(|word| if word == "$MAINPID" { pid.as_str() } else { word }).collect();
        run(Command::new(words[0]).args(&words[1..]), "");
        assert!(child.wait().is_ok(), "Patroni ends");
        assert_eq!(self.of_postgres(), Vec::<i32>::new(), "and so does its PostgreSQL");
    }

    /// PostgreSQL's processes here.
    pub fn of_postgres(&self) -> Vec<i32> {
        processes_in(&Path::new(&self.folder).join("berth"))
    }

    /// The first of them.
    fn postmaster(&self) -> i32 {
        let all = self.of_postgres();
        let first = all.iter().find(|pid| parent(**pid).is_some_and(|parent| !all.contains(&parent)));
        *first.expect("PostgreSQL runs")
    }

    /// The process of Patroni that talks to etcd, and not the one that began it.
    fn patroni(&self) -> i32 {
        let first = self.patroni.as_ref().map(|child| child.id().cast_signed()).expect("Patroni");
        let all = processes_in(Path::new(&self.folder));
        let of = |pid: i32| all.iter().copied().find(|it| parent(*it) == Some(pid) && words(*it).contains("/patroni "));
        of(first).and_then(of).expect("Patroni runs")
    }

    pub fn kill_postmaster(&self) {
        send(self.postmaster(), "postgres", Signal::KILL);
    }

    /// Ends Patroni as a lack of memory does; its unit starts it again a second later.
    pub fn kill_patroni(&mut self) {
        send(self.patroni(), "patroni", Signal::KILL);
        assert!(self.patroni.take().expect("Patroni").wait().is_ok(), "its first process ends, too");
    }

    /// Has Patroni do nothing any more.
    pub fn hang_patroni(&self) {
        send(self.patroni(), "patroni", Signal::STOP);
    }

    /// Ends the process that the unit knows.
    pub fn kill_unit(&mut self) {
        let mut child = self.patroni.take().expect("Patroni");
        child.kill().and_then(|()| child.wait()).expect("its end");
    }

    /// The timeline on which PostgreSQL here leads.
    fn leads_on(&self) -> Option<u64> {
        let told = self.ask("/patroni")?;
        let leads = (told["role"] == "master" || told["role"] == "primary") && told["state"] == "running";
        told["timeline"].as_u64().filter(|_| leads)
    }

    /// Has no answer of this host reach the others, or again; the service's host has them.
    pub fn isolate(&self, isolate: bool) {
        for other in (1..=3).filter(|other| *other != self.number) {
            self.place.silences(other, isolate);
        }
    }

    /// What its Patroni says.
    fn ask(&self, path: &str) -> Option<Value> {
        let to = format!("{}:8008", address(self.number)).parse().ok()?;
        let mut stream = TcpStream::connect_timeout(&to, Duration::from_millis(500)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        serde_json::from_str(text.split_once("\r\n\r\n")?.1).ok()
    }

    /// What PostgreSQL here answers to statements.
    pub fn sql(&self, database: &str, statements: &str) -> String {
        let at = format!(
            "host={} user=postgres password=POSTGRES_PASSWORD dbname={database} connect_timeout=2",
            address(self.number)
        );
        let program = format!("{}/psql", self.programs);
        run(Command::new(program).args(["-qAtX", "-v", "ON_ERROR_STOP=1", &at]), statements)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for child in [&mut self.patroni, &mut self.etcd].into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
