//! Who waits while every upstream of a model is busy: in order of priority, then of arrival, and not too many.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::oneshot;

/// What goes first. Told by the header `X-Priority`: `high`, `normal`, `low`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// What can wait.
    Low,
    /// What nobody said anything about.
    #[default]
    Normal,
    /// What somebody waits for.
    High,
}

impl Priority {
    /// The priority of a word; what is not known is normal.
    pub fn of(word: Option<&str>) -> Self {
        match word {
            Some("high") => Self::High,
            Some("low") => Self::Low,
            _ => Self::Normal,
        }
    }
}

type Place = (Reverse<Priority>, u64);

#[derive(Default)]
struct Line {
    next: u64,
    waiting: BTreeMap<Place, oneshot::Sender<()>>,
}

/// The line of a model.
#[derive(Default)]
pub struct Queue(Mutex<Line>);

impl Queue {
    /// A place in the line; `None` where `most` wait already.
    pub fn join(&self, priority: Priority, most: u32) -> Option<Ticket<'_>> {
        let mut line = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if line.waiting.len() >= most as usize {
            return None;
        }
        line.next += 1;
        let (called, call) = oneshot::channel();
        let place = (Reverse(priority), line.next);
        line.waiting.insert(place, called);
        Some(Ticket { queue: self, place, call, taken: false, was_called: false })
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).waiting.len()
    }

    /// Calls the first who still waits: a place became free.
    pub fn call(&self) {
        let mut line = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((_, first)) = line.waiting.pop_first() {
            if first.send(()).is_ok() {
                return;
            }
        }
    }
}

/// A place in the line; dropping it leaves the line.
pub struct Ticket<'a> {
    queue: &'a Queue,
    place: Place,
    call: oneshot::Receiver<()>,
    taken: bool,
    was_called: bool,
}

impl Ticket<'_> {
    /// Waits for the call.
    pub async fn called(&mut self) {
        if !self.was_called {
            // The sender goes only with its call.
            let _ = (&mut self.call).await;
            self.was_called = true;
        }
    }

    /// Whether it was called.
    pub const fn was_called(&self) -> bool {
        self.was_called
    }

    /// The place was taken.
    pub fn taken(mut self) {
        self.taken = true;
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let waited = {
            let mut line = self.queue.0.lock().unwrap_or_else(PoisonError::into_inner);
            line.waiting.remove(&self.place).is_some()
        };
        // Who was called and leaves without having taken the place passes the call on.
        if !waited && !self.taken {
            self.queue.call();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_most_urgent_goes_first() {
        let queue = Queue::default();
        let mut tickets: Vec<_> = [None, Some("low"), Some("high"), Some("normal")]
            .map(|word| queue.join(Priority::of(word), 4).unwrap())
            .into_iter()
            .map(Some)
            .collect();
        assert!(queue.join(Priority::High, 4).is_none());
        for expected in [2, 0, 3, 1] {
            queue.call();
            let mut first = tickets[expected].take().unwrap();
            first.called().await;
            first.taken();
        }
        assert_eq!(queue.len(), 0);
    }

    #[tokio::test]
    async fn who_leaves_passes_the_call_on() {
        let queue = Queue::default();
        let first = queue.join(Priority::Normal, 2).unwrap();
        let mut second = queue.join(Priority::Normal, 2).unwrap();
        queue.call();
        drop(first);
        second.called().await;
    }
}
