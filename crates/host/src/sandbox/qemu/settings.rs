//! What the operator tells the engine of sandboxes.

use ipnet::IpNet;

use crate::HostSettings;

/// What the engine may take of its host.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What every engine of the host is told.
    pub host: HostSettings,
    /// GiB of the disk that stay free: below that, nothing new begins.
    pub disk_reserve_gb: i64,
    /// Templates that are built at the same time, among which the disk's free space is shared out.
    pub builders: usize,
    /// Registries at internal addresses from which images may be pulled, `host[:port]`.
    pub registries: Vec<String>,
    /// Those of them that speak without TLS.
    pub plain_registries: Vec<String>,
    /// Local networks and addresses of the host that rules may unlock.
    pub unlock: Vec<IpNet>,
    /// Number of warm machines; by default as many as fit into a thirtieth of the host's memory.
    pub warm_machines: Option<usize>,
}
