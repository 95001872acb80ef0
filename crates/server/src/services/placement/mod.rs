//! Puts machines onto hosts, for all services that own some: reads hosts as they stand, in the transaction that acts on the
//! decision, which is the domain's (`domain::host::placement`).
//!
//! What hosts have at this moment they were asked before; of a host that did not say it is known that it is there.

pub mod fences;
mod standings;
mod turns;

use berth_domain::host::{Drain, State};
use berth_domain::ids::HostId;
use serde_json::json;

use super::host::{self, HostRow};
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

/// The hosts that reach a store of disks, as far as was asked, and that are there: those of a region, and this one.
pub async fn reaching(
    on: impl On,
    store: &str,
    (region, this): (&str, Option<HostId>),
) -> Result<Vec<HostId>, DbError> {
    let is_there = |state| matches!(state, State::Ready | State::Cordoned | State::Draining);
    let is_its = |host: &HostRow| this == Some(host.id) || host.regions.iter().any(|own| own == region);
    let hosts = host::all(on).await?.into_iter().filter(|host| is_there(host.state()) && is_its(host));
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

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::columns;
    use crate::db::{Db, Tx, record};

    #[tokio::test]
    async fn disks_of_a_region_are_acted_on_by_its_hosts() {
        let dir = tempfile::tempdir().expect("a folder");
        let db = Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.expect("a database");
        let mut tx = db.begin().await.expect("a transaction");
        let mut ids = Vec::new();
        for (region, state, stores) in [
            ("local", "ready", "{\"pool\": null}"),
            ("moon", "ready", "{\"pool\": null}"),
            ("local", "lost", "{\"pool\": null}"),
            ("local", "ready", "{\"pool\": \"away\"}"),
            ("local", "ready", "{}"),
        ] {
            let id = HostId(Uuid::now_v7());
            let row = columns! {
                "id": id, "name": region, "addresses": "[]", "regions": format!("[\"{region}\"]"), "cpus": 1_i64,
                "memory_mb": 1024_i64, "overcommit": "{}", "labels": "{}", "state": state, "stores": stores,
                "last_seen": 0_i64, "created_at": 0_i64,
            };
            record::insert("hosts", row).execute(&mut tx).await.expect("a row");
            ids.push(id);
        }
        let [local, moon] = [ids[0], ids[1]];
        let found = async |tx: &mut Tx, this| reaching(tx, "pool", ("local", this)).await.expect("hosts");
        assert_eq!(found(&mut tx, None).await, [local]);
        assert_eq!(found(&mut tx, Some(moon)).await, [local, moon], "one that acted on it goes on");
        assert_eq!(found(&mut tx, Some(ids[2])).await, [local]);
    }
}
