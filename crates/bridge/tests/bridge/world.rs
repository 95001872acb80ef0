//! A host with a bridge, and an outside.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use berth_bridge::{Bridge, Mac, Machine, Settings};
use berth_domain::firewall::Rules;
use berth_domain::ids::MachineId;
use berth_domain::vm::inbound::InboundPort;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::guest::Guest;
use crate::place::{Place, ip, leave, set};

/// The host's address towards the outside, and the outside's there; who is behind it, and a neighbour of the host's.
pub const HOST: &str = "9.9.9.1";
pub const OUTSIDE: &str = "8.8.8.8";
pub const OUTSIDE6: &str = "2a00:1::8";
pub const LAN: &str = "192.168.7.9";
pub const HOST6: &str = "2600:1:2:3::1";
pub const NEAR6: &str = "2600:1:2:3::9";

pub struct World {
    pub runtime: Runtime,
    pub bridge: Option<Bridge>,
    pub internet: Place,
    pub dir: TempDir,
    pub settings: Settings,
}

impl World {
    /// A world around this thread; none where nobody may make one.
    pub fn new() -> Option<Self> {
        Self::with(Settings::default())
    }

    pub fn with(settings: Settings) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            // Past what captures the output of a test that passes.
            let test = std::thread::current().name().unwrap_or_default().to_owned();
            let _ = writeln!(std::io::stderr(), "test {test} was skipped: only root may make a bridge");
            return None;
        }
        leave();
        let internet = Place::new();
        ip("link add up0 type veth peer name up1");
        ip(&format!("link set up1 netns {}", internet.tid));
        for (place, address) in
            [(None, "9.9.9.1/24"), (None, "192.168.7.1/24"), (Some(()), "9.9.9.9/24"), (Some(()), "192.168.7.9/24")]
        {
            match place {
                None => ip(&format!("address add {address} dev up0")),
                Some(()) => internet.ip(&format!("address add {address} dev up1")),
            }
        }
        set("ipv6/conf/up0/accept_dad", "0");
        internet.set("ipv6/conf/up1/accept_dad", "0");
        ip("link set up0 up");
        internet.ip("link set up1 up");
        ip("-6 address add 2600:1:2:3::1/64 dev up0 nodad");
        internet.ip("-6 address add 2600:1:2:3::9/64 dev up1 nodad");
        internet.ip("address add 8.8.8.8/32 dev lo");
        internet.ip("address add 169.254.169.254/32 dev lo");
        internet.ip("address add 172.16.5.5/32 dev lo");
        internet.ip("-6 address add 2a00:1::8/128 dev lo nodad");
        internet.ip("-6 address add fd99::8/128 dev lo nodad");
        ip("route add default via 9.9.9.9");
        ip("-6 route add default via 2600:1:2:3::9");
        // A stranger knows the way.
        internet.ip("route add 10.127.0.0/16 via 9.9.9.1");
        internet.ip("-6 route add fd62:6572:7469::/64 via 2600:1:2:3::1");
        // What `lacks` has the operator type.
        set("ipv4/conf/up0/forwarding", "1");
        set("ipv6/conf/all/forwarding", "1");
        // What is refused is told each time.
        set("ipv4/icmp_ratelimit", "0");
        set("ipv6/icmp/ratelimit", "0");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut world = Self { runtime, bridge: None, internet, dir: tempfile::tempdir().unwrap(), settings };
        world.open();
        Some(world)
    }

    pub fn folder(&self) -> PathBuf {
        self.dir.path().join("bridge")
    }

    /// A service comes, after another one ended.
    pub fn open(&mut self) {
        self.bridge = None;
        let (settings, folder) = (self.settings.clone(), self.folder());
        self.bridge = Some(self.runtime.block_on(Bridge::open(settings, &folder)).unwrap());
    }

    pub fn bridge(&self) -> &Bridge {
        self.bridge.as_ref().unwrap()
    }

    pub fn block<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// A machine of a slot with rules and ports.
    pub fn machine(&self, slot: u16, rules: Value, ports: &[(&str, u16)]) -> Machine {
        machine(&self.settings, slot, rules, ports)
    }

    pub fn set(&self, machine: &Machine) {
        self.block(self.bridge().set(id(machine.slot), machine)).unwrap();
    }

    /// A machine with its guest.
    pub fn guest(&self, slot: u16, rules: Value, ports: &[(&str, u16)]) -> Guest {
        let machine = self.machine(slot, rules, ports);
        self.set(&machine);
        Guest::new(self.settings.tap(slot), machine)
    }
}

pub fn machine(settings: &Settings, slot: u16, rules: Value, ports: &[(&str, u16)]) -> Machine {
    let [high, low] = slot.to_be_bytes();
    let mut machine = Machine::of_slot(settings, slot, Mac([0x52, 0x54, 0x00, 0x62, high, low])).unwrap();
    machine.rules = serde_json::from_value::<Rules>(rules).unwrap();
    machine.ports = ports.iter().map(|(at, port)| inbound(at, *port)).collect();
    machine
}

pub fn id(slot: u16) -> MachineId {
    MachineId(Uuid::from_u128(u128::from(slot)))
}

pub fn all(machines: impl IntoIterator<Item = Machine>) -> BTreeMap<MachineId, Machine> {
    machines.into_iter().map(|machine| (id(machine.slot), machine)).collect()
}

/// `tcp/9.9.9.1:2222`
fn inbound(at: &str, port: u16) -> InboundPort {
    let (protocol, at) = at.split_once('/').unwrap();
    let at: SocketAddr = at.parse().unwrap();
    serde_json::from_value(json!({"port": port, "protocol": protocol, "at": at})).unwrap()
}
