//! Slots of those who have what was sent converted, images and disks alike, or a backup restored: whose turn it is decides
//! [`berth_domain::vm::slots`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_domain::Timestamp;
use berth_domain::ids::{DiskId, Owner};
use berth_domain::vm::slots::Turns;

/// What is converted or restored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Work {
    /// A disk of a backup, or of a file that somebody sent.
    Disk(DiskId),
    /// An image of the platform.
    Image(String),
}

/// What goes on, and what waits for that.
pub(super) struct Slots {
    turns: Mutex<Turns<Work>>,
    count: usize,
}

/// One of them. Dropping it frees it.
pub(super) struct Slot {
    slots: Arc<Slots>,
    number: usize,
}

impl Slot {
    /// Which one it is, from 0.
    pub(super) fn number(&self) -> u32 {
        u32::try_from(self.number).unwrap_or_default()
    }
}

impl Slots {
    /// So many.
    pub(super) fn new(count: usize) -> Self {
        Self { turns: Mutex::new(Turns::new(count)), count }
    }

    /// How many there are.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Asks for a slot; there is one where the turn has come.
    pub(super) fn ask(self: &Arc<Self>, owner: Option<Owner>, work: &Work, now: Timestamp) -> Option<Slot> {
        let number = self.turns().ask(owner, work, now)?;
        Some(Slot { slots: self.clone(), number })
    }

    /// Forgets what does not wait any more.
    pub(super) fn forget(&self, work: &Work) {
        self.turns().forget(work);
    }

    fn turns(&self) -> MutexGuard<'_, Turns<Work>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.turns().end(self.number);
    }
}
