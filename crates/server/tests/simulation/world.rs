//! What there is: machines with their clocks and disks, and wires between them.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use berth_domain::Timestamp;
use berth_domain::host::aim::Noted;
use berth_domain::vm::plan::Deadlines;
use berth_testkit::Chance;

use crate::broken::Rule;
use crate::check::Checker;
use crate::database::Database;
use crate::host::{Instance, UnderWay};
use crate::replica::Active;
use crate::run::{Micros, Run, SECOND, Sim};

/// A machine: what of it outlives its programs, and the program that runs there.
pub struct Machine {
    /// Its program.
    pub process: usize,
    /// What the program of a replica does beside serving.
    pub task: usize,
    /// Whether its host answers questions.
    pub is_open: bool,
    /// The service that is active there.
    pub active: Option<Active>,
    /// How fast its clock runs, in thousandths.
    rate: i64,
    /// What its clock shows at the beginning since the machine started, and of the time of day.
    shows: (Micros, Micros),
    /// Counts its boots.
    pub boot: u64,
    /// On its disk: the latest term that it was asked in.
    pub term: i64,
    /// On its disk: what was acted on last, of each VM.
    pub notes: BTreeMap<usize, Noted>,
    /// On its disk: of which VMs' machines it has folders.
    pub folders: BTreeSet<usize>,
    /// What runs.
    pub instances: Vec<Instance>,
    /// Steps under way.
    pub under_way: Vec<UnderWay>,
    /// The latest term that anybody asked it in, which the checker alone knows.
    pub heard: i64,
}

/// Everything.
pub struct World {
    /// What is drawn.
    pub chance: Chance,
    /// Machines of replicas first, then hosts that joined.
    pub machines: Vec<Machine>,
    /// How many are replicas'.
    pub replicas: usize,
    /// The database that they share.
    pub database: Database,
    /// Until when nothing gets from one to another.
    cuts: Vec<Vec<Micros>>,
    /// Until when wires are slow.
    pub slow: Micros,
    /// Whether nothing breaks but wires.
    pub flaps: bool,
    /// How long each status may last.
    pub deadlines: Deadlines,
    /// The longest that a host takes to start a machine.
    pub start: Micros,
    /// One message of so many is late.
    late: usize,
    /// What is found to be wrong.
    pub checker: Checker,
    /// The rule that is left out.
    pub broken: Option<Rule>,
    /// From when on nothing breaks any more.
    pub heals: Micros,
    /// Users that do not have what they want yet.
    pub unsatisfied: usize,
    /// Numbers that were given.
    numbers: u64,
    /// Operations that users asked for.
    operations: usize,
}

impl World {
    /// Some machines.
    pub fn new(seed: u64, broken: Option<Rule>) -> Self {
        let mut chance = Chance::new(seed);
        let (replicas, joined) = (2 + chance.below(2), 1 + chance.below(2));
        let count = replicas + joined;
        // A start that outlasts its asker is seen where wires are cut again and again.
        let flaps = chance.below(6) == 0;
        let starts = if flaps { [30, 30, 45, 45] } else { [4, 4, 30, 45] };
        let (start, late) = (starts[chance.below(4)], [100, 50, 6][chance.below(3)]);
        let are_late = chance.below(if flaps { 2 } else { 3 }) == 0;
        let deadlines = deadlines(&mut chance, are_late);
        let machines = (0..count).map(|_| machine(&mut chance)).collect();
        Self {
            machines,
            replicas,
            database: Database::new(count),
            cuts: vec![vec![0; count + 2]; count + 2],
            slow: 0,
            flaps,
            deadlines,
            start: start * SECOND,
            late,
            checker: Checker::default(),
            broken,
            heals: 0,
            unsatisfied: 0,
            numbers: 0,
            operations: 0,
            chance,
        }
    }

    /// The place of the database.
    pub fn database_at(&self) -> usize {
        self.machines.len()
    }

    /// The place of users.
    pub fn users_at(&self) -> usize {
        self.machines.len() + 1
    }

    /// Whether this rule is left out.
    pub fn lacks(&self, rule: Rule) -> bool {
        self.broken == Some(rule)
    }

    /// Another number.
    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Another operation.
    pub fn operation(&mut self) -> usize {
        self.operations += 1;
        self.operations
    }

    /// A time from one to another.
    pub fn between(&mut self, from: Micros, to: Micros) -> Micros {
        let span = usize::try_from((to - from).max(1)).unwrap_or(1);
        from + i64::try_from(self.chance.below(span)).unwrap_or_default()
    }

    /// Whether one of so many is drawn.
    pub fn one_of(&mut self, many: usize) -> bool {
        self.chance.below(many) == 0
    }

    /// Lets nothing through from one to another until then.
    pub fn cut(&mut self, from: usize, to: usize, until: Micros) {
        let cut = &mut self.cuts[from][to];
        *cut = until.max(*cut);
    }

    /// Whether something between two was lost since then, as far as they can know.
    pub fn was_cut(&self, one: usize, other: usize, since: Micros) -> bool {
        self.cuts[one][other].max(self.cuts[other][one]) > since
    }

    /// When what is sent now arrives; none where it never does.
    fn arrives(&mut self, from: usize, to: usize, now: Micros) -> Option<Micros> {
        let mut wait = self.between(100, 2_000);
        if now < self.slow {
            wait += self.between(0, SECOND);
        } else if now < self.heals {
            wait += if self.one_of(self.late) { self.between(0, 3 * SECOND) } else { 0 };
        } else if self.one_of(100) {
            // All that a lease is renewed with may be so late, and in time.
            wait += self.between(0, SECOND);
        }
        let cut = self.cuts[from][to];
        if from == to || now >= cut {
            return Some(now + wait);
        }
        // What a cut held up is sent once more by the system, whoever has given it up meanwhile.
        if cut - now >= 25 * SECOND || self.one_of(2) {
            return None;
        }
        // It tries ever more seldom, so what was sent later over another connection may come before.
        let is_host = to < self.machines.len();
        Some(cut + wait + if is_host && from < self.machines.len() { self.between(0, cut - now) } else { 0 })
    }

    /// Ends what knows the schedule itself.
    pub fn forget(&mut self) {
        self.database.forget();
        for machine in &mut self.machines {
            machine.active = None;
            machine.under_way.clear();
        }
    }
}

/// Those of the service by default (`services::vm` of its configuration, with less patience for guests), which no schedule
/// reaches; in some, such that pass.
fn deadlines(chance: &mut Chance, are_late: bool) -> Deadlines {
    let mut of = |usual: i64| if are_late { drawn(chance, 11) + 10 } else { usual };
    Deadlines {
        provisioning: of(600),
        starting: of(300),
        restarting: of(180),
        stopping: of(120),
        suspending: of(300),
        deleting: of(300),
        power_off: 8,
    }
}

fn drawn(chance: &mut Chance, below: usize) -> i64 {
    i64::try_from(chance.below(below)).unwrap_or_default()
}

fn machine(chance: &mut Chance) -> Machine {
    Machine {
        process: usize::MAX,
        task: usize::MAX,
        is_open: false,
        active: None,
        rate: 900 + drawn(chance, 201),
        shows: (drawn(chance, 1_000_000) * 1_000, 1_800_000_000 * SECOND + drawn(chance, 20_000) * 1_000),
        boot: 1,
        term: 0,
        notes: BTreeMap::new(),
        folders: BTreeSet::new(),
        instances: Vec::new(),
        under_way: Vec::new(),
        heard: 0,
    }
}

impl Machine {
    /// What its clock shows since it started.
    pub fn uptime(&self, now: Micros) -> Duration {
        span(self.shows.0 + self.own(now))
    }

    /// What its clock shows of the time of day.
    pub fn wall(&self, now: Micros) -> Timestamp {
        Timestamp(self.shows.1 + self.own(now))
    }

    /// How much time passes by its clock.
    fn own(&self, passes: Micros) -> Micros {
        passes * self.rate / 1_000
    }

    /// How long what is so long by its clock takes.
    pub fn lasts(&self, own: Micros) -> Micros {
        own * 1_000 / self.rate + 1
    }
}

/// As the domain has it.
pub fn span(micros: Micros) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}

/// As the schedule has it.
pub fn micros(span: Duration) -> Micros {
    i64::try_from(span.as_micros()).unwrap_or(Micros::MAX)
}

impl Sim {
    /// Sends something.
    pub fn send(self: &Rc<Self>, from: usize, to: usize, deliver: impl FnOnce(&Run) + 'static) {
        let arrives = self.world.borrow_mut().arrives(from, to, self.now());
        if let Some(at) = arrives {
            self.at(at, deliver);
        }
    }

    /// Waits for so long by a machine's clock.
    pub async fn sleep(&self, machine: usize, own: Micros) {
        let at = self.now() + self.world.borrow().machines[machine].lasts(own);
        self.sleep_until(at).await;
    }

    /// What a machine's clock shows since it started.
    pub fn uptime(&self, machine: usize) -> Duration {
        self.world.borrow().machines[machine].uptime(self.now())
    }

    /// What a machine's clock shows of the time of day.
    pub fn wall(&self, machine: usize) -> Timestamp {
        self.world.borrow().machines[machine].wall(self.now())
    }

    /// Notes that something was reached.
    pub fn reaches(&self, what: &'static str) {
        self.world.borrow_mut().checker.reaches(what);
    }

    /// A time from one to another.
    pub fn between(&self, from: Micros, to: Micros) -> Micros {
        self.world.borrow_mut().between(from, to)
    }

    /// Below this.
    pub fn below(&self, end: usize) -> usize {
        self.world.borrow_mut().chance.below(end)
    }
}
