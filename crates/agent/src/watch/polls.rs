//! Watches that are asked for what happened, again and again, by who cannot follow a stream.
//!
//! They live until they are removed. If there are too many, the one that nobody asked for longest makes room.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use berth_domain::agent::runtime::Changes;
use tokio::time::Instant;

use crate::lock::lock;
use crate::watch::Watch;
use crate::watch::ring::Event;

/// The most of them at once.
const MAX_POLLED: usize = 32;

/// All of them.
#[derive(Default)]
pub struct Polls(Mutex<HashMap<u64, Polled>>);

struct Polled {
    watch: Arc<Watch>,
    /// The next event to tell.
    next: u64,
    /// When it was asked for last.
    asked: Instant,
}

impl Polls {
    /// Adds a watch; makes room for it.
    pub fn add(&self, watch: Arc<Watch>) {
        let mut all = lock(&self.0);
        while all.len() >= MAX_POLLED {
            let Some(oldest) = all.iter().min_by_key(|(_, polled)| polled.asked).map(|(id, _)| *id) else { break };
            all.remove(&oldest);
        }
        all.insert(watch.id, Polled { watch, next: 0, asked: Instant::now() });
    }

    /// The watch with an id.
    pub fn get(&self, id: u64) -> Option<Arc<Watch>> {
        lock(&self.0).get(&id).map(|polled| polled.watch.clone())
    }

    /// Removes a watch, if it is there.
    pub fn remove(&self, id: u64) -> Option<()> {
        lock(&self.0).remove(&id).map(drop)
    }

    /// What nobody was told of yet.
    pub fn take(&self, id: u64) -> Option<Changes> {
        let mut all = lock(&self.0);
        let polled = all.get_mut(&id)?;
        polled.asked = Instant::now();
        let ring = lock(&polled.watch.ring);
        let mut changes = Changes { data: Vec::new(), overflow: polled.next < ring.first() };
        polled.next = polled.next.max(ring.first());
        while let Some(event) = ring.get(polled.next) {
            match event {
                Event::Change(change) => changes.data.push(change.clone()),
                Event::Overflow => changes.overflow = true,
            }
            polled.next += 1;
        }
        Some(changes)
    }
}

impl Drop for Polled {
    fn drop(&mut self) {
        self.watch.end();
    }
}
