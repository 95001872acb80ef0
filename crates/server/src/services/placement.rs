//! Puts machines onto hosts, for all services that own some: reads hosts as they stand, in the transaction that acts on the
//! decision, which is the domain's (`domain::host::placement`).
//!
//! What hosts have at this moment they were asked before; of a host that did not say it is known that it is there.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};

use berth_domain::host::gpu::{Device, Gpu};
use berth_domain::host::overcommit::{offered_mb, withheld_mb};
use berth_domain::host::placement::{
    AtHand, Disk, Host, Overcommit, Placed, Policy, Promised, Refused, Wish, place as decide,
};
use berth_domain::host::{Drain, State};
use berth_domain::ids::HostId;
use serde_json::json;
use uuid::Uuid;

use super::host::{self, HostRow};
use crate::db::{Db, DbError, On, Tx, machine, machine_gpu};

/// How many hosts are asked at once what they have, where there are more: first a few, then more, then all others.
const AT_ONCE: [usize; 2] = [8, 64];

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

/// All hosts as a transaction sees them.
pub struct Standings(Vec<Standing>);

impl Standings {
    /// Reads them; what machines have of their GPUs only where some are wished.
    ///
    /// # Errors
    /// As for a database that does not answer where the service's own host is lost: whoever has its machines now decides for
    /// them, and nothing may fail by this one's word.
    pub async fn read(tx: &mut Tx, own: HostId, with_gpus: bool) -> Result<Self, DbError> {
        let rows = host::all(&mut *tx).await?;
        if rows.iter().any(|row| row.state == State::Lost && row.id == own) {
            return Err(DbError::Unavailable("another service has the machines of this host by now".into()));
        }
        let mut promised = machine::promised(&mut *tx).await?;
        let mut held_gpus = HashMap::<_, BTreeSet<_>>::new();
        let held = if with_gpus { machine_gpu::all(&mut *tx).await? } else { Vec::new() };
        for held in held {
            held_gpus.entry(held.host).or_default().insert(held.device);
        }
        let standing = |row: HostRow| Standing {
            promised: promised.remove(&row.id).unwrap_or_default(),
            held_gpus: held_gpus.remove(&row.id).unwrap_or_default(),
            row,
        };
        Ok(Self(rows.into_iter().map(standing).collect()))
    }

    /// Puts a machine onto one of the hosts, of which these say what they have `now`, or says why none takes it.
    ///
    /// # Errors
    /// Why none takes it.
    pub fn place(
        &self,
        wish: &Wish<'_>,
        now: &HashMap<HostId, Now<'_>>,
        overcommit: Overcommit,
    ) -> Result<Placed, Refusal> {
        let fleet: Vec<_> = self.0.iter().map(|it| it.host(now.get(&it.row.id), overcommit)).collect();
        decide(wish, &fleet, Policy::default(), Uuid::now_v7).map_err(Refusal::from)
    }
}

/// What is asked of hosts, as far as rows tell whether they have it.
#[derive(Clone, Copy, Debug)]
pub struct Sought<'a> {
    /// The region.
    pub region: &'a str,
    /// MiB.
    pub memory_mb: i64,
    /// The model of GPUs, if some are wished.
    pub gpu_model: Option<&'a str>,
}

/// These hosts in the turns in which they are asked what they have for a VM: where there are many, first a few of which, by
/// what is written of them, the largest share is left. Who asks them goes on to the next turn only if none of those takes it.
pub async fn turns(
    on: &Db,
    hosts: Vec<HostId>,
    sought: Sought<'_>,
    here: Overcommit,
) -> Result<Vec<Vec<HostId>>, DbError> {
    if hosts.len() <= AT_ONCE[0] {
        return Ok(vec![hosts]);
    }
    let (rows, promised) = (host::all(on).await?, machine::promised(on).await?);
    let asked: HashSet<_> = hosts.iter().collect();
    let mut able: Vec<_> = rows
        .iter()
        .filter(|row| asked.contains(&row.id))
        .filter_map(|row| Some((share(row, promised.get(&row.id).copied().unwrap_or_default(), sought, here)?, row.id)))
        .collect();
    able.sort_by_key(|(share, id)| (Reverse(*share), *id));
    let able: Vec<_> = able.into_iter().map(|(_, id)| id).collect();
    Ok(in_turns(hosts, &able))
}

/// All hosts in turns, the able ones first.
fn in_turns(hosts: Vec<HostId>, able: &[HostId]) -> Vec<Vec<HostId>> {
    let mut turns = Vec::new();
    let mut able = able;
    for many in AT_ONCE {
        let (turn, others) = able.split_at(many.min(able.len()));
        turns.push(turn.to_vec());
        able = others;
    }
    let asked: HashSet<_> = turns.iter().flatten().copied().collect();
    turns.push(hosts.into_iter().filter(|host| !asked.contains(host)).collect());
    turns.retain(|turn| !turn.is_empty());
    turns
}

/// About which share of a host's memory is left for VMs, in millionths; none where its row says that it does not take one.
fn share(row: &HostRow, promised: Promised, sought: Sought<'_>, here: Overcommit) -> Option<i64> {
    let is_able = row.state() == State::Ready && row.trouble.is_none();
    let has_gpus = sought.gpu_model.is_none_or(|model| row.gpus.iter().any(|gpu| gpu.is_of(model)));
    if !is_able || !has_gpus || !row.regions.iter().any(|id| id == sought.region) {
        return None;
    }
    let overcommit = row.overcommit(here);
    let offered = offered_mb(row.capacity.memory_mb, overcommit.vm);
    let others = promised.sandboxes.memory_mb + promised.templates.memory_mb;
    let left = offered - promised.vms.memory_mb - withheld_mb(others, overcommit.sandbox, overcommit.vm);
    (left >= sought.memory_mb).then(|| left.saturating_mul(1_000_000) / offered.max(1))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_seem_able_are_asked_first_and_everybody_in_the_end() {
        let hosts: Vec<_> = (1..=100).map(|number| HostId(Uuid::from_u128(number))).collect();
        let able: Vec<_> = hosts.iter().rev().take(80).copied().collect();
        let turns = in_turns(hosts.clone(), &able);
        assert_eq!(turns.iter().map(Vec::len).collect::<Vec<_>>(), [8, 64, 28]);
        assert_eq!(turns[0], able[..8]);
        let asked: HashSet<_> = turns.into_iter().flatten().collect();
        assert_eq!(asked, hosts.iter().copied().collect());
        assert_eq!(in_turns(hosts.clone(), &[]), [hosts]);
    }
}
