//! Random walks: requests, deaths, crashes between doing and recording, and time in any order. Whatever happens,
//! once the disturbances end the sandbox comes to rest where its owner wanted it, no machine is left that nobody
//! wants, and nothing that was written to the disk is lost.

use super::*;
use crate::sandbox::state::{Verb, on_verb};
use proptest::prelude::*;
use uuid::Uuid;

const DEADLINES: Deadlines = Deadlines { provisioning: 120, pausing: 60, resuming: 60, restoring: 120, snapshot: 120 };

fn layer(n: u128) -> LayerId {
    LayerId(Uuid::from_u128(n))
}

/// A row and a host, with steps done as the worker does them.
#[derive(Clone, Debug)]
struct World {
    s: Look,
    layers: u128,
    /// The layer in which the newest write is.
    newest: Option<LayerId>,
    checkpoints: u128,
    /// Layers that exist on the host.
    made: Vec<LayerId>,
    /// The layer that the machine writes to.
    writes: Option<LayerId>,
    /// The layer that a checkpoint goes over to.
    next: Option<LayerId>,
}

impl World {
    fn new() -> Self {
        let s = Look {
            now: Timestamp(0),
            deadlines: DEADLINES,
            wish: Wish::Ready,
            phase: Phase::Pending,
            since: Timestamp(0),
            attempts: 0,
            source: Source::Ready,
            reserved: false,
            layer: None,
            layer_made: false,
            swap: false,
            generation: 0,
            machine: Machine::Absent,
            host_restarted: false,
            deaths: 0,
            deaths_since: None,
            checkpoint: None,
            leaving: None,
            network_changed: false,
            expiry: Expiry::default(),
        };
        Self { s, layers: 0, newest: None, checkpoints: 0, made: Vec::new(), writes: None, next: None }
    }

    fn enter(&mut self, phase: Phase) {
        self.s.phase = phase;
        self.s.since = self.s.now;
        self.s.attempts = 0;
    }

    fn fresh(&mut self) -> LayerId {
        self.layers += 1;
        let id = layer(self.layers);
        self.made.push(id);
        id
    }

    fn begin_checkpoint(&mut self) -> LayerId {
        let checkpoint = self.s.checkpoint.expect("a checkpoint");
        if checkpoint.begun.is_none() {
            self.layers += 1;
            self.next = Some(layer(self.layers));
            self.s.checkpoint = Some(Checkpoint { begun: Some(self.s.now), ..checkpoint });
        }
        self.next.expect("a layer")
    }

    fn write(&mut self) {
        if matches!(self.s.machine, Machine::Running { .. }) {
            self.newest = self.writes;
        }
    }

    /// Does a step; without recording it, where the worker dies in between.
    fn apply(&mut self, step: Step, recorded: bool) {
        match step {
            Step::Enter(phase, _) => self.enter(phase),
            Step::Reserve => self.s.reserved = true,
            Step::MakeDisk => {
                match self.s.layer {
                    None => self.s.layer = Some(self.fresh()),
                    Some(layer) if !self.made.contains(&layer) => self.made.push(layer),
                    Some(_) => {}
                }
                self.s.layer_made = recorded;
            }
            Step::Swap => {
                assert_eq!(self.s.machine, Machine::Absent);
                self.s.layer = Some(self.fresh());
                self.newest = None;
                (self.s.swap, self.s.layer_made) = (false, recorded);
            }
            Step::Start => self.start(recorded),
            Step::Checkpoint(_) | Step::CheckpointCold(_) => self.checkpoint(recorded),
            Step::GiveUpCheckpoint(_) => {
                self.s.checkpoint = self.s.checkpoint.map(|checkpoint| Checkpoint { given_up: true, ..checkpoint });
            }
            Step::SetNetwork => self.s.network_changed = !recorded,
            Step::Pause => {
                self.s.machine = Machine::Absent;
                if recorded {
                    self.s.reserved = false;
                    self.enter(Phase::Paused);
                }
            }
            Step::End => self.s.machine = Machine::Absent,
            Step::Leave => self.leave(recorded),
            Step::StartAgain { died, .. } => self.start_again(died),
            Step::Expire(_) => {
                self.s.wish = Wish::Paused;
                self.s.expiry = Expiry::default();
                self.enter(Phase::Pausing);
            }
            Step::Retry => {
                self.s.attempts += 1;
                self.s.generation += 1;
                self.s.since = self.s.now;
            }
            Step::Fail(_) => {
                (self.s.wish, self.s.reserved, self.s.swap) = (Wish::Paused, false, false);
                self.s.checkpoint = self.s.checkpoint.filter(|checkpoint| checkpoint.begun.is_some());
                self.enter(Phase::Failed);
            }
            Step::Finish => {
                assert_eq!(self.s.machine, Machine::Absent);
                (self.s.reserved, self.s.checkpoint) = (false, None);
                self.enter(Phase::Deleted);
            }
            Step::Wait(until) => self.s.now = self.s.now.max(until),
            Step::Rest => {}
        }
        self.s.now.0 += 1000;
    }

    /// Freezes its disk under a top that is not made yet, and goes over.
    fn leave(&mut self, recorded: bool) {
        assert_eq!((&self.s.machine, self.s.checkpoint), (&Machine::Absent, None));
        if self.s.layer_made && recorded {
            self.layers += 1;
            (self.s.layer, self.s.layer_made) = (Some(layer(self.layers)), false);
        } else if recorded {
            self.s.leaving = None;
        }
    }

    fn start_again(&mut self, died: bool) {
        if died {
            let before = deaths(&self.s);
            self.s.deaths = before + 1;
            if before == 0 {
                self.s.deaths_since = Some(self.s.now);
            }
        }
        self.enter(Phase::Resuming);
    }

    fn start(&mut self, recorded: bool) {
        assert!(self.s.reserved && self.s.layer_made);
        let layer = self.s.layer.expect("a disk");
        assert!(self.made.contains(&layer));
        if self.s.machine == Machine::Absent {
            // What was written last is seen by the machine that starts.
            assert!(self.newest.is_none_or(|newest| newest <= layer), "{self:?}");
            self.s.generation += 1;
            self.s.machine = Machine::Running { generation: self.s.generation };
            self.writes = Some(layer);
            self.s.host_restarted = false;
        }
        if recorded {
            self.enter(Phase::Ready);
        }
    }

    fn checkpoint(&mut self, recorded: bool) {
        assert!(self.s.layer_made, "{self:?}");
        let next = self.begin_checkpoint();
        if !self.made.contains(&next) {
            self.made.push(next);
        }
        if matches!(self.s.machine, Machine::Running { .. }) {
            self.writes = Some(next);
        }
        if recorded {
            self.s.layer = Some(next);
            self.s.checkpoint = None;
        }
    }

    fn verb(&mut self, verb: Verb) {
        let Ok(to) = on_verb(verb, self.s.phase) else { return };
        if matches!(verb, Verb::Fork | Verb::Snapshot) && self.s.checkpoint.is_none() {
            self.checkpoints += 1;
            self.s.checkpoint = Some(Checkpoint {
                snapshot: SnapshotId(Uuid::from_u128(self.checkpoints)),
                begun: None,
                given_up: false,
            });
        }
        if let Some(phase) = to {
            self.s.wish = if verb == Verb::Pause { Wish::Paused } else { Wish::Ready };
            (self.s.swap, self.s.leaving) = (verb == Verb::Restore, None);
            self.enter(phase);
        }
    }

    /// Steps until nothing is to be done any more.
    fn settle(&mut self) {
        for _ in 0..300 {
            match next(&self.s) {
                Step::Rest => return,
                step => self.apply(step, true),
            }
        }
        panic!("no rest: {self:?}");
    }
}

#[derive(Clone, Debug)]
enum Event {
    Step(u8),
    Crash,
    Write,
    Verb(usize),
    Delete,
    Die,
    Vanish,
    HostRestart,
    Drain,
    Network,
    Expiry(i64),
    Time(i64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (1..6u8).prop_map(Event::Step),
        3 => Just(Event::Crash),
        3 => Just(Event::Write),
        6 => (0..Verb::ALL.len()).prop_map(Event::Verb),
        1 => Just(Event::Delete),
        1 => Just(Event::Die),
        1 => Just(Event::Vanish),
        1 => Just(Event::HostRestart),
        2 => Just(Event::Drain),
        1 => Just(Event::Network),
        1 => (0..100i64).prop_map(Event::Expiry),
        2 => (1..200i64).prop_map(Event::Time),
    ]
}

fn disturb(world: &mut World, event: &Event) {
    let alive = matches!(world.s.machine, Machine::Running { .. });
    match event {
        Event::Step(n) => (0..*n).for_each(|_| world.apply(next(&world.s), true)),
        Event::Crash => world.apply(next(&world.s), false),
        Event::Write => world.write(),
        Event::Verb(n) => world.verb(Verb::ALL[*n]),
        Event::Delete if world.s.phase != Phase::Deleted => {
            world.s.wish = Wish::Deleted;
            world.enter(Phase::Deleting);
        }
        Event::Die if alive => world.s.machine = Machine::Ended,
        Event::Vanish if alive => world.s.machine = Machine::Absent,
        Event::HostRestart => {
            world.s.machine = Machine::Absent;
            world.s.host_restarted = true;
        }
        Event::Drain if world.s.phase == Phase::Paused && world.s.layer.is_some() => {
            world.s.leaving = Some(Leaving::Goes);
        }
        Event::Network => world.s.network_changed = true,
        Event::Expiry(seconds) if world.s.phase == Phase::Ready => {
            world.s.expiry.expires_at = Some(world.s.now.plus_seconds(*seconds));
        }
        Event::Time(seconds) => world.s.now = world.s.now.plus_seconds(*seconds),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn every_walk_comes_to_rest(events in prop::collection::vec(event(), 0..60)) {
        let mut world = World::new();
        for event in &events {
            disturb(&mut world, event);
        }
        world.settle();
        let running = matches!(world.s.machine, Machine::Running { .. });
        match world.s.wish {
            Wish::Ready => {
                prop_assert_eq!(world.s.phase, Phase::Ready);
                prop_assert!(running && world.s.reserved && !world.s.network_changed);
            }
            Wish::Paused => {
                prop_assert!(matches!(world.s.phase, Phase::Paused | Phase::Failed), "{}", world.s.phase);
                prop_assert!(!running && !world.s.reserved);
            }
            Wish::Deleted => {
                prop_assert_eq!(world.s.phase, Phase::Deleted);
                prop_assert!(!running && !world.s.reserved);
            }
        }
        prop_assert_eq!(world.s.checkpoint, None);
        if running {
            prop_assert_eq!(world.writes, world.s.layer);
        }
        // What was written is below the top, or in it.
        if world.s.phase != Phase::Deleted {
            prop_assert!(world.newest <= world.s.layer, "{world:?}");
        }
    }
}

fn ready() -> World {
    let mut world = World::new();
    world.settle();
    world
}

#[test]
fn a_new_sandbox_is_brought_up_step_by_step() {
    let mut world = World::new();
    let mut seen = Vec::new();
    while next(&world.s) != Step::Rest {
        let step = next(&world.s);
        seen.push(step.name());
        world.apply(step, true);
    }
    assert_eq!(seen, ["enter", "reserve", "make_disk", "start"]);
}

#[test]
fn who_leaves_waits_for_what_comes_and_who_is_snapshotted_then_has_a_disk_first() {
    let mut world = ready();
    world.verb(Verb::Pause);
    world.settle();
    let at = |leaving| next(&Look { leaving, ..world.s.clone() });
    assert_eq!(at(None), Step::Rest);
    assert!(matches!(at(Some(Leaving::Waits)), Step::Wait(_)));
    assert_eq!(at(Some(Leaving::Goes)), Step::Leave);
    world.s.leaving = Some(Leaving::Goes);
    world.apply(Step::Leave, true);
    assert!(!world.s.layer_made);
    world.verb(Verb::Snapshot);
    assert_eq!(next(&world.s), Step::MakeDisk);
    world.settle();
    assert_eq!((world.s.phase, world.s.leaving), (Phase::Paused, None));
}

#[test]
fn it_waits_for_its_source_without_a_deadline_and_fails_with_it() {
    let mut world = World::new();
    world.s.source = Source::Waiting;
    world.s.now = Timestamp(0).plus_seconds(10_000);
    assert!(matches!(next(&world.s), Step::Wait(_)));
    world.s.source = Source::Failed("no".into());
    assert_eq!(next(&world.s), Step::Fail("no".into()));
}

#[test]
fn a_deadline_is_tried_again_once() {
    let mut world = World::new();
    world.apply(next(&world.s), true);
    world.s.now = world.s.since.plus_seconds(120).plus_millis(-1);
    assert_ne!(next(&world.s), Step::Retry);
    world.s.now = world.s.since.plus_seconds(120);
    assert_eq!(next(&world.s), Step::Retry);
    world.apply(Step::Retry, true);
    world.s.now = world.s.since.plus_seconds(120);
    assert!(matches!(next(&world.s), Step::Fail(_)));
}

#[test]
fn the_fourth_death_in_ten_minutes_is_the_last() {
    let world = ready();
    let at = |deaths, seconds: i64| {
        let since = world.s.now.plus_seconds(-seconds);
        next(&Look { deaths, deaths_since: Some(since), machine: Machine::Ended, ..world.s.clone() })
    };
    assert!(matches!(at(2, 599), Step::StartAgain { died: true, .. }));
    assert!(matches!(at(3, 599), Step::Fail(_)));
    assert!(matches!(at(3, 600), Step::StartAgain { died: true, .. }));
    for machine in [Machine::Absent, Machine::Ended] {
        let gone = Look { machine, host_restarted: true, deaths: 9, ..world.s.clone() };
        assert!(matches!(next(&gone), Step::StartAgain { died: false, .. }));
    }
}

#[test]
fn a_checkpoint_that_has_begun_is_given_up_late_and_ended_all_the_same() {
    let world = ready();
    let snapshot = SnapshotId(Uuid::from_u128(1));
    let checkpoint = Checkpoint { snapshot, begun: Some(world.s.now), given_up: false };
    let at = |checkpoint, seconds| {
        next(&Look { checkpoint: Some(checkpoint), now: world.s.now.plus_seconds(seconds), ..world.s.clone() })
    };
    assert_eq!(at(checkpoint, 119), Step::Checkpoint(snapshot));
    assert_eq!(at(checkpoint, 120), Step::GiveUpCheckpoint(snapshot));
    let given_up = Checkpoint { given_up: true, ..checkpoint };
    assert_eq!(at(given_up, 120), Step::Checkpoint(snapshot));
    let network = Look { checkpoint: Some(given_up), network_changed: true, ..world.s.clone() };
    assert_eq!(next(&network), Step::SetNetwork, "others come first");
    let dead = Look { checkpoint: Some(given_up), machine: Machine::Absent, phase: Phase::Resuming, ..world.s.clone() };
    assert_eq!(next(&dead), Step::CheckpointCold(snapshot), "before anything starts");
}

#[test]
fn life_ends_to_the_microsecond() {
    let world = ready();
    let at = |expires: i64, idle: i64| {
        let life = Expiry {
            expires_at: Some(Timestamp(world.s.now.0 + expires)),
            idle_at: Some(Timestamp(world.s.now.0 + idle)),
        };
        next(&Look { expiry: life, ..world.s.clone() })
    };
    assert_eq!(at(1, 2), Step::Wait(Timestamp(world.s.now.0 + 1)));
    assert_eq!(at(0, 2), Step::Expire(Over::Lifetime));
    assert_eq!(at(2, 0), Step::Expire(Over::Idle));
}
