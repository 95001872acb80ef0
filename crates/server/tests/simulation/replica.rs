//! A replica: it stands by, takes the database where that is free, and is active for as long as its lease is renewed.
//!
//! When the database is free, how long a lease holds and who may begin a term is decided by [`Watch`], [`Lease`] and
//! [`KeeperRow`]. What is done then follows `app::standby` and `app::folder`, and their transactions `db::keeper`, by hand: no
//! reads of the former leader, no databases of other folders, no end in the middle of a beginning.

use std::rc::Rc;
use std::time::Duration;

use berth_domain::host::model::State;
use berth_domain::replica::{Hearing, Lease, RENEW, Sign, Watch};
use berth_server::db::keeper::{Keeper, KeeperRow};
use uuid::Uuid;

use crate::broken::Rule;
use crate::check;
use crate::database::{self, Rows};
use crate::host;
use crate::run::{Micros, Run, SECOND, Sim};
use crate::service::{self, Service};
use crate::world::micros;

/// Between two looks at who is active, as `LOOK` of `app::standby`.
const LOOK: Micros = SECOND;
/// So many looks between two at the row of this host, as `AGAIN` there.
const AGAIN: u32 = 30;
/// How long the database may take to answer: for so long its server keeps a connection that is silent (`db::leader`).
pub const PATIENCE: Micros = 8 * SECOND;
/// How long what is under way in a service that ends takes at most: `ENDING` of `app::process` allows longer than a lease is.
const ENDING: Micros = 2 * SECOND;

/// A service that is active, for those outside.
pub struct Active {
    /// It.
    pub service: Rc<Service>,
    lease: Lease,
    /// By how much longer than it should it holds.
    more: Duration,
}

impl Active {
    /// How long it may act, by its machine's clock.
    pub fn left(&self, now: Duration) -> Option<Duration> {
        self.lease.left(now.saturating_sub(self.more))
    }
}

/// Begins the program of a machine.
pub fn begin(sim: &Run, me: usize) {
    let process = sim.process();
    let is_replica = {
        let mut world = sim.world.borrow_mut();
        let is_replica = me < world.replicas;
        let machine = &mut world.machines[me];
        (machine.process, machine.is_open) = (process, true);
        is_replica
    };
    sim.tell(|| format!("the program of machine {me} begins"));
    if is_replica {
        let own = Rc::clone(sim);
        let task = sim.spawn(process, async move { program(&own, me, process).await });
        sim.world.borrow_mut().machines[me].task = task;
    }
}

/// Has the program of a machine end, and begin again.
pub fn end(sim: &Run, me: usize, again: Micros) {
    host::end_program(sim, me);
    sim.at(again, move |sim| {
        let process = sim.world.borrow().machines[me].process;
        if !sim.lives(process) {
            begin(sim, me);
        }
    });
}

async fn program(sim: &Run, me: usize, process: usize) {
    let standing_by = keeper(sim, me);
    stand_by(sim, me, &standing_by).await;
    sim.tell(|| format!("replica {me} has the database, and is about to be active"));
    // What was asked of this host before has ended when this one acts on it.
    sim.world.borrow_mut().machines[me].is_open = false;
    sim.sleep(me, sim.between(10_000, SECOND)).await;
    let gone = std::mem::take(&mut sim.world.borrow_mut().machines[me].under_way);
    host::drop_steps(sim, me, gone);
    if sim.below(4) == 0 {
        for _ in 0..2 {
            sim.sleep(me, micros(RENEW)).await;
            note(sim, me, &standing_by, None, true, sim.now() + PATIENCE).await;
        }
    }
    if let Some(service) = activate(sim, me, process).await {
        keep(sim, me, &service).await;
        service.ends();
        sim.sleep(me, sim.between(0, ENDING)).await;
    }
    sim.tell(|| format!("the program of replica {me} ends"));
    end(sim, me, sim.now() + SECOND);
}

/// Ends a service in good order, which renews its lease no more.
pub async fn leave(sim: &Run, me: usize, service: Rc<Service>) {
    let task = sim.world.borrow().machines[me].task;
    sim.call_off(task);
    service.ends();
    sim.sleep(me, sim.between(0, ENDING)).await;
    sim.world.borrow_mut().machines[me].active = None;
    note(sim, me, &service.keeper, Some(&service), false, sim.now() + PATIENCE).await;
    sim.tell(|| format!("replica {me} has ended in good order"));
    end(sim, me, sim.now() + SECOND);
}

fn keeper(sim: &Sim, me: usize) -> Keeper {
    let run = sim.world.borrow_mut().number();
    Keeper {
        folder: Uuid::from_u128(me as u128 + 1),
        path: format!("/{me}"),
        host: format!("machine-{me}"),
        run: Uuid::from_u128(u128::from(run)),
        address: Some(format!("{me}:8471")),
    }
}

/// The machine of a replica that has the database.
pub fn machine_of(keeper: &KeeperRow) -> Option<usize> {
    usize::try_from(keeper.keeper.folder.as_u128()).ok()?.checked_sub(1)
}

/// Until it has the database.
async fn stand_by(sim: &Run, me: usize, own: &Keeper) {
    let (mut watch, mut looks) = (Watch::default(), 0_u32);
    loop {
        if let Some(rows) = database::read(sim, me, sim.now() + PATIENCE).await {
            let known = rows.keeper.as_ref();
            let silent = known.and_then(|known| watch.is_silent(known.sign, sim.uptime(me)).then_some(known.sign));
            if known.is_none_or(|known| known.is_free_for(own, silent)) && claim(sim, me, own, silent).await {
                return;
            }
            looks += 1;
            if looks.is_multiple_of(AGAIN) && rows.hosts[me].is_removed {
                enlist(sim, me).await;
            }
        }
        sim.sleep(me, LOOK).await;
    }
}

/// Takes the database, if it is free as of that transaction.
async fn claim(sim: &Run, me: usize, own: &Keeper, silent: Option<Sign>) -> bool {
    let Ok(mut tx) = database::begin(sim, me, 0, sim.now() + PATIENCE).await else { return false };
    if tx.rows.keeper.as_ref().is_some_and(|known| !known.is_free_for(own, silent)) {
        tx.roll_back(sim);
        return false;
    }
    if tx.rows.keeper.as_ref().is_some_and(|known| known.runs) {
        sim.reaches(check::TAKEN);
    }
    begin_term(sim, me, &mut tx.rows, own);
    tx.commit(sim, sim.now() + PATIENCE).await
}

fn begin_term(sim: &Sim, me: usize, rows: &mut Rows, keeper: &Keeper) {
    let before = rows.keeper.as_ref().map_or(Sign { term: 0, beat: 0 }, |known| known.sign);
    let sign = Sign { term: before.term + 1, ..before };
    rows.keeper = Some(KeeperRow { keeper: keeper.clone(), runs: true, seen_at: sim.wall(me), sign });
}

/// Has the row of this host be there again.
async fn enlist(sim: &Run, me: usize) {
    let Ok(mut tx) = database::begin(sim, me, 0, sim.now() + PATIENCE).await else { return };
    tx.rows.hosts[me].join();
    tx.commit(sim, sim.now() + PATIENCE).await;
}

/// Notes in the database that a service lives, or ends in good order; none where it does not answer.
async fn note(
    sim: &Run,
    me: usize,
    own: &Keeper,
    service: Option<&Service>,
    runs: bool,
    until: Micros,
) -> Option<bool> {
    let rows = database::read(sim, me, until).await?;
    let known = rows.keeper.as_ref().filter(|known| known.keeper.run == own.run);
    let Some(known) = known else { return Some(false) };
    let term = known.sign.term;
    if let Some(service) = service {
        service.term.set(term);
    }
    let mut tx = database::begin(sim, me, term, until).await.ok()?;
    let seen_at = sim.wall(me);
    let Some(known) = tx.rows.keeper.as_mut().filter(|known| known.keeper.run == own.run) else {
        tx.roll_back(sim);
        return Some(false);
    };
    (known.seen_at, known.runs, known.sign.beat) = (seen_at, runs, known.sign.beat + 1);
    tx.commit(sim, until).await.then_some(true)
}

/// Takes the database once more, as a service that begins does; none where another one has it by now.
async fn activate(sim: &Run, me: usize, process: usize) -> Option<Rc<Service>> {
    let (own, before) = (keeper(sim, me), sim.uptime(me));
    let mut tx = database::begin(sim, me, 0, sim.now() + PATIENCE).await.ok()?;
    if tx.rows.keeper.as_ref().and_then(|known| known.refuses(&own, false, sim.wall(me))).is_some() {
        tx.roll_back(sim);
        return None;
    }
    begin_term(sim, me, &mut tx.rows, &own);
    tx.rows.hosts[me].join();
    tx.rows.hosts[me].state = State::Ready;
    let term = tx.rows.term();
    if !tx.commit(sim, sim.now() + PATIENCE).await {
        return None;
    }
    let service = Rc::new(Service::new(sim, me, process, own, term));
    let mut world = sim.world.borrow_mut();
    let more = Duration::from_secs(if world.lacks(Rule::LeasesEnd) { 8 } else { 0 });
    let machine = &mut world.machines[me];
    if Hearing::of(term, machine.term) == Hearing::Later {
        machine.term = term;
    }
    machine.heard = machine.heard.max(term);
    machine.active = Some(Active { service: service.clone(), lease: Lease::new(before), more });
    world.believes(me, sim.now());
    drop(world);
    sim.tell(|| format!("replica {me} is active in term {term}"));
    service::begin(&service);
    Some(service)
}

/// Tells the database that the service lives, until another one has it or may have it.
async fn keep(sim: &Run, me: usize, service: &Rc<Service>) {
    let left = || {
        let world = sim.world.borrow();
        let machine = &world.machines[me];
        machine.active.as_ref().and_then(|active| active.left(machine.uptime(sim.now())))
    };
    loop {
        sim.sleep(me, micros(RENEW)).await;
        let asked = sim.uptime(me);
        let until = sim.now() + sim.world.borrow().machines[me].lasts(micros(left().unwrap_or_default()));
        match note(sim, me, &service.keeper, Some(service), true, until).await {
            Some(true) => {
                let mut world = sim.world.borrow_mut();
                let Some(active) = &mut world.machines[me].active else { return };
                active.lease.renew(asked);
                world.believes(me, sim.now());
            }
            None if left().is_some() => {}
            None => {
                sim.reaches(check::ENDED);
                break;
            }
            Some(false) => break,
        }
    }
    sim.tell(|| format!("replica {me} is active no more"));
    sim.world.borrow_mut().machines[me].active = None;
}
