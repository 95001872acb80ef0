//! The VM service as its routes and workers see it: the rows, the engine, and what it was told at its start.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use berth_domain::Timestamp;
use berth_domain::host::placement::Overcommit;
use berth_domain::ids::{BackupId, HostId};
use berth_host::EngineError;
use berth_host::clock::Clock;
use berth_host::lost::Lost;
use berth_host::vm::{Engine, Store};

use tokio::sync::Semaphore;

use super::carrying::Carrying;
use super::copies::Copies;
use super::slots::Slots;
use super::travels::Travels;
use super::ways::Ways;
use super::{metrics, views};
use crate::config::{Amount, Answered, Catalog, DiskStores, Fencing};
use crate::db::Db;
use crate::services::depot::Depot;
use crate::services::fleet::Fleet;
use crate::services::placement::Estimates;

/// The VM service.
#[derive(Clone)]
pub struct Vms {
    pub(super) inner: Arc<Inner>,
}

/// What all copies of the service share.
pub(super) struct Inner {
    pub db: Db,
    pub clock: Clock,
    pub fleet: Fleet,
    pub catalog: Catalog,
    pub stores: DiskStores,
    pub config: crate::config::Vm,
    pub disk_gb_hour: Amount,
    pub overcommit: Overcommit,
    pub names: Option<Answered>,
    pub next_address: AtomicU32,
    pub metrics: metrics::Metrics,
    pub backup_failures: AtomicU64,
    pub travels: Travels,
    pub views: views::Views,
    pub ways: Ways,
    pub copies: Copies,
    pub estimates: Estimates,
    pub exporting: Arc<Carrying>,
    pub importing: Arc<Carrying>,
    pub converting: Arc<Slots>,
    pub lost: Lost,
    pub lost_days: i64,
    pub depot: Option<Depot<BackupId>>,
    pub storing: Semaphore,
    pub restoring: Arc<Slots>,
    pub began_at: Timestamp,
}

impl Vms {
    pub(crate) fn db(&self) -> &Db {
        &self.inner.db
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// When this service began.
    pub(in crate::services::vm) fn began_at(&self) -> Timestamp {
        self.inner.began_at
    }

    /// Where what no row owns is set aside.
    pub(in crate::services::vm) fn lost(&self) -> &Lost {
        &self.inner.lost
    }

    /// Where backups are kept; none where the operator named no place.
    pub(in crate::services::vm) fn depot(&self) -> Option<&Depot<BackupId>> {
        self.inner.depot.as_ref()
    }

    /// Turns of those who bring backups to the store.
    pub(in crate::services::vm) fn storing(&self) -> &Semaphore {
        &self.inner.storing
    }

    /// Turns of those who bring backups back.
    pub(in crate::services::vm) fn restoring(&self) -> &Arc<Slots> {
        &self.inner.restoring
    }

    /// Ways between hosts.
    pub(in crate::services::vm) fn ways(&self) -> &Ways {
        &self.inner.ways
    }

    /// What rows said of hosts a moment ago.
    pub(in crate::services::vm) fn estimates(&self) -> &Estimates {
        &self.inner.estimates
    }

    /// For how many days what no row owns is kept.
    pub(in crate::services::vm) fn lost_days(&self) -> i64 {
        self.inner.lost_days
    }

    /// The hosts that machines can be on.
    pub(in crate::services::vm) fn fleet(&self) -> &Fleet {
        &self.inner.fleet
    }

    /// The engine of the host that something is on. What is on none yet is asked of the service's own, which has nothing of it.
    ///
    /// # Errors
    /// That host cannot be asked now.
    pub(in crate::services::vm) fn engine_of(&self, host: Option<HostId>) -> Result<Arc<dyn Engine>, EngineError> {
        Ok(self.fleet().of(host.unwrap_or_else(|| self.host()))?.vm)
    }

    /// The engine of the service's own host, which has what is received and what comes from elsewhere.
    pub(crate) fn engine(&self) -> &dyn Engine {
        &*self.inner.fleet.here().vm
    }

    pub(crate) fn catalog(&self) -> &Catalog {
        &self.inner.catalog
    }

    /// The name of the store that new disks of a region lie in; none where they lie on hosts.
    pub(in crate::services::vm) fn store_in(&self, region: &str) -> Option<&str> {
        self.inner.stores.of_region(region).map(|store| store.name.as_str())
    }

    /// The store of this name.
    ///
    /// # Errors
    /// The configuration has none any more; another start of the service may.
    pub(in crate::services::vm) fn store(&self, name: &str) -> Result<&Store, EngineError> {
        let gone = || {
            EngineError::Transient(format!(
                "the configuration has no disk store {name} any more; an operator adds it again"
            ))
        };
        self.inner.stores.named(name).ok_or_else(gone)
    }

    /// How a host is shut out of the store of this name.
    pub(in crate::services::vm) fn fencing(&self, name: &str) -> Option<&Fencing> {
        self.inner.stores.fencing(name)
    }

    /// What an hour of a GiB of a disk costs.
    pub(in crate::services::vm) fn disk_gb_hour(&self) -> Amount {
        self.inner.disk_gb_hour
    }

    pub(crate) fn overcommit(&self) -> Overcommit {
        self.inner.overcommit
    }

    /// The service's own host.
    pub(in crate::services::vm) fn host(&self) -> HostId {
        self.inner.fleet.own()
    }

    pub(crate) fn config(&self) -> &crate::config::Vm {
        &self.inner.config
    }

    /// One more backup failed.
    pub(in crate::services::vm) fn count_failed_backup(&self) {
        self.inner.backup_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Images that go from host to host.
    pub(in crate::services::vm) fn travels(&self) -> &Travels {
        &self.inner.travels
    }

    pub(in crate::services::vm) fn views(&self) -> &views::Views {
        &self.inner.views
    }

    /// Calls off at once what runs beside the workers.
    pub fn call_off(&self) {
        self.copies().end_all();
    }

    /// Disks of stores that are being copied into files.
    pub(in crate::services::vm) fn copies(&self) -> &Copies {
        &self.inner.copies
    }

    /// Who exports what at present.
    pub(in crate::services::vm) fn exporting(&self) -> &Arc<Carrying> {
        &self.inner.exporting
    }

    /// Who imports what at present.
    pub(in crate::services::vm) fn importing(&self) -> &Arc<Carrying> {
        &self.inner.importing
    }

    /// Places of those who have what was sent converted.
    pub(in crate::services::vm) fn converting(&self) -> &Arc<Slots> {
        &self.inner.converting
    }

    pub(crate) fn metrics(&self) -> &metrics::Metrics {
        &self.inner.metrics
    }

    /// The next candidate for a machine's address; goes around in 127.64.0.0/10.
    pub(crate) fn candidate_address(&self) -> Ipv4Addr {
        const FIRST: u32 = 0x7f40_0000;
        const SIZE: u32 = 1 << 22;
        loop {
            let n = self.inner.next_address.fetch_add(1, Ordering::Relaxed);
            let address = Ipv4Addr::from_bits(FIRST + (n.wrapping_sub(FIRST)) % SIZE);
            if !matches!(address.octets()[3], 0 | 255) {
                return address;
            }
        }
    }
}
