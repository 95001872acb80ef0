//! The state of the agent, which every request shares.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use crate::accounts::Accounts;
use crate::error::{Refusal, Result};
use crate::files::{Base, Gate, Pool, Pools, Worker};
use crate::freezer::Freezer;
use crate::place::Place;
use crate::process::{Processes, Reaper};
use crate::terminal::Terminals;
use crate::watch::{Polls, Watches};

/// The identity that the host gave this machine.
#[derive(Default)]
pub struct Identity {
    /// The token that requests must bear; none before there is an identity.
    pub token: Option<String>,
    /// Environment of every command.
    pub env: BTreeMap<String, String>,
}

/// The agent.
pub struct Agent {
    /// Whether this is the machine's first process; in a test it is not.
    pub machine: bool,
    /// The place, once the root file system is there.
    pub place: OnceLock<Arc<Place>>,
    /// The accounts that commands run as.
    pub accounts: Accounts,
    /// The identity.
    pub identity: Mutex<Identity>,
    /// Collects processes that end.
    pub reaper: Arc<Reaper>,
    /// Commands and processes.
    pub processes: Arc<Processes>,
    /// Terminals.
    pub terminals: Arc<Terminals>,
    /// Watches of files.
    pub watches: Arc<Watches>,
    /// Watches that are polled.
    pub polls: Polls,
    /// Threads that work on files as the user.
    pub pool: Arc<Pool>,
    /// Threads that work on files as other accounts.
    pub pools: Pools,
    /// Freezes processes and the file system.
    pub freezer: Freezer,
}

impl Agent {
    /// An agent without place and identity.
    pub fn new(machine: bool) -> Self {
        let gate = Arc::new(Gate::default());
        Self {
            machine,
            place: OnceLock::new(),
            accounts: Accounts::default(),
            identity: Mutex::default(),
            reaper: Arc::new(Reaper::default()),
            processes: Arc::new(Processes::default()),
            terminals: Arc::new(Terminals::default()),
            watches: Arc::new(Watches::default()),
            polls: Polls::default(),
            pool: Arc::new(Pool::new(gate.clone())),
            pools: Pools::new(gate),
            freezer: Freezer::default(),
        }
    }

    /// The place, or a refusal while there is none.
    pub fn place(&self) -> Result<&Arc<Place>> {
        let missing = "The machine has no root file system yet; the host must boot it first.";
        self.place.get().ok_or_else(|| Refusal::new(berth_domain::agent::error::code::NOT_BOOTED, missing))
    }

    /// Who works on files of the workspace, as the user.
    pub fn worker(&self) -> Result<Worker> {
        let place = self.place()?;
        Ok(Worker::new(self.pool.clone(), place.account.clone(), Base::workspace(place.clone())))
    }
}
