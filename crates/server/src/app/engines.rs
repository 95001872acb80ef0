//! The engines that the service runs machines by.

use std::sync::Arc;

use berth_host::clock::Clock;
use berth_host::network::{NetworkEngine, Switches};
use berth_host::sandbox::SandboxEngine;
use berth_host::sandbox::qemu::QemuSandboxes;
use berth_host::vm::Engine;
use berth_host::vm::qemu::QemuEngine;

use crate::config::Config;

/// The engines that run machines.
#[derive(Clone)]
pub struct Engines {
    /// Virtual machines.
    pub vm: Arc<dyn Engine>,
    /// Sandboxes.
    pub sandbox: Arc<dyn SandboxEngine>,
    /// Networks that join them.
    pub network: Arc<dyn NetworkEngine>,
}

impl Engines {
    /// Those of this host.
    pub(super) fn of_this_host(config: &Config) -> Self {
        let network = Switches::open(&config.network_engine());
        let vm = Arc::new(QemuEngine::open(config.vm_engine(), Clock::default(), network.clone()));
        let sandbox = Arc::new(QemuSandboxes::open(config.sandbox_engine(), Clock::default(), network.clone()));
        Self { vm, sandbox, network }
    }
}
