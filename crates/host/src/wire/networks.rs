//! [`NetworkEngine`] by bytes.

use async_trait::async_trait;
use berth_domain::host::ask::{host, network};
use berth_domain::ids::NetworkId;

use super::remote::Remote;
use crate::Result;
use crate::network::{Found, NetworkEngine, NetworkSpec};

#[async_trait]
impl NetworkEngine for Remote {
    async fn set(&self, network: &NetworkSpec) -> Result<()> {
        self.ask(network::Set { network: network.clone() }).await
    }

    async fn remove(&self, id: NetworkId) -> Result<()> {
        self.ask(network::Remove { id }).await
    }

    async fn scan(&self) -> Result<Found> {
        self.ask(host::ScanNetworks {}).await
    }
}
