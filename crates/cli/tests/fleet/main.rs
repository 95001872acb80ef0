//! Machines on switches of network namespaces, which are cut off and lost in every way. Only root may make those.
//!
//! Here a service on a cluster of PostgreSQL, whose leader is lost: three hosts with etcd and Patroni, configured by the text of
//! `docs/postgresql.md`, and a real `berth serve` as their client. In `hosts` replicas and hosts with real VMs, and in `fence`
//! hosts whose VMs have their disks in a real store of Ceph.

#![expect(clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr, reason = "a test")]

mod client;
mod clock;
mod cluster;
mod document;
mod fence;
#[path = "../machines/guest.rs"]
mod guest;
mod hosts;
mod place;
mod site;
mod watch;

use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use berth_testkit::{Caller, Service, eventually};
use client::Clients;
use cluster::Cluster;
use place::Lan;

/// The program under test.
const BERTH: &str = env!("CARGO_BIN_EXE_berth");
/// The service's host.
const CLIENT: u8 = 9;
/// Within so many seconds everything is as it should be.
const CONVERGES: u64 = 60;

/// The cluster, the service, and who uses it.
struct World {
    lan: Lan,
    clients: Clients,
    caller: Caller,
    service: Service,
    pid: u32,
    cluster: Cluster,
    /// What is printed at the end: what happened, and for how long writes waited.
    table: Vec<(&'static str, Duration)>,
}

impl World {
    fn new() -> Self {
        let began = Instant::now();
        let lan = Lan::around(CLIENT);
        let cluster = Cluster::start(&lan);
        println!("the cluster stands after {:.1} s", began.elapsed().as_secs_f64());
        let mut service = Service::new(BERTH, &[]);
        service.set("BERTH_DATABASE_URL", document::database_url());
        service.launch_by(&["setpriv", "--pdeathsig", "KILL"]);
        service.start();
        let caller = block_on(service.admin());
        let clients = Clients::start(std::slice::from_ref(&caller), true);
        let pid = service.pid();
        let world = Self { lan, clients, caller, service, pid, cluster, table: Vec::new() };
        world.writes_go_on(began);
        println!("and the service writes after {:.1} s", began.elapsed().as_secs_f64());
        world
    }

    /// Waits until each writer was answered after a moment.
    fn writes_go_on(&self, since: Instant) {
        eventually("acknowledged writes", CONVERGES, || self.clients.latest().filter(|at| *at > since).map(drop));
    }

    /// Does something to the cluster that gives it another leader, or the same one anew; returns once the service follows it,
    /// with everything that was acknowledged.
    fn loses_leader(&mut self, how: &'static str, act: impl FnOnce(&mut Cluster, &Lan)) {
        let timeline = eventually("a leader's timeline", CONVERGES, || self.cluster.timeline());
        let began = Instant::now();
        act(&mut self.cluster, &self.lan);
        eventually("a later timeline", CONVERGES, || self.cluster.timeline().filter(|now| *now > timeline));
        let promoted = Instant::now();
        self.writes_go_on(promoted);
        let silence = self.clients.longest_silence(began);
        println!("{how}: no write was acknowledged for {:.1} s", silence.as_secs_f64());
        self.table.push((how, silence));
        self.is_right();
    }

    /// Whether everything that was acknowledged is there, once, and by the same process.
    fn is_right(&self) {
        block_on(self.clients.are_served(&self.caller));
        assert_eq!(self.clients.taken_back(), Vec::<String>::new());
        assert_eq!(self.service.pid(), self.pid);
        let state = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        assert!(state.contains("(berth) ") && !state.contains(") Z "), "the service ended: {state}");
    }

    /// Waits until `berth doctor` says of the database what is so.
    fn doctor_says(&self, what: &str, is_so: impl Fn(&str) -> bool) {
        eventually(what, CONVERGES, || {
            let told = self.doctor();
            let is_so = is_so(&told);
            if !is_so {
                println!("berth doctor does not say {what}:\n{told}");
            }
            is_so.then_some(())
        });
    }

    /// What `berth doctor` says of the database.
    fn doctor(&self) -> String {
        let mut doctor = self.service.command_of("doctor");
        let output = doctor.stdout(Stdio::piped()).stderr(Stdio::null()).output().expect("berth doctor");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().filter(|line| line.contains(" database ")).collect::<Vec<_>>().join("\n")
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

/// What a test wants and this machine has not, of these files.
fn is_missing(files: &[&str]) -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("only root may make network namespaces".into());
    }
    let absent = files.iter().find(|file| !Path::new(file).exists())?;
    Some(format!("{absent} is not there; type: script/bootstrap --test"))
}

/// Whether a test that wants these files can run here; said past what captures the output of a test that passes, where it cannot.
fn has(files: &[&str]) -> bool {
    let missing = is_missing(files);
    if let Some(why) = &missing {
        let _ = writeln!(std::io::stderr(), "tests of fleet were skipped: {why}");
    }
    missing.is_none()
}

#[test]
fn what_was_acknowledged_stays_whichever_way_the_leader_is_lost() {
    if !has(&["/usr/bin/etcd", "/usr/bin/patroni", "/usr/bin/patronictl"]) {
        return;
    }
    let mut world = World::new();
    world.doctor_says("that one leads and two follow", |told| {
        let is_safe = told.contains("ok   database       acknowledges a commit once another member has it");
        is_safe && told.matches(" follows").count() == 2 && told.contains(" leads, on timeline ")
    });

    world.loses_leader("PostgreSQL of the leader is killed", |cluster, _| cluster.leader().kill_postmaster());
    world.cluster.is_whole();
    world.loses_leader("the lead is handed over", |cluster, _| cluster.switch_over());
    world.cluster.is_whole();
    patroni_dies(&mut world);
    world.cluster.is_whole();
    the_leader_is_cut_off(&mut world);
    world.cluster.is_whole();
    the_leader_is_isolated(&mut world);
    world.cluster.is_whole();
    patroni_hangs(&mut world);
    world.cluster.is_whole();
    world.clients.stop();
    world.is_right();
    world.cluster.host(1).stop_patroni();
    for (how, silence) in &world.table {
        println!("{:6.1} s  {how}", silence.as_secs_f64());
    }
}

/// PostgreSQL ends with its Patroni, which its unit starts anew.
fn patroni_dies(world: &mut World) {
    world.loses_leader("Patroni of the leader is killed, and started a second later", |cluster, _| {
        let number = cluster.leader().number;
        let host = cluster.host(number);
        host.kill_patroni();
        assert_eq!(host.of_postgres(), Vec::<i32>::new(), "its PostgreSQL ended with it");
        std::thread::sleep(Duration::from_secs(1));
        host.start_patroni();
    });
}

fn the_leader_is_cut_off(world: &mut World) {
    let mut number = 0;
    world.loses_leader("the leader's host is cut off, silently", |cluster, lan| {
        number = cluster.leader().number;
        lan.cut(number);
    });
    assert_ne!(world.cluster.leader().number, number);
    world.lan.join(number);
}

/// The service reaches it, and the other members and etcd do not: what it acknowledged would be lost with it.
fn the_leader_is_isolated(world: &mut World) {
    let mut number = 0;
    world.loses_leader("the leader is cut off from the others, and not from the service", |cluster, _| {
        number = cluster.leader().number;
        cluster.host(number).isolate(true);
    });
    assert_ne!(world.cluster.leader().number, number);
    world.cluster.host(number).isolate(false);
}

/// Nobody demotes the old leader, which goes on beside the new one: two of them lead.
fn patroni_hangs(world: &mut World) {
    let mut number = 0;
    world.loses_leader("Patroni of the leader hangs, so that two lead", |cluster, _| {
        number = cluster.leader().number;
        cluster.host(number).hang_patroni();
    });
    let old = world.cluster.host(number);
    assert_eq!(old.sql("berth", "SELECT pg_is_in_recovery()").trim(), "f", "the old one leads, too");
    world.doctor_says("that two lead", |told| {
        told.contains("two of its members lead") && told.contains("systemctl restart patroni")
    });
    // What the system does in the end with a unit that does not stop.
    let old = world.cluster.host(number);
    old.kill_unit();
    eventually("the end of its PostgreSQL", 10, || old.of_postgres().is_empty().then_some(()));
    old.start_patroni();
}
