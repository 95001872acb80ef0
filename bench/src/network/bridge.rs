//! The bridge beside a tap made by hand, and what a change of its rules takes when it has many machines.
//!
//! Two emulated guests, equal in everything but their taps: one is the bridge's, judged and masqueraded by its rules, the other has
//! an address of the host on it, and one rule that masquerades. Both reach the same outside, which is a namespace behind a pair
//! of cards.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use berth_bridge::{Bridge, Mac, Machine, Settings};
use berth_domain::firewall::Rules;
use berth_domain::ids::MachineId;
use nix::sched::{CloneFlags, unshare};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::runtime::Runtime;
use uuid::Uuid;

use super::guest::{Card, Guest, OUTSIDE, Outside, Own};
use super::inside::{TURNS, in_turns};
use super::{PATIENCE_WITH_MANY, Pair, Window, apart, typical};
use crate::process::median;
use crate::report::{Bound, Report};

/// The word by which the benchmark becomes this.
pub const ARGUMENT: &str = "bridge-inside";
/// The host's address towards the outside.
const HOST: Ipv4Addr = Ipv4Addr::new(9, 9, 9, 2);
/// The tap that is made by hand, and the host's address on it.
const BY_HAND: &str = "hand0";
/// Machines of a bridge that has many, and of one that has few.
const MANY: u16 = 1000;
const FEW: u16 = 10;
/// Changes of one machine's rules.
const CHANGES: u16 = 40;

/// What was measured in the namespace.
#[derive(Debug, Serialize, Deserialize)]
struct Figures {
    out: Vec<Pair>,
    into: Vec<Pair>,
    /// Milliseconds of each change with few machines, and with many.
    few: Vec<f64>,
    many: Vec<f64>,
    /// Milliseconds until a bridge with many machines stands as it is to be, once a service starts.
    opened: f64,
}

pub async fn run(report: &mut Report) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        println!("bridge: only root may make one; nothing was measured");
        return Ok(());
    }
    let figures: Figures = apart(ARGUMENT, "", PATIENCE_WITH_MANY).await?;
    for (direction, turns) in [("out of a machine", &figures.out), ("into a machine", &figures.into)] {
        let rate = |of: fn(&Pair) -> &Window| typical(turns.iter().map(of), Window::rate);
        let ratio = median(turns.iter().map(|turn| turn.ours.rate() / turn.theirs.rate()).collect());
        let detail =
            format!("{:.0} MB/s beside {:.0}; guests emulated", rate(|turn| &turn.ours), rate(|turn| &turn.theirs));
        let what = format!("bridge: bytes a second {direction} beside a tap made by hand");
        report.add(&what, ratio, "times", Some(Bound::Least(0.9)), detail);
    }
    let (few, many) = (median(figures.few), median(figures.many));
    let detail = format!("{few:.1} ms among {FEW}; the median of {CHANGES}");
    let what = format!("bridge: a change of one machine's rules among {MANY}");
    report.add(&what, many, "ms", Some(Bound::Most(40.0)), detail);
    let what = format!("bridge: made so by a service that starts, {MANY} machines");
    report.add(&what, figures.opened, "ms", None, "all rules in one transaction; the taps are there".into());
    Ok(())
}

/// Measures, and prints what was measured.
pub fn measure(folder: &str) -> Result<()> {
    let folder = Path::new(folder);
    let outside = outside()?;
    let outside = Outside(Some(&outside));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let bridge = runtime.block_on(open(folder))?;
    runtime.block_on(machines(&bridge, 1..=FEW))?;
    let mut ours = Guest::start(folder, &ours(&bridge)?, outside)?;
    let mut theirs = Guest::start(folder, &by_hand()?, outside)?;
    ours.comes().context("the bridge")?;
    theirs.comes().context("the tap made by hand")?;
    let [out, into] = in_turns(TURNS, (&mut ours, &mut theirs), outside)?;
    drop((ours, theirs));
    let few = changes(&runtime, &bridge)?;
    eprintln!("bridge: bytes were carried; now it gets {MANY} machines");
    runtime.block_on(machines(&bridge, FEW + 1..=MANY))?;
    let many = changes(&runtime, &bridge)?;
    drop(bridge);
    let began = Instant::now();
    drop(runtime.block_on(open(folder))?);
    let opened = milliseconds(began);
    println!("{}", serde_json::to_string(&Figures { out, into, few, many, opened })?);
    Ok(())
}

fn milliseconds(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}

fn run_all(program: &str, lines: &[&str]) -> Result<()> {
    for line in lines {
        let done = Command::new(program).args(line.split(' ')).status().with_context(|| program.to_owned())?;
        ensure!(done.success(), "{program} {line}");
    }
    Ok(())
}

/// A namespace behind a pair of cards, where the outside is.
fn outside() -> Result<File> {
    let made = || {
        unshare(CloneFlags::CLONE_NEWNET)?;
        run_all("ip", &["link set lo up"])?;
        Ok(File::open("/proc/thread-self/ns/net")?)
    };
    let namespace: Result<File> = std::thread::spawn(made).join().map_err(|_| anyhow::anyhow!("no namespace"))?;
    let namespace = namespace?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&namespace));
    run_all(
        "ip",
        &[
            "link set lo up",
            "link add up0 type veth peer name up1",
            &format!("link set up1 netns {path}"),
            &format!("address add {HOST}/24 dev up0"),
            "link set up0 up",
            &format!("route add default via {OUTSIDE}"),
        ],
    )?;
    Outside(Some(&namespace))
        .within(|| run_all("ip", &[&format!("address add {OUTSIDE}/24 dev up1"), "link set up1 up"]))?;
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
    Ok(namespace)
}

async fn open(folder: &Path) -> Result<Bridge> {
    Ok(Bridge::open(Settings { subnet6: None, ..Settings::default() }, &folder.join("bridge")).await?)
}

fn machine(bridge: &Bridge, slot: u16) -> Result<Machine> {
    let [high, low] = slot.to_be_bytes();
    Machine::of_slot(bridge.settings(), slot, Mac([0x52, 0x54, 0, 0xbe, high, low])).context("a slot")
}

fn id(slot: u16) -> MachineId {
    MachineId(Uuid::from_u128(slot.into()))
}

async fn machines(bridge: &Bridge, slots: impl IntoIterator<Item = u16>) -> Result<()> {
    for slot in slots {
        bridge.set(id(slot), &machine(bridge, slot)?).await?;
    }
    Ok(())
}

/// The guest on the bridge.
fn ours(bridge: &Bridge) -> Result<Card> {
    let (machine, gateway) = (machine(bridge, 1)?, bridge.settings().gateway());
    let own = Own { mac: machine.mac.to_string(), address: machine.address, gateway };
    Ok(Card::Tap(bridge.settings().tap(machine.slot), own))
}

/// The guest on a tap that an operator makes.
fn by_hand() -> Result<Card> {
    let own = Own::default();
    run_all(
        "ip",
        &[
            &format!("tuntap add dev {BY_HAND} mode tap vnet_hdr"),
            &format!("address add {}/24 dev {BY_HAND}", own.gateway),
            &format!("link set {BY_HAND} up"),
        ],
    )?;
    let masquerade = format!(
        "table ip hand {{ chain out {{ type nat hook postrouting priority srcnat; ip saddr {} masquerade; }}; }}",
        own.address
    );
    let done = Command::new("nft").arg(masquerade).status().context("nft")?;
    ensure!(done.success(), "nft");
    Ok(Card::Tap(BY_HAND.into(), own))
}

/// Milliseconds of each change of one machine's rules.
fn changes(runtime: &Runtime, bridge: &Bridge) -> Result<Vec<f64>> {
    let mut changed = machine(bridge, FEW / 2)?;
    let mut times = Vec::new();
    for port in 1..=CHANGES {
        let rules = json!([{"direction": "out", "protocol": "tcp", "ports": [port], "action": "deny"}]);
        changed.rules = serde_json::from_value::<Rules>(rules)?;
        let began = Instant::now();
        runtime.block_on(bridge.set(id(changed.slot), &changed))?;
        times.push(milliseconds(began));
    }
    Ok(times)
}
