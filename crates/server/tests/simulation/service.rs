//! A service that is active: it asks its hosts how they are, serves requests, and brings VMs about.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use berth_domain::Timestamp;
use berth_domain::host::join::is_lost;
use berth_domain::host::model::State;
use berth_domain::vm::Status;
use berth_domain::vm::model::Want;
use berth_domain::vm::plan::Machine;
use berth_domain::vm::state::{Verb, on_verb};
use berth_server::db::keeper::Keeper;

use crate::broken::Rule;
use crate::check;
use crate::database::{self, HostRow, Rows, Tx, VmRow};
use crate::host::{self, Answer, Ask, Deed, Reply};
use crate::life;
use crate::replica::PATIENCE;
use crate::run::{Micros, Run, SECOND, Slot};

/// How long a host may be silent: until it is asked whether it is there, and then, as `Patience` of `berth_host::link`.
const SILENCE: Micros = 15 * SECOND;
/// Between two looks at a host that answers, and at one that does not: `FRESH` and `RETRY` of `services::host::reconcile::join`.
const PAUSES: (Micros, Micros) = (10 * SECOND, 2 * SECOND);
/// Between two searches of a host for what no row owns: ten minutes in the service (`work::host`), which no schedule lasts.
const SWEEP: Micros = 20 * SECOND;
/// Before rows are read again that could not be, as `RETRY` of `work::host`.
const RETRY: Micros = 2 * SECOND;
/// Between two looks at rows that want work, which the service is told of more quickly than this (`work::Driver`).
const DUE: Micros = 5 * SECOND;

/// What is asked of a service.
#[derive(Clone, Copy, Debug)]
pub enum Wish {
    /// A VM.
    Create,
    /// Something of one.
    Verb(usize, Verb),
    /// That it goes.
    Delete(usize),
    /// How it is.
    Look(usize),
    /// That a lost host is asked no more.
    Remove(usize),
    /// That removed hosts are asked again.
    Join,
}

/// What a service answers.
#[derive(Clone, Copy, Debug)]
pub enum Told {
    /// It is done, to this VM.
    Done(usize),
    /// That is not possible as the VM is now.
    Refused,
    /// So it is.
    Status(Status),
    /// Nobody can say.
    Away,
}

/// A service.
pub struct Service {
    /// The schedule.
    pub sim: Run,
    /// Its machine.
    pub me: usize,
    process: usize,
    /// As the database knows it.
    pub keeper: Keeper,
    /// In which term it writes and asks.
    pub term: Cell<i64>,
    began: Timestamp,
    is_ending: Cell<bool>,
    /// The boot of each host that it has seen, whether that answered last, and how often it had joined.
    hosts: RefCell<BTreeMap<usize, (u64, bool, u64)>>,
    /// Where the life of each VM waits; whether it waits for nothing but a change.
    lives: RefCell<BTreeMap<usize, (Slot<()>, bool)>>,
}

impl Service {
    /// One that begins.
    pub fn new(sim: &Run, me: usize, process: usize, keeper: Keeper, term: i64) -> Self {
        Self {
            sim: Rc::clone(sim),
            me,
            process,
            keeper,
            term: Cell::new(term),
            began: sim.wall(me),
            is_ending: Cell::new(false),
            hosts: RefCell::default(),
            lives: RefCell::default(),
        }
    }

    /// It ends: no step is begun any more.
    pub fn ends(&self) {
        self.is_ending.set(true);
    }

    /// Whether it ends.
    pub fn is_ending(&self) -> bool {
        self.is_ending.get()
    }

    /// The time of day.
    pub fn wall(&self) -> Timestamp {
        self.sim.wall(self.me)
    }

    /// When it began.
    pub fn began(&self) -> Timestamp {
        self.began
    }

    /// Reads the rows.
    pub async fn read(&self) -> Option<Rc<Rows>> {
        database::read(&self.sim, self.me, self.sim.now() + PATIENCE).await
    }

    /// Begins a transaction.
    pub async fn begin(&self) -> Option<Tx> {
        database::begin(&self.sim, self.me, self.term.get(), self.sim.now() + PATIENCE).await.ok()
    }

    /// Ends one.
    pub async fn commit(&self, tx: Tx) -> bool {
        tx.commit(&self.sim, self.sim.now() + PATIENCE).await
    }

    /// Asks a host.
    pub async fn ask(&self, host: usize, ask: Ask) -> Answer {
        let (sim, slot) = (&self.sim, Slot::default());
        let reply = Reply { way: (host, self.me), process: self.process, slot: slot.clone() };
        let (since, asked) = (sim.now(), sim.world.borrow().machines[host].process);
        let term = self.term.get();
        if host == self.me {
            host::answer(sim, host, None, term, ask, reply);
        } else {
            // Between deciding and asking.
            sim.sleep(self.me, sim.between(0, 2_000)).await;
            sim.send(self.me, host, move |sim| host::asked(sim, host, term, ask, reply));
        }
        loop {
            if let Some(answer) = slot.wait(sim, sim.now() + SILENCE).await {
                return answer;
            }
            // A host says that it is at work, for as long as it is heard.
            let process = sim.world.borrow().machines[host].process;
            let is_same = process == asked && sim.lives(process) && sim.stopped(process) < since + SILENCE;
            let is_lost = !is_same || sim.world.borrow().was_cut(self.me, host, since);
            if is_lost && host != self.me {
                // Once it is reached again, all that it has is looked at.
                self.hosts.borrow_mut().entry(host).and_modify(|known| known.1 = false);
                return Answer::Failed;
            }
        }
    }

    /// Asks a host, or says what is so of one that will not come back.
    pub async fn ask_of(&self, host: usize, is_removed: bool, ask: Ask) -> Answer {
        match ask {
            Ask::Do(Deed::Start | Deed::MakeDisk, ..) if is_removed => Answer::Gone,
            Ask::Do(..) if is_removed => Answer::Done,
            Ask::Observe(_) if is_removed => Answer::Machine(Machine::Absent),
            _ if self.boot_of(host).is_none() => Answer::Failed,
            _ => self.ask(host, ask).await,
        }
    }

    /// The boot of a host that answers.
    pub fn boot_of(&self, host: usize) -> Option<u64> {
        if host == self.me {
            return Some(self.sim.world.borrow().machines[host].boot);
        }
        self.hosts.borrow().get(&host).map(|(boot, ..)| *boot)
    }

    /// Whether a host answers.
    pub fn is_there(&self, host: usize) -> bool {
        host == self.me || self.hosts.borrow().get(&host).is_some_and(|(_, is_there, _)| *is_there)
    }

    /// Has a VM looked at.
    pub fn poke(self: &Rc<Self>, vm: usize) {
        let known = self.lives.borrow().get(&vm).map(|(slot, _)| slot.clone());
        if let Some(slot) = known {
            return slot.fill(&self.sim, ());
        }
        self.lives.borrow_mut().insert(vm, (Slot::default(), false));
        let own = Rc::clone(self);
        self.sim.spawn(self.process, async move { life::live(own, vm).await });
    }

    /// Waits until a VM is to be looked at, or for so long.
    pub async fn rest(&self, vm: usize, until: Option<Timestamp>) {
        let slot = {
            let mut lives = self.lives.borrow_mut();
            let life = lives.entry(vm).or_default();
            life.1 = until.is_none();
            life.0.clone()
        };
        let own = until.map(|until| (until.0 - self.wall().0).max(0));
        let late = own.map(|own| self.sim.now() + self.sim.world.borrow().machines[self.me].lasts(own));
        slot.wait(&self.sim, late.unwrap_or(self.sim.now() + 600 * SECOND)).await;
    }

    async fn look_after(self: Rc<Self>, host: usize) {
        let (mut seen, mut swept) = (None, self.sim.now());
        while !self.is_ending() {
            let known = self.read().await.map(|rows| rows.hosts[host]);
            let is_asked = known.is_some_and(|known| !known.is_removed);
            let answer = if is_asked { self.ask(host, Ask::Presence).await } else { Answer::Failed };
            let boot = if let Answer::Boot(boot) = answer { Some(boot) } else { None };
            let now = self.wall();
            if boot.is_some() {
                seen = Some(now);
            }
            self.notes(host, boot, known.map(|known| known.enrolment)).await;
            if boot.is_some() && self.sim.now() - swept > SWEEP {
                swept = self.sim.now();
                self.search(host).await;
            }
            let state = match (boot, seen) {
                (Some(_), _) => State::Ready,
                (None, Some(seen)) if !is_lost(seen, now) => State::Ready,
                (None, None) if !is_lost(self.began, now) => known.map_or(State::Lost, |known| known.state),
                _ => State::Lost,
            };
            if known.is_some_and(|known| !known.is_removed && known.state != state)
                && let Some(mut tx) = self.begin().await
            {
                tx.rows.hosts[host].state = state;
                if state == State::Lost {
                    self.sim.reaches(check::LOST_HOST);
                }
                self.commit(tx).await;
            }
            self.sim.sleep(self.me, if boot.is_some() { PAUSES.0 } else { PAUSES.1 }).await;
        }
    }

    /// Notes whether a host answers; where it does again, or was started or joined again, looks at all that is there.
    async fn notes(self: &Rc<Self>, host: usize, boot: Option<u64>, enrolment: Option<u64>) {
        let before = self.hosts.borrow().get(&host).copied();
        let known = before.map(|(boot, _, enrolment)| (boot, enrolment));
        let now = (
            boot.or(known.map(|known| known.0)).unwrap_or_default(),
            boot.is_some(),
            enrolment.or(known.map(|known| known.1)).unwrap_or_default(),
        );
        self.hosts.borrow_mut().insert(host, now);
        if boot.is_some() && before != Some(now) {
            self.adopt(host).await;
        }
    }

    /// Looks at every VM of a host, and ends what no row owns. Before that, ends machines of those that are off by their rows.
    async fn adopt(self: &Rc<Self>, host: usize) {
        let Some(rows) = self.insist_on_rows().await else { return };
        self.end_what_is_off(host, &rows).await;
        for (vm, _) in rows.vms.iter().enumerate().filter(|(_, row)| row.host == Some(host)) {
            self.poke(vm);
        }
        self.search(host).await;
    }

    /// The rows, as soon as they can be read; none where the service ends.
    async fn insist_on_rows(&self) -> Option<Rc<Rows>> {
        while !self.is_ending() {
            if let Some(rows) = self.read().await {
                return Some(rows);
            }
            self.sim.sleep(self.me, RETRY).await;
        }
        None
    }

    /// What was under way there while nobody could ask it may begin yet.
    async fn end_what_is_off(&self, host: usize, rows: &Rows) {
        let is_off = |row: &VmRow| row.host == Some(host) && matches!(row.status, Status::Stopped | Status::Failed);
        for (vm, row) in rows.vms.iter().enumerate().filter(|(_, row)| is_off(row)) {
            self.ask(host, Ask::Do(Deed::PowerOff, vm, Some(row.generation))).await;
        }
    }

    /// Ends what no row owns.
    async fn search(&self, host: usize) {
        let Answer::Machines(found) = self.ask(host, Ask::Scan).await else { return };
        let Some(rows) = self.read().await else { return };
        if self.sim.world.borrow().lacks(Rule::UnownedMachinesEnd) {
            return;
        }
        let is_owned =
            |vm: &usize| rows.vms.get(*vm).is_some_and(|row| row.host == Some(host) && row.status != Status::Deleted);
        for vm in found.into_iter().filter(|vm| !is_owned(vm)) {
            self.sim.reaches(check::UNOWNED);
            for deed in [Deed::PowerOff, Deed::Discard] {
                self.ask(host, Ask::Do(deed, vm, None)).await;
            }
        }
    }

    async fn look_for_work(self: Rc<Self>) {
        while !self.is_ending() {
            if let Some(rows) = self.read().await {
                for vm in 0..rows.vms.len() {
                    let row = &rows.vms[vm];
                    let life = self.lives.borrow().get(&vm).map(|(_, is_free)| *is_free);
                    if life.is_none() && row.status != Status::Deleted
                        || life == Some(true) && row.status.is_transitional()
                    {
                        self.poke(vm);
                    }
                }
            }
            self.sim.sleep(self.me, DUE).await;
        }
    }

    /// Does what a user wishes, in one transaction.
    pub async fn serve(self: Rc<Self>, operation: usize, wish: Wish) -> Told {
        if let Wish::Look(vm) = wish {
            let rows = self.read().await;
            return rows.map_or(Told::Away, |rows| Told::Status(rows.vms[vm].status));
        }
        let Some(mut tx) = self.begin().await else { return Told::Away };
        if tx.rows.keys.iter().any(|(key, _)| *key == operation) {
            self.sim.reaches(check::REPLAYED);
        }
        let keeps = !self.sim.world.borrow().lacks(Rule::KeysAreKept);
        let told = changed(&mut tx.rows, (operation, wish), self.me, self.wall(), keeps);
        let (Told::Done(vm), true) = (told, tx.rows.applied.get(operation).is_some()) else {
            tx.roll_back(&self.sim);
            return told;
        };
        if !self.commit(tx).await {
            return Told::Away;
        }
        self.sim.tell(|| format!("replica {} did operation {operation}: {wish:?}, VM {vm}", self.me));
        if matches!(wish, Wish::Create | Wish::Verb(..) | Wish::Delete(_)) {
            self.poke(vm);
        }
        told
    }
}

/// Writes a wish into the rows.
fn changed(rows: &mut Rows, (operation, wish): (usize, Wish), me: usize, now: Timestamp, keeps: bool) -> Told {
    let vm = match wish {
        Wish::Create => {
            if let Some((_, vm)) = rows.keys.iter().find(|(key, _)| *key == operation).filter(|_| keeps) {
                return Told::Done(*vm);
            }
            rows.keys.push((operation, rows.vms.len()));
            rows.vms.push(created(operation, now));
            rows.vms.len() - 1
        }
        Wish::Verb(vm, verb) => match on_verb(verb, rows.vms[vm].status) {
            Err(_) => return Told::Refused,
            Ok(None) => vm,
            Ok(Some(status)) => {
                let row = &mut rows.vms[vm];
                row.want = if verb == Verb::Stop { Want::Stop } else { Want::Run };
                (row.ending, row.wish) = (verb == Verb::Restart, operation);
                row.enter(status, now);
                vm
            }
        },
        Wish::Delete(vm) => {
            let row = &mut rows.vms[vm];
            if !matches!(row.status, Status::Deleting | Status::Deleted) {
                (row.want, row.wish) = (Want::Gone, operation);
                row.enter(Status::Deleting, now);
            }
            vm
        }
        Wish::Remove(host) if host != me && rows.hosts[host].state == State::Lost => {
            rows.hosts[host].is_removed = true;
            0
        }
        Wish::Join => {
            rows.hosts.iter_mut().for_each(HostRow::join);
            0
        }
        Wish::Remove(_) | Wish::Look(_) => return Told::Refused,
    };
    rows.apply(operation);
    Told::Done(vm)
}

fn created(wish: usize, now: Timestamp) -> VmRow {
    VmRow {
        host: None,
        want: Want::Run,
        status: Status::Pending,
        since: now,
        attempts: 0,
        deaths: 0,
        reserved: false,
        has_disk: false,
        ending: false,
        power_off_at: None,
        pressed_at: None,
        start_after: None,
        guest_ready: false,
        wish,
        generation: 0,
        host_boot: None,
    }
}

/// Has a service work.
pub fn begin(service: &Rc<Service>) {
    let machines = service.sim.world.borrow().machines.len();
    for host in (0..machines).filter(|host| *host != service.me) {
        let own = Rc::clone(service);
        service.sim.spawn(service.process, async move { own.look_after(host).await });
    }
    let own = Rc::clone(service);
    service.sim.spawn(service.process, async move { own.adopt(own.me).await });
    let own = Rc::clone(service);
    service.sim.spawn(service.process, async move { own.look_for_work().await });
}

/// A request comes to a replica, which serves it or passes it on.
pub fn requested(sim: &Run, at: usize, (operation, wish): (usize, Wish), is_passed: bool, reply: Slot<Told>) {
    let world = sim.world.borrow();
    let (machine, users) = (&world.machines[at], world.users_at());
    let (process, active) = (machine.process, machine.active.as_ref().map(|active| active.service.clone()));
    let knows = world.database.rows.keeper.as_ref().and_then(crate::replica::machine_of);
    drop(world);
    if !sim.lives(process) {
        return sim.send(at, users, move |sim| reply.fill(sim, Told::Away));
    }
    if let Some(service) = active {
        let own = Rc::clone(sim);
        sim.spawn(process, async move {
            let told = service.serve(operation, wish).await;
            let to = own.clone();
            own.send(at, users, move |_| reply.fill(&to, told));
        });
    } else if let Some(other) = knows.filter(|other| *other != at && !is_passed) {
        sim.send(at, other, move |sim| requested(sim, other, (operation, wish), true, reply));
    } else {
        sim.send(at, users, move |sim| reply.fill(sim, Told::Away));
    }
}
