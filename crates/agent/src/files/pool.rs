//! Threads that act as the user towards the file system.
//!
//! Each sets the identity with which the kernel checks file accesses, which belongs to a thread and not to the process,
//! and drops every capability. Its other identities stay root's, so that the user's processes cannot signal it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use berth_domain::agent::error::code;
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use tokio::sync::oneshot;

use crate::error::{Refusal, Result};
use crate::lock::lock;
use crate::place::Place;

/// Threads for work that ends by itself.
const WORKERS: usize = 4;
/// Threads for work that lasts as long as its client.
const MAX_LONG: usize = 8;
/// The most jobs that wait for a thread.
const MAX_WAITING: usize = 1024;
const STACK: usize = 512 * 1024;

type Job = Box<dyn FnOnce(&Place) + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    workers: usize,
    idle: usize,
    long: usize,
    /// Jobs under way that may change files.
    inside: usize,
    held: bool,
}

/// The threads.
#[derive(Default)]
pub struct Pool {
    state: Mutex<State>,
    work: Condvar,
    gate: Condvar,
}

impl Pool {
    /// Runs work that ends by itself, as the user.
    pub async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        place: &Arc<Place>,
        work: impl FnOnce(&Place) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (tell, told) = oneshot::channel();
        let job: Job = Box::new(move |place| drop(tell.send(work(place))));
        self.push(place, job)?;
        told.await.unwrap_or_else(|_| Err(Refusal::internal("a worker ended")))
    }

    /// Runs work that lasts, as the user, in a thread of its own. It must do each change within [`Self::pass`].
    pub fn run_long(
        self: &Arc<Self>,
        place: &Arc<Place>,
        work: impl FnOnce(&Place, &Self) + Send + 'static,
    ) -> Result<()> {
        {
            let mut state = lock(&self.state);
            if state.long >= MAX_LONG {
                let message = format!("At most {MAX_LONG} archives are packed and unpacked at once; try again.");
                return Err(Refusal::new(code::TOO_MANY, message));
            }
            state.long += 1;
        }
        let (pool, place) = (self.clone(), place.clone());
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || {
            if become_user(&place) {
                work(&place, &pool);
            }
            lock(&pool.state).long -= 1;
        });
        thread.map(drop).map_err(|error| {
            lock(&self.state).long -= 1;
            Refusal::internal(error)
        })
    }

    /// Does something that changes files; while changes are held, waits first.
    pub fn pass<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut state = lock(&self.state);
        while state.held {
            state = self.gate.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.inside += 1;
        drop(state);
        let result = work();
        lock(&self.state).inside -= 1;
        self.gate.notify_all();
        result
    }

    /// Holds all changes of files; returns whether none is under way any more. Blocks for up to `patience`.
    pub fn hold(&self, patience: Duration) -> bool {
        let mut state = lock(&self.state);
        state.held = true;
        let waited = self.gate.wait_timeout_while(state, patience, |state| state.inside > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.inside == 0
    }

    /// Allows changes again.
    pub fn release(&self) {
        lock(&self.state).held = false;
        self.gate.notify_all();
    }

    fn push(self: &Arc<Self>, place: &Arc<Place>, job: Job) -> Result<()> {
        let mut state = lock(&self.state);
        if state.jobs.len() >= MAX_WAITING {
            return Err(Refusal::new(code::TOO_MANY, "Too many files are being worked on; try again shortly."));
        }
        state.jobs.push_back(job);
        if state.idle < state.jobs.len() && state.workers < WORKERS {
            state.workers += 1;
            let (pool, place) = (self.clone(), place.clone());
            let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || pool.serve(&place));
            if let Err(error) = thread {
                state.workers -= 1;
                if state.workers == 0 {
                    state.jobs.clear();
                    return Err(Refusal::internal(error));
                }
            }
        }
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    fn serve(&self, place: &Place) {
        let able = become_user(place);
        loop {
            let mut state = lock(&self.state);
            let job = loop {
                if let Some(job) = state.jobs.pop_front() {
                    break job;
                }
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            };
            drop(state);
            // Dropping a job reports to its caller that the worker ended.
            if able {
                self.pass(|| job(place));
            }
        }
    }
}

/// Takes the user's identity for this thread's file work. Returns whether it is in effect.
fn become_user(place: &Place) -> bool {
    if !rustix::process::geteuid().is_root() {
        return true;
    }
    let account = &place.account;
    let (uid, gid) = (Uid::from_raw(account.uid), Gid::from_raw(account.gid));
    if rustix::thread::set_thread_groups(&account.all_groups()).is_err() {
        return false;
    }
    setfsgid(gid);
    setfsuid(uid);
    // Neither call reports success, but each returns the former value: a second call shows what the first one set.
    let holds = setfsgid(gid) == gid && setfsuid(uid) == uid;
    let none = CapabilitySet::empty();
    let nothing = CapabilitySets { effective: none, permitted: none, inheritable: none };
    holds && (account.uid == 0 || rustix::thread::set_capabilities(None, nothing).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::Account;

    fn place(account: Account) -> Arc<Place> {
        let root = rustix::fs::open("/", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        Arc::new(Place { root, workspace: "/".into(), account, shell: "/bin/sh" })
    }

    fn other() -> Account {
        let id = if rustix::process::geteuid().is_root() { 54_321 } else { rustix::process::geteuid().as_raw() };
        let (name, home, shell) = ("other".into(), "/".into(), "/bin/sh".into());
        Account { name, uid: id, gid: id, groups: vec![id], home, shell }
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn only_the_pools_threads_are_the_user() {
        let before = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let pool = Arc::new(Pool::default());
        let account = other();
        let uid = account.uid;
        let read = |_: &Place| Ok(std::fs::read_to_string("/proc/thread-self/status").unwrap());
        let status = block_on(pool.run(&place(account), read)).unwrap();
        let ids = |text: &str| text.lines().find(|line| line.starts_with("Uid:")).unwrap().to_owned();
        assert!(ids(&status).ends_with(&format!("\t{uid}")), "{status}");
        if rustix::process::geteuid().is_root() {
            assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
            assert!(status.contains("Groups:\t54321 \n"), "{status}");
        }
        let after = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        assert_eq!(ids(&before), ids(&after));
    }

    #[test]
    fn held_work_waits_and_then_goes_on() {
        let pool = Arc::new(Pool::default());
        let place = place(other());
        assert!(pool.hold(Duration::from_secs(1)));
        block_on(async {
            let work = pool.run(&place, |_| Ok(7));
            tokio::pin!(work);
            let early = tokio::time::timeout(Duration::from_millis(50), work.as_mut()).await;
            assert!(early.is_err(), "held");
            pool.release();
            assert_eq!(work.await.unwrap(), 7);
        });
    }
}
