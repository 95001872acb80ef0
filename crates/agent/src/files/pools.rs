//! The pools of accounts other than the sandbox's own, as many as are in use.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::accounts::Account;
use crate::files::gate::Gate;
use crate::files::pool::Pool;
use crate::lock::lock;

/// The most pools at once.
const MAX_POOLS: usize = 8;

/// Pools by account.
pub struct Pools {
    gate: Arc<Gate>,
    /// Those that were used last stand at the end.
    known: Mutex<VecDeque<(Account, bool, Arc<Pool>)>>,
}

impl Pools {
    /// None yet; all changes of files will go through a gate.
    pub fn new(gate: Arc<Gate>) -> Self {
        Self { gate, known: Mutex::default() }
    }

    /// The pool of an account, which no permission keeps out where it is privileged. If there are too many, the threads of the
    /// one that was not used for longest end.
    pub fn of(&self, account: &Account, privileged: bool) -> Arc<Pool> {
        let mut known = lock(&self.known);
        let is_it = |(other, rights, _): &(Account, bool, Arc<Pool>)| (other, *rights) == (account, privileged);
        let found = known.iter().position(is_it).and_then(|at| known.remove(at));
        let make = || {
            let gate = self.gate.clone();
            Arc::new(if privileged { Pool::privileged(gate) } else { Pool::new(gate) })
        };
        let pool = found.map_or_else(make, |(_, _, pool)| pool);
        if known.len() >= MAX_POOLS
            && let Some((_, _, old)) = known.pop_front()
        {
            old.close();
        }
        known.push_back((account.clone(), privileged, pool.clone()));
        pool
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(uid: u32) -> Account {
        let (name, home, shell) = (format!("u{uid}"), "/".into(), "/bin/sh".into());
        Account { name, uid, gid: uid, groups: vec![uid], home, shell }
    }

    #[tokio::test]
    async fn the_pool_that_was_not_used_for_longest_makes_room() {
        let pools = Pools::new(Arc::default());
        let own = rustix::process::geteuid().as_raw();
        let first = pools.of(&account(own), false);
        let second = pools.of(&account(own + 1), false);
        for uid in 2..8 {
            pools.of(&account(own + uid), false);
        }
        assert!(Arc::ptr_eq(&first, &pools.of(&account(own), false)), "there is room for eight");
        pools.of(&account(own + 8), false);
        assert!(Arc::ptr_eq(&first, &pools.of(&account(own), false)));
        assert!(!Arc::ptr_eq(&second, &pools.of(&account(own + 1), false)), "another one");
        first.close();
        assert_eq!(first.run(&account(own), || Ok(7)).await.unwrap(), 7, "what comes late is done all the same");
    }
}
