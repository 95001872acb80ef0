//! Terminals: a shell that outlives its client's connection.
//!
//! A terminal keeps its last 256 KiB of output, which every attachment sees first. After its first process ended, the
//! agent keeps it for a minute, so that a client that was away can learn of the end.

mod attach;
mod device;
mod pty;
mod readers;
mod screen;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_domain::agent::error::code;
use tokio::sync::{Notify, watch};

use crate::error::{Refusal, Result};
use crate::lock::lock;
use crate::process::Ended;

pub use attach::terminal;
pub use device::{Device, SIZES, TERM, open, size};
use readers::Readers;
use screen::Screen;

/// The most terminals at once.
const MAX_TERMINALS: usize = 64;
/// How long an ended terminal is kept.
const KEPT: Duration = Duration::from_mins(1);

/// A terminal.
pub struct Terminal {
    id: String,
    pid: i32,
    /// The agent's end; the program has the other.
    device: Device,
    screen: Mutex<Screen>,
    readers: Mutex<Readers>,
    /// Notified when a reader moved on.
    progress: Notify,
    exit: Mutex<Option<Ended>>,
    changed: watch::Sender<()>,
    /// Held while a client types, so that the bytes of two clients do not mix.
    typing: tokio::sync::Mutex<()>,
}

/// All terminals.
#[derive(Default)]
pub struct Terminals {
    by_id: Mutex<HashMap<String, Arc<Terminal>>>,
}

impl Terminals {
    /// How many run.
    pub fn running(&self) -> usize {
        lock(&self.by_id).values().filter(|terminal| lock(&terminal.exit).is_none()).count()
    }

    fn get(&self, id: &str) -> Result<Arc<Terminal>> {
        let found = lock(&self.by_id).get(id).cloned();
        found.ok_or_else(|| Refusal::not_found("There is no such terminal; leave 'id' out to open a new one."))
    }

    /// Whether there is room for one more; ended terminals make room.
    fn make_room(&self) -> Result<()> {
        let mut by_id = lock(&self.by_id);
        if by_id.len() >= MAX_TERMINALS {
            by_id.retain(|_, terminal| lock(&terminal.exit).is_none());
        }
        if by_id.len() >= MAX_TERMINALS {
            let message = format!("At most {MAX_TERMINALS} terminals are open at once; end one and try again.");
            return Err(Refusal::new(code::TOO_MANY, message));
        }
        Ok(())
    }

    fn add(&self, terminal: Arc<Terminal>) {
        lock(&self.by_id).insert(terminal.id.clone(), terminal);
    }

    fn remove(&self, id: &str) {
        lock(&self.by_id).remove(id);
    }

    /// Notes that a terminal ended, and forgets it after a while.
    fn ended(self: &Arc<Self>, id: String) {
        let terminals = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(KEPT).await;
            terminals.remove(&id);
        });
    }
}
