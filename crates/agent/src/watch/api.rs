//! The route of watches: each reader follows one, and can come back to where it left off.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use berth_domain::sse;
use bytes::Bytes;
use tokio::sync::watch as changes;

use crate::body::{Answer, events};
use crate::call::Call;
use crate::error::{Refusal, Result};
use crate::events::{self, Feed, Feeding};
use crate::files::Worker;
use crate::lock::lock;
use crate::watch::ring::Event;
use crate::watch::{Subject, Watch, Watches, inotify};

/// How long a watch without readers is kept.
const KEPT: Duration = Duration::from_mins(1);
/// Bytes of events gathered for one frame.
const BATCH: usize = 64 * 1024;

/// `GET files/watch`.
pub async fn watch(mut call: Call) -> Result<Answer> {
    let path = call.query.text("path").unwrap_or(".").to_owned();
    let recursive = call.query.flag("recursive");
    let (acting, worker) = call.acting()?;
    let subject = Subject { path: worker.base().locate(&path)?.shown(), recursive, acting };
    let last = call.headers.get("last-event-id").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let watches = call.agent.watches.clone();
    let (watch, next) = match last.as_deref().map(|last| watches.resume(last, &subject)) {
        Some(Some(resumed)) => resumed,
        known => {
            // In a task of its own: a client that leaves meanwhile must not leave the watch half made.
            let all = watches.clone();
            let opened = tokio::spawn(async move { open(&all, worker, subject).await });
            let watch = opened.await.map_err(Refusal::internal)??;
            // A reader that names an event of a forgotten watch may have missed something.
            if known.is_some() {
                lock(&watch.ring).push(Event::Overflow);
            }
            (watch, 0)
        }
    };
    let changes = watch.changed.subscribe();
    Ok(events(Feeding::new(Reader { _presence: Presence::new(watch.clone(), watches), watch, changes, next })))
}

/// Opens one more watch.
async fn open(all: &Watches, worker: Worker, subject: Subject) -> Result<Arc<Watch>> {
    all.make_room()?;
    let watch = inotify::open(worker, subject).await?;
    lock(&all.by_id).insert(watch.id, watch.clone());
    Ok(watch)
}

/// The presence of a reader at a watch.
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
        // When the agent itself ends, nothing is kept.
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
            let Some(event) = ring.get(self.next) else { break };
            sse::write(&mut out, Some(&self.watch.event_id(self.next)), Some(event.name()), &event.data());
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
