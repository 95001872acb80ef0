//! The host service as its workers see it.

use std::sync::Arc;

use async_trait::async_trait;
use berth_domain::host::Capacity;
use berth_domain::host::gpu::Gpu;
use berth_domain::host::placement::Overcommit;
use berth_domain::ids::HostId;
use berth_host::clock::Clock;
use berth_host::lost::Lost;

use crate::config::DiskStores;
use crate::db::Db;

/// The host service.
#[derive(Clone)]
pub struct Hosts {
    pub(super) db: Db,
    pub(super) clock: Clock,
    pub(super) own: Arc<Own>,
    pub(super) probe: Arc<dyn Probe>,
}

/// What a service knows of its own host.
#[derive(Clone, Debug)]
pub struct Own {
    /// Its id: the data folder's.
    pub id: HostId,
    /// Its name.
    pub name: String,
    /// Where it is reached.
    pub addresses: Vec<String>,
    /// Whether its service is one of several of its database.
    pub replica: bool,
    /// Ids of the regions that it belongs to.
    pub regions: Vec<String>,
    /// How often each MiB of it is promised.
    pub overcommit: Overcommit,
    /// Stores of disks. A host is asked whether it reaches those that it has to know, and learns of no other.
    pub stores: DiskStores,
    /// Where things of it are set aside that no row owns.
    pub lost: Lost,
}

/// What is asked of a host again and again.
#[async_trait]
pub trait Probe: Send + Sync + 'static {
    /// What it has in all.
    fn capacity(&self) -> Capacity;

    /// The GPUs that it has, whether a machine has them or not.
    async fn gpus(&self) -> berth_host::Result<Vec<Gpu>>;

    /// Identifies its present boot.
    fn boot(&self) -> String;
}
