//! What the runtime works with.

use std::sync::Arc;

use crate::clock::Clock;
use crate::db::Db;
use crate::services::sandbox::engine::SandboxEngine;

/// What the runtime's routes need.
pub struct Runtime {
    /// The rows of sandboxes.
    pub db: Db,
    /// The time.
    pub clock: Clock,
    /// The way to their machines.
    pub engine: Arc<dyn SandboxEngine>,
}
