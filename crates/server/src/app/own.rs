//! The host that the service itself is on.

use std::sync::Arc;

use async_trait::async_trait;
use berth_domain::Result;
use berth_domain::host::Capacity;
use berth_domain::host::gpu::Gpu;
use berth_domain::ids::HostId;
use berth_host::clock::Clock;
use berth_host::lost::Lost;
use berth_host::vm::Engine;
use berth_qemu::host;

use crate::config::Config;
use crate::db::Db;
use crate::db::keeper::Keeper;
use crate::seal::Sealer;
use crate::services::fleet::{Engines, Fleet};
use crate::services::host::{Enrolment, Hosts, Own, Probe};
use crate::services::identity::Identity;

/// Gives it its row, and begins the fleet with it.
pub(super) async fn enrol(
    config: &Config,
    keeper: &Keeper,
    db: &Db,
    clock: &Clock,
    engines: &Engines,
) -> Result<(Hosts, Fleet)> {
    let probe = probe(config, engines.vm.clone());
    let hosts = Hosts::start(db.clone(), clock.clone(), own(config, keeper), probe).await?;
    let fleet = Fleet::new(hosts.own(), engines.clone());
    Ok((hosts, fleet))
}

/// Has other hosts join it.
pub(super) async fn enrolment(
    config: &Config,
    (hosts, fleet): (&Hosts, &Fleet),
    sealer: &Sealer,
    identity: &Identity,
) -> Result<Enrolment> {
    let identity = identity.clone();
    let counted = Arc::new(move |from| identity.count_try(from));
    let secrets = (sealer, config.secrets.replaces_lost_key);
    Enrolment::open(hosts.clone(), fleet.clone(), secrets, config.data_dir.join("hosts"), counted).await
}

/// What the configuration and the folder say of it.
pub(super) fn own(config: &Config, keeper: &Keeper) -> Own {
    Own {
        id: HostId(keeper.folder),
        name: keeper.host.clone(),
        addresses: vec![keeper.address.clone().unwrap_or_else(|| config.listen.to_string())],
        replica: keeper.address.is_some(),
        regions: config.catalog.regions.iter().map(|region| region.id.clone()).collect(),
        overcommit: config.overcommit(),
        stores: config.disk_stores.clone(),
        lost: Lost::new(&config.data_dir, config.lost.days),
    }
}

/// What can be asked of it.
pub(super) fn probe(config: &Config, engine: Arc<dyn Engine>) -> Box<dyn Probe> {
    Box::new(Asked { engine, reserve_mb: config.vm.memory_reserve_mb })
}

struct Asked {
    engine: Arc<dyn Engine>,
    reserve_mb: i64,
}

#[async_trait]
impl Probe for Asked {
    fn capacity(&self) -> Capacity {
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        Capacity {
            cpus: whole(host::cores()),
            memory_mb: whole(host::memory_mb()).saturating_sub(self.reserve_mb).max(0),
        }
    }

    async fn gpus(&self) -> berth_host::Result<Vec<Gpu>> {
        self.engine.gpus().await
    }

    fn boot(&self) -> String {
        self.engine.host_boot()
    }
}
