//! Puts machines onto hosts, for all services that own some: reads hosts as they stand, in the transaction that acts on the
//! decision, which is the domain's (`domain::host::placement`).
//!
//! What hosts have at this moment they were asked before; of a host that did not say it is known that it is there.

use std::collections::{BTreeSet, HashMap};

use berth_domain::host::gpu::{Device, Gpu};
use berth_domain::host::placement::{
    AtHand, Disk, Host, Overcommit, Placed, Policy, Promised, Refused, Wish, place as decide,
};
use berth_domain::host::{Drain, State};
use berth_domain::ids::HostId;
use serde_json::json;
use uuid::Uuid;

use super::host::{self, HostRow};
use crate::db::{DbError, On, Tx, machine, machine_gpu};

/// What a host has at this moment for machines of the kind that is wished.
#[derive(Clone, Copy, Debug)]
pub struct Now<'a> {
    /// Virtual CPUs that it offers; none where they are not counted.
    pub vcpu: Option<i64>,
    /// MiB that it offers, as often as each is promised.
    pub memory_mb: i64,
    /// How many sandboxes it takes at most; none where they are not counted.
    pub most_sandboxes: Option<i64>,
    /// Its disk.
    pub disk: Disk,
    /// Its GPUs, where some are wished.
    pub gpus: &'a [Gpu],
    /// What it lacks of addresses and ports for the machine, as a sentence.
    pub lacks_network: Option<&'a str>,
    /// What it has of what the machine begins with.
    pub at_hand: AtHand,
}

/// Why a machine is put nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The sentence for who asked for it, which names no host.
    pub owner: String,
    /// A sentence for each host, for administrators of the platform.
    pub hosts: Vec<String>,
    /// Whether it ends by an operator's word, so that what can wait waits.
    pub passes: bool,
}

impl Refusal {
    /// A refusal that is the same on every host.
    pub const fn everywhere(missing: String) -> Self {
        Self { owner: missing, hosts: Vec::new(), passes: false }
    }

    /// What its event says to administrators.
    pub fn event(&self) -> serde_json::Value {
        json!({ "reason": self.owner, "hosts": self.hosts })
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        Self { owner: refused.for_owner(), hosts: refused.for_operator(), passes: refused.passes() }
    }
}

/// A host's row, and what machines hold of it.
struct Standing {
    row: HostRow,
    promised: Promised,
    held_gpus: BTreeSet<Device>,
}

/// Puts a machine onto one of the hosts, of which these say what they have `now`, or says why none takes it.
///
/// # Errors
/// As for a database that does not answer where the service's own host is lost: whoever has its machines now decides for
/// them, and nothing may fail by this one's word.
pub async fn place(
    tx: &mut Tx,
    own: HostId,
    wish: &Wish<'_>,
    now: &HashMap<HostId, Now<'_>>,
    overcommit: Overcommit,
) -> Result<Result<Placed, Refusal>, DbError> {
    let mut standing = Vec::new();
    for row in host::all(&mut *tx).await? {
        // Nothing is put onto a host that is lost, whatever it has.
        let is_lost = row.state == State::Lost;
        if is_lost && row.id == own {
            return Err(DbError::Unavailable("another service has the machines of this host by now".into()));
        }
        let promised = if is_lost { Promised::default() } else { machine::held(&mut *tx, row.id).await? };
        let has_gpus = !is_lost && wish.gpus.is_some();
        let held_gpus = if has_gpus { machine_gpu::held(&mut *tx, row.id).await? } else { BTreeSet::new() };
        standing.push(Standing { row, promised, held_gpus });
    }
    let fleet: Vec<_> = standing.iter().map(|it| it.host(now.get(&it.row.id), overcommit)).collect();
    Ok(decide(wish, &fleet, Policy::default(), Uuid::now_v7).map_err(Refusal::from))
}

/// How often each host promises a MiB, where it says so; else as here.
pub async fn overcommits(on: impl On, here: Overcommit) -> Result<HashMap<HostId, Overcommit>, DbError> {
    Ok(host::all(on).await?.into_iter().map(|row| (row.id, row.overcommit(here))).collect())
}

/// The hosts that are drained and can be asked, and which VMs leave them.
pub async fn drained(on: impl On) -> Result<Vec<(HostId, Drain)>, DbError> {
    let hosts = host::all(on).await?.into_iter().filter(|host| host.state() == State::Draining);
    Ok(hosts.filter_map(|host| Some((host.id, host.drain?))).collect())
}

/// The hosts that take new machines.
pub async fn takers(on: impl On) -> Result<Vec<HostId>, DbError> {
    let hosts = host::all(on).await?.into_iter().filter(|host| host.state() == State::Ready);
    Ok(hosts.map(|host| host.id).collect())
}

/// Which VMs leave a host; none where it is not drained.
pub async fn drain_of(on: impl On, id: Option<HostId>) -> Result<Option<Drain>, DbError> {
    match id {
        Some(id) => Ok(host::find(on, id).await?.and_then(|host| host.drain)),
        None => Ok(None),
    }
}

impl Standing {
    /// A host as it stands, with what it says that it has.
    fn host<'a>(&'a self, now: Option<&Now<'a>>, overcommit: Overcommit) -> Host<'a> {
        let row = &self.row;
        Host {
            id: row.id,
            name: row.name(),
            state: row.state(),
            says: now.is_some(),
            regions: &row.regions,
            labels: &row.labels,
            vcpu: now.and_then(|now| now.vcpu),
            memory_mb: now.map_or(0, |now| now.memory_mb),
            most_sandboxes: now.and_then(|now| now.most_sandboxes),
            overcommit: row.overcommit(overcommit),
            promised: self.promised,
            disk: now.map_or_else(Disk::default, |now| now.disk),
            gpus: now.map_or(&[], |now| now.gpus),
            held_gpus: &self.held_gpus,
            lacks_network: now.and_then(|now| now.lacks_network),
            at_hand: now.map_or(AtHand::Nothing, |now| now.at_hand),
        }
    }
}

/// What the event of a machine that was put somewhere says to administrators.
pub fn placed_event(host: HostId, reason: &str) -> serde_json::Value {
    json!({ "host_id": host, "reason": reason })
}
