//! Machines set aside: started from a template's memory before anybody asks for them.
//!
//! A copy of a memory costs most when it does something for the first time, since an emulator translates what it has
//! not run yet: identity and first shell together are four fifths of a creation. A spare has done both. Whoever
//! creates a sandbox takes its machine and its disk over; all that is left is to make it that sandbox.
//!
//! Spares are nobody's and known to nobody but this process. A service that died leaves their machines, which no row
//! owns: they are ended, and their layers are set aside as all that no row owns. Spares are kept for templates that were
//! asked for lately.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use berth_domain::ids::{LayerId, MachineId, MemoryId};
use berth_domain::sandbox::network::Network;
use berth_qemu::machine;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio::time::{sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::captured::agent_failed;
use super::machine::identity;
use super::{QemuSandboxes, remove, transient};
use crate::config::SANDBOX_USERS;
use crate::services::sandbox::engine::{From, Result, Spare, StartSpec};

/// How long a template's spares are kept after the last request for one.
const WANTED: Duration = Duration::from_mins(10);
/// How long it may take until a taken spare's row is there.
const TAKEN: Duration = Duration::from_mins(1);
/// Wait after a spare that could not be made; twice as long after each that follows.
const AGAIN: Duration = Duration::from_secs(30);
/// Spares in a row that could not be made, after which their memory has none until somebody asks for it again: then it
/// has one more try.
const HOPELESS: u32 = 3;
/// How long making one may take: a guest that hangs keeps no start from others.
const PATIENCE: Duration = Duration::from_mins(1);
/// Spares that are made at the same time, so that one that hangs does not hold up the others. Of memories whose last one
/// failed one is made at a time, however many there are.
const AT_ONCE: usize = 2;
/// What one takes of the host's memory, in MiB: measured with a guest of 256 MiB, emulated.
const SPARE_MB: u64 = 45;
/// More are not kept, however much memory there is: each takes half a per cent of a core.
const MOST: usize = 16;
/// Those of a memory that nobody has asked for yet: whoever makes a template is about to use it.
const UNASKED: usize = 4;
/// Users of sandboxes by their slots: spares run as those that follow.
const USERS: i64 = SANDBOX_USERS as i64;
/// What a spare has run before it is one: the path of every command.
const REHEARSAL: &str = "true";

/// The machines set aside.
pub(super) struct Spares {
    /// How many there may be.
    most: usize,
    kinds: Mutex<HashMap<MemoryId, Kind>>,
    taken: Mutex<HashMap<MachineId, (LayerId, Instant)>>,
    /// The next of the users that spares run as.
    users: AtomicI64,
    wanted: Notify,
}

/// What spares of one memory look like, and those there are.
struct Kind {
    /// When one was asked for last, or the memory was made.
    asked: Instant,
    /// How many there may be of it.
    most: usize,
    /// What the last sandbox of this memory was started as, without its top layer.
    model: Option<StartSpec>,
    ready: Vec<Spare>,
    making: Option<Spare>,
    /// How many in a row could not be made.
    failures: u32,
    not_before: Option<Instant>,
}

impl Spares {
    /// None yet, and never more than these.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            kinds: Mutex::default(),
            taken: Mutex::default(),
            users: AtomicI64::default(),
            wanted: Notify::default(),
        }
    }

    fn kinds(&self) -> MutexGuard<'_, HashMap<MemoryId, Kind>> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<MachineId, (LayerId, Instant)>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One for a new sandbox of this memory, if there is one.
    pub(super) fn take(&self, memory: MemoryId) -> Option<Spare> {
        if self.most == 0 {
            return None;
        }
        let now = Instant::now();
        let mut kinds = self.kinds();
        let kind = kinds.entry(memory).or_insert_with(|| Kind::new(now, None));
        (kind.asked, kind.most, kind.failures) = (now, usize::MAX, kind.failures.min(HOPELESS - 1));
        let spare = kind.ready.pop()?;
        self.taken().insert(spare.machine, (spare.layer, now));
        self.wanted.notify_one();
        Some(spare)
    }

    /// Tells of a memory that was just made, which will be asked for. `made` is the machine it was made with.
    pub(super) fn announce(&self, memory: MemoryId, made: &StartSpec) {
        if self.most > 0 {
            let model = StartSpec { from: From::Memory(memory), ..made.clone() };
            self.kinds().entry(memory).or_insert_with(|| Kind::new(Instant::now(), Some(model)));
            self.wanted.notify_one();
        }
    }

    /// Learns how spares of a memory are made, from a sandbox that was.
    pub(super) fn learn(&self, spec: &StartSpec) {
        self.taken().remove(&spec.id);
        if let From::Memory(memory) = spec.from
            && let Some(kind) = self.kinds().get_mut(&memory)
            && kind.model.is_none()
        {
            kind.model = Some(StartSpec { layers: spec.layers.iter().skip(1).copied().collect(), ..spec.clone() });
            self.wanted.notify_one();
        }
    }

    /// What the next spare is to be, if one is wanted and there is room.
    fn next(&self) -> Option<StartSpec> {
        let now = Instant::now();
        let mut kinds = self.kinds();
        let part = self.share(&kinds);
        if kinds.values().map(|kind| kind.ready.len() + usize::from(kind.making.is_some())).sum::<usize>() >= self.most
        {
            return None;
        }
        let tries = kinds.values().any(|kind| kind.failures > 0 && kind.making.is_some());
        let lacks = |kind: &&mut Kind| {
            let late = kind.not_before.is_none_or(|time| time <= now);
            kind.model.is_some()
                && kind.making.is_none()
                && kind.failures < HOPELESS
                && (kind.failures == 0 || !tries)
                && kind.ready.len() < part.min(kind.most)
                && late
                && now.duration_since(kind.asked) < WANTED
        };
        let kind = kinds.values_mut().filter(lacks).max_by_key(|kind| kind.asked)?;
        let spare = Spare { machine: MachineId(Uuid::now_v7()), layer: LayerId(Uuid::now_v7()) };
        kind.making = Some(spare);
        let model = kind.model.as_ref()?;
        let layers = std::iter::once(spare.layer).chain(model.layers.iter().copied()).collect();
        // Beyond the slots of sandboxes: each runs as a user of its own, and stays that until it is paused.
        let slot = USERS + self.users.fetch_add(1, Ordering::Relaxed) % USERS;
        let own = StartSpec {
            id: spare.machine,
            guest: spare.machine.to_string(),
            generation: 1,
            slot,
            hostname: "spare".into(),
            layers,
            ..model.clone()
        };
        Some(StartSpec { env: BTreeMap::new(), network: Network::default(), fresh: true, ..own })
    }

    /// When the next that could not be made is due again, of those that were not due by then; with none, after a while.
    fn next_try(&self, by: Instant) -> Instant {
        let times = self.kinds().values().filter_map(|kind| kind.not_before).filter(|time| *time > by).min();
        times.unwrap_or(by + AGAIN)
    }

    /// Notes how the making of a spare ended. Whether it is one: nobody may want it any more.
    fn finish(&self, memory: MemoryId, machine: MachineId, is_made: bool) -> bool {
        let mut kinds = self.kinds();
        let Some(kind) = kinds.get_mut(&memory) else { return false };
        let Some(spare) = kind.making.take_if(|making| making.machine == machine) else { return false };
        if is_made {
            kind.failures = 0;
            kind.ready.push(spare);
        } else {
            kind.not_before = Some(Instant::now() + AGAIN * 2_u32.saturating_pow(kind.failures.min(8)));
            kind.failures += 1;
        }
        is_made
    }

    /// Removes those of some memories from the list: what is left to end.
    fn drain(&self, is_over: impl Fn(MemoryId, &Kind) -> bool) -> Vec<Spare> {
        let mut gone = Vec::new();
        self.kinds().retain(|memory, kind| {
            let over = is_over(*memory, kind);
            if over {
                gone.append(&mut kind.ready);
                gone.extend(kind.making.take());
            }
            !over
        });
        gone
    }

    /// Removes what is above its memory's share from the list, since another one is wanted now: what is left to end.
    fn trim(&self) -> Vec<Spare> {
        let mut kinds = self.kinds();
        let part = self.share(&kinds);
        kinds.values_mut().flat_map(|kind| kind.ready.split_off(part.min(kind.ready.len()))).collect()
    }

    /// Machines and layers that are spares, or are about to have a row.
    pub(super) fn known(&self) -> (Vec<MachineId>, Vec<LayerId>) {
        let kinds = self.kinds();
        let mut taken = self.taken();
        taken.retain(|_, (_, since)| since.elapsed() < TAKEN);
        let spares = kinds.values().flat_map(|kind| kind.ready.iter().chain(&kind.making));
        let spares = spares.map(|spare| (spare.machine, spare.layer));
        spares.chain(taken.iter().map(|(machine, (layer, _))| (*machine, *layer))).unzip()
    }

    /// How many spares each memory that is wanted may have.
    fn share(&self, kinds: &HashMap<MemoryId, Kind>) -> usize {
        self.most / kinds.values().filter(|kind| kind.model.is_some()).count().clamp(1, self.most.max(1))
    }
}

impl Kind {
    fn new(asked: Instant, model: Option<StartSpec>) -> Self {
        Self { asked, most: UNASKED, model, ready: Vec::new(), making: None, failures: 0, not_before: None }
    }
}

/// How many fit into a thirtieth of a host's memory.
pub(super) fn fitting(memory_mb: u64) -> usize {
    usize::try_from(memory_mb / 30 / SPARE_MB).unwrap_or(MOST).clamp(1, MOST)
}

impl QemuSandboxes {
    /// Keeps spares until told to stop, and ends them then.
    pub(super) async fn keep_spares(&self, stop: CancellationToken) {
        let mut tick = tokio::time::interval(AGAIN);
        self.spares.users.store(self.next_user(), Ordering::Relaxed);
        let mut making = FuturesUnordered::new();
        loop {
            // Whatever becomes due behind this is waited for below.
            let looked = Instant::now();
            while making.len() < AT_ONCE
                && let Some(spec) = self.spares.next()
            {
                making.push(self.add_spare(spec));
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.spares.wanted.notified() => {}
                Some(()) = making.next() => {}
                () = sleep_until(self.spares.next_try(looked).into()) => {}
                _ = tick.tick() => {
                    self.end_spares(|_, kind| kind.asked.elapsed() > WANTED).await;
                    for spare in self.spares.trim() {
                        self.discard_spare(spare).await;
                    }
                }
            }
        }
        drop(making);
        self.end_spares(|_, _| true).await;
    }

    /// After the users of what an earlier service set aside: some of it may be a sandbox now.
    fn next_user(&self) -> i64 {
        use std::os::unix::fs::MetadataExt;
        let machines: Vec<MachineId> = super::ids(&self.places.machines()).unwrap_or_default();
        let user = |id: MachineId| {
            let pid = machine::find(&self.places.machine(id), id.0)?;
            let user = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
            (i64::from(user.checked_sub(self.machines.first_user)?) + 1).checked_sub(USERS)
        };
        machines.into_iter().filter_map(user).max().unwrap_or(0).clamp(0, USERS)
    }

    async fn add_spare(&self, spec: StartSpec) {
        let From::Memory(memory) = spec.from else { return };
        let made = self.make_spare(&spec).await;
        if let Err(error) = &made {
            tracing::debug!(%error, "no spare machine could be made");
        }
        if !self.spares.finish(memory, spec.id, made.is_ok())
            && let Some(layer) = spec.layers.first()
        {
            self.discard_spare(Spare { machine: spec.id, layer: *layer }).await;
        }
    }

    async fn make_spare(&self, spec: &StartSpec) -> Result<()> {
        let _turn = self.starting.take_idle().await.map_err(transient)?;
        let made = timeout(PATIENCE, self.start_spare(spec)).await;
        made.unwrap_or_else(|_| Err(transient("it did not begin in time")))
    }

    async fn start_spare(&self, spec: &StartSpec) -> Result<()> {
        let [top, base, ..] = spec.layers[..] else { return Err(transient("a template without a disk")) };
        self.make_layer_file(top, base)?;
        let (incarnation, _) = self.launch(spec, None).await?;
        if !incarnation.from_memory {
            return Err(transient("the template has no memory that loads"));
        }
        let live = self.live(spec.id).ok_or_else(|| transient("the machine is gone"))?;
        let session = live.session().await.map_err(agent_failed)?;
        // Programs of the template go on only as somebody.
        let is_alone = session.metrics().await.map_err(agent_failed)?.processes == 0;
        let mut first = identity(spec, &incarnation, self.clock.now().0)?;
        first.thaw = is_alone;
        session.identify(&first).await.map_err(agent_failed)?;
        if is_alone {
            self.run_within(spec.id, "commands", REHEARSAL, PATIENCE).await?;
        }
        Ok(())
    }

    pub(super) async fn forget_spares_of_layer(&self, layer: LayerId) {
        let names = |kind: &Kind| kind.model.as_ref().is_some_and(|model| model.layers.contains(&layer));
        self.end_spares(|_, kind| names(kind)).await;
    }

    pub(super) async fn forget_spares_of_memory(&self, memory: MemoryId) {
        self.end_spares(|id, _| id == memory).await;
    }

    async fn end_spares(&self, is_over: impl Fn(MemoryId, &Kind) -> bool) {
        for spare in self.spares.drain(is_over) {
            self.discard_spare(spare).await;
        }
    }

    /// What cannot be removed now is found when the host is searched.
    async fn discard_spare(&self, spare: Spare) {
        let _ = self.end_machine(spare.machine).await;
        let _ = remove(&self.places.machine(spare.machine)).await;
        let _ = remove(&self.places.layer(spare.layer)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(asked: Instant) -> Kind {
        let model = StartSpec {
            id: MachineId(Uuid::nil()),
            guest: String::new(),
            generation: 1,
            slot: 0,
            hostname: String::new(),
            vcpu: 1,
            memory_mb: 256,
            layers: vec![LayerId(Uuid::nil())],
            from: From::Disk,
            fresh: true,
            env: BTreeMap::new(),
            user: "user".into(),
            workdir: None,
            network: Network::default(),
        };
        Kind { most: usize::MAX, ..Kind::new(asked, Some(model)) }
    }

    /// Makes what is wanted; how many each memory has then, the oldest request first.
    fn made(spares: &Spares, memories: &[MemoryId]) -> Vec<usize> {
        while let Some(spec) = spares.next() {
            let memory =
                spares.kinds().iter().find(|(_, k)| k.making.is_some_and(|m| m.machine == spec.id)).map(|k| *k.0);
            assert!(spares.finish(memory.unwrap(), spec.id, true));
        }
        memories.iter().map(|memory| spares.kinds()[memory].ready.len()).collect()
    }

    #[test]
    fn memories_share_what_there_is() {
        let (mut spares, start) = (Spares::new(5), Instant::now());
        let memories: Vec<_> = (0..4).map(|_| MemoryId(Uuid::now_v7())).collect();
        spares.kinds().insert(memories[0], kind(start));
        assert_eq!(made(&spares, &memories[..1]), [5]);
        spares.kinds().insert(memories[1], kind(start + Duration::from_millis(1)));
        assert_eq!(made(&spares, &memories[..2]), [5, 0], "there is no room");
        assert_eq!(spares.trim().len(), 3);
        assert_eq!(made(&spares, &memories[..2]), [2, 2]);
        for (index, memory) in memories.iter().enumerate().skip(2) {
            spares.kinds().insert(*memory, kind(start + Duration::from_millis(index as u64)));
        }
        spares.most = 2;
        assert_eq!(spares.trim().len(), 2);
        assert_eq!(made(&spares, &memories), [1, 1, 0, 0]);
        spares.most = 0;
        assert!(spares.trim().len() == 2 && spares.next().is_none());
    }

    #[test]
    fn a_memory_that_nobody_asked_for_has_few() {
        let (spares, memory) = (Spares::new(10), MemoryId(Uuid::now_v7()));
        let model = kind(Instant::now()).model.unwrap();
        spares.announce(memory, &model);
        assert_eq!(made(&spares, &[memory]), [UNASKED]);
        assert_eq!(spares.kinds()[&memory].model.as_ref().map(|model| model.from), Some(From::Memory(memory)));
        assert!(spares.take(memory).is_some());
        assert_eq!(made(&spares, &[memory]), [10]);
        let none = Spares::new(0);
        none.announce(memory, &model);
        assert!(none.next().is_none());
    }

    #[test]
    fn a_memory_whose_spares_hang_keeps_none_of_the_others_waiting() {
        let (spares, start) = (Spares::new(8), Instant::now());
        let [hangs, works] = [MemoryId(Uuid::now_v7()), MemoryId(Uuid::now_v7())];
        spares.kinds().insert(hangs, kind(Instant::now() + Duration::from_secs(1)));
        let first = spares.next().expect("one is wanted");
        spares.kinds().insert(works, kind(Instant::now()));
        assert_eq!(made(&spares, &[works]), [4], "beside one that is being made");
        for failures in 1..=HOPELESS {
            let machine = if failures == 1 { first.id } else { spares.next().expect("another try").id };
            assert!(!spares.finish(hangs, machine, false));
            assert!(spares.next().is_none(), "not at once");
            let again = spares.kinds()[&hangs].not_before;
            assert_eq!(again, Some(spares.next_try(start)), "it is looked at as soon as it is due");
            spares.kinds().get_mut(&hangs).expect("a kind").not_before = None;
        }
        assert!(spares.next().is_none(), "it is given up");
        assert!(spares.take(hangs).is_none());
        assert!(spares.next().is_some(), "until somebody asks");
    }

    #[test]
    fn memories_whose_spares_fail_leave_a_maker_to_the_others() {
        let spares = Spares::new(8);
        let fail = [MemoryId(Uuid::now_v7()), MemoryId(Uuid::now_v7())];
        for memory in fail {
            spares.kinds().insert(memory, Kind { failures: 1, ..kind(Instant::now()) });
        }
        assert!(spares.next().is_some() && spares.next().is_none());
        let works = MemoryId(Uuid::now_v7());
        spares.kinds().insert(works, kind(Instant::now()));
        assert_eq!(made(&spares, &[works]), [2]);
    }

    #[test]
    fn a_host_keeps_what_a_thirtieth_of_its_memory_holds() {
        assert_eq!([2 << 10, 8 << 10, 24 << 10, 256 << 10].map(fitting), [1, 6, 16, 16]);
    }
}
