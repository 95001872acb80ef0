//! Users, who ask any replica, again and again until they hear something, and in the end want to have what they want.

use std::rc::Rc;

use berth_domain::vm::Status;
use berth_domain::vm::state::Verb;

use crate::run::{Micros, Run, SECOND, Slot};
use crate::service::{self, Told, Wish};

/// How long a user waits for an answer.
const PATIENCE: Micros = 12 * SECOND;
/// Users of a schedule.
pub const USERS: usize = 2;
/// Most VMs of each.
const VMS: usize = 2;

/// Begins them.
pub fn begin(sim: &Run) {
    sim.world.borrow_mut().unsatisfied = USERS + 1;
    let process = sim.process();
    for _ in 0..USERS {
        let own = Rc::clone(sim);
        sim.spawn(process, async move {
            let vms = wander(&own).await;
            settle(&own, vms).await;
            own.world.borrow_mut().unsatisfied -= 1;
        });
    }
    let own = Rc::clone(sim);
    sim.spawn(process, async move {
        let heals = own.world.borrow().heals;
        own.sleep_until(heals).await;
        // The operator has hosts that were removed join again, also where an earlier request to remove one came late.
        for _ in 0..3 {
            insist(&own, Wish::Join).await;
            own.sleep_until(own.now() + 5 * SECOND).await;
        }
        own.world.borrow_mut().unsatisfied -= 1;
    });
}

/// Asks for this and that for as long as things break.
async fn wander(sim: &Run) -> Vec<usize> {
    let (heals, mut vms) = (sim.world.borrow().heals, Vec::new());
    loop {
        let think = sim.now() + sim.between(SECOND / 4, 6 * SECOND);
        if think >= heals {
            sim.sleep_until(heals + 2 * SECOND).await;
            return vms;
        }
        sim.sleep_until(think).await;
        if vms.is_empty() || vms.len() < VMS && sim.below(3) == 0 {
            if let Told::Done(vm) = insist(sim, Wish::Create).await {
                vms.push(vm);
            }
            continue;
        }
        let vm = vms[sim.below(vms.len())];
        let wish = match sim.below(8) {
            0..=2 => Wish::Verb(vm, Verb::Stop),
            3..=5 => Wish::Verb(vm, Verb::Start),
            6 => Wish::Verb(vm, Verb::Restart),
            _ => Wish::Delete(vm),
        };
        if let (Told::Done(_), Wish::Delete(_)) = (insist(sim, wish).await, wish) {
            vms.retain(|own| *own != vm);
        }
    }
}

/// Has each VM be what its owner wants.
async fn settle(sim: &Run, vms: Vec<usize>) {
    for vm in vms {
        // One that failed is off, too.
        let is_so = |status, wanted| status == wanted || (status, wanted) == (Status::Failed, Status::Stopped);
        let (wanted, wish) = match sim.below(3) {
            0 => (Status::Running, Wish::Verb(vm, Verb::Start)),
            1 => (Status::Stopped, Wish::Verb(vm, Verb::Stop)),
            _ => (Status::Deleted, Wish::Delete(vm)),
        };
        while !matches!(insist(sim, Wish::Look(vm)).await, Told::Status(status) if is_so(status, wanted)) {
            insist(sim, wish).await;
            sim.sleep_until(sim.now() + SECOND).await;
        }
    }
}

/// Asks until there is an answer.
async fn insist(sim: &Run, wish: Wish) -> Told {
    let operation = sim.world.borrow_mut().operation();
    loop {
        match ask(sim, operation, wish).await {
            Told::Away => sim.sleep_until(sim.now() + sim.between(100_000, SECOND)).await,
            Told::Done(vm) => {
                let mut world = sim.world.borrow_mut();
                let rows = world.database.rows.clone();
                world.checker.is_acknowledged(operation, &rows);
                return Told::Done(vm);
            }
            told => return told,
        }
    }
}

/// Asks one of the replicas, once, or for a creation twice at the same time.
async fn ask(sim: &Run, operation: usize, wish: Wish) -> Told {
    let (users, replicas) = (sim.world.borrow().users_at(), sim.world.borrow().replicas);
    let reply = Slot::default();
    let is_doubled = matches!(wish, Wish::Create) && sim.below(4) == 0;
    for _ in 0..=usize::from(is_doubled) {
        let (to, reply) = (sim.below(replicas), reply.clone());
        sim.send(users, to, move |sim| service::requested(sim, to, (operation, wish), false, reply));
    }
    reply.wait(sim, sim.now() + PATIENCE).await.unwrap_or(Told::Away)
}
