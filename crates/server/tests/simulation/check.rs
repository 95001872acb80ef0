//! What has to hold, whatever happens.

use std::collections::BTreeSet;

use berth_domain::vm::Status;
use berth_domain::vm::model::Want;

use crate::database::{Rows, VmRow};
use crate::run::{Micros, Run, SECOND};
use crate::world::{Machine, World};

/// Once nothing breaks any more, everything is as it should be within this time.
pub const SETTLES: Micros = 60 * SECOND;

/// What schedules have to come to, or they show nothing.
pub const REACHED: [&str; 19] = [
    TAKEN,
    ENDED,
    OVERTAKEN,
    OVER,
    OUTDATED,
    CALLED_OFF,
    DROPPED,
    UNHEARD,
    LOST_COMMIT,
    KEPT_COMMIT,
    LOST_HOST,
    UNOWNED,
    REPLAYED,
    CHANGED,
    ALONE,
    LEFT,
    LATE,
    FAILED,
    GIVEN_UP,
];
/// One of them, as all below: a replica takes the database.
pub const TAKEN: &str = "the database is taken from who is silent";
/// A replica ends since its lease does.
pub const ENDED: &str = "a lease ends that nobody renews";
/// A transaction is refused for its term.
pub const OVERTAKEN: &str = "the database refuses an earlier term";
/// A question is refused for its term.
pub const OVER: &str = "a host refuses an earlier term";
/// A step is refused for its generation.
pub const OUTDATED: &str = "a host refuses an earlier generation";
/// A step ends since a later one begins.
pub const CALLED_OFF: &str = "a step calls off another one";
/// A step ends since its term did.
pub const DROPPED: &str = "a host drops what is under way for an earlier term";
/// A step ends since nobody waits for it.
pub const UNHEARD: &str = "a host drops what was asked by who is not heard any more";
/// The leader is lost in the middle of a commit.
pub const LOST_COMMIT: &str = "a commit is lost with the leader";
/// The same, and another member has it.
pub const KEPT_COMMIT: &str = "a commit is kept that nobody was told of";
/// A host does not answer for long.
pub const LOST_HOST: &str = "a host is lost";
/// A search of a host finds something.
pub const UNOWNED: &str = "a machine is ended that no row owns";
/// A creation is asked for once more.
pub const REPLAYED: &str = "a kept answer is given again";
/// A record is dropped.
pub const CHANGED: &str = "a row changes under the step that was decided for it";

/// A commit takes as long as nobody follows.
pub const ALONE: &str = "a commit waits for who follows the leader";
/// A start is dropped, and has begun a process.
pub const LEFT: &str = "a start is dropped whose process goes on";
/// A status lasts for too long.
pub const LATE: &str = "a deadline passes, and its status begins again";
/// The same once more.
pub const FAILED: &str = "a VM fails by its plan";
/// A host was removed on which a VM is to begin.
pub const GIVEN_UP: &str = "a VM is given up whose host will not come back";

/// What is found to be wrong, and what the checker knows beside the rows.
#[derive(Default)]
pub struct Checker {
    /// The first thing.
    pub wrong: Option<String>,
    /// Operations of which a user was told that they are done.
    acknowledged: Vec<usize>,
    /// What was reached.
    pub reached: BTreeSet<&'static str>,
}

impl Checker {
    /// Notes something.
    pub fn found(&mut self, wrong: impl FnOnce() -> String) {
        self.wrong.get_or_insert_with(wrong);
    }

    /// Notes that something was reached.
    pub fn reaches(&mut self, what: &'static str) {
        self.reached.insert(what);
    }

    /// Somebody writes in a term.
    pub fn is_written(&mut self, term: i64, present: i64) {
        if term != 0 && term < present {
            self.found(|| format!("the database is written to in term {term}, and its term is {present}"));
        }
    }

    /// A user is told that an operation is done.
    pub fn is_acknowledged(&mut self, operation: usize, rows: &Rows) {
        self.acknowledged.push(operation);
        self.has_kept(rows);
    }

    /// The database has what was acknowledged.
    pub fn has_kept(&mut self, rows: &Rows) {
        let has = |operation: &usize| rows.applied.get(*operation).is_some_and(|times| *times > 0);
        if let Some(lost) = self.acknowledged.iter().find(|operation| !has(operation)).copied() {
            self.found(|| format!("operation {lost} was acknowledged, and the database does not have it"));
        }
    }
}

impl World {
    /// A host does something for a service of a term.
    pub fn acts(&mut self, host: usize, term: i64) {
        let heard = self.machines[host].heard;
        if term < heard {
            self.checker.found(|| format!("host {host} acts for term {term}, and was asked in term {heard} before"));
        }
    }

    /// A machine begins to run on a VM's disk.
    pub fn begins(&mut self, host: usize, vm: usize) {
        let running = self.machines.iter().flat_map(|machine| &machine.instances).filter(|one| one.vm == vm);
        if running.count() > 1 {
            self.checker.found(|| format!("two machines run on the disk of VM {vm}, the second on host {host}"));
        }
    }

    /// A VM's status is recorded: of one that is off nothing runs, and nothing is started, on its host. Of one that was removed
    /// that is not known until it has joined again.
    pub fn is_said(&mut self, vm: usize, rows: &Rows) {
        let VmRow { status, host, .. } = rows.vms[vm];
        let is_off = matches!(status, Status::Stopped | Status::Failed | Status::Deleted);
        let is_known = |host: &usize| !rows.hosts[*host].is_removed && rows.hosts[*host].enrolment == 1;
        let Some(host) = host.filter(is_known).filter(|_| is_off) else { return };
        let Machine { instances, under_way, .. } = &self.machines[host];
        if instances.iter().any(|one| one.vm == vm) || under_way.iter().any(|step| step.starts(vm)) {
            self.checker
                .found(|| format!("VM {vm} is said to be {status}, and host {host} runs or starts its machine"));
        }
    }

    /// A replica is active, or was told that it still is: nobody else has a lease that holds, if its own does.
    pub fn believes(&mut self, replica: usize, now: Micros) {
        let holds = |machine: &Machine| {
            machine.active.as_ref().is_some_and(|active| active.left(machine.uptime(now)).is_some())
        };
        if !holds(&self.machines[replica]) {
            return;
        }
        for (other, machine) in self.machines.iter().enumerate().filter(|(other, _)| *other != replica) {
            if holds(machine) {
                let wrong = format!("replica {replica} is active, and replica {other} has a lease that holds");
                self.checker.found(|| wrong);
                return;
            }
        }
    }
}

/// What is wrong at the end.
pub fn at_rest(sim: &Run) -> Option<String> {
    let world = sim.world.borrow();
    let rows = world.database.rows.clone();
    let has_lease = |machine: &&Machine| {
        machine.active.as_ref().is_some_and(|active| active.left(machine.uptime(sim.now())).is_some())
    };
    let active = world.machines.iter().filter(has_lease).count();
    if active != 1 {
        return Some(format!("{active} replicas are active"));
    }
    if world.unsatisfied > 0 {
        return Some(format!("{} users do not have what they want", world.unsatisfied));
    }
    for (key, times) in rows.applied.iter().enumerate() {
        let creations = rows.keys.iter().filter(|(kept, _)| *kept == key).count();
        if creations > 1 || creations == 1 && *times != 1 {
            return Some(format!("creation {key} was applied {times} times"));
        }
    }
    let mut expected = 0;
    for (vm, row) in rows.vms.iter().enumerate() {
        let all = world.machines.iter().enumerate();
        let of_it = all.flat_map(|(host, machine)| machine.instances.iter().map(move |one| (host, one)));
        let there: Vec<_> = of_it.filter(|(_, one)| one.vm == vm).collect();
        let is_right = match row.want {
            Want::Run => {
                // Its row counts a start before that finds it running.
                let runs = there.len() == 1 && row.host == Some(there[0].0) && there[0].1.generation <= row.generation;
                row.status == Status::Running && runs
            }
            Want::Stop => matches!(row.status, Status::Stopped | Status::Failed) && there.is_empty(),
            Want::Suspend => false,
            Want::Gone => row.status == Status::Deleted && there.is_empty(),
        };
        if !is_right {
            return Some(format!("VM {vm} has the row {row:?} and these machines: {there:?}"));
        }
        expected += there.len();
    }
    let found: usize = world.machines.iter().map(|machine| machine.instances.len()).sum();
    (found != expected).then(|| format!("{found} machines run, and rows are for {expected}"))
}
