//! Questions about the host itself, and about all that it has.

use core::net::SocketAddr;

use super::question::questions;
use crate::Timestamp;
use crate::host::gpu::Gpu;
use crate::host::model::About;
use crate::host::{network, sandbox, vm};

questions! {
    /// What may be asked about the host itself.
    "host" {
        /// What it is and whether it can work, as far as it knows without looking.
        Describe "describe" {} -> About,
        /// What it has to give to VMs in total.
        VmCapacity "vm_capacity" {} -> vm::Capacity,
        /// What it has to give to sandboxes in total.
        SandboxCapacity "sandbox_capacity" {} -> sandbox::Capacity,
        /// The GPUs that it has, whether a machine has them or not.
        Gpus "gpus" {} -> Vec<Gpu>,
        /// Whether nobody else on it has one of so many TCP ports, from this one on.
        PortsFree "ports_free" {
            /// The first.
            first: SocketAddr,
            /// How many.
            count: u16,
        } -> bool,
        /// What it has of VMs.
        ScanVms "scan_vms" {} -> vm::Found,
        /// What it has of sandboxes.
        ScanSandboxes "scan_sandboxes" {} -> sandbox::Found,
        /// What it has of networks.
        ScanNetworks "scan_networks" {} -> network::Found,
        /// Moves what no row owns to what was set aside on a day; fine where there is none.
        SetAside "set_aside" {
            /// What.
            kept: sandbox::Kept,
            /// When that was found.
            at: Timestamp,
        } -> (),
    }
}
