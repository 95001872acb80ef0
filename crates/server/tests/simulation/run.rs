//! What everything runs on: a virtual clock, a queue of what happens when, and programs that wait.
//!
//! A program is a future that nothing wakes but the queue. So where it stands between two waits is where it can be killed, which
//! drops it, or stopped, which puts off whatever would have it go on.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::world::World;

/// Microseconds since the beginning.
pub type Micros = i64;
/// A second.
pub const SECOND: Micros = 1_000_000;
/// A schedule that runs; all programs share it.
pub type Run = Rc<Sim>;

type Program = Pin<Box<dyn Future<Output = ()>>>;

enum What {
    GoOn(usize),
    Call(Box<dyn FnOnce(&Run)>),
}

struct Queued {
    at: Micros,
    order: u64,
    what: What,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    /// The heap has its greatest first, which is the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

struct Task {
    process: usize,
    program: Option<Program>,
}

/// A process of the system.
struct Process {
    lives: bool,
    /// It is stopped until then.
    stopped: Micros,
}

/// A schedule.
pub struct Sim {
    /// What there is.
    pub world: RefCell<World>,
    now: Cell<Micros>,
    queue: RefCell<BinaryHeap<Queued>>,
    order: Cell<u64>,
    tasks: RefCell<Vec<Option<Task>>>,
    processes: RefCell<Vec<Process>>,
    current: Cell<usize>,
    /// What happened, where somebody is to read that.
    told: Option<RefCell<Vec<String>>>,
}

impl Sim {
    /// A world at its beginning.
    pub fn new(world: World, is_told: bool) -> Run {
        Rc::new(Self {
            world: RefCell::new(world),
            now: Cell::new(0),
            queue: RefCell::default(),
            order: Cell::new(0),
            tasks: RefCell::default(),
            processes: RefCell::default(),
            current: Cell::new(0),
            told: is_told.then(RefCell::default),
        })
    }

    /// The true time.
    pub fn now(&self) -> Micros {
        self.now.get()
    }

    /// Notes what happens, for who reads how a rule was broken.
    pub fn tell(&self, what: impl FnOnce() -> String) {
        if let Some(told) = &self.told {
            let (seconds, micros) = (self.now() / SECOND, self.now() % SECOND);
            told.borrow_mut().push(format!("{seconds:4}.{micros:06} s  {}", what()));
        }
    }

    /// The last things that happened.
    pub fn told(&self, most: usize) -> String {
        let told = self.told.as_ref().map(|told| told.borrow().clone()).unwrap_or_default();
        told[told.len().saturating_sub(most)..].join("\n")
    }

    fn push(&self, at: Micros, what: What) {
        let order = self.order.get();
        self.order.set(order + 1);
        self.queue.borrow_mut().push(Queued { at: at.max(self.now()), order, what });
    }

    /// Has something happen at a time.
    pub fn at(&self, at: Micros, call: impl FnOnce(&Run) + 'static) {
        self.push(at, What::Call(Box::new(call)));
    }

    /// A new process.
    pub fn process(&self) -> usize {
        let mut all = self.processes.borrow_mut();
        all.push(Process { lives: true, stopped: 0 });
        all.len() - 1
    }

    /// Begins a program in a process; what it is called.
    pub fn spawn(&self, process: usize, program: impl Future<Output = ()> + 'static) -> usize {
        let mut tasks = self.tasks.borrow_mut();
        tasks.push(Some(Task { process, program: Some(Box::pin(program)) }));
        let task = tasks.len() - 1;
        drop(tasks);
        self.push(self.now(), What::GoOn(task));
        task
    }

    /// Ends a program where it stands.
    pub fn call_off(&self, task: usize) {
        let gone = self.tasks.borrow_mut()[task].take();
        drop(gone);
    }

    /// Ends a process, whatever it does.
    pub fn kill(&self, process: usize) {
        self.processes.borrow_mut()[process].lives = false;
        let mut gone = Vec::new();
        for task in self.tasks.borrow_mut().iter_mut() {
            gone.extend(task.take_if(|task| task.process == process));
        }
        drop(gone);
    }

    /// Stops a process until then.
    pub fn stop(&self, process: usize, until: Micros) {
        let mut all = self.processes.borrow_mut();
        all[process].stopped = all[process].stopped.max(until);
    }

    /// Whether a process is there.
    pub fn lives(&self, process: usize) -> bool {
        self.processes.borrow()[process].lives
    }

    /// Until when it is stopped.
    pub fn stopped(&self, process: usize) -> Micros {
        self.processes.borrow()[process].stopped
    }

    /// Does what is next, if that is before this time.
    pub fn step(self: &Rc<Self>, end: Micros) -> bool {
        let Some(next) = self.queue.borrow_mut().pop().filter(|next| next.at < end) else { return false };
        self.now.set(next.at);
        match next.what {
            What::Call(call) => call(self),
            What::GoOn(task) => self.go_on(task),
        }
        true
    }

    fn go_on(&self, task: usize) {
        let taken = self.tasks.borrow_mut()[task].as_mut().map(|task| (task.process, task.program.take()));
        let Some((process, Some(mut program))) = taken else { return };
        let stopped = self.stopped(process);
        let is_over = if stopped > self.now() {
            self.push(stopped, What::GoOn(task));
            false
        } else {
            self.current.set(task);
            program.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
        };
        // It may have been killed by what it did itself.
        let mut tasks = self.tasks.borrow_mut();
        if is_over {
            tasks[task] = None;
        } else if let Some(task) = &mut tasks[task] {
            task.program = Some(program);
        }
    }

    /// Waits until then.
    pub async fn sleep_until(&self, at: Micros) {
        let mut is_queued = false;
        poll_fn(|_| {
            if self.now() >= at {
                return Poll::Ready(());
            }
            if !is_queued {
                is_queued = true;
                self.push(at, What::GoOn(self.current.get()));
            }
            Poll::Pending
        })
        .await;
    }

    /// Ends all programs, which know the schedule themselves.
    pub fn end(&self) {
        let (tasks, queue) = (self.tasks.take(), self.queue.take());
        drop((tasks, queue));
        self.world.borrow_mut().forget();
    }
}

/// Where one program waits for what another one gives it.
pub struct Slot<T>(Rc<RefCell<Given<T>>>);

struct Given<T> {
    value: Option<T>,
    waits: Option<usize>,
}

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self(Rc::new(RefCell::new(Given { value: None, waits: None })))
    }
}

impl<T> Slot<T> {
    /// Gives it; what was given first counts.
    pub fn fill(&self, sim: &Sim, value: T) {
        let mut given = self.0.borrow_mut();
        given.value.get_or_insert(value);
        if let Some(task) = given.waits.take() {
            sim.push(sim.now(), What::GoOn(task));
        }
    }

    /// Waits until it is given, or it is this late.
    pub async fn wait(&self, sim: &Sim, until: Micros) -> Option<T> {
        let mut is_queued = false;
        poll_fn(|_| {
            let mut given = self.0.borrow_mut();
            if let Some(value) = given.value.take() {
                return Poll::Ready(Some(value));
            }
            if sim.now() >= until {
                return Poll::Ready(None);
            }
            given.waits = Some(sim.current.get());
            if !is_queued {
                is_queued = true;
                sim.push(until, What::GoOn(sim.current.get()));
            }
            Poll::Pending
        })
        .await
    }
}
