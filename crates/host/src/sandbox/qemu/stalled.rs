//! Machines that stand still because the host's disk was full.
//!
//! QEMU stops a machine whose guest writes more than there is room for, and nothing of the guest's is lost; somebody has to
//! let it go on once there is room again. Its agent says nothing meanwhile, so that looks are spent only where a machine
//! was silent, or the disk was seen to be full.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_domain::ids::MachineId;
use berth_qemu::{host, machine};
use tokio_util::sync::CancellationToken;

use super::{QemuSandboxes, ids};

/// Between two looks at the disk.
const LOOK: Duration = Duration::from_secs(5);
/// A disk with fewer bytes left is full, whatever is kept back.
const LEAST_ROOM: u64 = 16 << 20;

/// Whether a machine may stand still.
#[derive(Default)]
pub(super) struct Stalled(AtomicBool);

impl Stalled {
    /// What a machine's agent said; silence may mean that it stands still.
    pub(super) fn unless<T, E>(&self, said: Result<T, E>) -> Option<T> {
        if said.is_err() {
            self.note();
        }
        said.ok()
    }

    fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether to look for machines that stand still, where so many bytes of the disk are free.
    fn wants_a_look(&self, free: u64) -> bool {
        if free < LEAST_ROOM {
            self.note();
            return false;
        }
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl QemuSandboxes {
    /// Lets machines go on once there is room for them, until told to stop.
    pub(super) async fn keep_going(&self, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
            if host::disk(&self.settings.host.data).is_ok_and(|(_, free)| self.stalled.wants_a_look(free)) {
                self.let_go_on().await;
            }
        }
    }

    async fn let_go_on(&self) {
        for id in ids::<MachineId>(&self.places.machines()).unwrap_or_default() {
            let dir = self.places.machine(id);
            match machine::go_on_where_stalled(&dir, id.0).await {
                Ok(false) => {}
                Ok(true) => tracing::warn!(sandbox = %id, "it stood still because the disk was full, and goes on now"),
                Err(error) => {
                    tracing::debug!(sandbox = %id, %error, "whether it stands still cannot be told; looking again");
                    self.stalled.note();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_looked_for_once_there_is_room_after_there_was_none_or_one_was_silent() {
        let stalled = Stalled::default();
        assert!(!stalled.wants_a_look(LEAST_ROOM));
        assert!(!stalled.wants_a_look(LEAST_ROOM - 1));
        assert!(stalled.wants_a_look(LEAST_ROOM) && !stalled.wants_a_look(LEAST_ROOM));
        assert_eq!((stalled.unless(Err::<(), _>(())), stalled.unless(Ok::<_, ()>(1))), (None, Some(1)));
        assert!(stalled.wants_a_look(LEAST_ROOM) && !stalled.wants_a_look(LEAST_ROOM));
    }
}
