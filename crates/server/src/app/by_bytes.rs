//! The service over its own host by bytes, as it asks a host that is elsewhere.
//!
//! Compiled only with the feature `faults`, for tests over real machines: with `BERTH_HOST_BY_BYTES` all that the
//! engines are asked goes through pipes of this process, and what the host receives before a machine of it is chosen
//! lies in a folder apart.

use std::io;
use std::sync::Arc;

use anyhow::{Context, Result};
use async_trait::async_trait;
use berth_host::Host;
use berth_host::lost::Lost;
use berth_host::vm::Console;
use berth_host::wire::{Carrier, Remote, serve};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::services::fleet::Engines;

/// Bytes under way in a pipe.
const UNDER_WAY: usize = 64 << 10;

/// These engines, asked by bytes if the environment says so.
pub(super) async fn by_bytes(config: &Config, own: Engines) -> Result<Engines> {
    if std::env::var_os("BERTH_HOST_BY_BYTES").is_none() {
        return Ok(own);
    }
    let lost = Lost::new(&config.data_dir, config.lost.days);
    let host = Arc::new(Host::new(own.vm, own.sandbox, own.network, lost));
    let spool = config.data_dir.join("spool");
    let remote = Remote::reach(Arc::new(Pipes(host.clone())), &spool).await.context("the host is not to be reached")?;
    tracing::info!("the host is asked by bytes");
    // As long as the process lives. The service's own workers follow what happens there.
    tokio::spawn(async move { host.tend(CancellationToken::new()).await });
    let remote = Arc::new(remote);
    Ok(Engines { vm: remote.clone(), sandbox: remote.clone(), network: remote })
}

/// Leads to a host of this process.
struct Pipes(Arc<Host>);

#[async_trait]
impl Carrier for Pipes {
    async fn connect(&self) -> io::Result<Box<dyn Console>> {
        let (ours, theirs) = tokio::io::duplex(UNDER_WAY);
        let host = self.0.clone();
        tokio::spawn(async move {
            if let Err(error) = serve(&host, theirs).await {
                tracing::debug!(%error, "a connection to the host has ended");
            }
        });
        Ok(Box::new(ours))
    }
}
