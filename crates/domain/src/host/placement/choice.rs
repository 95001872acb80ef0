//! The decision.

use std::cmp::Reverse;

use uuid::Uuid;

use super::super::gpu::{Device, choose, shortage};
use super::super::model::State;
use super::super::overcommit::withheld_mb;
use super::why::{Amount, Why};
use super::wish::{AtHand, Host, Kind, Policy, Room, Stores, Wish};
use crate::ids::HostId;

/// How many hosts are told of at most where none takes a machine.
pub const MOST_TOLD: usize = 16;
/// A share is counted in so many parts.
const PARTS: i128 = 1_000_000;

/// Where machines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The host.
    pub host: HostId,
    /// How many there is room for, of those that were wished.
    pub count: i64,
    /// Whether warm machines have to give way.
    pub room: Room,
    /// GPUs that the machine gets.
    pub devices: Vec<Device>,
    /// Why there: a short sentence, which names the host.
    pub reason: String,
}

/// Why no host takes a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Hosts and what refused each, the nearest first; at most [`MOST_TOLD`].
    pub hosts: Vec<(String, Why)>,
    /// How many more refused.
    pub others: usize,
    /// Whether one of them may take it in a moment: it was not asked yet whether it reaches the store of the machine's disks.
    pub is_early: bool,
}

impl Refused {
    /// The sentence for who asked: what the host lacks that comes nearest. It names none.
    pub fn for_owner(&self) -> String {
        self.hosts.first().map_or_else(|| "there is no host; ask an operator".to_owned(), |(_, why)| why.for_owner())
    }

    /// A sentence for each host, for who runs the platform.
    pub fn for_operator(&self) -> Vec<String> {
        let mut told: Vec<_> =
            self.hosts.iter().map(|(name, why)| format!("host {name}: {}", why.for_operator(name))).collect();
        if self.others > 0 {
            told.push(format!("and {} others", self.others));
        }
        told
    }

    /// Whether it ends by an operator's word: the host that comes nearest takes no new machines for now, and lacks
    /// nothing else that was asked of it before. What can wait for that need not fail.
    pub fn passes(&self) -> bool {
        self.hosts.first().is_some_and(|(_, why)| matches!(why, Why::Cordoned | Why::Draining))
    }
}

/// A host that passes every filter.
struct Candidate<'a> {
    host: &'a Host<'a>,
    left: Left,
    count: i64,
    room: Room,
    devices: Vec<Device>,
    /// The share that is free afterwards, of what is scarcer.
    free: i128,
    /// What that is: processors or memory.
    scarcer: &'static str,
}

/// What is left of a host's memory for machines of a kind, in MiB.
#[derive(Clone, Copy)]
struct Left {
    offered: i64,
    held: i64,
    /// What warm machines have of what is left.
    warm: i64,
}

/// Puts a machine, or several alike, onto one of the hosts; each part of a GPU that is to have a UUID gets a `fresh` one.
///
/// # Errors
/// What refuses it, for each host.
pub fn place(
    wish: &Wish<'_>,
    fleet: &[Host<'_>],
    policy: Policy,
    mut fresh: impl FnMut() -> Uuid,
) -> Result<Placed, Refused> {
    let (mut able, mut refused) = (Vec::new(), Vec::new());
    for host in fleet {
        match candidate(wish, host, &mut fresh) {
            Ok(found) => able.push(found),
            Err(why) => refused.push((host, why)),
        }
    }
    let best = able.iter().enumerate().max_by_key(|(_, it)| weight(it, policy)).map(|(at, _)| at);
    if let Some(at) = best {
        let best = able.swap_remove(at);
        let reason = reason(wish, &best, &able, policy);
        return Ok(Placed { host: best.host.id, count: best.count, room: best.room, devices: best.devices, reason });
    }
    refused.sort_by_key(|(host, why)| (Reverse(why.passed()), host.id.0));
    let is_early = refused.iter().any(|(_, why)| matches!(why, Why::Store { why: None, .. }));
    let others = refused.len().saturating_sub(MOST_TOLD);
    let told = refused.into_iter().take(MOST_TOLD);
    Err(Refused { hosts: told.map(|(host, why)| (host.name.to_owned(), why)).collect(), others, is_early })
}

/// What a host has for a wish, or the first filter that refuses it.
fn candidate<'a>(wish: &Wish<'_>, host: &'a Host<'a>, fresh: impl FnMut() -> Uuid) -> Result<Candidate<'a>, Why> {
    suits(wish, host)?;
    admits(wish, host)?;
    let vcpu = host.vcpu.map(|offered| (offered, host.promised.vms.vcpu));
    if let Some(lacking) = vcpu.and_then(|(offered, held)| Amount::lacking(offered, held, wish.vcpu)) {
        return Err(Why::Vcpu(lacking));
    }
    let left = Left::of(wish.kind, host);
    if let Some(lacking) = Amount::lacking(left.offered, left.held, wish.memory_mb) {
        return Err(Why::Memory(wish.kind, lacking));
    }
    let fits = (left.offered - left.held) / wish.memory_mb.max(1);
    let count = fits.min(wish.most).max(1);
    let taken_mb = wish.memory_mb.saturating_mul(count);
    let room = if taken_mb > left.offered - left.held - left.warm { Room::Instead } else { Room::Beside };
    if let Some(most) = host.most_sandboxes.filter(|most| host.promised.sandboxes.machines >= *most) {
        return Err(Why::Sandboxes(most));
    }
    disk(wish, host)?;
    let devices = gpus(wish, host, fresh)?;
    let memory = share(left.offered, left.held.saturating_add(taken_mb));
    let processors = vcpu.map_or(PARTS, |(offered, held)| share(offered, held.saturating_add(wish.vcpu)));
    let (free, scarcer) = if memory <= processors { (memory, "memory") } else { (processors, "processors") };
    Ok(Candidate { host, left, count, room, devices, free, scarcer })
}

/// The largest is chosen; [`advantage`] says of the same, in the same order, what decided.
fn weight(it: &Candidate<'_>, policy: Policy) -> (AtHand, bool, i64, i128, Reverse<Uuid>) {
    let free = if policy == Policy::Spread { it.free } else { -it.free };
    (it.host.at_hand, it.room == Room::Beside, it.count, free, Reverse(it.host.id.0))
}

/// Whether a host is one of those that a machine may be on at all.
fn suits(wish: &Wish<'_>, host: &Host<'_>) -> Result<(), Why> {
    if wish.on.is_some_and(|on| on != host.id) {
        return Err(Why::Elsewhere);
    }
    // The disk of a VM is nowhere else, and its host, which says what it has, is back: its row says so in a moment. A sandbox that has
    // a second host goes over to that for as long as the row does not.
    let is_back = wish.on.is_some() && wish.kind == Kind::Vm && host.says;
    match host.state {
        State::Lost if !is_back => return Err(Why::Lost),
        State::Joining => return Err(Why::Joining),
        State::Ready | State::Cordoned | State::Draining | State::Lost => {}
    }
    if !host.says {
        return Err(Why::Silent);
    }
    if wish.on.is_some() {
        // Whatever was said of it since: the disk is there.
        return Ok(());
    }
    if let Some(region) = wish.region.filter(|region| !host.regions.iter().any(|own| own == region)) {
        return Err(Why::Region(region.to_owned()));
    }
    let lacks = |(key, value): &(&String, &String)| host.labels.get(*key) != Some(*value);
    if let Some((key, value)) = wish.labels.into_iter().flatten().find(lacks) {
        return Err(Why::Label(format!("{key}={value}")));
    }
    if let Some(store) = wish.store {
        reaches(store, host.stores)?;
    }
    if wish.tied.is_some_and(|tied| tied != host.id) {
        return Err(Why::Tied);
    }
    match wish.needs {
        needs if host.at_hand >= needs => Ok(()),
        AtHand::Nothing | AtHand::Image => Err(Why::Image(wish.kind)),
        AtHand::Layers | AtHand::Warm => Err(Why::Layers),
    }
}

/// Whether a host reaches a store of disks, as far as it was asked.
fn reaches(store: &str, known: &Stores) -> Result<(), Why> {
    match known.get(store) {
        Some(None) => Ok(()),
        why => Err(Why::Store { name: store.to_owned(), why: why.cloned().flatten() }),
    }
}

/// Whether a host takes a machine now, and has a place for it in its network.
fn admits(wish: &Wish<'_>, host: &Host<'_>) -> Result<(), Why> {
    match host.state {
        State::Cordoned if wish.on.is_none() => return Err(Why::Cordoned),
        State::Draining if wish.on.is_none() => return Err(Why::Draining),
        State::Ready | State::Cordoned | State::Draining | State::Lost | State::Joining => {}
    }
    host.lacks.map_or(Ok(()), |missing| Err(Why::Lacks(missing.to_owned())))
}

/// Whether a host has room for disks that are still to be made. Those that are there fit.
fn disk(wish: &Wish<'_>, host: &Host<'_>) -> Result<(), Why> {
    let Some(wanted) = wish.disk_gb else { return Ok(()) };
    host.disk.lacks(wish.kind, wanted).map_or(Ok(()), Err)
}

fn gpus(wish: &Wish<'_>, host: &Host<'_>, fresh: impl FnMut() -> Uuid) -> Result<Vec<Device>, Why> {
    let Some(wished) = wish.gpus else { return Ok(Vec::new()) };
    let found = choose(host.gpus, host.held_gpus, wished.model, wished.count, fresh);
    found.ok_or_else(|| Why::Gpus(shortage(host.gpus, host.held_gpus, wished.model, wished.count)))
}

impl Left {
    /// VMs and sandboxes have of the same memory, each counted in its own way.
    fn of(kind: Kind, host: &Host<'_>) -> Self {
        let (promised, factors) = (&host.promised, host.overcommit);
        let sandboxes = promised.sandboxes.memory_mb + promised.templates.memory_mb;
        match kind {
            Kind::Vm => {
                let without = |mb| withheld_mb(mb, factors.sandbox, factors.vm);
                let (others, held) = (without(sandboxes), promised.vms.memory_mb);
                let warm = without(sandboxes + promised.warm.memory_mb) - others;
                Self { offered: (host.memory_mb - others).max(0), held, warm }
            }
            Kind::Sandbox => {
                let others = withheld_mb(promised.vms.memory_mb, factors.vm, factors.sandbox);
                let offered = (host.memory_mb - others).max(0);
                Self { offered, held: sandboxes, warm: promised.warm.memory_mb }
            }
        }
    }
}

fn share(offered: i64, taken: i64) -> i128 {
    i128::from(offered.saturating_sub(taken).max(0)) * PARTS / i128::from(offered.max(1))
}

impl Candidate<'_> {
    /// The share that stays free, of what.
    fn stays_free(&self) -> String {
        format!("{}.{} % of its {}", self.free * 100 / PARTS, self.free * 1000 / PARTS % 10, self.scarcer)
    }
}

/// Why this one, and none of the others that could take it.
fn reason(wish: &Wish<'_>, best: &Candidate<'_>, others: &[Candidate<'_>], policy: Policy) -> String {
    let why = match others.iter().max_by_key(|other| weight(other, policy)) {
        _ if wish.on.is_some() => "its disk is there".to_owned(),
        _ if wish.tied.is_some() => "what it begins with is there".to_owned(),
        Some(next) => advantage(best, next, others.len() + 1, policy),
        None => {
            let left = (best.left.offered - best.left.held).max(0);
            format!("no other host that said what it has can take it; {left} of {} MiB left", best.left.offered)
        }
    };
    format!("host {}: {why}", best.host.name)
}

/// The first thing in which a host is before the next best one of so many.
fn advantage(best: &Candidate<'_>, next: &Candidate<'_>, of: usize, policy: Policy) -> String {
    let than = format!("host {}, the next best of {of}", next.host.name);
    if best.host.at_hand != next.host.at_hand {
        let what = match best.host.at_hand {
            AtHand::Warm => "a machine that waits for an owner",
            AtHand::Layers => "the layers that it begins with",
            AtHand::Image | AtHand::Nothing => "the image that it begins with",
        };
        format!("it has {what}, which {than}, has not")
    } else if best.room != next.room {
        format!("no warm machine has to give way there, as one would on {than}")
    } else if best.count != next.count {
        format!("there is room for {} there, and for {} on {than}", best.count, next.count)
    } else if best.free != next.free {
        let more = if policy == Policy::Spread { "more" } else { "less" };
        format!("{more} stays free there, {}, than on {than} ({})", best.stays_free(), next.stays_free())
    } else {
        format!("it is as good as {than}, and first by its id")
    }
}
