//! Which stores of disks a host reaches.
//!
//! It is asked when it comes, and seldom from then on: each time it asks whoever keeps the store, too. What is known goes into its
//! row, by which machines are put. Who keeps a store may not answer for long, so whoever looks at the host goes on without.
//!
//! With the question a host learns the key of a store, so it is asked of those alone that it has to know.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use berth_domain::Timestamp;
use berth_domain::host::placement::Stores;
use berth_domain::host::shared_disk::Store;
use berth_domain::ids::HostId;
use berth_host::vm::{Engine, Reached};
use futures::future::join_all;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::db::DbError;
use crate::services::host::store::host::HostRow;
use crate::services::host::{Hosts, store};

/// Seconds until a host is asked again that reaches all stores, and one that does not.
const SELDOM: i64 = 600;
const SOON: i64 = 60;
/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a look at the host waits for what it says.
const AT_ONCE: Duration = Duration::from_secs(1);
/// Most addresses of a host.
const ADDRESSES: usize = 8;
/// Most characters of a reason.
const REASON: usize = 300;

/// What is known of a host.
#[derive(Default)]
pub(super) struct Known {
    /// Which stores it reaches, and why not the others.
    pub(super) stores: Stores,
    /// From where it reaches those.
    pub(super) addresses: BTreeMap<String, Vec<IpAddr>>,
}

impl Known {
    /// Writes onto a host's row what became known anew. From where it reached a store last is remembered.
    pub(super) fn note(self, row: &mut HostRow) {
        row.stores = self.stores;
        row.store_addresses.retain(|name, _| row.stores.contains_key(name));
        row.store_addresses.extend(self.addresses);
    }
}

/// Asks one host.
pub(super) struct Reaching {
    hosts: Hosts,
    host: HostId,
    asking: JoinSet<Result<Known, DbError>>,
    due: Timestamp,
    /// Whether the host was shut out of one.
    is_fenced: bool,
}

impl Reaching {
    /// Asks this one.
    pub(super) fn new(hosts: Hosts, host: HostId) -> Self {
        Self { hosts, host, asking: JoinSet::new(), due: Timestamp(0), is_fenced: false }
    }

    /// What is known anew at this moment, if anything is. Where it is time the host is asked.
    pub(super) async fn look(&mut self, engine: impl FnOnce() -> Arc<dyn Engine>, now: Timestamp) -> Option<Known> {
        if self.hosts.own.stores.is_empty() {
            return Some(Known::default());
        }
        if self.asking.is_empty() && self.due <= now {
            let (engine, hosts, host) = (engine(), self.hosts.clone(), self.host);
            self.asking.spawn(async move { Ok(ask(engine, &of_host(&hosts, host).await?).await) });
        }
        let said = timeout(AT_ONCE, self.asking.join_next()).await.ok()??;
        let known = said.map_err(|error| error.to_string()).and_then(|known| known.map_err(|error| error.to_string()));
        let known = known.inspect_err(|error| tracing::warn!(error, "a host could not be asked about its stores")).ok();
        let has_all = known.as_ref().is_some_and(|known| known.stores.values().all(Option::is_none));
        self.due = now.plus_seconds(if has_all { SELDOM } else { SOON });
        known
    }

    /// Whether the host is shut out of one: it is asked with the next look once it is no more.
    pub(super) fn fenced(&mut self, is_fenced: bool) {
        if std::mem::replace(&mut self.is_fenced, is_fenced) && !is_fenced {
            self.again();
        }
    }

    /// The host is asked with the next look, since it was away.
    pub(super) fn again(&mut self) {
        self.due = Timestamp(0);
    }
}

/// The stores that a host has to know: those of its regions, and those of disks of its regions or of its machines.
async fn of_host(hosts: &Hosts, host: HostId) -> Result<Vec<Store>, DbError> {
    let Some(row) = store::host::find(&hosts.db, host).await? else { return Ok(Vec::new()) };
    let used = store::host::stores_used(&hosts.db, &row).await?;
    Ok(hosts.own.stores.of_host(&row.regions, &used).cloned().collect())
}

async fn ask(engine: Arc<dyn Engine>, stores: &[Store]) -> Known {
    let asked = stores.iter().map(async |store| {
        let reached = match timeout(PATIENCE, engine.reach_store(store)).await {
            Ok(Ok(Reached { addresses })) => Ok(bounded_addresses(addresses)),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("it did not say so within {} seconds", PATIENCE.as_secs())),
        };
        (store.name.clone(), reached.map_err(bounded))
    });
    let mut known = Known::default();
    for (name, reached) in join_all(asked).await {
        match reached {
            Ok(addresses) => {
                known.addresses.insert(name.clone(), addresses);
                known.stores.insert(name, None);
            }
            Err(why) => drop(known.stores.insert(name, Some(why))),
        }
    }
    known
}

/// A host may say anything: neither that it is everybody, nor more addresses than one has.
fn bounded_addresses(mut addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    addresses.retain(|address| !address.is_unspecified() && !address.is_multicast());
    addresses.truncate(ADDRESSES);
    addresses
}

/// A host may say anything.
fn bounded(why: String) -> String {
    why.chars().filter(|c| !c.is_control()).take(REASON).collect()
}
