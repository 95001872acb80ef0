//! The engines of the host that the service is on.

use std::sync::Arc;

use anyhow::{Context, Result};
use berth_host::bridge::Bridges;
use berth_host::clock::Clock;
use berth_host::network::Switches;
use berth_host::sandbox::qemu::QemuSandboxes;
use berth_host::vm::qemu::QemuEngine;

use crate::config::Config;
use crate::services::host::Engines;

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
