//! What a host is.

use crate::words::words;

words! {
    /// What becomes of the machines of a host.
    State {
        /// Its service runs there, or ran there last.
        Ready = "ready",
        /// It keeps those that it has until they are somewhere else, and takes no more.
        Draining = "draining",
        /// Another one has its database and its machines.
        Lost = "lost",
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
