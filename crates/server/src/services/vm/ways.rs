//! Ways between hosts, on which disks are: each takes what a host's disk and the network give, for hours, and all of them
//! pass through the service's own disk.

use std::sync::{Mutex, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

/// Disks that are under way at a time. Two take all that a network or a disk of these days gives.
pub(super) const WAYS: usize = 2;

/// The ways.
pub(super) struct Ways {
    all: Semaphore,
    /// Of them, those for disks that nobody waits for: one way is kept for VMs that are down until theirs have come.
    unawaited: Semaphore,
    /// Bytes that have their places on the service's own disk.
    bytes: Mutex<i64>,
}

/// One of them. Dropping it frees it.
pub(super) struct Way<'a> {
    _one: SemaphorePermit<'a>,
    _unawaited: Option<SemaphorePermit<'a>>,
}

/// Bytes that have their places. Dropping it frees those.
pub(super) struct Passing<'a> {
    ways: &'a Ways,
    bytes: i64,
}

impl Default for Ways {
    fn default() -> Self {
        Self { all: Semaphore::new(WAYS), unawaited: Semaphore::new(WAYS - 1), bytes: Mutex::default() }
    }
}

impl Ways {
    /// Whether a disk finds one, for which a VM that is to run waits or not.
    pub fn is_free(&self, is_awaited: bool) -> bool {
        self.enter(is_awaited).is_some()
    }

    /// Takes one, if there is one.
    pub fn enter(&self, is_awaited: bool) -> Option<Way<'_>> {
        let unawaited = if is_awaited { None } else { Some(self.unawaited.try_acquire().ok()?) };
        Some(Way { _one: self.all.try_acquire().ok()?, _unawaited: unawaited })
    }

    /// Has so many bytes have their places on a disk that has this room, beside those that have theirs.
    pub fn pass(&self, bytes: i64, room: i64) -> Option<Passing<'_>> {
        let mut all = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if all.saturating_add(bytes) > room {
            return None;
        }
        *all += bytes;
        Some(Passing { ways: self, bytes })
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        *self.ways.bytes.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_way_is_kept_for_what_is_waited_for() {
        let ways = Ways::default();
        let off = ways.enter(false);
        assert!(off.is_some() && !ways.is_free(false) && ways.is_free(true));
        let runs = ways.enter(true);
        assert!(runs.is_some() && !ways.is_free(true));
        drop(off);
        assert!(ways.is_free(false) && ways.is_free(true));
        drop(runs);
        let both = [ways.enter(true), ways.enter(true)];
        assert!(both.iter().all(Option::is_some) && !ways.is_free(false));
    }

    #[test]
    fn what_passes_has_its_place_until_it_has_passed() {
        let ways = Ways::default();
        let first = ways.pass(6, 10);
        assert!(first.is_some() && ways.pass(5, 10).is_none() && ways.pass(4, 10).is_some());
        drop(first);
        assert!(ways.pass(10, 10).is_some() && ways.pass(11, 10).is_none());
    }
}
