//! The engines of the host that the service is on.

use std::sync::Arc;

use anyhow::{Context, Result};
use berth_domain::vm::inbound::{Reached, Shared};
use berth_host::bridge::Bridges;
use berth_host::clock::Clock;
use berth_host::network::Switches;
use berth_host::sandbox::qemu::QemuSandboxes;
use berth_host::vm::qemu::QemuEngine;

use crate::config::Config;
use crate::services::fleet::Engines;

/// The configuration with the address that VMs share on this host. One that it does not have keeps nothing else from being
/// served: it may come. What leads to a bridge has to be there.
pub(super) fn reached(config: &Config) -> Result<Config> {
    let network = match config.network.clone().at_this_host() {
        Ok(network) => {
            match network.reached() {
                Reached::Shared(Shared { address, ports: (first, last) }) => {
                    tracing::info!(%address, first, last, "VMs are reached by ports of an address that they share");
                }
                Reached::Pool(_) => tracing::info!("VMs are reached by an address of network.pool each"),
                Reached::Here => {}
            }
            network
        }
        Err(error) if config.network.bridged().is_some() => return Err(error),
        Err(error) => {
            tracing::warn!(error = format!("{error:#}"), "VMs are not reached from elsewhere");
            config.network.clone()
        }
    };
    Ok(Config { network, ..config.clone() })
}

/// Whether machines of every kind can run; else which kinds cannot, and why.
pub(super) fn ready(engines: &Engines) -> std::result::Result<(), String> {
    let found = [("VMs", engines.vm.ready()), ("sandboxes", engines.sandbox.ready())];
    let wrong = found.into_iter().filter_map(|(kind, found)| Some(format!("{kind}: {}", found.err()?)));
    let wrong: Vec<String> = wrong.collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

impl Engines {
    /// Those of this host.
    ///
    /// # Errors
    /// The host lacks something that the bridge of VMs needs, or the kernel refuses it.
    pub(super) async fn of_this_host(config: &Config) -> Result<Self> {
        let bridges = Bridges::open(&config.network_engine(), config.network.bridged()).await;
        let bridges = bridges.context("the bridge that carries the networks of VMs (network.mode) cannot be made")?;
        let network = Switches::open(&config.network_engine());
        let vm = QemuEngine::open(config.vm_engine(), Clock::default(), network.clone());
        let sandbox = QemuSandboxes::open(config.sandbox_engine(), Clock::default(), network.clone());
        let sandbox = Arc::new(sandbox.sharing(&vm.gpus_of_host()));
        let vm = Arc::new(vm.with_bridges(bridges));
        Ok(Self { vm, sandbox, network })
    }
}
