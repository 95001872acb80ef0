//! Warm machines, as far as they are wanted: of which memories, and how many.
//!
//! A copy of a memory costs most when it does something for the first time, since an emulator translates what it has
//! not run yet: identity and first shell together are four fifths of a creation. A warm machine has done both. Whoever
//! creates a sandbox gets it, with its disk; all that is left is to make it that sandbox.
//!
//! Which there are, the rows say ([`crate::db::machine`]). Here stands what nobody needs to know after a restart: which
//! memories were asked for lately, which machines are being made, and which memories could not be begun with.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use berth_domain::ids::{MachineId, MemoryId};
use berth_domain::machine::Owner;
use tokio::sync::Notify;

use crate::db::machine::Machine;

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
    state: Mutex<State>,
    /// Told when one is wanted.
    wanted: Notify,
    /// Told when those that there are, or their templates, changed.
    changed: Notify,
}

/// What changes.
#[derive(Default)]
struct State {
    kinds: HashMap<MemoryId, Kind>,
    /// What is being made, with which memory.
    making: HashMap<MachineId, MemoryId>,
}

/// What is wanted of those of one memory.
struct Kind {
    /// When one was asked for last, or the memory was made.
    asked: Instant,
    /// How many there may be of it.
    most: usize,
    /// How many in a row could not be made.
    failures: u32,
    not_before: Option<Instant>,
}

impl Kind {
    const fn new(asked: Instant, most: usize) -> Self {
        Self { asked, most, failures: 0, not_before: None }
    }
}

impl State {
    /// Whether one that begins with a memory is being made.
    fn makes(&self, memory: MemoryId) -> bool {
        self.making.values().any(|making| *making == memory)
    }

    /// Forgets what nobody asked for lately.
    fn forget_unasked(&mut self) {
        let making: Vec<_> = self.making.values().copied().collect();
        self.kinds.retain(|memory, kind| making.contains(memory) || kind.asked.elapsed() < WANTED);
    }
}

impl WarmPool {
    /// Nothing is wanted yet, and never more than these.
    pub(super) fn new(most: usize) -> Self {
        Self { most, state: Mutex::default(), wanted: Notify::default(), changed: Notify::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a sandbox begins with a memory. Whether there may be a warm machine for it.
    pub(super) fn asked(&self, memory: MemoryId) -> bool {
        if self.most == 0 {
            return false;
        }
        let now = Instant::now();
        let mut state = self.state();
        let kind = state.kinds.entry(memory).or_insert_with(|| Kind::new(now, usize::MAX));
        (kind.asked, kind.most, kind.failures) = (now, usize::MAX, kind.failures.min(HOPELESS - 1));
        self.wanted.notify_one();
        true
    }

    /// Notes that a memory was just made, which will be asked for.
    pub(super) fn announce(&self, memory: MemoryId) {
        if self.most > 0 {
            self.state().kinds.entry(memory).or_insert_with(|| Kind::new(Instant::now(), UNASKED));
            self.wanted.notify_one();
        }
    }

    /// Notes that an earlier service left one that is ready: that memory was asked for lately.
    pub(super) fn found(&self, memory: MemoryId) {
        self.state().kinds.entry(memory).or_insert_with(|| Kind::new(Instant::now(), usize::MAX));
    }

    /// Returns when one may be wanted.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Notes that those that there are changed.
    pub(super) fn note_change(&self) {
        self.changed.notify_one();
    }

    /// Notes that a template changed, whose memory may be wanted here.
    pub(super) fn note_template(&self) {
        if !self.state().kinds.is_empty() {
            self.changed.notify_one();
        }
    }

    /// Returns when those that there are, or their templates, changed.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// With which memory the next one is to begin, if one is wanted and there is room beside the `machines` that there
    /// are. It is being made as `id` then.
    pub(super) fn next(&self, machines: &[Machine], id: MachineId) -> Option<MemoryId> {
        let (now, ready) = (Instant::now(), ready(machines));
        let mut state = self.state();
        let part = self.share(state.kinds.len());
        if ready.values().sum::<usize>() + state.making.len() >= self.most {
            return None;
        }
        let tries = state.kinds.iter().any(|(memory, kind)| kind.failures > 0 && state.makes(*memory));
        let lacks = |(memory, kind): &(&MemoryId, &Kind)| {
            let late = kind.not_before.is_none_or(|time| time <= now);
            !state.makes(**memory)
                && kind.failures < HOPELESS
                && (kind.failures == 0 || !tries)
                && ready.get(*memory).copied().unwrap_or_default() < part.min(kind.most)
                && late
                && now.duration_since(kind.asked) < WANTED
        };
        let (memory, _) = state.kinds.iter().filter(lacks).max_by_key(|(_, kind)| kind.asked)?;
        let memory = *memory;
        state.making.insert(id, memory);
        Some(memory)
    }

    /// Notes how the making of one ended.
    pub(super) fn finish(&self, id: MachineId, is_made: bool) {
        let mut state = self.state();
        let Some(memory) = state.making.remove(&id) else { return };
        let Some(kind) = state.kinds.get_mut(&memory) else { return };
        if is_made {
            kind.failures = 0;
        } else {
            kind.not_before = Some(Instant::now() + AGAIN * 2_u32.saturating_pow(kind.failures.min(8)));
            kind.failures += 1;
        }
    }

    /// Nothing is wanted of a memory any more.
    pub(super) fn forget(&self, memory: MemoryId) {
        self.state().kinds.remove(&memory);
    }

    /// Which of the warm machines that there are nobody wants: those of memories that nobody asked for lately, those
    /// above their memory's share, the newest first, and those that nobody may have. What is being made stays.
    pub(super) fn surplus(&self, machines: &[Machine]) -> Vec<Machine> {
        let mut state = self.state();
        state.forget_unasked();
        let part = self.share(state.kinds.len());
        let mut kept = HashMap::<MemoryId, usize>::new();
        let mut stays = |machine: &Machine| {
            let Owner::Warm(memory) = machine.owner else { return false };
            if !machine.ready {
                return state.making.contains_key(&machine.id);
            }
            let count = kept.entry(memory).or_default();
            *count += 1;
            state.kinds.contains_key(&memory) && *count <= part
        };
        machines.iter().filter(|machine| !stays(machine)).cloned().collect()
    }

    /// When the next that could not be made is due again, of those that were not due by then; with none, after a while.
    pub(super) fn next_try(&self, by: Instant) -> Instant {
        let state = self.state();
        let times = state.kinds.values().filter_map(|kind| kind.not_before).filter(|time| *time > by).min();
        times.unwrap_or(by + AGAIN)
    }

    /// How many each of so many memories may have.
    fn share(&self, kinds: usize) -> usize {
        self.most / kinds.clamp(1, self.most.max(1))
    }
}

/// How many of each memory somebody may have.
fn ready(machines: &[Machine]) -> HashMap<MemoryId, usize> {
    let mut ready = HashMap::new();
    for machine in machines.iter().filter(|machine| machine.ready) {
        if let Owner::Warm(memory) = machine.owner {
            *ready.entry(memory).or_default() += 1;
        }
    }
    ready
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use uuid::Uuid;

    use super::*;
    use crate::db::machine::new_id;

    fn memories<const N: usize>() -> [MemoryId; N] {
        std::array::from_fn(|_| MemoryId(Uuid::now_v7()))
    }

    fn warm(memory: MemoryId) -> Machine {
        Machine { ready: true, ..Machine::new(new_id(), Owner::Warm(memory), 1, 256) }
    }

    fn some(memory: MemoryId, count: usize) -> Vec<Machine> {
        (0..count).map(|_| warm(memory)).collect()
    }

    /// Makes what is wanted; how many each memory has then.
    fn made(pool: &WarmPool, machines: &mut Vec<Machine>, memories: &[MemoryId]) -> Vec<usize> {
        let mut id = new_id();
        while let Some(memory) = pool.next(machines, id) {
            pool.finish(id, true);
            machines.push(warm(memory));
            id = new_id();
        }
        let ready = ready(machines);
        memories.iter().map(|memory| ready.get(memory).copied().unwrap_or_default()).collect()
    }

    /// Ends what nobody wants.
    fn trim(pool: &WarmPool, machines: &mut Vec<Machine>) {
        let surplus = pool.surplus(machines);
        machines.retain(|machine| !surplus.contains(machine));
    }

    #[test]
    fn who_keeps_none_is_told_of_changes_and_of_no_template() {
        let (pool, [memory]) = (WarmPool::new(1), memories());
        let is_told = || pool.changed().now_or_never().is_some();
        pool.note_template();
        assert!(!is_told(), "no template's memory is wanted");
        pool.note_change();
        assert!(is_told() && !is_told());
        pool.asked(memory);
        assert!(!is_told());
        pool.note_template();
        assert!(is_told());
    }

    #[test]
    fn memories_share_what_there_is() {
        let (pool, mut machines, all) = (WarmPool::new(5), Vec::new(), memories::<3>());
        assert!(pool.asked(all[0]));
        assert_eq!(made(&pool, &mut machines, &all[..1]), [5]);
        assert!(pool.asked(all[1]));
        assert_eq!(made(&pool, &mut machines, &all[..2]), [5, 0], "there is no room");
        let oldest = machines[..2].to_vec();
        trim(&pool, &mut machines);
        assert_eq!(machines, oldest);
        assert_eq!(made(&pool, &mut machines, &all[..2]), [2, 2]);
        pool.forget(all[0]);
        trim(&pool, &mut machines);
        assert_eq!(made(&pool, &mut machines, &all[..2]), [0, 5]);
        let none = WarmPool::new(0);
        none.announce(all[2]);
        assert!(!none.asked(all[2]) && none.next(&[], new_id()).is_none());
    }

    #[test]
    fn one_that_is_being_made_stays_and_one_that_nobody_may_have_does_not() {
        let (pool, [memory], id) = (WarmPool::new(2), memories(), new_id());
        pool.asked(memory);
        assert_eq!(pool.next(&[], id), Some(memory));
        let making = Machine::new(id, Owner::Warm(memory), 1, 256);
        let left = Machine { id: new_id(), ..making.clone() };
        assert_eq!(pool.surplus(&[making.clone(), left.clone()]), [left]);
        pool.forget(memory);
        assert!(pool.surplus(std::slice::from_ref(&making)).is_empty(), "its maker ends it");
        pool.finish(id, false);
        assert_eq!(pool.surplus(std::slice::from_ref(&making)), [making]);
    }

    #[test]
    fn a_memory_that_nobody_asked_for_has_few() {
        let (pool, mut machines, [memory]) = (WarmPool::new(10), Vec::new(), memories());
        pool.announce(memory);
        assert_eq!(made(&pool, &mut machines, &[memory]), [UNASKED]);
        assert!(pool.asked(memory));
        assert_eq!(made(&pool, &mut machines, &[memory]), [10]);
    }

    #[test]
    fn a_memory_that_cannot_be_begun_with_keeps_none_of_the_others_waiting() {
        let (pool, [hangs, works], mut id) = (WarmPool::new(8), memories(), new_id());
        let (start, others) = (Instant::now(), some(works, 4));
        pool.asked(hangs);
        assert_eq!(pool.next(&[], id), Some(hangs));
        pool.asked(works);
        assert_eq!(made(&pool, &mut Vec::new(), &[works]), [4], "beside one that is being made");
        for failures in 1..=HOPELESS {
            if failures > 1 {
                id = new_id();
                assert_eq!(pool.next(&others, id), Some(hangs), "another try");
            }
            pool.finish(id, false);
            assert!(pool.next(&others, new_id()).is_none(), "not at once");
            let again = pool.state().kinds[&hangs].not_before;
            assert_eq!(again, Some(pool.next_try(start)), "it is looked at as soon as it is due");
            pool.state().kinds.get_mut(&hangs).expect("a kind").not_before = None;
        }
        assert!(pool.next(&others, new_id()).is_none(), "it is given up");
        pool.asked(hangs);
        assert_eq!(pool.next(&others, new_id()), Some(hangs), "until somebody asks");
    }

    #[test]
    fn memories_that_fail_leave_a_maker_to_the_others() {
        let (pool, [one, other, works]) = (WarmPool::new(8), memories());
        for memory in [one, other] {
            pool.asked(memory);
            pool.state().kinds.get_mut(&memory).expect("a kind").failures = 1;
        }
        assert!(pool.next(&[], new_id()).is_some() && pool.next(&[], new_id()).is_none());
        pool.asked(works);
        assert_eq!(pool.next(&[], new_id()), Some(works));
    }
}
