//! Watches of files, as server-sent events.
//!
//! A watch outlives its readers by a minute: who comes back with the id of the last event he saw goes on behind it.
//! What a reader cannot be told, because the kernel or the ring dropped it, is an event `overflow`: look again.

mod inotify;
mod ring;
mod tree;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_domain::agent::error::code;
use berth_domain::sse;
use bytes::Bytes;
use tokio::sync::watch as changes;
use tokio::task::AbortHandle;

use crate::agent::lock;
use crate::body::{Answer, events};
use crate::error::{Refusal, Result};
use crate::events::{self, Feed, Feeding};
use crate::files::Relative;
use crate::server::Call;
use ring::Ring;

/// Watches at once.
const MAX_WATCHES: usize = 64;
/// How long a watch without readers is kept.
const KEPT: Duration = Duration::from_mins(1);
/// Bytes of events gathered for one frame.
const BATCH: usize = 64 * 1024;

/// What is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// A path of the workspace.
    pub path: String,
    /// Whether everything below it is watched, too.
    pub recursive: bool,
}

/// A watch.
pub struct Watch {
    id: u64,
    subject: Subject,
    ring: Mutex<Ring>,
    changed: changes::Sender<()>,
    readers: Mutex<Readers>,
}

#[derive(Default)]
struct Readers {
    now: usize,
    /// How many there were ever: tells whether somebody came meanwhile.
    ever: u64,
    /// Ends the task that asks the kernel.
    task: Option<AbortHandle>,
}

/// All watches.
#[derive(Default)]
pub struct Watches {
    by_id: Mutex<HashMap<u64, Arc<Watch>>>,
}

/// `GET files/watch`.
pub async fn watch(mut call: Call) -> Result<Answer> {
    let path = call.query.text("path").unwrap_or(".").to_owned();
    let recursive = call.query.flag("recursive");
    call.query.finish()?;
    let subject = Subject { path: Relative::parse(&path)?.shown(), recursive };
    let last = call.headers.get("last-event-id").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let watches = call.agent.watches.clone();
    let (watch, next) = match last.as_deref().map(|last| watches.resume(last, &subject)) {
        Some(Some(resumed)) => resumed,
        known => {
            // A task of its own: a client that leaves meanwhile must not leave it half made.
            let agent = call.agent.clone();
            let opened = tokio::spawn(async move { inotify::open(&agent, subject).await });
            let watch = opened.await.map_err(Refusal::internal)??;
            // Whoever names an event of a watch that is gone may have missed something.
            if known.is_some() {
                lock(&watch.ring).overflow();
            }
            (watch, 0)
        }
    };
    let changes = watch.changed.subscribe();
    Ok(events(Feeding::new(Reader { _presence: Presence::new(watch.clone(), watches), watch, changes, next })))
}

impl Watches {
    /// The watch that an event's id belongs to, and what follows the event.
    fn resume(&self, last: &str, subject: &Subject) -> Option<(Arc<Watch>, u64)> {
        let (watch, event) = last.split_once('-')?;
        let watch = lock(&self.by_id).get(&u64::from_str_radix(watch, 16).ok()?)?.clone();
        let next = event.parse::<u64>().ok()?.checked_add(1)?;
        (watch.subject == *subject).then_some((watch, next))
    }

    /// Whether there is room for one more; those without readers make it.
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
    /// Ends the task that asks the kernel.
    fn end(&self) {
        if let Some(task) = lock(&self.readers).task.take() {
            task.abort();
        }
    }

    fn event_id(&self, number: u64) -> String {
        format!("{:x}-{number}", self.id)
    }
}

/// That somebody reads a watch.
struct Presence {
    watch: Arc<Watch>,
    watches: Arc<Watches>,
}

impl Presence {
    fn new(watch: Arc<Watch>, watches: Arc<Watches>) -> Self {
        let mut readers = lock(&watch.readers);
        readers.now += 1;
        readers.ever += 1;
        drop(readers);
        Self { watch, watches }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let mut readers = lock(&self.watch.readers);
        readers.now -= 1;
        if readers.now > 0 {
            return;
        }
        let (ever, watch, watches) = (readers.ever, self.watch.clone(), self.watches.clone());
        drop(readers);
        // At the agent's own end nothing is kept.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            tokio::time::sleep(KEPT).await;
            if lock(&watch.readers).ever == ever {
                watch.end();
                lock(&watches.by_id).remove(&watch.id);
            }
        });
    }
}

struct Reader {
    watch: Arc<Watch>,
    changes: changes::Receiver<()>,
    next: u64,
    _presence: Presence,
}

impl Reader {
    fn batch(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        let ring = lock(&self.watch.ring);
        if self.next < ring.first() {
            self.next = ring.first();
            let id = self.watch.event_id(self.next.saturating_sub(1));
            sse::write(&mut out, Some(&id), Some("overflow"), "{}");
        }
        while out.len() < BATCH {
            let Some((name, data)) = ring.get(self.next) else { break };
            sse::write(&mut out, Some(&self.watch.event_id(self.next)), Some(name), data);
            self.next += 1;
        }
        out
    }
}

impl Feed for Reader {
    const KEEP_ALIVE: Option<Duration> = Some(events::KEEP_ALIVE);

    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            self.changes.mark_unchanged();
            let batch = self.batch();
            if !batch.is_empty() {
                return Some(Ok(batch.into()));
            }
            self.changes.changed().await.ok()?;
        }
    }
}
