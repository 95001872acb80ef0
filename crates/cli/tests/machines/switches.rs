//! Switches of networks on a host: found, linked and ended, whoever dies. The machines are programs of their networks
//! alone.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use berth_domain::firewall::Rules;
use berth_domain::host::network::{Member, Membership, NetworkSpec};
use berth_domain::ids::{MachineId, NetworkId};
use berth_domain::sandbox::network_policy::NetworkPolicy;
use berth_egress::program::process::{self, Executable, Kind, Start};
use berth_egress::program::{InNetwork, switch};
use berth_host::EngineError;
use berth_host::network::{NetworkEngine, Switches};
use berth_server::config::Config;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;
use uuid::Uuid;

const FRONT: NetworkId = NetworkId(Uuid::from_u128(1));
const BACK: NetworkId = NetworkId(Uuid::from_u128(2));

/// A host, and the machines that run on it.
struct Host {
    data: TempDir,
    switches: Arc<Switches>,
    /// Their cards.
    guests: Vec<UnixStream>,
}

impl Host {
    fn new() -> Self {
        let data = tempfile::tempdir().expect("a folder");
        let switches = open(&data, executable());
        Self { data, switches, guests: Vec::new() }
    }

    /// Another service in the place of the one that is there.
    fn restart(&mut self) {
        self.switches = open(&self.data, executable());
    }

    fn machine(&self, number: u128) -> PathBuf {
        // Those of VMs and of sandboxes.
        let folder = if number.is_multiple_of(2) { "machines" } else { "sandbox/machines" };
        self.data.path().join(folder).join(Uuid::from_u128(number).to_string())
    }

    fn network(&self, id: NetworkId) -> PathBuf {
        self.data.path().join("networks").join(id.to_string())
    }

    /// Has a machine run.
    async fn run(&mut self, number: u128) -> MachineId {
        let dir = self.machine(number);
        std::fs::create_dir_all(&dir).expect("a folder");
        let (near, far) = UnixStream::pair().expect("a card");
        let start = Start { executable: &executable(), kind: Kind::Machine, dir: &dir, id: "a-machine", user: None };
        let mut control = process::spawn(start).expect("a process").note(&dir).expect("a note");
        control.set_rules(&NetworkPolicy::default()).await.expect("rules");
        control.set_link(&OwnedFd::from(far)).await.expect("a link");
        self.guests.push(near);
        MachineId(Uuid::from_u128(number))
    }

    /// Has a service whose program for switches ends at once, until the one that is told takes its place.
    fn without_switches(&mut self) -> PathBuf {
        let program = self.data.path().join("switch");
        symlink("/bin/false", &program).expect("a link");
        self.switches = open(&self.data, Executable::at(&program));
        program
    }

    /// Waits until a switch was tried.
    async fn tried(&self, id: NetworkId) {
        within("it is tried", async || self.network(id).join("egress.log").exists()).await;
    }

    /// The networks that a machine's program has.
    async fn networks_of(&self, number: u128) -> Vec<InNetwork> {
        let mut control = process::connect(&self.machine(number)).await.expect("a program");
        control.status().await.expect("an answer").networks
    }

    /// The machines that a switch has links of, if there is a switch.
    async fn linked(&self, id: NetworkId) -> Option<Vec<String>> {
        process::find(&self.network(id)).expect("a look")?;
        let asked = async { process::connect_switch(&self.network(id)).await?.status().await };
        let switch::Status { links, .. } = asked.await.ok()?;
        let mut machines: Vec<_> = links.into_iter().map(|link| link.machine).collect();
        machines.sort_unstable();
        Some(machines)
    }

    /// Waits until a network joins exactly these machines, on both sides.
    async fn joins(&self, id: NetworkId, numbers: &[u128]) {
        let wanted: Vec<_> = numbers.iter().map(|number| Uuid::from_u128(*number).to_string()).collect();
        within("it joins the machines", async || {
            let mut is_so = self.linked(id).await.as_ref() == Some(&wanted);
            for number in numbers {
                let own = in_network(id, *number, true);
                is_so &= self.networks_of(*number).await.contains(&own);
            }
            is_so
        })
        .await;
    }

    async fn has_no_switch(&self, id: NetworkId) {
        within("the switch ends", async || process::find(&self.network(id)).expect("a look").is_none()).await;
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // With its card each machine's program ends, and with its links each switch; the rest is for those that hang.
        self.guests.clear();
        let folders = ["machines", "sandbox/machines", "networks"].map(|folder| self.data.path().join(folder));
        let all = folders.iter().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
        for dir in all.map(|entry| entry.path()) {
            let note = std::fs::read(dir.join("egress.json")).unwrap_or_default();
            let pid = serde_json::from_slice::<serde_json::Value>(&note).ok().and_then(|note| note["pid"].as_i64());
            let Some(pid) = pid else { continue };
            berth_testkit::eventually("the end of a program", 120, || {
                let name = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                (!name.starts_with(b"berth-egress\0")).then_some(())
            });
        }
    }
}

fn open(data: &TempDir, switch: Executable) -> Arc<Switches> {
    let folder = |name: &str| (name == "BERTH_DATA_DIR").then(|| data.path().display().to_string());
    let config = Config::from_sources(None, folder).expect("a configuration");
    Switches::open_with(&config.network_engine(), switch)
}

fn executable() -> Executable {
    Executable::at(env!("CARGO_BIN_EXE_berth-egress"))
}

/// Sends a signal to the program in a folder.
fn signal(dir: &Path, signal: Signal) {
    let note = std::fs::read(dir.join("egress.json")).expect("a note");
    let pid = serde_json::from_slice::<serde_json::Value>(&note).expect("JSON")["pid"].as_i64().expect("a number");
    let pid = Pid::from_raw(i32::try_from(pid).expect("a process")).expect("a process");
    kill_process(pid, signal).expect("a signal");
}

/// Answers as the program of a machine of an earlier Berth.
fn answer_as_before_networks(listener: &UnixListener) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { return };
        let lines = BufReader::new(stream.try_clone().expect("a stream")).lines();
        for line in lines.map_while(Result::ok) {
            let answer = if line.contains("\"ask\":\"status\"") {
                json!({"answer": "status", "version": 1, "is_linked": true, "ports": [], "rx_bytes": 0, "tx_bytes": 0})
            } else {
                json!({"answer": "refused", "reason": "unknown variant `join`, expected one of `status`, `set_rules`"})
            };
            if writeln!(stream, "{answer}").is_err() {
                break;
            }
        }
    }
}

/// Has another program in the place of what ends at once.
fn install(program: &Path) {
    std::fs::remove_file(program).expect("a link");
    symlink(env!("CARGO_BIN_EXE_berth-egress"), program).expect("a link");
}

async fn within(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let waited = async {
        while !is_so().await {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_mins(2), waited).await.unwrap_or_else(|_| panic!("{what}"));
}

fn address(id: NetworkId, number: u128) -> std::net::Ipv4Addr {
    let [network, host] = [id.0.as_u128(), number].map(|number| u8::try_from(number).expect("a small number"));
    [10, 128, network, host].into()
}

fn membership(id: NetworkId, number: u128) -> Membership {
    let cidr = format!("10.128.{}.0/24", id.0.as_u128()).parse().expect("addresses");
    let cidr6 = Some(format!("fd00:{:x}::/64", id.0.as_u128()).parse().expect("addresses"));
    Membership { network: id, cidr, cidr6, address: address(id, number) }
}

/// What a machine's program says of a network.
fn in_network(id: NetworkId, number: u128, is_linked: bool) -> InNetwork {
    let Membership { network, address, cidr6, .. } = membership(id, number);
    InNetwork { network, address, cidr6, is_linked }
}

fn spec(id: NetworkId, numbers: &[u128]) -> NetworkSpec {
    let member = |number: &u128| Member {
        machine: MachineId(Uuid::from_u128(*number)),
        address: address(id, *number),
        names: vec![format!("m{number}")],
    };
    NetworkSpec {
        revision: 1,
        id,
        name: "front".into(),
        cidr: membership(id, 9).cidr,
        cidr6: membership(id, 9).cidr6,
        members: numbers.iter().map(member).collect(),
        rules: Rules::default(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_decided_before_the_last_change_is_refused() {
    let host = Host::new();
    host.switches.set(&spec(FRONT, &[4, 5])).await.expect("a network");
    let older = NetworkSpec { revision: 0, ..spec(FRONT, &[4]) };
    assert_eq!(host.switches.set(&older).await, Err(EngineError::Outdated(1)));
    host.switches.set(&NetworkSpec { revision: 2, ..older }).await.expect("a network");
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_are_linked_whoever_is_told_first() {
    let mut host = Host::new();
    // The network first, of which nobody runs; then a start; then one that the network was not told of.
    host.switches.set(&spec(FRONT, &[4, 5])).await.expect("a network");
    assert_eq!(host.linked(FRONT).await, None, "no machine runs here");
    for number in [4, 5, 6] {
        let machine = host.run(number).await;
        host.switches.join(machine, &[membership(FRONT, number)]).await.expect("a network");
    }
    host.joins(FRONT, &[4, 5, 6]).await;
    // A start that is repeated, and a network that is told again, disturb nothing.
    let before = std::fs::read(host.network(FRONT).join("egress.json")).expect("a note");
    host.switches.join(MachineId(Uuid::from_u128(4)), &[membership(FRONT, 4)]).await.expect("a network");
    host.switches.set(&spec(FRONT, &[4, 5, 6])).await.expect("a network");
    host.joins(FRONT, &[4, 5, 6]).await;
    assert_eq!(std::fs::read(host.network(FRONT).join("egress.json")).expect("a note"), before);
    // What the network was told last is what holds.
    host.switches.set(&spec(FRONT, &[4, 6])).await.expect("a network");
    host.joins(FRONT, &[4, 6]).await;
    assert_eq!(host.networks_of(5).await, []);
    assert_eq!(host.switches.scan().await.expect("a look").networks, [FRONT]);
    for _ in 0..2 {
        host.switches.remove(FRONT).await.expect("an end");
    }
    host.has_no_switch(FRONT).await;
    assert_eq!((host.networks_of(4).await, host.switches.scan().await.expect("a look").networks), (vec![], vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switch_that_ended_is_replaced_as_long_as_a_machine_needs_it() {
    let mut host = Host::new();
    for number in [4, 5] {
        let machine = host.run(number).await;
        let networks = [membership(FRONT, number), membership(BACK, number)];
        host.switches.join(machine, &networks).await.expect("a network");
    }
    let user = |id| {
        let note = std::fs::read(host.network(id).join("egress.json")).expect("a note");
        let pid = serde_json::from_slice::<serde_json::Value>(&note).expect("JSON")["pid"].clone();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
        status.lines().find(|line| line.starts_with("Uid:")).expect("a user").to_owned()
    };
    let own = user(FRONT).split_whitespace().nth(1) == Some(&rustix::process::geteuid().as_raw().to_string());
    assert!(own || user(FRONT) != user(BACK), "where it may be so, each is a user of its own");
    process::end(&host.network(FRONT)).await.expect("its end");
    host.joins(FRONT, &[4, 5]).await;
    // While nobody watches, too.
    host.restart();
    process::end(&host.network(BACK)).await.expect("its end");
    assert_eq!(host.linked(BACK).await, None);
    host.switches.adopt().await;
    for id in [FRONT, BACK] {
        host.joins(id, &[4, 5]).await;
    }
    // The service that came watches those that it found.
    process::end(&host.network(FRONT)).await.expect("its end");
    host.joins(FRONT, &[4, 5]).await;
    // With the last machine it goes, and comes with the next.
    host.guests.clear();
    for id in [FRONT, BACK] {
        host.has_no_switch(id).await;
    }
    let machine = host.run(4).await;
    host.switches.rejoin(machine);
    for id in [FRONT, BACK] {
        host.joins(id, &[4]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switch_that_cannot_be_had_ends_no_machine_and_is_tried_again() {
    let mut host = Host::new();
    let program = host.without_switches();
    let machine = host.run(4).await;
    host.switches.join(machine, &[membership(FRONT, 4)]).await.expect("a network");
    host.tried(FRONT).await;
    let unlinked = in_network(FRONT, 4, false);
    assert_eq!(
        host.networks_of(4).await,
        [unlinked],
        "its program is there, and sends nothing of the network elsewhere"
    );
    install(&program);
    host.joins(FRONT, &[4]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_knows_its_networks_before_its_machine_is_started_whatever_the_switch_does() {
    let mut host = Host::new();
    let machine = host.run(4).await;
    host.switches.join(machine, &[membership(FRONT, 4)]).await.expect("a network");
    host.joins(FRONT, &[4]).await;
    signal(&host.network(FRONT), Signal::STOP);
    let switches = host.switches.clone();
    let told = tokio::spawn(async move { switches.set(&spec(FRONT, &[4, 5])).await });
    let machine = host.run(5).await;
    host.switches.join(machine, &[membership(FRONT, 5)]).await.expect("a network");
    let own = host.networks_of(5).await;
    assert_eq!(own.first().map(|own| own.address), Some(address(FRONT, 5)), "{own:?}");
    // The one that hangs is replaced.
    let _ = told.await.expect("an end");
    host.joins(FRONT, &[4, 5]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_began_anew_is_linked_to_all_its_networks_in_the_end() {
    let mut host = Host::new();
    let program = host.without_switches();
    for id in [FRONT, BACK] {
        host.switches.set(&spec(id, &[5])).await.expect("a network");
    }
    let machine = host.run(5).await;
    host.switches.rejoin(machine);
    for id in [FRONT, BACK] {
        host.tried(id).await;
    }
    install(&program);
    for id in [FRONT, BACK] {
        host.joins(id, &[5]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_hangs_keeps_nobody_else_out_and_is_linked_later() {
    let mut host = Host::new();
    for number in [4, 5, 6] {
        host.run(number).await;
    }
    signal(&host.machine(5), Signal::STOP);
    let (switches, network) = (host.switches.clone(), spec(FRONT, &[5, 6]));
    let mut told = tokio::spawn(async move { switches.set(&network).await });
    let joined = async {
        let has_six = async || host.linked(FRONT).await.is_some_and(|machines| !machines.is_empty());
        within("the other one is linked", has_six).await;
        host.switches.join(MachineId(Uuid::from_u128(4)), &[membership(FRONT, 4)]).await.expect("a network");
        host.joins(FRONT, &[4, 6]).await;
    };
    tokio::select! {
        told = &mut told => panic!("a start waited for who hangs: {told:?}"),
        () = joined => {}
    }
    let refused = told.await.expect("an end").expect_err("one is not linked").to_string();
    assert!(refused.contains(&Uuid::from_u128(5).to_string()), "{refused}");
    signal(&host.machine(5), Signal::CONT);
    host.joins(FRONT, &[4, 5, 6]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_left_a_network_that_could_not_be_noted_is_parted_by_the_next_try() {
    let mut host = Host::new();
    for number in [4, 5] {
        host.run(number).await;
    }
    host.switches.set(&spec(FRONT, &[4, 5])).await.expect("a network");
    host.joins(FRONT, &[4, 5]).await;
    let note = host.network(FRONT).join("network.json");
    std::fs::remove_file(&note).expect("a note");
    std::fs::create_dir(&note).expect("something in its place");
    let next = NetworkSpec { revision: 2, ..spec(FRONT, &[4]) };
    host.switches.set(&next).await.expect_err("nothing can be noted");
    std::fs::remove_dir(&note).expect("a folder");
    host.switches.set(&next).await.expect("a network");
    host.joins(FRONT, &[4]).await;
    assert_eq!(host.networks_of(5).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switch_that_hangs_is_replaced_though_nobody_asks_for_it() {
    let mut host = Host::new();
    let machine = host.run(4).await;
    host.switches.join(machine, &[membership(FRONT, 4)]).await.expect("a network");
    host.joins(FRONT, &[4]).await;
    let note = || std::fs::read(host.network(FRONT).join("egress.json")).expect("a note");
    let before = note();
    signal(&host.network(FRONT), Signal::STOP);
    within("another switch", async || note() != before).await;
    host.joins(FRONT, &[4]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_of_an_earlier_version_is_replaced() {
    let mut host = Host::new();
    let dir = host.machine(4);
    std::fs::create_dir_all(&dir).expect("a folder");
    let start =
        Start { executable: &Executable::at("/bin/sleep"), kind: Kind::Machine, dir: &dir, id: "600", user: None };
    let _control = process::spawn(start).expect("a process").note(&dir).expect("a note");
    std::fs::remove_file(dir.join("egress.sock")).expect("its socket");
    let listener = UnixListener::bind(dir.join("egress.sock")).expect("a socket");
    std::thread::spawn(move || answer_as_before_networks(&listener));
    host.switches.join(MachineId(Uuid::from_u128(4)), &[membership(FRONT, 4)]).await.expect("a network");
    within("its end", async || process::find(&dir).expect("a look").is_none()).await;
    let machine = host.run(4).await;
    host.switches.rejoin(machine);
    host.joins(FRONT, &[4]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_is_told_where_the_program_for_switches_is_none() {
    let mut host = Host::new();
    let found = host.switches.findings().await;
    assert!(found.len() == 1 && found[0].good, "{}", found[0].text);
    host.without_switches();
    let found = host.switches.findings().await;
    assert!(!found[0].good && found[0].text.contains("replace berth-egress beside berth"), "{}", found[0].text);
    let left = std::fs::read_dir(host.data.path().join("networks")).expect("a folder");
    assert_eq!(left.count(), 0, "nothing is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_was_told_an_address_of_before_takes_it_from_nobody() {
    let mut host = Host::new();
    for number in [4, 5] {
        host.run(number).await;
    }
    host.switches.set(&spec(FRONT, &[5])).await.expect("a network");
    host.joins(FRONT, &[5]).await;
    host.switches.join(MachineId(Uuid::from_u128(4)), &[membership(FRONT, 5)]).await.expect("a network");
    host.joins(FRONT, &[5]).await;
    let lost = in_network(FRONT, 5, false);
    assert_eq!(host.networks_of(4).await, [lost], "what it sends there is lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_waited_for_a_removal_does_not_bring_the_network_back() {
    let mut host = Host::new();
    let machine = host.run(4).await;
    host.switches.set(&spec(FRONT, &[4])).await.expect("a network");
    host.joins(FRONT, &[4]).await;
    // Whoever tells it waits for its answer, and the others for their turns.
    signal(&host.network(FRONT), Signal::STOP);
    let (next, networks) = (spec(FRONT, &[4]), [membership(FRONT, 4)]);
    let (_, removed, joined) =
        tokio::join!(host.switches.set(&next), host.switches.remove(FRONT), host.switches.join(machine, &networks));
    removed.expect("an end");
    joined.expect("its program knows");
    host.has_no_switch(FRONT).await;
    assert_eq!(host.switches.scan().await.expect("a look").networks, []);
}
