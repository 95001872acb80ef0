//! The database: rows, one writer at a time, terms, and a leader with one that follows it.
//!
//! A commit holds the lock of writers until the other member has it, and is seen and acknowledged then. Where the leader is
//! lost, what is under way may be there afterwards or not. A writer that says nothing for some seconds loses the lock.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use berth_domain::Timestamp;
use berth_domain::host::model::State;
use berth_domain::vm::Status;
use berth_domain::vm::model::Want;
use berth_server::db::keeper::KeeperRow;

use crate::broken::Rule;
use crate::check;
use crate::run::{Micros, Run, SECOND, Slot};

/// After so long without a word a writer loses the lock: `idle_in_transaction_session_timeout` of `db::leader`.
const IDLE: Micros = 8 * SECOND;

/// A VM's row.
#[derive(Clone, Copy, Debug)]
pub struct VmRow {
    /// The host that it is on, once it has been on one.
    pub host: Option<usize>,
    /// What its owner wants.
    pub want: Want,
    /// Where it stands.
    pub status: Status,
    /// Since when.
    pub since: Timestamp,
    /// How often a deadline passed.
    pub attempts: i64,
    /// How often it died in a row.
    pub deaths: i64,
    /// Whether it has its place on the host.
    pub reserved: bool,
    /// Whether its disk is made.
    pub has_disk: bool,
    /// Whether its machine has to end first.
    pub ending: bool,
    /// When the power button was pressed first.
    pub power_off_at: Option<Timestamp>,
    /// And last.
    pub pressed_at: Option<Timestamp>,
    /// Not to be started before.
    pub start_after: Option<Timestamp>,
    /// Whether its guest has booted.
    pub guest_ready: bool,
    /// The operation that said last what its owner wants.
    pub wish: usize,
    /// Counts its starts.
    pub generation: i64,
    /// The boot of its host that it was started in.
    pub host_boot: Option<u64>,
}

/// A host's row.
#[derive(Clone, Copy, Debug)]
pub struct HostRow {
    /// Whether it is there.
    pub state: State,
    /// Whether it was removed.
    pub is_removed: bool,
    /// How often it joined.
    pub enrolment: u64,
}

impl HostRow {
    /// It is one of the fleet again, if it was removed.
    pub fn join(&mut self) {
        self.enrolment += u64::from(self.is_removed);
        self.is_removed = false;
    }
}

/// All rows.
#[derive(Clone, Default)]
pub struct Rows {
    /// Who has the database.
    pub keeper: Option<KeeperRow>,
    /// Hosts, by their machine.
    pub hosts: Vec<HostRow>,
    /// VMs, by their number.
    pub vms: Vec<VmRow>,
    /// Kept keys: of each creation's operation, the VM.
    pub keys: Vec<(usize, usize)>,
    /// How often each operation was applied.
    pub applied: Vec<u8>,
}

impl Rows {
    /// The present term.
    pub fn term(&self) -> i64 {
        self.keeper.as_ref().map_or(0, |keeper| keeper.sign.term)
    }

    /// Notes that an operation was applied.
    pub fn apply(&mut self, operation: usize) {
        if self.applied.len() <= operation {
            self.applied.resize(operation + 1, 0);
        }
        self.applied[operation] = self.applied[operation].saturating_add(1);
    }
}

/// Why a transaction does not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another service has the database.
    Overtaken,
    /// It does not answer.
    Away,
}

type Begun = Result<Rc<Rows>, Refusal>;

struct Writer {
    number: u64,
    term: i64,
    from: usize,
    reply: Slot<Begun>,
}

/// The database.
pub struct Database {
    /// What is committed.
    pub rows: Rc<Rows>,
    /// What was committed before, where a commit waits for nobody.
    past: VecDeque<Rc<Rows>>,
    held: Option<(u64, usize)>,
    /// Committed by who holds the lock, and not acknowledged.
    pending: Option<Rc<Rows>>,
    waiting: VecDeque<Writer>,
    /// What each machine said before is of connections that have ended.
    ended: BTreeMap<usize, u64>,
    away: Micros,
    /// Until when nobody follows the leader.
    alone: Micros,
}

impl Database {
    /// One that knows these machines.
    pub fn new(machines: usize) -> Self {
        let host = HostRow { state: State::Lost, is_removed: false, enrolment: 1 };
        let rows = Rows { hosts: vec![host; machines], ..Rows::default() };
        Self {
            rows: Rc::new(rows),
            past: VecDeque::new(),
            held: None,
            pending: None,
            waiting: VecDeque::new(),
            ended: BTreeMap::new(),
            away: 0,
            alone: 0,
        }
    }

    /// Ends what knows the schedule.
    pub fn forget(&mut self) {
        self.waiting.clear();
    }
}

/// A transaction that holds the lock.
pub struct Tx {
    number: u64,
    term: i64,
    from: usize,
    /// What it sees, and writes.
    pub rows: Rows,
}

/// Reads the rows, within a time.
pub async fn read(sim: &Run, from: usize, until: Micros) -> Option<Rc<Rows>> {
    let reply = Slot::default();
    let (to, answer) = (sim.world.borrow().database_at(), reply.clone());
    sim.send(from, to, move |sim| {
        let rows = {
            let database = &sim.world.borrow().database;
            (sim.now() >= database.away).then(|| database.rows.clone())
        };
        sim.send(to, from, move |sim| answer.fill(sim, rows));
    });
    reply.wait(sim, until).await.flatten()
}

/// Begins a transaction of a term, within a time; of none where the term is 0.
pub async fn begin(sim: &Run, from: usize, term: i64, until: Micros) -> Result<Tx, Refusal> {
    let reply = Slot::default();
    let to = sim.world.borrow().database_at();
    let number = sim.world.borrow_mut().number();
    let writer = Writer { number, term, from, reply: reply.clone() };
    sim.send(from, to, move |sim| {
        let mut world = sim.world.borrow_mut();
        if sim.now() < world.database.away {
            drop(world);
            return answer(sim, &writer, Err(Refusal::Away));
        }
        // It comes behind the end of its connection, where that was long under way.
        if world.database.ended.get(&from).is_none_or(|ended| *ended < number) {
            world.database.waiting.push_back(writer);
        }
        drop(world);
        grant(sim);
    });
    let begun = reply.wait(sim, until).await;
    if begun.is_none() {
        // Its connection ends, and with it the transaction.
        sim.send(from, to, move |sim| release(sim, number));
    }
    let rows = begun.unwrap_or(Err(Refusal::Away))?;
    Ok(Tx { number, term, from, rows: (*rows).clone() })
}

fn answer(sim: &Run, writer: &Writer, begun: Begun) {
    let (from, reply) = (writer.from, writer.reply.clone());
    let at = sim.world.borrow().database_at();
    sim.send(at, from, move |sim| reply.fill(sim, begun));
}

/// Gives the lock to whoever waits for it first, if it is there.
fn grant(sim: &Run) {
    loop {
        let mut world = sim.world.borrow_mut();
        let keeps_terms = !world.lacks(Rule::DatabaseKeepsTerms);
        let database = &mut world.database;
        if database.held.is_some() {
            return;
        }
        let Some(writer) = database.waiting.pop_front() else { return };
        let (rows, number) = (database.rows.clone(), writer.number);
        if keeps_terms && writer.term != 0 && rows.term() != writer.term {
            drop(world);
            sim.reaches(check::OVERTAKEN);
            answer(sim, &writer, Err(Refusal::Overtaken));
            continue;
        }
        database.held = Some((number, writer.from));
        drop(world);
        answer(sim, &writer, Ok(rows));
        sim.at(sim.now() + IDLE, move |sim| {
            if sim.world.borrow().database.pending.is_none() {
                release(sim, number);
            }
        });
        return;
    }
}

/// Takes the lock from a writer, which writes nothing.
fn release(sim: &Run, number: u64) {
    let mut world = sim.world.borrow_mut();
    let database = &mut world.database;
    database.waiting.retain(|writer| writer.number != number);
    if database.held.is_some_and(|held| held.0 == number) && database.pending.is_none() {
        database.held = None;
        drop(world);
        grant(sim);
    }
}

/// The program of a machine has ended, and with it all its connections: its system says so, or nothing is heard for too long.
pub fn hangs_up(sim: &Run, from: usize) {
    let to = sim.world.borrow().database_at();
    let before = sim.world.borrow_mut().number();
    let ends = move |sim: &Run| {
        let mut world = sim.world.borrow_mut();
        let database = &mut world.database;
        database.waiting.retain(|writer| writer.from != from || writer.number > before);
        database.ended.insert(from, before);
        let held = database.held.filter(|held| held.1 == from && held.0 < before);
        drop(world);
        if let Some((number, _)) = held {
            release(sim, number);
        }
    };
    sim.send(from, to, ends);
    sim.at(sim.now() + IDLE, ends);
}

impl Tx {
    /// Writes nothing.
    pub fn roll_back(self, sim: &Run) {
        let (to, number) = (sim.world.borrow().database_at(), self.number);
        sim.send(self.from, to, move |sim| release(sim, number));
    }

    /// Whether it still holds the lock, which who wrote it may not know.
    pub fn holds(&self, sim: &Run) -> bool {
        let database = &sim.world.borrow().database;
        database.held == Some((self.number, self.from)) && database.pending.is_none()
    }

    /// Writes, within a time; whether that was acknowledged.
    pub async fn commit(self, sim: &Run, until: Micros) -> bool {
        let reply = Slot::default();
        let (to, from, answer) = (sim.world.borrow().database_at(), self.from, reply.clone());
        sim.send(from, to, move |sim| self.arrives(sim, answer));
        reply.wait(sim, until).await.unwrap_or(false)
    }

    fn arrives(self, sim: &Run, reply: Slot<bool>) {
        let Self { number, term, from, rows } = self;
        let mut world = sim.world.borrow_mut();
        if world.database.held != Some((number, from)) || world.database.pending.is_some() {
            drop(world);
            return acknowledge(sim, from, reply, false);
        }
        let present = world.database.rows.term();
        world.checker.is_written(term, present);
        world.database.pending = Some(Rc::new(rows));
        let slow = if world.one_of(60) { SECOND } else { 2_000 };
        let follows = sim.now() + world.between(200, slow);
        let alone = world.database.alone;
        drop(world);
        if alone > follows {
            sim.reaches(check::ALONE);
        }
        sim.at(follows.max(alone), move |sim| {
            let is_there = settle(sim, number, true);
            acknowledge(sim, from, reply, is_there);
        });
    }
}

fn acknowledge(sim: &Run, to: usize, reply: Slot<bool>, is_there: bool) {
    let at = sim.world.borrow().database_at();
    sim.send(at, to, move |sim| reply.fill(sim, is_there));
}

/// Ends a commit; whether it was still under way.
fn settle(sim: &Run, number: u64, is_kept: bool) -> bool {
    let mut world = sim.world.borrow_mut();
    let keeps_past = world.lacks(Rule::CommitsAreSynchronous);
    let database = &mut world.database;
    if database.held.is_none_or(|held| held.0 != number) {
        return false;
    }
    database.held = None;
    if let Some(rows) = database.pending.take().filter(|_| is_kept) {
        if keeps_past {
            database.past.push_back(database.rows.clone());
        }
        database.rows = rows;
    }
    drop(world);
    grant(sim);
    true
}

/// The leader has nobody that follows it: commits wait, and hold the lock, whoever still waits for them.
pub fn is_left_alone(sim: &Run, until: Micros) {
    sim.tell(|| format!("nobody follows the leader of the database until {} s", until / SECOND));
    let alone = &mut sim.world.borrow_mut().database.alone;
    *alone = until.max(*alone);
}

/// The leader is lost, and another one leads from then on, if one follows it.
pub fn fail_over(sim: &Run, until: Micros) {
    if sim.world.borrow().database.alone > sim.now() {
        return;
    }
    let held = sim.world.borrow().database.held;
    let is_kept = sim.below(2) == 0;
    let waiting = std::mem::take(&mut sim.world.borrow_mut().database.waiting);
    for writer in waiting {
        answer(sim, &writer, Err(Refusal::Away));
    }
    if sim.world.borrow().database.pending.is_some() {
        sim.reaches(if is_kept { check::KEPT_COMMIT } else { check::LOST_COMMIT });
    }
    if let Some((number, _)) = held {
        settle(sim, number, is_kept);
    }
    let mut world = sim.world.borrow_mut();
    let last = world.chance.below(3);
    let database = &mut world.database;
    database.away = until;
    // Without anybody to wait for, the last commits went with the leader.
    for _ in 0..=last {
        if let Some(rows) = database.past.pop_back() {
            database.rows = rows;
        }
    }
    let rows = database.rows.clone();
    world.checker.has_kept(&rows);
    drop(world);
    sim.tell(|| format!("the database has another leader, which has term {}", rows.term()));
}
