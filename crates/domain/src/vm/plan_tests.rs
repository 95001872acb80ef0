//! Random walks: verbs, deaths, crashes and time in any order. Whatever happens, once the disturbances
//! end the VM comes to rest where its owner wanted it, and nothing is left behind.

use super::*;
use crate::vm::state::{Verb, on_verb};
use proptest::prelude::*;

const DEADLINES: Deadlines = Deadlines {
    provisioning: 600,
    starting: 300,
    restarting: 300,
    stopping: 60,
    suspending: 300,
    deleting: 300,
    power_off: 30,
};

/// A row and a host, with steps done as the worker does them.
#[derive(Clone, Debug)]
struct World {
    s: Snapshot,
    /// Whether the guest ignores the power button.
    deaf_guest: bool,
    /// Whether the guest lets go of a disk.
    lets_go: bool,
    starts: usize,
    /// Whether the host has the memory of the machine, which fits its disks.
    saved: bool,
}

impl World {
    fn new(policy: RestartPolicy, deaf_guest: bool) -> Self {
        let id = "01939f2e-7c00-7abc-8def-0123456789ab".parse().unwrap();
        let s = Snapshot {
            now: Timestamp(0),
            deadlines: DEADLINES,
            want: Want::Run,
            status: Status::Pending,
            since: Timestamp(0),
            served_since: Timestamp(0),
            attempts: 0,
            deaths: 0,
            reserved: false,
            has_memory: false,
            ending: false,
            leaves: false,
            power_off_at: None,
            pressed_at: None,
            start_after: None,
            has_room: true,
            guest_ready: false,
            ports_changed: false,
            keys_changed: false,
            host_restarted: false,
            restart_policy: policy,
            disks: vec![Disk {
                id,
                status: DiskStatus::Pending,
                message: None,
                grows: false,
                is_elsewhere: false,
                stuck_since: None,
                moving: None,
                snapshot: None,
            }],
            expires_at: None,
            machine: Machine::Absent,
            machine_ready: false,
        };
        Self { s, deaf_guest, lets_go: !deaf_guest, starts: 0, saved: false }
    }

    fn enter(&mut self, status: Status) {
        self.s.status = status;
        self.s.since = self.s.now;
        self.s.attempts = 0;
        (self.s.power_off_at, self.s.pressed_at) = (None, None);
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Enter(status, _) => self.enter(status),
            Step::Reserve => self.s.reserved = true,
            Step::MakeDisk(_)
            | Step::SnapshotDisk(_)
            | Step::GrowDisk(_)
            | Step::AttachDisk(_)
            | Step::DetachDisk { .. } => {
                self.apply_to_disk(&step);
            }
            Step::Start => {
                assert!(self.s.reserved && !self.s.ending);
                self.runs();
                self.s.power_off_at = None;
                self.s.guest_ready = false;
                self.s.host_restarted = false;
                self.starts += 1;
            }
            Step::Resume => self.runs(),
            Step::Suspend | Step::Suspended | Step::KeepRunning(_) | Step::ForgetMemory => self.remember(&step),
            Step::GoOn { has_room } => self.go_on(has_room),
            Step::Leave | Step::Move => self.leave(&step),
            Step::Running => {
                self.s.has_memory = false;
                self.enter(Status::Running);
            }
            Step::SetPorts => self.s.ports_changed = false,
            Step::SetKeys => self.s.keys_changed = false,
            Step::GuestReady => self.s.guest_ready = true,
            Step::GuestOff => {
                self.s.want = Want::Stop;
                self.enter(Status::Stopping);
            }
            Step::StartAgain { delay, .. } => {
                self.s.start_after = Some(self.s.now.plus_seconds(delay));
                self.s.ending = true;
                self.s.deaths += 1;
                self.enter(Status::Starting);
            }
            Step::PressPower => {
                self.s.power_off_at = self.s.power_off_at.or(Some(self.s.now));
                self.s.pressed_at = Some(self.s.now);
                if !self.deaf_guest && self.s.machine == Machine::Running {
                    self.s.machine = Machine::PoweredOff;
                }
            }
            Step::PowerOff => self.s.machine = Machine::Absent,
            Step::Ended => (self.s.ending, self.s.power_off_at) = (false, None),
            Step::Stopped { .. } => {
                (self.s.reserved, self.s.ending) = (false, false);
                self.enter(Status::Stopped);
            }
            Step::Retry => (self.s.attempts, self.s.ending, self.s.since) = (self.s.attempts + 1, true, self.s.now),
            Step::Fail(_) => self.fail(),
            Step::Expire => self.expire(),
            Step::Finish => self.finish(),
            Step::Wait(until) => self.s.now = self.s.now.max(until),
            // No plan calls anything off.
            Step::CallOff | Step::Rest => {}
        }
        self.s.now.0 += 1000;
    }

    fn apply_to_disk(&mut self, step: &Step) {
        let disk = &mut self.s.disks[0];
        match step {
            Step::MakeDisk(_) => disk.status = DiskStatus::Ready,
            Step::SnapshotDisk(_) => {
                // A machine copies for a while; a file is copied at once.
                let open = disk.snapshot.as_mut().expect("one that is open");
                assert!(open.after.is_none_or(|at| at <= self.s.now));
                if open.after.is_some() || self.s.machine == Machine::Absent {
                    disk.snapshot = None;
                } else {
                    open.after = Some(self.s.now.plus_seconds(5));
                }
            }
            Step::GrowDisk(_) => {
                assert!(disk.snapshot.is_none(), "it is copied as it was");
                disk.grows = false;
            }
            Step::AttachDisk(_) => disk.moving = None,
            Step::DetachDisk { is_last, .. } => {
                assert!(disk.snapshot.is_none() || self.s.machine == Machine::Absent, "its machine copies it");
                self.s.now.0 += 2_000_000;
                if *is_last || self.lets_go || self.s.machine == Machine::Absent {
                    disk.moving = None;
                }
            }
            _ => {}
        }
    }

    fn leave(&mut self, step: &Step) {
        if *step == Step::Leave {
            self.enter(Status::Restarting);
            self.s.ending = true;
        } else {
            assert_eq!(self.s.machine, Machine::Absent);
            assert!(self.s.disks.iter().all(|disk| disk.snapshot.is_none()), "it is copied first");
            // One that is to run has its place there at once.
            (self.s.leaves, self.s.reserved) = (false, self.s.want == Want::Run);
        }
    }

    fn finish(&mut self) {
        assert_eq!(self.s.machine, Machine::Absent);
        self.s.reserved = false;
        self.enter(Status::Deleted);
    }

    fn expire(&mut self) {
        assert!(self.s.want != Want::Gone && self.s.expires_at.is_some_and(|at| at <= self.s.now));
        self.s.want = Want::Gone;
        self.enter(Status::Deleting);
    }

    fn go_on(&mut self, has_room: bool) {
        self.s.start_after = Some(self.s.now.plus_seconds(ROOM_POLL));
        if has_room {
            self.runs();
        }
    }

    /// What a step does about the memory of one that is suspended.
    fn remember(&mut self, step: &Step) {
        match step {
            Step::Suspended => {
                assert!(self.saved && self.s.machine == Machine::Absent);
                self.s.reserved = false;
                self.enter(Status::Suspended);
            }
            Step::KeepRunning(_) => {
                (self.s.want, self.s.has_memory) = (Want::Run, false);
                self.enter(Status::Running);
            }
            Step::ForgetMemory => (self.saved, self.s.has_memory) = (false, false),
            _ => self.suspend(),
        }
    }

    /// Its memory fits its disks no more.
    fn runs(&mut self) {
        (self.s.machine, self.saved) = (Machine::Running, false);
    }

    fn suspend(&mut self) {
        match self.s.machine {
            Machine::Absent if !self.saved => self.fail(),
            Machine::Absent => self.s.has_memory = true,
            _ => (self.s.machine, self.saved, self.s.has_memory) = (Machine::Paused, true, true),
        }
    }

    fn fail(&mut self) {
        self.s.want = if self.s.has_memory { Want::Suspend } else { Want::Stop };
        self.s.reserved = false;
        self.enter(if self.s.has_memory { Status::Suspended } else { Status::Failed });
    }

    fn verb(&mut self, verb: Verb) {
        if let Ok(Some(next)) = on_verb(verb, self.s.status) {
            self.s.want = match verb {
                Verb::Stop => Want::Stop,
                Verb::Suspend => Want::Suspend,
                _ => Want::Run,
            };
            self.s.ending = verb == Verb::Restart;
            self.s.deaths = 0;
            self.s.start_after = None;
            self.enter(next);
        }
    }

    /// Steps until nothing is to be done any more.
    fn settle(&mut self) {
        for _ in 0..200 {
            match next(&self.s) {
                Step::Rest => return,
                step => self.apply(step),
            }
            if self.s.machine == Machine::Running {
                self.s.machine_ready = true;
            }
        }
        panic!("no rest: {self:?}");
    }
}

#[derive(Clone, Debug)]
enum Event {
    Step(u8),
    Verb(u8),
    Delete,
    Die,
    GuestOff,
    Panic,
    Pause,
    Stall,
    Hang,
    HostRestart,
    Time(i64),
    Grow,
    Move(bool),
    Snapshot,
}

fn is_at_rest(disk: &Disk) -> bool {
    !disk.grows && disk.moving.is_none() && disk.snapshot.is_none()
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (1..6u8).prop_map(Event::Step),
        3 => (0..5u8).prop_map(Event::Verb),
        1 => Just(Event::Delete),
        1 => Just(Event::Die),
        1 => Just(Event::GuestOff),
        1 => Just(Event::Panic),
        1 => Just(Event::Pause),
        1 => Just(Event::Stall),
        1 => Just(Event::Hang),
        1 => Just(Event::HostRestart),
        2 => (1..700i64).prop_map(Event::Time),
        1 => Just(Event::Grow),
        1 => Just(Event::Snapshot),
        1 => any::<bool>().prop_map(Event::Move),
    ]
}

fn disturb(world: &mut World, event: &Event) {
    let alive = world.s.machine != Machine::Absent;
    match event {
        Event::Step(n) => (0..*n).for_each(|_| world.apply(next(&world.s))),
        Event::Verb(n) => {
            world.verb([Verb::Start, Verb::Stop, Verb::Restart, Verb::Suspend, Verb::Resume][usize::from(*n)]);
        }
        Event::Delete if world.s.status != Status::Deleted => {
            world.s.want = Want::Gone;
            world.enter(Status::Deleting);
        }
        Event::Die if alive => world.s.machine = Machine::Absent,
        Event::GuestOff if alive => world.s.machine = Machine::PoweredOff,
        Event::Panic if alive => world.s.machine = Machine::Panicked,
        Event::Pause if alive => world.s.machine = Machine::Paused,
        Event::Stall if alive => (world.s.machine, world.s.has_room) = (Machine::Stalled, false),
        Event::Hang if alive => world.s.machine = Machine::Unresponsive,
        Event::HostRestart => {
            world.s.machine = Machine::Absent;
            world.s.host_restarted = true;
        }
        Event::Move(is_in) if world.s.disks[0].status == DiskStatus::Ready => {
            let way = if *is_in { Move::In } else { Move::Out };
            world.s.disks[0].moving = Some((way, world.s.now));
        }
        Event::Grow if world.s.disks[0].status == DiskStatus::Ready => world.s.disks[0].grows = true,
        Event::Snapshot if world.s.disks[0].status == DiskStatus::Ready => {
            let id = "01939f2e-7c00-7abc-8def-0123456789ac".parse().unwrap();
            world.s.disks[0].snapshot = Some(Open { id, after: None });
        }
        Event::Time(seconds) => world.s.now = world.s.now.plus_seconds(*seconds),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn every_walk_comes_to_rest(
        events in prop::collection::vec(event(), 0..40),
        policy in prop::sample::select(RestartPolicy::ALL),
        deaf in any::<bool>(),
        ttl in prop::option::of(5..2000i64),
    ) {
        let mut world = World::new(policy, deaf);
        world.s.expires_at = ttl.map(|seconds| Timestamp(0).plus_seconds(seconds));
        for event in &events {
            disturb(&mut world, event);
        }
        // The disturbances end here; a machine that hung answers again, and there is room on the disk.
        world.s.has_room = true;
        if world.s.machine == Machine::Unresponsive {
            world.s.machine = Machine::Running;
        }
        world.settle();
        prop_assert!(ttl.is_none() || world.s.want == Want::Gone);
        match world.s.want {
            Want::Run => {
                prop_assert_eq!(world.s.status, Status::Running);
                prop_assert_eq!(world.s.machine, Machine::Running);
                prop_assert!(world.s.reserved && is_at_rest(&world.s.disks[0]));
            }
            Want::Stop => {
                prop_assert!(matches!(world.s.status, Status::Stopped | Status::Failed), "{}", world.s.status);
                prop_assert!(!world.s.has_memory);
                prop_assert_eq!(world.s.machine, Machine::Absent);
                prop_assert!(!world.s.reserved && is_at_rest(&world.s.disks[0]));
            }
            Want::Suspend => {
                prop_assert_eq!(world.s.status, Status::Suspended);
                prop_assert_eq!(world.s.machine, Machine::Absent);
                prop_assert!(!world.s.reserved && world.s.has_memory);
            }
            Want::Gone => {
                prop_assert_eq!(world.s.status, Status::Deleted);
                prop_assert_eq!(world.s.machine, Machine::Absent);
                prop_assert!(!world.s.reserved);
            }
        }
    }
}

#[test]
fn a_new_vm_is_brought_up_step_by_step() {
    let mut world = World::new(RestartPolicy::Never, false);
    let mut seen = Vec::new();
    loop {
        let step = next(&world.s);
        if matches!(step, Step::Wait(_)) {
            break;
        }
        seen.push(format!("{step:?}").split(['(', ' ']).next().unwrap_or_default().to_owned());
        world.apply(step);
    }
    assert_eq!(seen, ["Enter", "Reserve", "MakeDisk", "Enter", "Start", "Running"]);
}

#[test]
fn disks_grow_whether_their_machine_runs_or_not_and_before_it_starts() {
    let mut world = World::new(RestartPolicy::Never, false);
    let id = world.s.disks[0].id;
    world.settle();
    let grows = vec![Disk { grows: true, ..world.s.disks[0].clone() }];
    let at = |s: &Snapshot| next(&Snapshot { disks: grows.clone(), ..s.clone() });
    assert_eq!(at(&world.s), Step::GrowDisk(id));
    world.verb(Verb::Stop);
    assert_ne!(at(&world.s), Step::GrowDisk(id), "a machine on its way down is left alone");
    world.settle();
    assert_eq!(at(&world.s), Step::GrowDisk(id));
    world.verb(Verb::Start);
    world.apply(Step::Reserve);
    assert_eq!(at(&world.s), Step::GrowDisk(id));
    // One that was started unseen is recorded first.
    world.s.machine = Machine::Running;
    assert_eq!(at(&world.s), Step::Running);
}

#[test]
fn a_disk_that_lies_on_another_host_is_waited_for() {
    let mut world = World::new(RestartPolicy::Never, false);
    world.settle();
    let id = world.s.disks[0].id;
    world.s.disks[0] = Disk { is_elsewhere: true, moving: Some((Move::In, world.s.now)), ..world.s.disks[0].clone() };
    assert_eq!(next(&world.s), Step::Rest, "its machine runs without it");
    let starting = Snapshot { status: Status::Starting, machine: Machine::Absent, ..world.s.clone() };
    assert_eq!(next(&starting), Step::Wait(starting.now.plus_seconds(TRAVEL_POLL)));
    let late = Snapshot { now: starting.now.plus_seconds(100_000), ..starting.clone() };
    assert_eq!(next(&late), Step::Wait(late.now.plus_seconds(TRAVEL_POLL)), "however long it takes");
    let mut here = starting;
    here.disks[0].is_elsewhere = false;
    assert_eq!(next(&here), Step::AttachDisk(id));
}

#[test]
fn one_that_leaves_its_host_ends_first_and_goes_once_it_is_off() {
    let mut world = World::new(RestartPolicy::Never, false);
    world.settle();
    world.s.leaves = true;
    let runs = world.s.clone();
    assert_eq!(next(&runs), Step::Leave);
    let mut changes = runs.clone();
    changes.disks[0].moving = Some((Move::In, runs.now));
    assert_ne!(next(&changes), Step::Leave, "what is under way for its disks ends first");
    let ending = Snapshot { status: Status::Restarting, ending: true, ..runs.clone() };
    assert_eq!(next(&ending), Step::PressPower);
    let off = Snapshot { machine: Machine::Absent, ..ending };
    assert_eq!(next(&off), Step::Ended);
    let ended = Snapshot { ending: false, ..off };
    assert_eq!(next(&ended), Step::Move);
    let mut unmade = ended.clone();
    unmade.disks[0].status = DiskStatus::Failed;
    assert_ne!(next(&unmade), Step::Move);
    let stopped = Snapshot { want: Want::Stop, status: Status::Stopped, ..ended.clone() };
    assert_eq!(next(&stopped), Step::Move);
    let suspended = Snapshot { want: Want::Suspend, status: Status::Suspended, has_memory: true, ..ended.clone() };
    assert_eq!(next(&suspended), Step::Rest, "its memory is on its host");
    let goes_on = Snapshot { status: Status::Starting, has_memory: true, reserved: true, ..ended };
    assert_eq!(next(&goes_on), Step::Start);
    let began = world.starts;
    world.settle();
    assert_eq!((world.s.status, world.s.leaves, world.starts), (Status::Running, false, began + 1));
}

#[test]
fn a_disk_is_copied_before_its_machine_leaves_and_before_it_goes() {
    let mut world = World::new(RestartPolicy::Never, false);
    world.settle();
    let id = "01939f2e-7c00-7abc-8def-0123456789ac".parse().unwrap();
    let later = world.s.now.plus_seconds(5);
    let open = |after| Some(Open { id, after });
    (world.s.leaves, world.s.disks[0].snapshot) = (true, open(Some(later)));
    assert_eq!(next(&world.s), Step::Wait(later), "a machine that ends gives its copy up");
    let copied = Snapshot { now: later, ..world.s.clone() };
    assert_eq!(next(&copied), Step::SnapshotDisk(id));
    // What was asked for while it ended.
    let off = Snapshot { status: Status::Restarting, machine: Machine::Absent, ..world.s.clone() };
    assert_eq!(next(&off), Step::Wait(later));
    assert_eq!(next(&Snapshot { now: later, ..off.clone() }), Step::SnapshotDisk(id));
    let stopped = Snapshot { want: Want::Stop, status: Status::Stopped, ..off.clone() };
    assert_eq!(next(&stopped), Step::Wait(later));
    let mut elsewhere = Snapshot { leaves: false, ..off };
    elsewhere.disks[0] = Disk { is_elsewhere: true, snapshot: open(None), ..elsewhere.disks[0].clone() };
    assert_eq!(next(&elsewhere), Step::SnapshotDisk(id), "it does not go before");
    world.settle();
    assert_eq!((world.s.status, world.s.leaves), (Status::Running, false));
}

#[test]
fn one_whose_disk_cannot_be_brought_waits_for_its_deadline_alone() {
    let mut world = World::new(RestartPolicy::Never, false);
    world.settle();
    (world.s.status, world.s.machine) = (Status::Restarting, Machine::Absent);
    let since = world.s.since.plus_seconds(5000);
    let message = Some("no room".to_owned());
    let disk = Disk { is_elsewhere: true, stuck_since: Some(since), message, ..world.s.disks[0].clone() };
    world.s.disks[0] = disk;
    let at = |millis| {
        let now = since.plus_seconds(DEADLINES.restarting).plus_millis(millis);
        next(&Snapshot { now, ..world.s.clone() })
    };
    assert!(matches!(at(-1), Step::Wait(_)), "it was on its way before");
    assert_eq!(at(0), Step::Fail("no room".into()));
    let mut here = world.s.clone();
    here.disks[0].is_elsewhere = false;
    here.now = here.since;
    assert_eq!(next(&here), Step::Start);
}

#[test]
fn a_guest_has_its_time_to_let_go_of_a_disk() {
    let mut world = World::new(RestartPolicy::Never, false);
    world.settle();
    let id = world.s.disks[0].id;
    let since = world.s.now;
    world.s.disks[0].moving = Some((Move::Out, since));
    let at =
        |millis| next(&Snapshot { now: since.plus_seconds(disk::LETTING_GO).plus_millis(millis), ..world.s.clone() });
    assert_eq!(at(-1), Step::DetachDisk { id, is_last: false });
    assert_eq!(at(0), Step::DetachDisk { id, is_last: true });
    world.s.disks[0].moving = Some((Move::In, since));
    assert_eq!(next(&world.s), Step::AttachDisk(id));
    world.s.disks[0].grows = true;
    assert_eq!(next(&world.s), Step::GrowDisk(id), "it grows before it comes");
}

#[test]
fn a_vm_goes_when_its_time_is_over_whatever_it_does() {
    let mut world = World::new(RestartPolicy::Always, false);
    world.settle();
    let at = world.s.now.plus_seconds(60);
    world.s.expires_at = Some(at);
    assert_eq!(next(&world.s), Step::Wait(at));
    // Earlier looks are not put off.
    world.s.machine = Machine::Unresponsive;
    assert_eq!(next(&world.s), Step::Wait(world.s.now.plus_seconds(SILENCE_POLL)));
    world.s.now = at.plus_millis(-1);
    assert_eq!(next(&world.s), Step::Wait(at));
    for (want, status) in
        [(Want::Run, Status::Running), (Want::Stop, Status::Stopped), (Want::Suspend, Status::Suspended)]
    {
        (world.s.want, world.s.status, world.s.now) = (want, status, at);
        assert_eq!(next(&world.s), Step::Expire);
    }
    world.apply(Step::Expire);
    assert_eq!(next(&world.s), Step::PowerOff);
}

#[test]
fn a_machine_without_room_is_let_go_on_now_and_then() {
    let mut world = World::new(RestartPolicy::Never, false);
    world.settle();
    (world.s.machine, world.s.has_room) = (Machine::Stalled, false);
    assert_eq!(next(&world.s), Step::GoOn { has_room: false });
    let now = world.s.now;
    world.apply(Step::GoOn { has_room: false });
    assert_eq!(next(&world.s), Step::Wait(now.plus_seconds(ROOM_POLL)));
    let id = "01939f2e-7c00-7abc-8def-0123456789ac".parse().unwrap();
    world.s.disks[0].snapshot = Some(Open { id, after: None });
    assert_eq!(next(&world.s), Step::SnapshotDisk(id), "what is given up makes room");
    (world.s.now, world.s.has_room) = (now.plus_seconds(ROOM_POLL), true);
    assert_eq!(next(&world.s), Step::GoOn { has_room: true });
}

#[test]
fn a_deaf_guest_is_switched_off_after_its_time() {
    let mut world = World::new(RestartPolicy::Never, true);
    world.settle();
    world.verb(Verb::Stop);
    assert_eq!(next(&world.s), Step::PressPower);
    world.apply(Step::PressPower);
    let at = world.s.power_off_at.unwrap();
    world.s.pressed_at = Some(at.plus_seconds(30).plus_millis(-500));
    world.s.now = at.plus_seconds(30).plus_millis(-1);
    assert_eq!(next(&world.s), Step::Wait(at.plus_seconds(30)));
    world.s.now = at.plus_seconds(30);
    assert_eq!(next(&world.s), Step::PowerOff);
}

#[test]
fn the_power_button_is_pressed_each_second_until_the_switch() {
    let mut world = World::new(RestartPolicy::Never, true);
    world.settle();
    world.verb(Verb::Stop);
    let mut presses = Vec::new();
    loop {
        match next(&world.s) {
            Step::PressPower => presses.push(world.s.now),
            Step::PowerOff => break,
            Step::Wait(until) => {
                world.s.now = until;
                continue;
            }
            step => panic!("{step:?}"),
        }
        world.s.power_off_at = world.s.power_off_at.or(Some(world.s.now));
        world.s.pressed_at = Some(world.s.now);
    }
    assert_eq!(presses.len(), 30);
    assert!(presses.windows(2).all(|two| two[1] == two[0].plus_seconds(1)), "{presses:?}");
    assert_eq!(world.s.now, presses[0].plus_seconds(30));
}

/// Snapshots of a VM that cannot leave a status, whatever is done.
fn stuck(status: Status) -> Snapshot {
    let mut world = World::new(RestartPolicy::Never, true);
    world.settle();
    let want = match status {
        Status::Stopping => Want::Stop,
        Status::Deleting => Want::Gone,
        _ => Want::Run,
    };
    let machine = if status == Status::Starting { Machine::Absent } else { world.s.machine };
    Snapshot { want, status, machine, since: world.s.now, ending: status == Status::Restarting, ..world.s }
}

#[test]
fn every_transitional_status_begins_again_once_and_then_fails() {
    let is_about = |status: &&Status| status.is_transitional() && **status != Status::Suspending;
    for &status in Status::ALL.iter().filter(is_about) {
        let s = stuck(status);
        let seconds = DEADLINES.of(status).unwrap();
        let at = |attempts, millis| {
            next(&Snapshot { attempts, now: s.since.plus_seconds(seconds).plus_millis(millis), ..s.clone() })
        };
        for attempts in [0, 1] {
            let early = at(attempts, -1);
            assert!(!matches!(early, Step::Retry | Step::Fail(_)), "{status}: {early:?}");
        }
        assert_eq!(at(0, 0), Step::Retry, "{status}");
        let Step::Fail(reason) = at(1, 0) else { panic!("{status}") };
        assert!(reason.contains(&format!("still {status} after {seconds} seconds")), "{reason}");
    }
}

#[test]
fn a_status_at_rest_has_no_deadline() {
    for &status in Status::ALL.iter().filter(|status| !status.is_transitional()) {
        assert_eq!(DEADLINES.of(status), None);
    }
}

#[test]
fn a_machine_that_is_gone_when_its_stop_is_late_is_stopped() {
    let s = Snapshot { machine: Machine::Absent, attempts: 1, ..stuck(Status::Stopping) };
    let patience = DEADLINES.of(Status::Stopping).expect("a deadline");
    for (seconds, is_late) in [(patience - 1, false), (patience, true)] {
        let s = Snapshot { now: s.since.max(s.served_since).plus_seconds(seconds), ..s.clone() };
        assert_eq!(next(&s), Step::Stopped { is_late });
    }
}

#[test]
fn a_deletion_that_failed_can_be_asked_for_again() {
    let mut world = World::new(RestartPolicy::Never, false);
    world.settle();
    world.s.want = Want::Gone;
    world.enter(Status::Deleting);
    for _ in 0..2 {
        world.s.now = world.s.since.plus_seconds(300);
        let step = next(&world.s);
        world.apply(step);
    }
    assert_eq!(world.s.status, Status::Failed);
    world.s.want = Want::Gone;
    world.enter(Status::Deleting);
    world.settle();
    assert_eq!((world.s.status, world.s.machine), (Status::Deleted, Machine::Absent));
}

#[test]
fn a_deadline_is_tried_again_once() {
    let mut world = World::new(RestartPolicy::Never, false);
    world.apply(next(&world.s));
    world.s.now = world.s.since.plus_seconds(600).plus_millis(-1);
    assert_ne!(next(&world.s), Step::Retry);
    world.s.now = world.s.since.plus_seconds(600);
    assert_eq!(next(&world.s), Step::Retry);
    world.apply(Step::Retry);
    world.s.now = world.s.since.plus_seconds(600);
    assert!(matches!(next(&world.s), Step::Fail(_)));
}

#[test]
fn a_death_is_told_apart_from_a_host_restart_and_a_guest_that_powers_off() {
    let mut world = World::new(RestartPolicy::Never, false);
    world.settle();
    let at = |machine, host_restarted| next(&Snapshot { host_restarted, machine, ..world.s.clone() });
    assert!(matches!(at(Machine::Absent, false), Step::Fail(_)));
    assert!(matches!(at(Machine::Absent, true), Step::StartAgain { .. }));
    assert_eq!(at(Machine::PoweredOff, false), Step::GuestOff);
    assert!(matches!(at(Machine::Panicked, false), Step::Fail(_)));
}

#[test]
fn a_machine_that_keeps_dying_waits_longer_each_time() {
    let mut world = World::new(RestartPolicy::OnFailure, false);
    world.settle();
    let delays: Vec<_> = (0..12)
        .map(|deaths| match next(&Snapshot { machine: Machine::Absent, deaths, ..world.s.clone() }) {
            Step::StartAgain { delay, .. } => delay,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(delays, [0, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
}

#[test]
fn time_in_which_no_service_ran_counts_for_no_deadline() {
    for (status, seconds) in [
        (Status::Provisioning, DEADLINES.provisioning),
        (Status::Starting, DEADLINES.starting),
        (Status::Restarting, DEADLINES.restarting),
        (Status::Stopping, DEADLINES.stopping),
        (Status::Deleting, DEADLINES.deleting),
    ] {
        let s = stuck(status);
        let served_since = s.since.plus_seconds(5 * 3600);
        let at = |now: Timestamp| next(&Snapshot { now, served_since, attempts: 1, ..s.clone() });
        assert!(!matches!(at(served_since.plus_seconds(seconds).plus_millis(-1)), Step::Fail(_)), "{status}");
        assert!(matches!(at(served_since.plus_seconds(seconds)), Step::Fail(_)), "{status}");
    }
}

#[test]
fn a_machine_that_is_up_is_not_given_up_for_a_deadline_that_passed() {
    let mut s = stuck(Status::Starting);
    s.reserved = true;
    s.disks[0].status = DiskStatus::Ready;
    (s.now, s.attempts) = (s.since.plus_seconds(5 * 3600), 1);
    let at = |machine| next(&Snapshot { machine, ..s.clone() });
    assert_eq!(at(Machine::Running), Step::Running);
    assert!(matches!(at(Machine::Absent), Step::Fail(_)));
    assert!(matches!(at(Machine::Unresponsive), Step::Fail(_)));
}

#[test]
fn a_vm_is_suspended_and_goes_on_step_by_step() {
    let mut world = World::new(RestartPolicy::Never, false);
    world.settle();
    world.verb(Verb::Suspend);
    for step in [Step::Suspend, Step::PowerOff, Step::Suspended, Step::Rest] {
        assert_eq!(next(&world.s), step);
        world.apply(step);
    }
    let starts = world.starts;
    world.verb(Verb::Resume);
    for step in [Step::Reserve, Step::Start, Step::Running] {
        assert_eq!(next(&world.s), step);
        world.apply(step);
    }
    assert!(world.starts == starts + 1 && !world.s.has_memory);
    world.verb(Verb::Suspend);
    world.settle();
    world.verb(Verb::Stop);
    assert_eq!(next(&world.s), Step::ForgetMemory);
    world.settle();
    assert!(world.s.status == Status::Stopped && !world.saved);
}

#[test]
fn one_that_cannot_be_suspended_goes_on() {
    let mut world = World::new(RestartPolicy::Never, false);
    world.settle();
    world.verb(Verb::Suspend);
    for machine in [Machine::Running, Machine::Paused, Machine::Unresponsive] {
        let s = Snapshot { machine, ..world.s.clone() };
        let late = Snapshot { now: s.since.plus_seconds(DEADLINES.suspending), ..s.clone() };
        assert!(next(&s) == Step::Suspend && matches!(next(&late), Step::KeepRunning(_)), "{machine:?}");
    }
    let mut coming = world.s.clone();
    coming.disks[0].moving = Some((Move::In, coming.now));
    assert!(matches!(next(&coming), Step::AttachDisk(_)), "its memory knows the disks that it has");
    let of = |machine| next(&Snapshot { machine, ..world.s.clone() });
    assert!(matches!(of(Machine::Stalled), Step::KeepRunning(_)));
    assert!(of(Machine::PoweredOff) == Step::GuestOff && matches!(of(Machine::Panicked), Step::Fail(_)));
    // Its process is gone; whether its memory is there the host knows.
    assert_eq!(of(Machine::Absent), Step::Suspend);
}

#[test]
fn a_disk_is_copied_before_it_changes_and_a_machine_waits_for_no_copy() {
    let mut world = World::new(RestartPolicy::Never, false);
    world.settle();
    let (disk, id) = (world.s.disks[0].id, "01939f2e-7c00-7abc-8def-0123456789ac".parse().unwrap());
    let later = world.s.now.plus_seconds(5);
    world.s.disks[0] = Disk { grows: true, snapshot: Some(Open { id, after: None }), ..world.s.disks[0].clone() };
    assert_eq!(next(&world.s), Step::SnapshotDisk(id));
    world.s.disks[0].snapshot = Some(Open { id, after: Some(later) });
    assert_eq!(next(&world.s), Step::Wait(later), "it does not grow while it is copied");
    let off = Snapshot { want: Want::Stop, status: Status::Stopped, machine: Machine::Absent, ..world.s.clone() };
    assert_eq!(next(&off), Step::Wait(later));
    assert_eq!(next(&Snapshot { now: later, ..off.clone() }), Step::SnapshotDisk(id));
    let suspended = Snapshot { want: Want::Suspend, status: Status::Suspended, has_memory: true, ..off.clone() };
    assert_eq!(
        next(&Snapshot { now: later, ..suspended.clone() }),
        Step::SnapshotDisk(id),
        "its memory knows of no copy"
    );
    let starting = Snapshot { want: Want::Run, status: Status::Starting, now: later, ..off };
    assert_eq!(next(&starting), Step::Start);
    let suspending = Snapshot { want: Want::Suspend, status: Status::Suspending, now: later, ..world.s.clone() };
    assert_eq!(next(&suspending), Step::Suspend);
    let mut leaving = suspending;
    leaving.disks[0].moving = Some((Move::Out, leaving.now));
    assert_eq!(next(&leaving), Step::Suspend, "a disk that is copied cannot go");
    let mut kept = Snapshot { now: later, ..suspended };
    kept.disks[0] = Disk { grows: false, snapshot: None, moving: Some((Move::Out, later)), ..kept.disks[0].clone() };
    assert_eq!(next(&kept), Step::Rest, "it leaves once its VM goes on");
    let grows = vec![Disk { grows: true, moving: None, ..kept.disks[0].clone() }];
    assert_eq!(next(&Snapshot { disks: grows, ..kept.clone() }), Step::Rest, "it grows once its VM goes on");
    let back = later.plus_seconds(disk::LETTING_GO);
    let back = Snapshot { since: back, now: back, disks: kept.disks, ..world.s.clone() };
    assert_eq!(next(&back), Step::DetachDisk { id: disk, is_last: false }, "and has its whole time then");
    world.s.disks[0].snapshot = None;
    assert_eq!(next(&world.s), Step::GrowDisk(disk));
}

#[test]
fn one_that_migrates_is_called_off_before_anything_is_looked_at() {
    assert_eq!((first(true), first(false)), (Some(Step::CallOff), None));
}

#[test]
fn one_leaves_once_its_boot_is_recorded_and_its_keys_are_given() {
    let world = World::new(RestartPolicy::OnFailure, false);
    let disks = vec![Disk { status: DiskStatus::Ready, ..world.s.disks[0].clone() }];
    let runs =
        Snapshot { status: Status::Running, machine: Machine::Running, reserved: true, leaves: true, disks, ..world.s };
    let at = |seconds| Snapshot { now: Timestamp(0).plus_seconds(seconds), ..runs.clone() };
    assert!(matches!(next(&at(BOOT - 1)), Step::Wait(_)), "it boots");
    assert_eq!(next(&at(BOOT)), Step::Leave, "a guest that never says so leaves, too");
    assert_eq!(next(&Snapshot { machine_ready: true, ..at(BOOT) }), Step::GuestReady);
    let ready = Snapshot { guest_ready: true, ..at(1) };
    assert_eq!(next(&Snapshot { keys_changed: true, ..ready.clone() }), Step::SetKeys);
    assert_eq!(next(&ready), Step::Leave);
}
