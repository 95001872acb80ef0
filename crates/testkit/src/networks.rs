//! Networks that are only remembered.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use berth_domain::ids::NetworkId;
use berth_host::network::{Found, NetworkEngine, NetworkSpec};
use berth_host::{EngineError, Result};

use crate::refusals::Refusals;

/// The engine.
#[derive(Default)]
pub struct SimulatedNetworks {
    world: Mutex<World>,
}

#[derive(Default)]
struct World {
    networks: BTreeMap<NetworkId, NetworkSpec>,
    refusals: Refusals,
}

impl SimulatedNetworks {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on a call of this name is refused.
    pub fn refuse(&self, call: &str, error: EngineError) {
        self.world().refusals.refuse(call, error);
    }

    /// From now on a call of this name works again.
    pub fn allow(&self, call: &str) {
        self.world().refusals.allow(call);
    }

    /// What it was last told of a network, if it has it.
    pub fn spec(&self, id: &str) -> Option<NetworkSpec> {
        self.world().networks.get(&id.parse().ok()?).cloned()
    }

    /// Has a network that nobody told it of.
    pub fn leave(&self, network: NetworkSpec) {
        self.world().networks.insert(network.id, network);
    }

    fn call(&self, name: &str) -> Result<MutexGuard<'_, World>> {
        let world = self.world();
        world.refusals.check(name)?;
        Ok(world)
    }
}

#[async_trait]
impl NetworkEngine for SimulatedNetworks {
    async fn set(&self, network: &NetworkSpec) -> Result<()> {
        let mut world = self.call("set")?;
        if let Some(told) = world.networks.get(&network.id).filter(|told| told.revision > network.revision) {
            return Err(EngineError::Outdated(told.revision));
        }
        world.networks.insert(network.id, network.clone());
        Ok(())
    }

    async fn remove(&self, id: NetworkId) -> Result<()> {
        self.call("remove")?.networks.remove(&id);
        Ok(())
    }

    async fn scan(&self) -> Result<Found> {
        Ok(Found { networks: self.call("scan")?.networks.keys().copied().collect() })
    }
}
