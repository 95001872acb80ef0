//! Puts machines onto hosts, for all services that own some: reads hosts as they stand, in the transaction that acts on the
//! decision, which is the domain's (`domain::host::placement`).
//!
//! What hosts have at this moment they were asked before; of a host that did not say it is known that it is there.

mod standings;
mod turns;

use berth_domain::host::{Drain, State};
use berth_domain::ids::HostId;
use serde_json::json;

use super::host;
use crate::db::{DbError, On};

pub use standings::{Now, Refusal, Standings};
pub use turns::{Estimates, Sought};

/// The hosts that are drained and can be asked, and which VMs leave them.
pub async fn drained(on: impl On) -> Result<Vec<(HostId, Drain)>, DbError> {
    let hosts = host::all(on).await?.into_iter().filter(|host| host.state() == State::Draining);
    Ok(hosts.filter_map(|host| Some((host.id, host.drain?))).collect())
}

/// How every host of the platform stands.
pub async fn states(on: impl On) -> Result<Vec<(HostId, State)>, DbError> {
    Ok(host::all(on).await?.into_iter().map(|host| (host.id, host.state())).collect())
}

/// How a host stands; none where it was removed.
pub async fn state_of(on: impl On, id: HostId) -> Result<Option<State>, DbError> {
    Ok(host::find(on, id).await?.map(|host| host.state()))
}

/// The hosts that take new machines.
pub async fn takers(on: impl On) -> Result<Vec<HostId>, DbError> {
    let hosts = host::all(on).await?.into_iter().filter(|host| host.state() == State::Ready);
    Ok(hosts.map(|host| host.id).collect())
}

/// The hosts that reach a store of disks, as far as was asked, and that are there.
pub async fn reaching(on: impl On, store: &str) -> Result<Vec<HostId>, DbError> {
    let is_there = |state| matches!(state, State::Ready | State::Cordoned | State::Draining);
    let hosts = host::all(on).await?.into_iter().filter(|host| is_there(host.state()));
    Ok(hosts.filter(|host| matches!(host.usable_stores().get(store), Some(None))).map(|host| host.id).collect())
}

/// Which VMs leave a host; none where it is not drained.
pub async fn drain_of(on: impl On, id: Option<HostId>) -> Result<Option<Drain>, DbError> {
    match id {
        Some(id) => Ok(host::find(on, id).await?.and_then(|host| host.drain)),
        None => Ok(None),
    }
}

/// What the event of a machine that was put somewhere says to administrators.
pub fn placed_event(host: HostId, reason: &str) -> serde_json::Value {
    json!({ "host_id": host, "reason": reason })
}
