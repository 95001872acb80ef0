//! A host: what it does where a service asks, in which term and for which generation.
//!
//! What is refused is decided by the rules of the host itself: [`Hearing`] and [`Aim`]. Notes are on its disk before it acts.

use std::rc::Rc;

use berth_domain::host::Aim;
use berth_domain::host::aim::Act;
use berth_domain::ids::MachineId;
use berth_domain::replica::Hearing;
use berth_domain::vm::plan;
use uuid::Uuid;

use crate::broken::Rule;
use crate::check;
use crate::database;
use crate::run::{Micros, Run, SECOND, Slot};

/// After so long without a word a host takes whoever asks for gone: `SILENCE` of `berth_host::wire::message`.
const SILENCE: Micros = 30 * SECOND;

/// How long a process takes to note itself, on a host that has much to do.
const NOTES: Micros = 4 * SECOND;

/// A machine that runs.
#[derive(Clone, Copy, Debug)]
pub struct Instance {
    /// The VM whose disk it has.
    pub vm: usize,
    /// For which start of it that is.
    pub generation: i64,
    /// Whether its guest is off.
    pub is_off: bool,
    /// The step that began it.
    task: usize,
    trace: Trace,
}

/// What a machine's process has in its folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trace {
    /// It holds the folder, and has not noted itself.
    Begun,
    /// It is found.
    Noted,
    /// Nothing, since the folder was removed under it.
    Lost,
}

/// A step under way.
pub struct UnderWay {
    task: usize,
    vm: usize,
    deed: Deed,
    /// None of a disk that is made, which counts no starts.
    aim: Option<Aim>,
    /// The term of who asked; none of the service in the same process.
    term: Option<i64>,
    reply: Reply,
}

impl UnderWay {
    /// Whether it starts a VM's machine.
    pub fn starts(&self, vm: usize) -> bool {
        self.vm == vm && self.deed == Deed::Start
    }
}

/// What a host is asked.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    /// How it is.
    Presence,
    /// Which machines it has.
    Scan,
    /// How a machine is.
    Observe(usize),
    /// To do something for a VM, as was decided for a generation of its machine.
    Do(Deed, usize, Option<i64>),
}

/// What a host does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Makes a disk.
    MakeDisk,
    /// Starts a machine.
    Start,
    /// Presses its power button.
    Press,
    /// Ends it.
    PowerOff,
    /// Removes its folder, whatever runs there.
    Discard,
}

impl Deed {
    const fn act(self) -> Option<Act> {
        match self {
            Self::MakeDisk => None,
            Self::Start => Some(Act::Start),
            Self::Press => Some(Act::Change),
            Self::PowerOff | Self::Discard => Some(Act::End),
        }
    }
}

/// What it answers.
#[derive(Clone, Debug)]
pub enum Answer {
    /// It was asked in a later term.
    Over,
    /// It acted on a later generation.
    Outdated(i64),
    /// It will not come back, and what it had is gone.
    Gone,
    /// It cannot, or what was decided later called it off.
    Failed,
    /// It is there, in this boot.
    Boot(u64),
    /// So the machine is.
    Machine(plan::Machine),
    /// It has folders of these VMs' machines.
    Machines(Vec<usize>),
    /// It did so.
    Done,
}

/// Where an answer goes.
#[derive(Clone)]
pub struct Reply {
    /// From the host to who asked.
    pub way: (usize, usize),
    /// The process that asked.
    pub process: usize,
    /// Where that waits.
    pub slot: Slot<Answer>,
}

impl Reply {
    fn give(self, sim: &Run, answer: Answer) {
        let (from, to) = self.way;
        if from == to {
            return self.slot.fill(sim, answer);
        }
        sim.send(from, to, move |sim| self.slot.fill(sim, answer));
    }
}

fn aim(vm: usize, generation: Option<i64>) -> Aim {
    Aim { id: MachineId(Uuid::from_u128(vm as u128)), generation }
}

/// A question comes over the wire.
pub fn asked(sim: &Run, host: usize, term: i64, ask: Ask, reply: Reply) {
    let (process, is_open) = {
        let machine = &sim.world.borrow().machines[host];
        (machine.process, machine.is_open)
    };
    if !sim.lives(process) {
        return reply.give(sim, Answer::Failed);
    }
    let stopped = sim.stopped(process);
    if stopped > sim.now() {
        // Of several connections it reads this one first or that one.
        let read = stopped + sim.between(0, 100_000);
        return sim.at(read, move |sim| asked(sim, host, term, ask, reply));
    }
    if !is_open {
        return reply.give(sim, Answer::Failed);
    }
    if !hears(sim, host, term) {
        sim.reaches(check::OVER);
        return reply.give(sim, Answer::Over);
    }
    answer(sim, host, Some(term), term, ask, reply);
}

/// Whether a host answers in a term, which it notes first.
fn hears(sim: &Run, host: usize, term: i64) -> bool {
    let mut world = sim.world.borrow_mut();
    let forgets = world.lacks(Rule::HostsKeepTerms);
    let machine = &mut world.machines[host];
    machine.heard = machine.heard.max(term);
    if forgets {
        return true;
    }
    match Hearing::of(term, machine.term) {
        Hearing::Over => false,
        Hearing::Present => true,
        Hearing::Later => {
            machine.term = term;
            let is_over = |step: &mut UnderWay| step.term.is_some_and(|earlier| earlier < term);
            let gone: Vec<_> = machine.under_way.extract_if(.., is_over).collect();
            drop(world);
            if !gone.is_empty() {
                sim.reaches(check::DROPPED);
            }
            drop_steps(sim, host, gone);
            true
        }
    }
}

/// Ends steps, whose askers are told so.
pub fn drop_steps(sim: &Run, host: usize, gone: Vec<UnderWay>) {
    for step in gone {
        sim.call_off(step.task);
        is_dropped(sim, host, step.task);
        step.reply.give(sim, Answer::Failed);
    }
}

/// A step is dropped where it stands. A process that it began and that has not noted itself may go on, and do so later.
fn is_dropped(sim: &Run, host: usize, task: usize) {
    let mut world = sim.world.borrow_mut();
    let is_half = |one: &Instance| one.task == task && one.trace == Trace::Begun;
    if !world.machines[host].instances.iter().any(is_half) {
        return;
    }
    if world.one_of(2) {
        return world.machines[host].instances.retain(|one| !is_half(one));
    }
    let later = sim.now() + world.between(0, NOTES);
    drop(world);
    sim.reaches(check::LEFT);
    sim.tell(|| format!("host {host} drops a start, whose process goes on"));
    sim.at(later, move |sim| is_noted(sim, host, task));
}

/// The process that a step began notes itself in its folder, if both are there.
fn is_noted(sim: &Run, host: usize, task: usize) {
    let instances = &mut sim.world.borrow_mut().machines[host].instances;
    let begun = instances.iter_mut().filter(|one| one.task == task && one.trace == Trace::Begun);
    begun.for_each(|one| one.trace = Trace::Noted);
}

/// A host answers, or begins to do what was asked. The service in the same process asks in its own term, and it is not compared.
pub fn answer(sim: &Run, host: usize, over: Option<i64>, term: i64, ask: Ask, reply: Reply) {
    let at_once = {
        let machine = &sim.world.borrow().machines[host];
        match ask {
            Ask::Presence => Some(Answer::Boot(machine.boot)),
            Ask::Scan => Some(Answer::Machines(machine.folders.iter().copied().collect())),
            Ask::Observe(vm) => {
                let found = machine.instances.iter().find(|one| one.vm == vm && one.trace == Trace::Noted);
                Some(Answer::Machine(found.map_or(plan::Machine::Absent, |one| {
                    if one.is_off { plan::Machine::PoweredOff } else { plan::Machine::Running }
                })))
            }
            Ask::Do(..) => None,
        }
    };
    match (at_once, ask) {
        (Some(answer), _) => reply.give(sim, answer),
        (None, Ask::Do(deed, vm, generation)) => match admit(sim, host, (deed, vm, generation)) {
            Err(later) => {
                sim.reaches(check::OUTDATED);
                reply.give(sim, Answer::Outdated(later));
            }
            Ok(()) => begin(sim, host, (over, term), (deed, vm, generation), reply),
        },
        _ => {}
    }
}

/// Compares a step with what is noted, notes it, and drops what it calls off.
fn admit(sim: &Run, host: usize, (deed, vm, generation): (Deed, usize, Option<i64>)) -> Result<(), i64> {
    let mut world = sim.world.borrow_mut();
    let Some(act) = deed.act().filter(|_| !world.lacks(Rule::HostsKeepGenerations)) else { return Ok(()) };
    let machine = &mut world.machines[host];
    let aim = aim(vm, generation);
    if let Some(noted) = aim.admit(act, machine.notes.get(&vm).copied())? {
        machine.notes.insert(vm, noted);
    }
    let is_off = |step: &mut UnderWay| step.vm == vm && step.aim.is_some_and(|under_way| aim.calls_off(act, under_way));
    let gone: Vec<_> = machine.under_way.extract_if(.., is_off).collect();
    drop(world);
    if !gone.is_empty() {
        sim.reaches(check::CALLED_OFF);
    }
    drop_steps(sim, host, gone);
    Ok(())
}

fn begin(sim: &Run, host: usize, terms: (Option<i64>, i64), what: (Deed, usize, Option<i64>), reply: Reply) {
    let (process, number) = (sim.world.borrow().machines[host].process, Slot::default());
    let (own, answer, waits) = (Rc::clone(sim), reply.clone(), number.clone());
    let task = sim.spawn(process, async move {
        // Its own number, once it has one.
        let Some(task) = waits.wait(&own, Micros::MAX).await else { return };
        let done = perform(&own, host, (terms.1, task), what).await;
        own.world.borrow_mut().machines[host].under_way.retain(|step| step.task != task);
        answer.give(&own, done);
    });
    let aim = what.0.act().map(|_| aim(what.1, what.2));
    let step = UnderWay { task, vm: what.1, deed: what.0, aim, term: terms.0, reply };
    sim.world.borrow_mut().machines[host].under_way.push(step);
    number.fill(sim, task);
    let since = sim.now();
    sim.at(since + SILENCE, move |sim| looks_for_asker(sim, host, task, since));
}

/// A host drops what was asked by somebody whom it hears no more.
fn looks_for_asker(sim: &Run, host: usize, task: usize, since: Micros) {
    let mut world = sim.world.borrow_mut();
    let Some(step) = world.machines[host].under_way.iter().position(|step| step.task == task) else { return };
    let reply = &world.machines[host].under_way[step].reply;
    let (asker, process) = (reply.way.1, reply.process);
    if asker == host || !world.was_cut(host, asker, since) && sim.lives(process) {
        drop(world);
        return sim.at(sim.now() + SILENCE / 2, move |sim| looks_for_asker(sim, host, task, since));
    }
    let gone = world.machines[host].under_way.remove(step);
    drop(world);
    sim.reaches(check::UNHEARD);
    sim.tell(|| format!("host {host} drops what machine {asker} asked, which it hears no more"));
    drop_steps(sim, host, vec![gone]);
}

/// Does it, which takes its time.
async fn perform(
    sim: &Run,
    host: usize,
    (term, task): (i64, usize),
    (deed, vm, generation): (Deed, usize, Option<i64>),
) -> Answer {
    let acts = |what: &str| {
        sim.world.borrow_mut().acts(host, term);
        sim.tell(|| format!("host {host} {what} VM {vm}, generation {generation:?}, for term {term}"));
    };
    match deed {
        Deed::MakeDisk => {
            sim.sleep(host, sim.between(10_000, 2 * SECOND)).await;
            acts("made the disk of");
        }
        Deed::Start => {
            sim.sleep(host, sim.between(1_000, 50_000)).await;
            sim.world.borrow_mut().machines[host].folders.insert(vm);
            if is_there(sim, host, vm, generation).await {
                return Answer::Done;
            }
            let longest = {
                let world = sim.world.borrow();
                world.start.min((world.heals - sim.now()).max(0) + 4 * SECOND)
            };
            sim.sleep(host, sim.between(50_000, longest)).await;
            acts("starts");
            is_begun(sim, host, task, (vm, generation));
            sim.sleep(host, sim.between(1_000, NOTES)).await;
            is_noted(sim, host, task);
        }
        Deed::Press => {
            acts("pressed the button of");
            let goes = sim.now() + sim.between(200_000, 3 * SECOND);
            // Some guests do not listen.
            if sim.below(6) > 0 {
                let boot = boot_of(sim, host);
                sim.at(goes, move |sim| goes_off(sim, host, boot, vm, generation));
            }
        }
        Deed::PowerOff => {
            sim.sleep(host, sim.between(5_000, 300_000)).await;
            acts("ended");
            let machine = &mut sim.world.borrow_mut().machines[host];
            machine.instances.retain(|one| one.vm != vm);
        }
        Deed::Discard => {
            sim.sleep(host, sim.between(5_000, 300_000)).await;
            acts("removed the folder of");
            let machine = &mut sim.world.borrow_mut().machines[host];
            machine.folders.remove(&vm);
            machine.instances.iter_mut().filter(|one| one.vm == vm).for_each(|one| one.trace = Trace::Lost);
        }
    }
    Answer::Done
}

/// A machine's process begins.
fn is_begun(sim: &Run, host: usize, task: usize, (vm, generation): (usize, Option<i64>)) {
    // Some guests power themselves off.
    let (goes, is_off, boot) = (sim.now() + sim.between(SECOND, 20 * SECOND), sim.below(4) == 0, boot_of(sim, host));
    if is_off && goes < sim.world.borrow().heals {
        sim.at(goes, move |sim| goes_off(sim, host, boot, vm, generation));
    }
    let begun = Instance { vm, generation: generation.unwrap_or_default(), is_off: false, task, trace: Trace::Begun };
    let mut world = sim.world.borrow_mut();
    world.machines[host].instances.push(begun);
    world.begins(host, vm);
}

/// Whether a VM's machine runs, which then is what this start was to begin. One that has not noted itself holds the folder.
async fn is_there(sim: &Run, host: usize, vm: usize, generation: Option<i64>) -> bool {
    loop {
        {
            let instances = &mut sim.world.borrow_mut().machines[host].instances;
            let found = instances.iter_mut().find(|one| one.vm == vm && one.trace != Trace::Lost);
            let Some(one) = found else { return false };
            if one.trace == Trace::Noted {
                one.generation = generation.unwrap_or_default();
                return true;
            }
        }
        sim.sleep(host, SECOND / 10).await;
    }
}

fn boot_of(sim: &Run, host: usize) -> u64 {
    sim.world.borrow().machines[host].boot
}

/// A guest has powered itself off.
fn goes_off(sim: &Run, host: usize, boot: u64, vm: usize, generation: Option<i64>) {
    if boot_of(sim, host) != boot {
        return;
    }
    {
        let mut world = sim.world.borrow_mut();
        let all = world.machines[host].instances.iter_mut();
        all.filter(|one| one.vm == vm && Some(one.generation) == generation).for_each(|one| one.is_off = true);
    }
    // Whoever follows the host is told, and once more where a connection broke.
    for again in [0, 5, 15, 40] {
        sim.at(sim.now() + again * SECOND, move |sim| tells(sim, host, vm));
    }
}

/// A host tells the active service that something happened to a machine.
fn tells(sim: &Run, host: usize, vm: usize) {
    let active = sim.world.borrow().machines.iter().position(|machine| machine.active.is_some());
    let Some(active) = active else { return };
    sim.send(host, active, move |sim| {
        let service = sim.world.borrow().machines[active].active.as_ref().map(|active| active.service.clone());
        if let Some(service) = service {
            service.poke(vm);
        }
    });
}

/// A machine loses its power: programs and machines with it, and what is on its disk stays.
pub fn lose_power(sim: &Run, host: usize) {
    end_program(sim, host);
    let machine = &mut sim.world.borrow_mut().machines[host];
    machine.instances.clear();
    machine.boot += 1;
}

/// The program of a machine is killed; machines run on.
pub fn end_program(sim: &Run, host: usize) {
    let process = sim.world.borrow().machines[host].process;
    if process == usize::MAX || !sim.lives(process) {
        return;
    }
    sim.kill(process);
    database::hangs_up(sim, host);
    let (active, gone) = {
        let machine = &mut sim.world.borrow_mut().machines[host];
        machine.is_open = false;
        (machine.active.take(), std::mem::take(&mut machine.under_way))
    };
    drop(active);
    for step in gone {
        is_dropped(sim, host, step.task);
    }
}
