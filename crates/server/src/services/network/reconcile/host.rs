//! Networks that a host has and no row owns: what a database from a backup does not know, or what a service left that
//! died. A row is older than its thing, so what is found first and has no row then is nobody's.

use std::collections::HashSet;
use std::time::Duration;

use berth_host::EngineError;
use tokio_util::sync::CancellationToken;

use super::StepError;
use crate::services::fleet::Engines;
use crate::services::network::{Networks, store};

/// Between two searches of the host.
const SWEEP: Duration = Duration::from_mins(10);
/// How long a search of one host may take.
const PATIENCE: Duration = Duration::from_mins(1);
/// Wait after a search that failed.
const RETRY: Duration = Duration::from_mins(1);

/// Searches the hosts now and then, until told to stop.
pub async fn watch(networks: Networks, stop: CancellationToken) {
    loop {
        let pause = match search(&networks).await {
            Ok(()) => SWEEP,
            Err(error) => {
                tracing::warn!(?error, "the host could not be searched for networks; trying again later");
                RETRY
            }
        };
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return;
        }
    }
}

/// Removes what no row owns. What cannot be removed keeps none of the others.
async fn search(networks: &Networks) -> Result<(), StepError> {
    for (host, engines) in networks.fleet().all() {
        let searched = tokio::time::timeout(PATIENCE, search_host(networks, &engines)).await;
        let silent = |_| Err(EngineError::Transient("it does not answer".into()).into());
        if let Err(error) = searched.unwrap_or_else(silent) {
            if host == networks.fleet().own() {
                return Err(error);
            }
            tracing::debug!(%host, ?error, "a host is not searched for networks now");
        }
    }
    Ok(())
}

async fn search_host(networks: &Networks, engines: &Engines) -> Result<(), StepError> {
    let found = engines.network.scan().await?.networks;
    let owned: HashSet<_> = store::network::ids(networks.db()).await?.into_iter().collect();
    for id in found.into_iter().filter(|id| !owned.contains(id)) {
        tracing::warn!(network = %id, "removing a network that no row owns");
        if let Err(error) = engines.network.remove(id).await {
            tracing::warn!(network = %id, %error, "a network that no row owns cannot be removed; trying again later");
        }
    }
    Ok(())
}
