//! What breaks, and when it is whole again.

use berth_domain::host::model::State;

use std::rc::Rc;

use crate::broken::Rule;
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
        // A start that outlasts its asker is seen where wires are cut again and again.
        let is_cut = sim.world.borrow().lacks(Rule::StopsCallOff);
        let kind = if is_cut { 8 + sim.below(2) } else { sim.below(14) };
        // Who is removed was lost before.
        let until = if kind == 13 { until.max(at + 50 * SECOND) } else { until };
        let mut world = sim.world.borrow_mut();
        world.heals = world.heals.max(until);
        drop(world);
        sim.at(at, move |sim| happens(sim, kind, until));
    }
}

fn happens(sim: &Run, kind: usize, until: Micros) {
    let (machines, replicas) = (sim.world.borrow().machines.len(), sim.world.borrow().replicas);
    let one = some_replica(sim, replicas);
    match kind {
        0 | 1 => {
            sim.tell(|| format!("the program of replica {one} is killed"));
            replica::end(sim, one, until);
        }
        2 | 3 => stops(sim, one, until),
        4 => stops(sim, sim.below(machines), until),
        5 => {
            let host = sim.below(machines);
            sim.tell(|| format!("the program of host {host} is killed"));
            replica::end(sim, host, until);
        }
        6 => {
            let host = sim.below(machines);
            sim.tell(|| format!("machine {host} loses its power"));
            host::lose_power(sim, host);
            replica::end(sim, host, until);
        }
        7 => database::fail_over(sim, until.min(sim.now() + 15 * SECOND)),
        8 => is_left_alone(sim, one, until),
        9 => is_cut(sim, one, until),
        10 => is_cut(sim, sim.below(machines + 2), until),
        11 => leaves(sim, one),
        12 => {
            sim.tell(|| "wires are slow".into());
            sim.world.borrow_mut().slow = until;
        }
        _ => {
            let host = sim.below(machines);
            is_left_alone(sim, host, until);
            sim.at(until - 5 * SECOND, is_removed);
        }
    }
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

/// An operator removes a host that is lost.
fn is_removed(sim: &Run) {
    let rows = sim.world.borrow().database.rows.clone();
    let Some(host) = rows.hosts.iter().position(|host| host.state == State::Lost) else { return };
    let Some(active) = rows.keeper.as_ref().and_then(replica::machine_of) else { return };
    let operation = sim.world.borrow_mut().operation();
    sim.tell(|| format!("an operator removes host {host}"));
    service::requested(sim, active, (operation, Wish::Remove(host)), true, Slot::default());
}
