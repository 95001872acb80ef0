//! Who waits while every upstream of a model is busy: in order of priority, then of arrival, and not too many.
//!
//! A place that became free is not handed to anybody: the first is called and looks for itself, because a request that
//! failed at one upstream waits for another. What it cannot use it offers to the next. Whoever is called keeps its place
//! in the line until it has one at an upstream, so that nobody gets ahead of it meanwhile.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

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

struct Waiting {
    called: bool,
    bell: Arc<Notify>,
}

#[derive(Default)]
struct Line {
    next: u64,
    waiting: BTreeMap<Place, Waiting>,
    called: usize,
}

impl Line {
    fn call(&mut self, place: Place) {
        if let Some(waiting) = self.waiting.get_mut(&place)
            && !std::mem::replace(&mut waiting.called, true)
        {
            self.called += 1;
            waiting.bell.notify_one();
        }
    }

    fn call_first(&mut self) {
        if let Some(place) = self.waiting.keys().next().copied() {
            self.call(place);
        }
    }
}

/// The line of a model.
#[derive(Default)]
pub struct Queue(Mutex<Line>);

impl Queue {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place in the line; `None` where `most` wait already. Who was called is as good as gone.
    pub fn join(&self, priority: Priority, most: u32) -> Option<Ticket<'_>> {
        let mut line = self.line();
        if line.waiting.len() - line.called >= most as usize {
            return None;
        }
        line.next += 1;
        let (place, bell) = ((Reverse(priority), line.next), Arc::<Notify>::default());
        line.waiting.insert(place, Waiting { called: false, bell: bell.clone() });
        Some(Ticket { queue: self, place, bell })
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.line().waiting.len()
    }

    /// Calls the first: something may be free.
    pub fn call(&self) {
        self.line().call_first();
    }
}

/// A place in the line. Dropping it leaves the line and calls the first of those who stay: a call that came to one who
/// leaves is not lost, and where more than one place became free, each who took one sees to the next.
pub struct Ticket<'a> {
    queue: &'a Queue,
    place: Place,
    bell: Arc<Notify>,
}

impl Ticket<'_> {
    /// Waits for a call.
    pub async fn called(&self) {
        self.bell.notified().await;
    }

    /// Whether it is its turn: it was called, or nobody is before it. This answers the call.
    pub fn turn(&self) -> bool {
        let mut line = self.queue.line();
        let called = line.waiting.get_mut(&self.place).is_some_and(|me| std::mem::take(&mut me.called));
        line.called -= usize::from(called);
        called || line.waiting.keys().next() == Some(&self.place)
    }

    /// Calls who comes next: what is free is not for this one.
    pub fn pass_on(&self) {
        let mut line = self.queue.line();
        let next = line.waiting.range((Bound::Excluded(self.place), Bound::Unbounded)).next();
        if let Some(place) = next.map(|(place, _)| *place) {
            line.call(place);
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut line = self.queue.line();
        let called = line.waiting.remove(&self.place).is_some_and(|me| me.called);
        line.called -= usize::from(called);
        line.call_first();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn is_called(ticket: &Ticket<'_>) -> bool {
        ticket.called().now_or_never().is_some()
    }

    fn normal(queue: &Queue) -> Ticket<'_> {
        queue.join(Priority::Normal, 3).unwrap()
    }

    #[test]
    fn the_most_urgent_goes_first() {
        let queue = Queue::default();
        let mut tickets: Vec<_> = [None, Some("low"), Some("high"), Some("normal")]
            .map(|word| queue.join(Priority::of(word), 4).unwrap())
            .into_iter()
            .map(Some)
            .collect();
        queue.call();
        for first in [2, 0, 3, 1] {
            for (index, ticket) in tickets.iter().enumerate() {
                let Some(ticket) = ticket else { continue };
                assert_eq!((is_called(ticket), ticket.turn()), (index == first, index == first), "{index}");
            }
            // Who goes calls the next.
            tickets[first] = None;
        }
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn nobody_overtakes_the_one_who_was_called() {
        let queue = Queue::default();
        let (first, second) = (normal(&queue), normal(&queue));
        queue.call();
        assert!(!second.turn() && !is_called(&second));
        assert!(first.turn() && is_called(&first));
        // It came too late and keeps its place.
        queue.call();
        assert!(!second.turn() && is_called(&first));
    }

    #[test]
    fn what_is_not_for_one_is_offered_to_the_next() {
        let queue = Queue::default();
        let (first, second, third) = (normal(&queue), normal(&queue), normal(&queue));
        first.pass_on();
        assert!(second.turn() && is_called(&second) && !third.turn());
        second.pass_on();
        third.pass_on();
        assert!(third.turn() && is_called(&third) && !second.turn());
    }

    #[test]
    fn who_leaves_passes_the_call_on() {
        let queue = Queue::default();
        let (first, second) = (normal(&queue), normal(&queue));
        queue.call();
        drop(first);
        assert!(is_called(&second));
    }

    #[test]
    fn only_so_many_wait() {
        let queue = Queue::default();
        assert!(queue.join(Priority::High, 0).is_none());
        let tickets = [normal(&queue), normal(&queue), normal(&queue)];
        assert!(queue.join(Priority::High, 3).is_none());
        // Two calls of one are one.
        queue.call();
        queue.call();
        let more = normal(&queue);
        assert!(queue.join(Priority::High, 3).is_none());
        assert!(tickets[0].turn());
        drop(more);
        assert!(tickets[0].turn() && queue.join(Priority::High, 3).is_none());
    }
}
