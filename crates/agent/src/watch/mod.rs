//! Watches of files, as server-sent events.
//!
//! A watch outlives its readers by a minute: a reader that comes back with the id of its last event goes on after it.
//! If the kernel or the ring dropped events, the reader gets an event `overflow`, which means: look again. Who cannot
//! follow a stream asks a watch for its events ([`polled`]).

pub mod api;
mod inotify;
pub mod polled;
mod polls;
mod ring;
mod tree;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use berth_domain::agent::error::code;
use tokio::sync::{mpsc, oneshot, watch as changes};
use tokio::task::AbortHandle;

use crate::acting::Acting;
use crate::error::{Refusal, Result};
use crate::lock::lock;
pub use polls::Polls;
use ring::Ring;

/// The most watches at once.
const MAX_WATCHES: usize = 64;

/// What to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// A path of the workspace, or of the machine.
    pub path: String,
    /// Whether to watch everything below it, too.
    pub recursive: bool,
    /// As whom.
    pub acting: Acting,
}

/// A watch.
pub struct Watch {
    id: u64,
    subject: Subject,
    ring: Mutex<Ring>,
    changed: changes::Sender<()>,
    readers: Mutex<Readers>,
    /// Asks the task to read everything that the kernel has told so far.
    ask: mpsc::Sender<oneshot::Sender<()>>,
}

#[derive(Default)]
struct Readers {
    now: usize,
    /// How many readers there ever were: shows whether one came meanwhile.
    ever: u64,
    /// Ends the task that reads the kernel's events.
    task: Option<AbortHandle>,
}

/// All watches.
#[derive(Default)]
pub struct Watches {
    by_id: Mutex<HashMap<u64, Arc<Watch>>>,
}

impl Watches {
    /// The watch to which an event's id belongs, and the number after the event.
    fn resume(&self, last: &str, subject: &Subject) -> Option<(Arc<Watch>, u64)> {
        let (watch, event) = last.split_once('-')?;
        let watch = lock(&self.by_id).get(&u64::from_str_radix(watch, 16).ok()?)?.clone();
        let next = event.parse::<u64>().ok()?.checked_add(1)?;
        (watch.subject == *subject).then_some((watch, next))
    }

    /// Whether there is room for one more; watches without readers make room.
    fn make_room(&self) -> Result<()> {
        let mut by_id = lock(&self.by_id);
        if by_id.len() >= MAX_WATCHES {
            by_id.retain(|_, watch| {
                let read = lock(&watch.readers).now > 0;
                if !read {
                    watch.end();
                }
                read
            });
        }
        if by_id.len() >= MAX_WATCHES {
            let message = format!("At most {MAX_WATCHES} watches are open at once; close one and try again.");
            return Err(Refusal::new(code::TOO_MANY, message));
        }
        Ok(())
    }
}

impl Watch {
    /// Ends the task that reads the kernel's events.
    fn end(&self) {
        if let Some(task) = lock(&self.readers).task.take() {
            task.abort();
        }
    }

    /// Returns once everything was read that the kernel has told so far.
    async fn catch_up(&self) {
        let (tell, told) = oneshot::channel();
        if self.ask.send(tell).await.is_ok() {
            // A task that ended tells nothing more.
            let _ = told.await;
        }
    }

    fn event_id(&self, number: u64) -> String {
        format!("{:x}-{number}", self.id)
    }
}
