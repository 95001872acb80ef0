//! What a machine's flows share and each may have some of: its sockets, its bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// So many of something, of which claims take.
#[derive(Debug)]
pub(crate) struct Pool {
    most: usize,
    used: AtomicUsize,
}

impl Pool {
    /// A pool of so many.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, used: AtomicUsize::new(0) })
    }

    /// How many there are.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Takes so many if `left` stay free.
    pub(crate) fn claim(self: &Arc<Self>, count: usize, left: usize) -> Option<Claim> {
        let fits = |used: usize| {
            let after = used.checked_add(count)?;
            (after.checked_add(left)? <= self.most).then_some(after)
        };
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(Claim { pool: Arc::clone(self), count })
    }
}

/// What was taken, until it is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    pool: Arc<Pool>,
    count: usize,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.pool.used.fetch_sub(self.count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_leave_what_they_should_and_give_back_what_they_took() {
        let pool = Pool::new(10);
        let first = pool.claim(4, 6).unwrap();
        assert!(pool.claim(4, 3).is_none() && pool.claim(7, 0).is_none() && pool.claim(usize::MAX, 1).is_none());
        let second = pool.claim(6, 0).unwrap();
        assert!(pool.claim(1, 0).is_none());
        drop(first);
        assert!(pool.claim(5, 0).is_none() && pool.claim(4, 0).is_some());
        drop(second);
        assert!(pool.claim(10, 0).is_some());
    }
}
