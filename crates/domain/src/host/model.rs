//! What a host is.

use serde::{Deserialize, Serialize};

use crate::vm::inbound::Reached;
use crate::words::words;

words! {
    /// What becomes of the machines of a host.
    State {
        /// Its service runs there, or ran there last.
        Ready = "ready",
        /// An operator said that it takes no more; those that it has go on, and start there again.
        Cordoned = "cordoned",
        /// It keeps those that it has until they are somewhere else, and takes no more.
        Draining = "draining",
        /// Another one has its database and its machines; or it joined and has not answered for a while.
        Lost = "lost",
        /// It has a name and a token, and has not joined yet.
        Joining = "joining",
    }
}

words! {
    /// How VMs leave a host that is drained.
    Drain {
        /// Those that are off, and those that run while they run.
        Off = "off",
        /// Those that cannot go as they run, too: each is shut down, and starts on another host.
        All = "all",
    }
}

words! {
    /// What a service that runs on a host does.
    Service {
        /// It has the database, and asks every host.
        Active = "active",
        /// It takes the database where the active one is lost.
        Standby = "standby",
    }
}

/// What a host has in all, before anything of it is promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Processors.
    pub cpus: i64,
    /// Memory, in MiB, but for what the host keeps for itself.
    pub memory_mb: i64,
}

/// What a host says of itself without looking at anything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// What its engine of VMs says.
    pub vm: AboutVms,
    /// What its engine of sandboxes says.
    pub sandbox: AboutSandboxes,
}

/// What an engine of VMs says of its host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AboutVms {
    /// What is missing before it can work.
    pub missing: Option<String>,
    /// The port on which a machine's SSH can answer.
    pub ssh_port: u16,
    /// Identifies the host's present boot.
    pub boot: String,
    /// How it has VMs reached.
    pub network: VmNetwork,
}

/// How a host has its VMs reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmNetwork {
    /// By which addresses.
    pub reached: Reached,
    /// Whether a bridge of the host carries their networks.
    pub is_bridged: bool,
}

/// What an engine of sandboxes says of its host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AboutSandboxes {
    /// What is missing before it can work.
    pub missing: Option<String>,
    /// Identifies the host's present boot.
    pub boot: String,
    /// Machines that run without the limits that the host could set.
    pub unlimited: u64,
    /// How many machines it keeps at most that nobody owns yet.
    pub most_warm: usize,
}
