//! What the host has left for machines; sums over rows are the only counters.

use berth_domain::host::overcommit::withheld_mb;
use berth_host::sandbox::Capacity;

use crate::db::machine::{self, Room};
use crate::db::{DbError, Tx};
use crate::services::sandbox::Sandboxes;

/// What sandboxes, and machines that work for templates, leave of a host.
pub(super) struct Left {
    /// Sandboxes that have a machine.
    pub sandboxes: i64,
    /// MiB that are offered in all.
    offered_mb: i64,
    /// MiB that nobody has, but for warm machines: those give way.
    memory_mb: i64,
    /// MiB that warm machines have.
    warm_mb: i64,
}

impl Left {
    /// What is left now.
    pub(super) async fn of(tx: &mut Tx, sandboxes: &Sandboxes, host: Capacity) -> Result<Self, DbError> {
        let overcommit = sandboxes.overcommit();
        let held = machine::held(tx, sandboxes.host()).await?;
        let taken_mb = held.sandboxes.memory_mb + held.templates.memory_mb;
        let vms_mb = held.vms.memory_mb;
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "MiB of a host are few")]
        let offered_mb = (host.memory_mb as f64 * overcommit.sandbox) as i64;
        let offered_mb = (offered_mb - withheld_mb(vms_mb, overcommit.vm, overcommit.sandbox)).max(0);
        Ok(Self {
            sandboxes: held.sandboxes.machines,
            offered_mb,
            memory_mb: offered_mb - taken_mb,
            warm_mb: held.warm.memory_mb,
        })
    }

    /// How many of so many machines of a size there is memory for, and where; if there is none for one, what is missing.
    pub(super) fn machines(&self, most: i64, memory_mb: i64) -> Result<(i64, Room), String> {
        match (self.memory_mb / memory_mb.max(1)).min(most) {
            count @ 1.. if count.saturating_mul(memory_mb) > self.memory_mb - self.warm_mb => {
                Ok((count, Room::Instead))
            }
            count @ 1.. => Ok((count, Room::Beside)),
            _ => Err(format!(
                "this host offers {} MiB of memory to sandboxes, and {} MiB would be needed",
                self.offered_mb,
                self.offered_mb - self.memory_mb + memory_mb
            )),
        }
    }
}
