//! What breaks, and when it is whole again.

use std::rc::Rc;

use berth_domain::host::model::State;

use crate::run::{Micros, Run, SECOND, Slot};
use crate::service::{self, Wish};
use crate::{database, host, replica};

/// Things break within this time.
const BREAKS: Micros = 70 * SECOND;
/// Before, all is well.
const BEGINS: Micros = 3 * SECOND;

/// Draws what breaks in a schedule.
pub fn draw(sim: &Run) {
    let count = 2 + sim.below(10);
    for _ in 0..count {
        let at = sim.between(BEGINS, BREAKS);
        let longest = if sim.below(3) == 0 { 60 * SECOND } else { 8 * SECOND };
        let until = at + sim.between(10_000, longest);
        let kind = Kind::drawn(sim);
        // Who is removed was lost before.
        let until = if kind == Kind::IsRemoved { until.max(at + 50 * SECOND) } else { until };
        let mut world = sim.world.borrow_mut();
        world.heals = world.heals.max(until);
        drop(world);
        sim.at(at, move |sim| happens(sim, kind, until));
    }
}

/// What breaks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The program of a replica is killed.
    ReplicaEnds,
    /// It stands still.
    ReplicaStops,
    /// Any program stands still.
    Stops,
    /// Any program is killed.
    Ends,
    /// A machine loses its power.
    LosesPower,
    /// The leader of the database is lost.
    FailsOver,
    /// Who follows the leader is lost.
    LeadsAlone,
    /// A replica is cut off from everybody.
    ReplicaIsAlone,
    /// A replica is cut off from one other.
    ReplicaIsCut,
    /// Anybody is cut off from one other.
    IsCut,
    /// A replica is told to end.
    Leaves,
    /// Wires are slow.
    Slow,
    /// A host is cut off, and removed once it is lost.
    IsRemoved,
}

/// All of them, each as often as it is drawn.
const KINDS: [Kind; 15] = [
    Kind::ReplicaEnds,
    Kind::ReplicaEnds,
    Kind::ReplicaStops,
    Kind::ReplicaStops,
    Kind::Stops,
    Kind::Ends,
    Kind::LosesPower,
    Kind::FailsOver,
    Kind::LeadsAlone,
    Kind::ReplicaIsAlone,
    Kind::ReplicaIsCut,
    Kind::IsCut,
    Kind::Leaves,
    Kind::Slow,
    Kind::IsRemoved,
];
/// Those of a schedule in which wires flap.
const FLAPS: [Kind; 2] = [Kind::ReplicaIsAlone, Kind::ReplicaIsCut];

impl Kind {
    fn drawn(sim: &Run) -> Self {
        let all = if sim.world.borrow().flaps { &FLAPS[..] } else { &KINDS[..] };
        all[sim.below(all.len())]
    }
}

fn happens(sim: &Run, kind: Kind, until: Micros) {
    let (machines, replicas) = (sim.world.borrow().machines.len(), sim.world.borrow().replicas);
    let (one, any) = (some_replica(sim, replicas), sim.below(machines));
    match kind {
        Kind::ReplicaEnds => ends(sim, one, until),
        Kind::ReplicaStops => stops(sim, one, until),
        Kind::Stops => stops(sim, any, until),
        Kind::Ends => ends(sim, any, until),
        Kind::LosesPower => {
            sim.tell(|| format!("machine {any} loses its power"));
            host::lose_power(sim, any);
            replica::end(sim, any, until);
        }
        Kind::FailsOver => database::fail_over(sim, until.min(sim.now() + 15 * SECOND)),
        Kind::LeadsAlone => database::is_left_alone(sim, until.min(sim.now() + 40 * SECOND)),
        Kind::ReplicaIsAlone => is_left_alone(sim, one, until),
        Kind::ReplicaIsCut => is_cut(sim, one, until),
        Kind::IsCut => is_cut(sim, sim.below(machines + 2), until),
        Kind::Leaves => leaves(sim, one),
        Kind::Slow => {
            sim.tell(|| "wires are slow".into());
            sim.world.borrow_mut().slow = until;
        }
        Kind::IsRemoved => {
            is_left_alone(sim, any, until);
            sim.at(until - 5 * SECOND, move |sim| is_removed(sim, any));
        }
    }
}

fn ends(sim: &Run, machine: usize, until: Micros) {
    sim.tell(|| format!("the program of machine {machine} is killed"));
    replica::end(sim, machine, until);
}

/// One of the replicas, and the active one as often as all of them.
fn some_replica(sim: &Run, replicas: usize) -> usize {
    let any = sim.below(replicas);
    let is_any = sim.below(2) == 0;
    let world = sim.world.borrow();
    let active = world.machines.iter().position(|machine| machine.active.is_some());
    active.filter(|_| !is_any).unwrap_or(any)
}

fn stops(sim: &Run, machine: usize, until: Micros) {
    let process = sim.world.borrow().machines[machine].process;
    sim.tell(|| format!("the program of machine {machine} stands still until {} s", until / SECOND));
    sim.stop(process, until);
}

/// A machine is cut off from everybody, in one way or both.
fn is_left_alone(sim: &Run, machine: usize, until: Micros) {
    let ways = sim.below(4);
    let mut world = sim.world.borrow_mut();
    for other in 0..=world.users_at() {
        if ways != 1 {
            world.cut(machine, other, until);
        }
        if ways != 2 {
            world.cut(other, machine, until);
        }
    }
    drop(world);
    sim.tell(|| format!("machine {machine} is cut off until {} s", until / SECOND));
}

fn is_cut(sim: &Run, from: usize, until: Micros) {
    let places = sim.world.borrow().users_at() + 1;
    let is_both = sim.below(2) == 0;
    let to = (from + 1 + sim.below(places - 1)) % places;
    let mut world = sim.world.borrow_mut();
    world.cut(from, to, until);
    if is_both {
        world.cut(to, from, until);
    }
    drop(world);
    let ways = if is_both { "both ways" } else { "one way" };
    sim.tell(|| format!("nothing gets from {from} to {to}, {ways}, until {} s", until / SECOND));
}

/// A service is told to end.
fn leaves(sim: &Run, replica: usize) {
    let (process, active) = {
        let machine = &sim.world.borrow().machines[replica];
        (machine.process, machine.active.as_ref().map(|active| active.service.clone()))
    };
    sim.tell(|| format!("replica {replica} is told to end"));
    match active {
        Some(service) => {
            let own = Rc::clone(sim);
            sim.spawn(process, async move { replica::leave(&own, replica, service).await });
        }
        None => replica::end(sim, replica, sim.now() + SECOND),
    }
}

/// An operator removes a host, if it is lost.
fn is_removed(sim: &Run, host: usize) {
    let rows = sim.world.borrow().database.rows.clone();
    if rows.hosts[host].state != State::Lost {
        return;
    }
    let Some(active) = rows.keeper.as_ref().and_then(replica::machine_of) else { return };
    let operation = sim.world.borrow_mut().operation();
    sim.tell(|| format!("an operator removes host {host}"));
    service::requested(sim, active, (operation, Wish::Remove(host)), true, Slot::default());
}
