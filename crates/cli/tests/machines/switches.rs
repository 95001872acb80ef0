//! Switches of networks on a host: found, linked and ended, whoever dies. The machines are programs of their networks
//! alone.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use berth_domain::host::network::{Member, Membership, NetworkSpec};
use berth_domain::ids::{MachineId, NetworkId};
use berth_domain::sandbox::network::Network;
use berth_egress::program::process::{self, Executable, Kind, Start};
use berth_egress::program::{InNetwork, switch};
use berth_host::EngineError;
use berth_host::network::{NetworkEngine, Switches};
use berth_server::config::Config;
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
        let switches = open(&data);
        Self { data, switches, guests: Vec::new() }
    }

    /// Another service in the place of the one that is there.
    fn restart(&mut self) {
        self.switches = open(&self.data);
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
        control.set_rules(&Network::default()).await.expect("rules");
        control.set_link(&OwnedFd::from(far)).await.expect("a link");
        self.guests.push(near);
        MachineId(Uuid::from_u128(number))
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
                let own = InNetwork { network: id, address: address(id, *number), is_linked: true };
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
            berth_testkit::eventually("the end of a program", 30, || {
                let name = std::fs::read(format!("/proc/{}/cmdline", pid?)).unwrap_or_default();
                (!name.starts_with(b"berth-egress\0")).then_some(())
            });
        }
    }
}

fn open(data: &TempDir) -> Arc<Switches> {
    let folder = |name: &str| (name == "BERTH_DATA_DIR").then(|| data.path().display().to_string());
    let config = Config::from_sources(None, folder).expect("a configuration");
    Switches::open_with(&config.network_engine(), executable())
}

fn executable() -> Executable {
    Executable::at(env!("CARGO_BIN_EXE_berth-egress"))
}

async fn within(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let waited = async {
        while !is_so().await {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_mins(1), waited).await.unwrap_or_else(|_| panic!("{what}"));
}

fn address(id: NetworkId, number: u128) -> std::net::Ipv4Addr {
    let [network, host] = [id.0.as_u128(), number].map(|number| u8::try_from(number).expect("a small number"));
    [10, 128, network, host].into()
}

fn membership(id: NetworkId, number: u128) -> Membership {
    let cidr = format!("10.128.{}.0/24", id.0.as_u128()).parse().expect("addresses");
    Membership { network: id, cidr, address: address(id, number) }
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
        members: numbers.iter().map(member).collect(),
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
        host.switches.join(machine, &[membership(FRONT, number)]).await.expect("links");
    }
    host.joins(FRONT, &[4, 5, 6]).await;
    // A start that is repeated, and a network that is told again, disturb nothing.
    let before = std::fs::read(host.network(FRONT).join("egress.json")).expect("a note");
    host.switches.join(MachineId(Uuid::from_u128(4)), &[membership(FRONT, 4)]).await.expect("links");
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
        host.switches.join(machine, &networks).await.expect("links");
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
    host.switches.rejoin(machine).await.expect("links");
    for id in [FRONT, BACK] {
        host.joins(id, &[4]).await;
    }
}
