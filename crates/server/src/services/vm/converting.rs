//! Places of those who have what was sent converted, images and disks alike: whose turn it is decides
//! [`berth_domain::vm::conversion`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_domain::Timestamp;
use berth_domain::ids::{DiskId, Owner};
use berth_domain::vm::conversion::Turns;

/// What is converted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Work {
    /// A disk of a file that somebody sent.
    Disk(DiskId),
    /// An image of the platform.
    Image(String),
}

/// The conversions that go on, and those that wait.
#[derive(Default)]
pub(super) struct Converting(Mutex<Turns<Work>>);

/// A place for one of them. Dropping it frees the place.
pub(super) struct Place {
    converting: Arc<Converting>,
    number: usize,
}

impl Place {
    /// Which one it is, from 0.
    pub(super) fn number(&self) -> u32 {
        u32::try_from(self.number).unwrap_or_default()
    }
}

impl Converting {
    /// Asks for a place; there is one where the turn has come.
    pub(super) fn ask(self: &Arc<Self>, owner: Option<Owner>, work: &Work, now: Timestamp) -> Option<Place> {
        let number = self.turns().ask(owner, work, now)?;
        Some(Place { converting: self.clone(), number })
    }

    /// Forgets what does not wait any more.
    pub(super) fn forget(&self, work: &Work) {
        self.turns().forget(work);
    }

    fn turns(&self) -> MutexGuard<'_, Turns<Work>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.converting.turns().end(self.number);
    }
}
