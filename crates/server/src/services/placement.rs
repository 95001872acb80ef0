//! Puts machines onto hosts, for all services that own some: reads hosts as they stand, in the transaction that acts on the
//! decision, which is the domain's (`domain::host::placement`).
//!
//! Of its own host a service knows what it has at this moment; of others, what their rows say.

use std::collections::BTreeSet;

use berth_domain::host::State;
use berth_domain::host::gpu::{Device, Gpu};
use berth_domain::host::overcommit::offered_mb;
use berth_domain::host::placement::{
    AtHand, Disk, Host, Kind, Overcommit, Placed, Policy, Promised, Refused, Wish, place as decide,
};
use berth_domain::ids::HostId;
use serde_json::json;
use uuid::Uuid;

use super::host::{self, HostRow};
use crate::db::{DbError, Tx, machine, machine_gpu};

/// What the service's own host has at this moment for machines of the kind that is wished.
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

/// Puts a machine onto one of the hosts, the service's `own` among them, or says why none takes it.
///
/// # Errors
/// As for a database that does not answer where the service's own host is lost: whoever has its machines now decides for
/// them, and nothing may fail by this one's word.
pub async fn place(
    tx: &mut Tx,
    own: HostId,
    wish: &Wish<'_>,
    now: &Now<'_>,
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
    let fleet: Vec<_> = standing.iter().map(|it| it.host(own, wish.kind, now, overcommit)).collect();
    Ok(decide(wish, &fleet, Policy::default(), Uuid::now_v7).map_err(Refusal::from))
}

impl Standing {
    /// A host by its row alone.
    fn by_row(&self, kind: Kind, now: &Now<'_>, overcommit: Overcommit) -> Host<'_> {
        let (word, factor) = match kind {
            Kind::Vm => ("vm", overcommit.vm),
            Kind::Sandbox => ("sandbox", overcommit.sandbox),
        };
        let row = &self.row;
        let factor = row.overcommit.get(word).copied().unwrap_or(factor);
        Host {
            id: row.id,
            name: row.name(),
            state: row.state(),
            regions: &row.regions,
            labels: &row.labels,
            vcpu: now.vcpu.map(|_| row.capacity.cpus),
            memory_mb: offered_mb(row.capacity.memory_mb, factor),
            most_sandboxes: now.most_sandboxes,
            overcommit,
            promised: self.promised,
            disk: Disk::default(),
            gpus: &row.gpus,
            held_gpus: &self.held_gpus,
            lacks_network: None,
            at_hand: AtHand::Nothing,
        }
    }

    /// A host as far as the service knows it: its `own` has every image and layer of the database.
    fn host<'a>(&'a self, own: HostId, kind: Kind, now: &Now<'a>, overcommit: Overcommit) -> Host<'a> {
        let by_row = self.by_row(kind, now, overcommit);
        if self.row.id != own {
            return by_row;
        }
        Host {
            vcpu: now.vcpu,
            memory_mb: now.memory_mb,
            disk: now.disk,
            gpus: now.gpus,
            lacks_network: now.lacks_network,
            at_hand: AtHand::Layers,
            ..by_row
        }
    }
}

/// What the event of a machine that was put somewhere says to administrators.
pub fn placed_event(host: HostId, reason: &str) -> serde_json::Value {
    json!({ "host_id": host, "reason": reason })
}
