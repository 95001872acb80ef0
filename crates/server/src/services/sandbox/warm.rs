//! Warm machines, as far as they are wanted: of which memories, and how many.
//!
//! A copy of a memory costs most when it does something for the first time, since an emulator translates what it has
//! not run yet: identity and first shell together are four fifths of a creation. A warm machine has done both. Whoever
//! creates a sandbox gets it, with its disk; all that is left is to make it that sandbox.
//!
//! Which there are, the rows say ([`crate::db::machine`]). Here stands what nobody needs to know after a restart: which
//! memories were asked for lately, and which could not be begun with.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use berth_domain::ids::MemoryId;
use tokio::sync::Notify;

/// How long warm machines of a memory are kept after the last request for one.
const WANTED: Duration = Duration::from_mins(10);
/// Wait after one that could not be made; twice as long after each that follows.
const AGAIN: Duration = Duration::from_secs(30);
/// How many in a row could not be made, after which their memory has none until somebody asks for it again: then it has
/// one more try.
const HOPELESS: u32 = 3;
/// Those of a memory that nobody has asked for yet: whoever makes a template is about to use it.
const UNASKED: usize = 4;

/// What is wanted of warm machines.
pub(super) struct WarmPool {
    /// How many there may be.
    most: usize,
    kinds: Mutex<HashMap<MemoryId, Kind>>,
    /// Told when one is wanted.
    wanted: Notify,
}

/// What is wanted of those of one memory.
struct Kind {
    /// When one was asked for last, or the memory was made.
    asked: Instant,
    /// How many there may be of it.
    most: usize,
    /// Whether one is being made.
    making: bool,
    /// How many in a row could not be made.
    failures: u32,
    not_before: Option<Instant>,
}

impl Kind {
    const fn new(asked: Instant, most: usize) -> Self {
        Self { asked, most, making: false, failures: 0, not_before: None }
    }
}

impl WarmPool {
    /// Nothing is wanted yet, and never more than these.
    pub(super) fn new(most: usize) -> Self {
        Self { most, kinds: Mutex::default(), wanted: Notify::default() }
    }

    fn kinds(&self) -> MutexGuard<'_, HashMap<MemoryId, Kind>> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a sandbox begins with a memory. Whether there may be a warm machine for it.
    pub(super) fn asked(&self, memory: MemoryId) -> bool {
        if self.most == 0 {
            return false;
        }
        let now = Instant::now();
        let mut kinds = self.kinds();
        let kind = kinds.entry(memory).or_insert_with(|| Kind::new(now, usize::MAX));
        (kind.asked, kind.most, kind.failures) = (now, usize::MAX, kind.failures.min(HOPELESS - 1));
        self.wanted.notify_one();
        true
    }

    /// Notes that a memory was just made, which will be asked for.
    pub(super) fn announce(&self, memory: MemoryId) {
        if self.most > 0 {
            self.kinds().entry(memory).or_insert_with(|| Kind::new(Instant::now(), UNASKED));
            self.wanted.notify_one();
        }
    }

    /// Notes that an earlier service left one that is ready: that memory was asked for lately.
    pub(super) fn found(&self, memory: MemoryId) {
        self.kinds().entry(memory).or_insert_with(|| Kind::new(Instant::now(), usize::MAX));
    }

    /// Returns when one may be wanted.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Of which memory the next one is to be, if one is wanted and there is room beside those that are `ready`.
    pub(super) fn next(&self, ready: &HashMap<MemoryId, usize>) -> Option<MemoryId> {
        let now = Instant::now();
        let mut kinds = self.kinds();
        let part = self.share(kinds.len());
        let making = kinds.values().filter(|kind| kind.making).count();
        if ready.values().sum::<usize>() + making >= self.most {
            return None;
        }
        let tries = kinds.values().any(|kind| kind.failures > 0 && kind.making);
        let lacks = |(memory, kind): &(&MemoryId, &mut Kind)| {
            let late = kind.not_before.is_none_or(|time| time <= now);
            !kind.making
                && kind.failures < HOPELESS
                && (kind.failures == 0 || !tries)
                && ready.get(*memory).copied().unwrap_or_default() < part.min(kind.most)
                && late
                && now.duration_since(kind.asked) < WANTED
        };
        let (memory, kind) = kinds.iter_mut().filter(lacks).max_by_key(|(_, kind)| kind.asked)?;
        kind.making = true;
        Some(*memory)
    }

    /// Notes how the making of one ended.
    pub(super) fn finish(&self, memory: MemoryId, is_made: bool) {
        let mut kinds = self.kinds();
        let Some(kind) = kinds.get_mut(&memory) else { return };
        kind.making = false;
        if is_made {
            kind.failures = 0;
        } else {
            kind.not_before = Some(Instant::now() + AGAIN * 2_u32.saturating_pow(kind.failures.min(8)));
            kind.failures += 1;
        }
    }

    /// Nothing is wanted of a memory any more.
    pub(super) fn forget(&self, memory: MemoryId) {
        self.kinds().remove(&memory);
    }

    /// Forgets what nobody asked for lately. How many ready ones of a memory may stay.
    pub(super) fn allowance(&self) -> impl Fn(MemoryId) -> usize {
        let mut kinds = self.kinds();
        kinds.retain(|_, kind| kind.making || kind.asked.elapsed() < WANTED);
        let part = self.share(kinds.len());
        let known: Vec<_> = kinds.keys().copied().collect();
        move |memory| if known.contains(&memory) { part } else { 0 }
    }

    /// When the next that could not be made is due again, of those that were not due by then; with none, after a while.
    pub(super) fn next_try(&self, by: Instant) -> Instant {
        let times = self.kinds().values().filter_map(|kind| kind.not_before).filter(|time| *time > by).min();
        times.unwrap_or(by + AGAIN)
    }

    /// How many each of so many memories may have.
    fn share(&self, kinds: usize) -> usize {
        self.most / kinds.clamp(1, self.most.max(1))
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn memories<const N: usize>() -> [MemoryId; N] {
        std::array::from_fn(|_| MemoryId(Uuid::now_v7()))
    }

    /// Makes what is wanted; how many each memory has then.
    fn made(pool: &WarmPool, ready: &mut HashMap<MemoryId, usize>, memories: &[MemoryId]) -> Vec<usize> {
        while let Some(memory) = pool.next(ready) {
            pool.finish(memory, true);
            *ready.entry(memory).or_default() += 1;
        }
        memories.iter().map(|memory| ready.get(memory).copied().unwrap_or_default()).collect()
    }

    /// Ends what is above each memory's share.
    fn trim(pool: &WarmPool, ready: &mut HashMap<MemoryId, usize>) {
        let allowance = pool.allowance();
        for (memory, count) in ready.iter_mut() {
            *count = (*count).min(allowance(*memory));
        }
    }

    #[test]
    fn memories_share_what_there_is() {
        let (pool, mut ready, all) = (WarmPool::new(5), HashMap::new(), memories::<3>());
        assert!(pool.asked(all[0]));
        assert_eq!(made(&pool, &mut ready, &all[..1]), [5]);
        assert!(pool.asked(all[1]));
        assert_eq!(made(&pool, &mut ready, &all[..2]), [5, 0], "there is no room");
        trim(&pool, &mut ready);
        assert_eq!(made(&pool, &mut ready, &all[..2]), [2, 2]);
        pool.forget(all[0]);
        trim(&pool, &mut ready);
        assert_eq!(made(&pool, &mut ready, &all[..2]), [0, 5]);
        let none = WarmPool::new(0);
        none.announce(all[2]);
        assert!(!none.asked(all[2]) && none.next(&HashMap::new()).is_none());
    }

    #[test]
    fn a_memory_that_nobody_asked_for_has_few() {
        let (pool, mut ready, [memory]) = (WarmPool::new(10), HashMap::new(), memories());
        pool.announce(memory);
        assert_eq!(made(&pool, &mut ready, &[memory]), [UNASKED]);
        assert!(pool.asked(memory));
        assert_eq!(made(&pool, &mut ready, &[memory]), [10]);
    }

    #[test]
    fn a_memory_that_cannot_be_begun_with_keeps_none_of_the_others_waiting() {
        let (pool, none, [hangs, works]) = (WarmPool::new(8), HashMap::new(), memories());
        let start = Instant::now();
        pool.asked(hangs);
        assert_eq!(pool.next(&none), Some(hangs));
        pool.asked(works);
        assert_eq!(made(&pool, &mut HashMap::new(), &[works]), [4], "beside one that is being made");
        for failures in 1..=HOPELESS {
            if failures > 1 {
                assert_eq!(pool.next(&HashMap::from([(works, 4)])), Some(hangs), "another try");
            }
            pool.finish(hangs, false);
            assert!(pool.next(&HashMap::from([(works, 4)])).is_none(), "not at once");
            let again = pool.kinds()[&hangs].not_before;
            assert_eq!(again, Some(pool.next_try(start)), "it is looked at as soon as it is due");
            pool.kinds().get_mut(&hangs).expect("a kind").not_before = None;
        }
        assert!(pool.next(&HashMap::from([(works, 4)])).is_none(), "it is given up");
        pool.asked(hangs);
        assert_eq!(pool.next(&HashMap::from([(works, 4)])), Some(hangs), "until somebody asks");
    }

    #[test]
    fn memories_that_fail_leave_a_maker_to_the_others() {
        let (pool, none, [one, other, works]) = (WarmPool::new(8), HashMap::new(), memories());
        for memory in [one, other] {
            pool.asked(memory);
            pool.kinds().get_mut(&memory).expect("a kind").failures = 1;
        }
        assert!(pool.next(&none).is_some() && pool.next(&none).is_none());
        pool.asked(works);
        assert_eq!(pool.next(&none), Some(works));
    }
}
