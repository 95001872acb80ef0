//! What a host knows of a network, and how it notes that.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_domain::host::network::{Member, Membership, NetworkSpec};
use berth_domain::ids::{MachineId, NetworkId};
use berth_egress::network::{self, Roster};
use berth_process::folder;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::error::transient;
use crate::turns::Turns;

/// What a network was told, in its folder.
const NOTE: &str = "network.json";
/// Longest such note, in bytes: that of the largest question.
const LONGEST: u64 = 16 << 20;

/// A network that this host was told of.
pub(super) struct LocalNetwork {
    /// Held while the network is changed, and while its switch is spoken to of that; by nobody who waits for a machine.
    pub turn: tokio::sync::Mutex<()>,
    /// A small number that no other network of the host has: its switch's user there.
    pub slot: u32,
    spec: Mutex<NetworkSpec>,
    /// Held, for each machine, while that is linked or parted: both of its sides are of one pair.
    pub alone: Turns<MachineId>,
    /// What was said last of it in the log.
    said: Mutex<Option<String>>,
}

/// What is noted of a network.
#[derive(Serialize, Deserialize)]
struct Note {
    slot: u32,
    spec: NetworkSpec,
}

impl LocalNetwork {
    pub fn new(slot: u32, spec: NetworkSpec) -> Arc<Self> {
        let (alone, said) = (Turns::default(), Mutex::default());
        Arc::new(Self { turn: tokio::sync::Mutex::default(), slot, spec: Mutex::new(spec), alone, said })
    }

    /// A network as it is noted in its folder.
    pub fn read(dir: &Path) -> Option<(NetworkId, Arc<Self>)> {
        let Note { slot, spec } = serde_json::from_slice(&folder::read(&dir.join(NOTE), LONGEST).ok()?).ok()?;
        Some((spec.id, Self::new(slot, spec)))
    }

    pub fn id(&self) -> NetworkId {
        lock(&self.spec).id
    }

    pub fn spec(&self) -> NetworkSpec {
        lock(&self.spec).clone()
    }

    pub fn replace(&self, spec: NetworkSpec) -> NetworkSpec {
        std::mem::replace(&mut lock(&self.spec), spec)
    }

    /// The members that it has for a machine, or all.
    pub fn members(&self, only: Option<MachineId>) -> Vec<Member> {
        let spec = lock(&self.spec);
        spec.members.iter().filter(|member| only.is_none_or(|id| id == member.machine)).cloned().collect()
    }

    /// That a member belongs to it.
    pub fn membership(&self, member: &Member) -> Membership {
        let spec = lock(&self.spec);
        Membership { network: spec.id, cidr: spec.cidr, cidr6: spec.cidr6, address: member.address }
    }

    pub fn has(&self, machine: MachineId) -> bool {
        lock(&self.spec).members.iter().any(|member| member.machine == machine)
    }

    /// Notes what it is, in its folder.
    pub async fn write(&self, dir: &Path, spec: &NetworkSpec) -> Result<()> {
        let note = Note { slot: self.slot, spec: spec.clone() };
        tokio::fs::create_dir_all(dir).await.map_err(transient)?;
        folder::write(&dir.join(NOTE), &serde_json::to_vec(&note).map_err(transient)?).map_err(transient)
    }

    /// Whether this is news of it, after which it is known.
    pub fn is_news(&self, text: Option<String>) -> bool {
        let mut said = lock(&self.said);
        let is_news = *said != text;
        *said = text;
        is_news
    }
}

/// Adds a machine to a network that was not told of it, or not of it there; whether that changed anything.
pub(super) fn with_member(spec: &mut NetworkSpec, machine: MachineId, membership: &Membership) -> bool {
    let Membership { cidr, cidr6, address, .. } = *membership;
    if (spec.cidr, spec.cidr6) == (cidr, cidr6)
        && spec.members.iter().any(|m| (m.machine, m.address) == (machine, address))
    {
        return false;
    }
    (spec.cidr, spec.cidr6) = (cidr, cidr6);
    let before = spec.members.iter().find(|member| member.machine == machine);
    let names = before.map(|member| member.names.clone()).unwrap_or_default();
    spec.members.retain(|member| member.machine != machine && member.address != address);
    spec.members.push(Member { machine, address, names });
    true
}

/// A network as its switch is told of it.
pub(super) fn roster(spec: &NetworkSpec) -> Roster {
    let member = |member: &Member| network::Member {
        machine: member.machine.to_string(),
        address: member.address,
        names: member.names.clone(),
    };
    let members = spec.members.iter().map(member).collect();
    Roster { name: spec.name.clone(), cidr: spec.cidr, cidr6: spec.cidr6, members }
}

/// The networks that have a folder.
pub(super) fn names(folder: &Path) -> impl Iterator<Item = NetworkId> + use<> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

pub(super) fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
