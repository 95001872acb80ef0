//! A circuit breaker: it keeps requests from a failing upstream for a while, and then tries it with a single one.
//!
//! Two rules open it, because there are two ways to fail. An upstream that is gone fails every time, and a few failures
//! in a row show that at once. An overloaded one fails now and then, and only a rate shows that. With every failed
//! trial the time that it stays open doubles, so that a long outage costs a request a minute.
//!
//! A health check asks less of an upstream than a request does. So a good check only brings the next trial forward; it
//! never closes a breaker or makes up for a failed request.
//!
//! A refusal (403) may concern the service's own key, and then every caller gets it, or what one caller wrote, as where
//! a provider moderates prompts. So it counts as a failure only if the upstream refused several callers since it last
//! answered one: a single caller cannot open the breaker for the others.
//!
//! The breaker does not know to which request an outcome belongs. The outcome of a request from before it opened is
//! ignored while it is open, and taken for the trial's while it is half open: it tells of the same moment.

/// Failures in a row that open a breaker, as in Envoy's outlier detection (`consecutive_5xx`).
const ROW: u32 = 5;
/// Failed health checks in a row that open it, as in HAProxy (`fall`).
const FALL: u32 = 3;
/// Number of outcomes below which a rate means nothing; this and the half are Hystrix's (`requestVolumeThreshold`,
/// `errorThresholdPercentage`).
const ENOUGH: u64 = 20;
/// Shortest and longest time that it stays open, in milliseconds. The longest is also how long a trial may go without
/// an outcome before the breaker admits another, so that a lost outcome never shuts an upstream out for good.
const SHORTEST: u64 = 1_000;
const LONGEST: u64 = 60_000;

/// What a breaker does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It lets all through.
    Closed,
    /// It lets none through.
    Open,
    /// It lets one through at a time, as a trial.
    HalfOpen,
}

/// A breaker for one upstream. Times are milliseconds of one clock that does not go back.
#[derive(Clone, Debug, Default)]
pub struct Breaker {
    phase: Phase,
    /// Failures since the last success.
    row: u32,
    /// Failed health checks since the last good one.
    unwell: u32,
    /// The callers that the upstream refused since the last success.
    refused: Refused,
    /// How often it opened since it was last closed.
    opened: u32,
    /// Successes and failures of the last 30 seconds.
    recent: Window<3_000>,
}

/// The refused callers.
#[derive(Clone, Copy, Debug, Default)]
enum Refused {
    #[default]
    Nobody,
    /// Only this caller.
    One(u64),
    Several,
}

#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    #[default]
    Closed,
    /// Until this time.
    Open(u64),
    /// With the start of its trial, if there is one.
    Half(Option<u64>),
}

impl Breaker {
    /// Its state at this time.
    pub fn state(&self, now: u64) -> State {
        match self.phase(now) {
            Phase::Closed => State::Closed,
            Phase::Open(_) => State::Open,
            Phase::Half(_) => State::HalfOpen,
        }
    }

    /// Whether a request may go to the upstream. The caller then reports it with [`Breaker::began`].
    pub fn admits(&self, now: u64) -> bool {
        match self.phase(now) {
            Phase::Closed => true,
            Phase::Open(_) => false,
            Phase::Half(trial) => trial.is_none_or(|began| now.saturating_sub(began) >= LONGEST),
        }
    }

    /// Notes that a request goes to the upstream.
    pub fn began(&mut self, now: u64) {
        if let Phase::Half(_) = self.phase(now) {
            self.phase = Phase::Half(Some(now));
        }
    }

    /// Notes that the upstream answered.
    pub fn succeeded(&mut self, now: u64) {
        match self.phase(now) {
            Phase::Closed => {
                self.row = 0;
                self.refused = Refused::Nobody;
                self.recent.add(now, 1, 0);
            }
            Phase::Open(_) => {}
            Phase::Half(_) => *self = Self::default(),
        }
    }

    /// Notes that the upstream failed.
    pub fn failed(&mut self, now: u64) {
        match self.phase(now) {
            Phase::Closed => {
                self.row += 1;
                self.recent.add(now, 0, 1);
                if self.row >= ROW || self.fails_often(now) {
                    self.open(now);
                }
            }
            Phase::Open(_) => {}
            Phase::Half(_) => self.open(now),
        }
    }

    /// Notes that the upstream refused what `caller` sent, which may be the caller's fault or its own.
    pub fn refused(&mut self, caller: u64, now: u64) {
        if let Phase::Open(_) = self.phase(now) {
            return;
        }
        self.refused = match self.refused {
            Refused::Nobody => Refused::One(caller),
            Refused::One(other) if other == caller => Refused::One(caller),
            Refused::One(_) | Refused::Several => Refused::Several,
        };
        match self.refused {
            Refused::Several => self.failed(now),
            // The upstream answers, if only with a refusal: the next request may be the trial.
            _ => self.abandoned(now),
        }
    }

    /// Notes that the client cancelled the request before its outcome was known: the next one may be the trial.
    pub fn abandoned(&mut self, now: u64) {
        if let Phase::Half(_) = self.phase(now) {
            self.phase = Phase::Half(None);
        }
    }

    /// Notes the result of a health check.
    pub fn probed(&mut self, healthy: bool, now: u64) {
        self.unwell = if healthy { 0 } else { self.unwell.saturating_add(1) };
        match self.phase(now) {
            Phase::Closed if self.unwell >= FALL => self.open(now),
            Phase::Open(_) if healthy => self.phase = Phase::Half(None),
            Phase::Half(_) if !healthy => self.open(now),
            _ => {}
        }
    }

    /// The phase at this time.
    fn phase(&self, now: u64) -> Phase {
        match self.phase {
            Phase::Open(until) if now >= until => Phase::Half(None),
            phase => phase,
        }
    }

    /// Whether at least half of the last outcomes are failures.
    fn fails_often(&self, now: u64) -> bool {
        let (good, bad) = self.recent.sums(now);
        good + bad >= ENOUGH && bad >= good
    }

    fn open(&mut self, now: u64) {
        // From the shortest time, six doublings exceed the longest.
        let time = (SHORTEST << self.opened.min(6)).min(LONGEST);
        let opened = self.opened.saturating_add(1);
        *self = Self { phase: Phase::Open(now.saturating_add(time)), opened, ..Self::default() };
    }
}

/// Slots of a [`Window`].
const SLOTS: usize = 10;

/// Two counters over the last ten slots of `SLOT` milliseconds, the present one among them.
#[derive(Clone, Debug, Default)]
pub(super) struct Window<const SLOT: u64> {
    slots: [Slot; SLOTS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// The number of the slot since the clock's beginning.
    tick: u64,
    counts: (u64, u64),
}

impl<const SLOT: u64> Window<SLOT> {
    /// Adds to the counters.
    pub(super) fn add(&mut self, now: u64, first: u64, second: u64) {
        let tick = now / SLOT;
        let place = usize::try_from(tick % SLOTS as u64).unwrap_or_default();
        let slot = &mut self.slots[place];
        if slot.tick < tick {
            *slot = Slot { tick, counts: (0, 0) };
        }
        slot.counts.0 += first;
        slot.counts.1 += second;
    }

    /// What was added in the present slot.
    pub(super) fn latest(&self, now: u64) -> (u64, u64) {
        let tick = now / SLOT;
        let slot = self.slots[usize::try_from(tick % SLOTS as u64).unwrap_or_default()];
        if slot.tick == tick { slot.counts } else { (0, 0) }
    }

    /// What was added in all ten slots.
    pub(super) fn sums(&self, now: u64) -> (u64, u64) {
        let tick = now / SLOT;
        let late = self.slots.iter().filter(|slot| slot.tick + SLOTS as u64 > tick);
        late.fold((0, 0), |sums, slot| (sums.0 + slot.counts.0, sums.1 + slot.counts.1))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fail(breaker: &mut Breaker, times: u32, now: u64) {
        for _ in 0..times {
            breaker.failed(now);
        }
    }

    #[test]
    fn five_in_a_row_open_it() {
        let mut breaker = Breaker::default();
        fail(&mut breaker, 4, 0);
        breaker.succeeded(0);
        fail(&mut breaker, 4, 0);
        assert_eq!(breaker.state(0), State::Closed);
        breaker.failed(0);
        assert_eq!((breaker.state(0), breaker.state(999), breaker.admits(999)), (State::Open, State::Open, false));
        assert_eq!((breaker.state(1000), breaker.admits(1000)), (State::HalfOpen, true));
    }

    /// Mixed outcomes, never many failures in a row; then a pause, then a last failure.
    fn mixed(good: u32, bad: u32, pause: u64) -> State {
        let mut breaker = Breaker::default();
        for turn in 0..good.max(bad) {
            if turn < bad {
                breaker.failed(0);
            }
            if turn < good {
                breaker.succeeded(0);
            }
        }
        breaker.failed(pause);
        breaker.state(pause)
    }

    #[test]
    fn half_of_twenty_open_it() {
        assert_eq!(mixed(10, 9, 0), State::Open);
        assert_eq!(mixed(11, 9, 0), State::Closed);
        assert_eq!(mixed(9, 9, 0), State::Closed);
        assert_eq!(mixed(10, 9, 29_999), State::Open);
        assert_eq!(mixed(10, 9, 30_000), State::Closed);
    }

    #[test]
    fn the_time_doubles_up_to_a_minute() {
        let (mut breaker, mut now) = (Breaker::default(), 0);
        fail(&mut breaker, 5, now);
        for time in [1, 2, 4, 8, 16, 32, 60, 60, 60] {
            assert_eq!(breaker.state(now + time * 1000 - 1), State::Open, "{time}");
            now += time * 1000;
            assert_eq!(breaker.state(now), State::HalfOpen, "{time}");
            breaker.began(now);
            breaker.failed(now);
        }
        now += 60_000;
        breaker.began(now);
        breaker.succeeded(now);
        assert_eq!(breaker.state(now), State::Closed);
        fail(&mut breaker, 5, now);
        assert_eq!(breaker.state(now + 1000), State::HalfOpen);
    }

    #[test]
    fn one_trial_at_a_time() {
        let mut breaker = Breaker::default();
        fail(&mut breaker, 5, 0);
        breaker.began(1000);
        assert!(!breaker.admits(1000));
        breaker.abandoned(1500);
        assert!(breaker.admits(1500));
        breaker.began(1500);
        assert!(!breaker.admits(61_499));
        assert!(breaker.admits(61_500), "a lost trial is given up");
    }

    #[test]
    fn outcomes_of_before_change_nothing_while_it_is_open() {
        let mut breaker = Breaker::default();
        fail(&mut breaker, 50, 0);
        breaker.succeeded(500);
        breaker.abandoned(500);
        assert_eq!((breaker.state(999), breaker.state(1000)), (State::Open, State::HalfOpen));
    }

    #[test]
    fn health_checks() {
        let mut breaker = Breaker::default();
        for healthy in [false, false, true, false, false] {
            breaker.probed(healthy, 0);
        }
        assert_eq!(breaker.state(0), State::Closed);
        breaker.probed(false, 0);
        assert_eq!(breaker.state(0), State::Open);
        breaker.probed(true, 1);
        assert_eq!((breaker.state(1), breaker.admits(1)), (State::HalfOpen, true));
        breaker.probed(true, 2);
        assert_eq!(breaker.state(2), State::HalfOpen);
        breaker.probed(false, 3);
        assert_eq!((breaker.state(2002), breaker.state(2003)), (State::Open, State::HalfOpen));
        // A good check does not make up for failed requests.
        let mut breaker = Breaker::default();
        for _ in 0..5 {
            breaker.failed(0);
            breaker.probed(true, 0);
        }
        assert_eq!(breaker.state(0), State::HalfOpen);
    }

    #[test]
    fn refusals_count_once_several_met_them() {
        let mut breaker = Breaker::default();
        for _ in 0..100 {
            breaker.refused(1, 0);
        }
        assert_eq!(breaker.state(0), State::Closed, "one caller alone");
        for caller in [2, 1, 1, 1] {
            breaker.refused(caller, 0);
            assert_eq!(breaker.state(0), State::Closed);
        }
        breaker.refused(2, 0);
        assert_eq!(breaker.state(0), State::Open, "five since the second one came");
        // A success between them resets the count.
        let mut breaker = Breaker::default();
        for caller in 0..100 {
            breaker.refused(caller, 0);
            breaker.succeeded(0);
        }
        assert_eq!(breaker.state(0), State::Closed);
        // A late refusal, from before it opened, does not make the trial's refusal the second.
        let mut breaker = Breaker::default();
        fail(&mut breaker, 5, 0);
        breaker.refused(1, 500);
        breaker.began(1000);
        breaker.refused(2, 1000);
        assert_eq!((breaker.state(1000), breaker.admits(1000)), (State::HalfOpen, true));
        // After a refused trial, the next request is the trial.
        let mut breaker = Breaker::default();
        fail(&mut breaker, 5, 0);
        breaker.began(1000);
        breaker.refused(1, 1000);
        assert_eq!((breaker.state(1000), breaker.admits(1000)), (State::HalfOpen, true));
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Wait(u64),
        Begin,
        Succeed,
        Fail,
        Refuse(u64),
        Abandon,
        Probe(bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => (0_u64..70_000).prop_map(Step::Wait),
            1 => (0_u64..3_000).prop_map(Step::Wait),
            4 => Just(Step::Begin),
            3 => Just(Step::Succeed),
            6 => Just(Step::Fail),
            2 => (0_u64..3).prop_map(Step::Refuse),
            1 => Just(Step::Abandon),
            1 => any::<bool>().prop_map(Step::Probe),
        ]
    }

    /// Whether a step may lead from one state to the next.
    fn legal(step: Step, from: State, to: State) -> bool {
        use State::{Closed, HalfOpen, Open};
        match (from, to) {
            (Closed | HalfOpen, Open) => matches!(step, Step::Fail | Step::Refuse(_) | Step::Probe(false)),
            (Open, HalfOpen) => matches!(step, Step::Wait(_) | Step::Probe(true)),
            (HalfOpen, Closed) => matches!(step, Step::Succeed),
            (Closed, HalfOpen) | (Open, Closed) => false,
            // A trial's outcome never leaves it half open.
            (HalfOpen, HalfOpen) => !matches!(step, Step::Succeed | Step::Fail | Step::Probe(false)),
            (Closed, Closed) | (Open, Open) => true,
        }
    }

    proptest! {
        #[test]
        fn it_walks_only_where_it_may(steps in prop::collection::vec(step(), 1..200)) {
            let (mut breaker, mut now, mut row) = (Breaker::default(), 1_000_000, 0);
            for step in steps {
                let before = breaker.state(now);
                match step {
                    Step::Wait(time) => now += time,
                    Step::Begin => breaker.began(now),
                    Step::Succeed => breaker.succeeded(now),
                    Step::Fail => breaker.failed(now),
                    Step::Refuse(caller) => breaker.refused(caller, now),
                    Step::Abandon => breaker.abandoned(now),
                    Step::Probe(healthy) => breaker.probed(healthy, now),
                }
                let after = breaker.state(now);
                prop_assert!(legal(step, before, after), "{:?} from {:?} to {:?}", step, before, after);
                row = match step {
                    Step::Fail if before == State::Closed => row + 1,
                    Step::Succeed => 0,
                    _ => row,
                };
                prop_assert!(after != State::Closed || row < 5);
                if after != State::Closed {
                    row = 0;
                }
                prop_assert!(breaker.admits(now) == (after == State::Closed) || after == State::HalfOpen);
                prop_assert!(!(matches!(step, Step::Begin) && after == State::HalfOpen && breaker.admits(now)));
                // However the breaker came here, it admits a request after a minute without outcomes.
                prop_assert!(breaker.admits(now + LONGEST));
            }
        }
    }
}
