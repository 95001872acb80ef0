//! Which stores of disks a host reaches.
//!
//! It is asked when it comes, and seldom from then on: each time it asks whoever keeps the store, too. What is known goes into its
//! row, by which machines are put. Who keeps a store may not answer for long, so whoever looks at the host goes on without.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use berth_domain::Timestamp;
use berth_domain::host::placement::Stores;
use berth_domain::host::shared_disk::Store;
use berth_host::vm::{Engine, Reached};
use futures::future::join_all;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::services::host::store::host::HostRow;

/// Seconds until a host is asked again that reaches all stores, and one that does not.
const SELDOM: i64 = 600;
const SOON: i64 = 60;
/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a look at the host waits for what it says.
const AT_ONCE: Duration = Duration::from_secs(1);
/// Most characters of a reason.
const REASON: usize = 300;

/// What is known of a host.
#[derive(Default)]
pub(super) struct Known {
    /// Which stores it reaches, and why not the others.
    pub(super) stores: Stores,
    /// From where it reaches those.
    pub(super) addresses: BTreeMap<String, IpAddr>,
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
    stores: Arc<[Store]>,
    asking: JoinSet<Known>,
    due: Timestamp,
    /// Whether the host was shut out of one.
    is_fenced: bool,
}

impl Reaching {
    /// Asks about these.
    pub(super) fn new(stores: Arc<[Store]>) -> Self {
        Self { stores, asking: JoinSet::new(), due: Timestamp(0), is_fenced: false }
    }

    /// What is known anew at this moment, if anything is. Where it is time the host is asked.
    pub(super) async fn look(&mut self, engine: impl FnOnce() -> Arc<dyn Engine>, now: Timestamp) -> Option<Known> {
        if self.stores.is_empty() {
            return Some(Known::default());
        }
        if self.asking.is_empty() && self.due <= now {
            self.asking.spawn(ask(engine(), self.stores.clone()));
        }
        let said = timeout(AT_ONCE, self.asking.join_next()).await.ok()??;
        let known = said.inspect_err(|error| tracing::warn!(%error, "a host could not be asked about its stores")).ok();
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

async fn ask(engine: Arc<dyn Engine>, stores: Arc<[Store]>) -> Known {
    let asked = stores.iter().map(async |store| {
        let reached = match timeout(PATIENCE, engine.reach_store(store)).await {
            Ok(Ok(Reached { address })) => Ok(address),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("it did not say so within {} seconds", PATIENCE.as_secs())),
        };
        (store.name.clone(), reached.map_err(bounded))
    });
    let mut known = Known::default();
    for (name, reached) in join_all(asked).await {
        if let Ok(address) = reached {
            known.addresses.insert(name.clone(), address);
        }
        known.stores.insert(name, reached.err());
    }
    known
}

/// A host may say anything.
fn bounded(why: String) -> String {
    why.chars().filter(|c| !c.is_control()).take(REASON).collect()
}
