//! What the runtime works with.

use std::sync::Arc;

use berth_host::clock::Clock;
use berth_host::sandbox::SandboxEngine;

use crate::db::Db;

/// What the runtime's routes need.
pub struct Runtime {
    /// The rows of sandboxes.
    pub db: Db,
    /// The time.
    pub clock: Clock,
    /// The way to their machines.
    pub engine: Arc<dyn SandboxEngine>,
}
