//! What the runtime works with.

use berth_host::clock::Clock;

use crate::db::Db;
use crate::services::fleet::Fleet;

/// What the runtime's routes need.
pub struct Runtime {
    /// The rows of sandboxes.
    pub db: Db,
    /// The time.
    pub clock: Clock,
    /// The hosts of their machines.
    pub fleet: Fleet,
}
