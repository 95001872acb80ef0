//! What an agent of the guest does for a machine. A guest need not have one, and nothing waits for what it says.

use berth_domain::ids::MachineId;
use berth_qemu::machine::guest;

use super::QemuEngine;
use crate::vm::GuestKeys;

impl QemuEngine {
    /// Gives a user of the guest SSH keys, and takes others away; whether an agent of the guest did so.
    pub(super) async fn set_guest_keys(&self, id: MachineId, keys: &GuestKeys) -> bool {
        let set = guest::set_keys(&self.machine(id), &keys.user, &keys.keys, &keys.former).await;
        set.unwrap_or_else(|error| {
            tracing::info!(vm = %id, %error, "the guest's agent did not take SSH keys");
            false
        })
    }

    /// Sets the clock of a guest that was suspended, which has stood still meanwhile.
    pub(super) async fn set_guest_clock(&self, id: MachineId) {
        if let Err(error) = guest::set_clock(&self.machine(id), self.clock.now().0.saturating_mul(1000)).await {
            tracing::info!(vm = %id, %error, "the guest's agent did not set its clock");
        }
    }
}
