//! Threads that act as an account towards the file system.
//!
//! Each sets the identity with which the kernel checks file accesses, which belongs to a thread and not to the process,
//! and drops every capability, unless the account is root. Its other identities stay root's, so that the user's
//! processes cannot signal it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use berth_domain::agent::error::code;
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use tokio::sync::oneshot;

use crate::accounts::Account;
use crate::error::{Refusal, Result};
use crate::files::gate::Gate;
use crate::lock::lock;

/// Threads for work that ends by itself.
const WORKERS: usize = 4;
/// Threads for work that lasts as long as its client.
const MAX_LONG: usize = 8;
/// The most jobs that wait for a thread.
const MAX_WAITING: usize = 1024;
const STACK: usize = 512 * 1024;
/// What a privileged thread keeps of root's rights: no permission of a file counts, and what it makes is the account's.
const RIGHTS: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::DAC_READ_SEARCH).union(CapabilitySet::FOWNER);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    workers: usize,
    idle: usize,
    /// Whether threads end when there is nothing to do.
    closed: bool,
}

/// The threads of one account.
#[derive(Default)]
pub struct Pool {
    gate: Arc<Gate>,
    /// Whether no permission of a file or a directory keeps its threads out.
    privileged: bool,
    state: Mutex<State>,
    work: Condvar,
}

impl Pool {
    /// A pool whose changes of files go through a gate.
    pub fn new(gate: Arc<Gate>) -> Self {
        Self { gate, ..Self::default() }
    }

    /// The same, which no permission keeps out; what it makes is the account's all the same.
    pub fn privileged(gate: Arc<Gate>) -> Self {
        Self { privileged: true, ..Self::new(gate) }
    }

    /// Runs work that ends by itself, as the account.
    pub async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        account: &Account,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (tell, told) = oneshot::channel();
        let job: Job = Box::new(move || drop(tell.send(work())));
        self.push(account, job)?;
        told.await.unwrap_or_else(|_| Err(Refusal::internal("a worker ended")))
    }

    /// Runs work that lasts, as the account, in a thread of its own. It must do each change within [`Self::pass`].
    pub fn run_long(self: &Arc<Self>, account: &Account, work: impl FnOnce(&Self) + Send + 'static) -> Result<()> {
        if !self.gate.enter_long(MAX_LONG) {
            let message = format!("At most {MAX_LONG} archives are packed and unpacked at once; try again.");
            return Err(Refusal::new(code::TOO_MANY, message));
        }
        let (pool, account) = (self.clone(), account.clone());
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || {
            if become_account(&account, pool.privileged) {
                work(&pool);
            }
            pool.gate.leave_long();
        });
        thread.map(drop).map_err(|error| {
            self.gate.leave_long();
            Refusal::internal(error)
        })
    }

    /// Does something that changes files; while changes are held, waits first.
    pub fn pass<T>(&self, work: impl FnOnce() -> T) -> T {
        self.gate.pass(work)
    }

    /// Holds all changes of files, of every pool; returns whether none is under way any more. Blocks for up to
    /// `patience`.
    pub fn hold(&self, patience: Duration) -> bool {
        self.gate.hold(patience)
    }

    /// Allows changes again.
    pub fn release(&self) {
        self.gate.release();
    }

    /// Ends the threads once there is nothing to do. Work that comes later is done all the same.
    pub fn close(&self) {
        lock(&self.state).closed = true;
        self.work.notify_all();
    }

    fn push(self: &Arc<Self>, account: &Account, job: Job) -> Result<()> {
        let mut state = lock(&self.state);
        if state.jobs.len() >= MAX_WAITING {
            return Err(Refusal::new(code::TOO_MANY, "Too many files are being worked on; try again shortly."));
        }
        state.jobs.push_back(job);
        if state.idle < state.jobs.len() && state.workers < WORKERS {
            state.workers += 1;
            let (pool, account) = (self.clone(), account.clone());
            let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || pool.serve(&account));
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

    fn serve(&self, account: &Account) {
        let able = become_account(account, self.privileged);
        while let Some(job) = self.next() {
            // Dropping a job reports to its caller that the worker ended.
            if able {
                self.pass(job);
            }
        }
    }

    /// The next job; none once a thread is to end.
    fn next(&self) -> Option<Job> {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.closed {
                state.workers -= 1;
                return None;
            }
            state.idle += 1;
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }
}

/// Takes an account's identity for this thread's file work. Returns whether it is in effect.
fn become_account(account: &Account, privileged: bool) -> bool {
    if !rustix::process::geteuid().is_root() {
        return true;
    }
    let (uid, gid) = (Uid::from_raw(account.uid), Gid::from_raw(account.gid));
    if rustix::thread::set_thread_groups(&account.all_groups()).is_err() {
        return false;
    }
    setfsgid(gid);
    setfsuid(uid);
    // Neither call reports success, but each returns the former value: a second call shows what the first one set.
    let holds = setfsgid(gid) == gid && setfsuid(uid) == uid;
    let kept = if privileged { RIGHTS } else { CapabilitySet::empty() };
    let rights = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    holds && (account.uid == 0 || rustix::thread::set_capabilities(None, rights).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let read = || Ok(std::fs::read_to_string("/proc/thread-self/status").unwrap());
        let status = block_on(pool.run(&account, read)).unwrap();
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
    fn a_privileged_thread_gets_everywhere_and_makes_what_is_the_account_s() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let account = other();
        let file = folder.path().join("a");
        let write = |pool: Pool| {
            let (file, account) = (file.clone(), account.clone());
            block_on(async move { Arc::new(pool).run(&account, move || Ok(std::fs::write(file, "x").is_ok())).await })
        };
        assert!(!write(Pool::default()).unwrap());
        assert!(write(Pool::privileged(Arc::default())).unwrap());
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&file).unwrap()), account.uid);
    }

    #[test]
    fn held_work_waits_and_then_goes_on() {
        let pool = Arc::new(Pool::default());
        let account = other();
        assert!(pool.hold(Duration::from_secs(1)));
        block_on(async {
            let work = pool.run(&account, || Ok(7));
            tokio::pin!(work);
            let early = tokio::time::timeout(Duration::from_millis(50), work.as_mut()).await;
            assert!(early.is_err(), "held");
            pool.release();
            assert_eq!(work.await.unwrap(), 7);
        });
    }
}
