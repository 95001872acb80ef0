//! The requests that wait while every upstream of a model is busy: fair between organizations and between the projects
//! of each ([`fair`]), and not too many.
//!
//! The queue does not hand a free place to a request. It calls the first one, which looks for itself, because it may
//! wait for another upstream than the one that became free. A request that cannot use the place has the next one
//! called. A called request keeps its spot in the line until it has a place, so that none gets ahead of it meanwhile.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_domain::gateway::fair::{self, Spot};
pub use berth_domain::gateway::fair::{Priority, Share, Shares};
use berth_domain::ids::{OrgId, Owner, ProjectId};
use tokio::sync::Notify;

/// A spot in the line.
type Place = Spot<OrgId, ProjectId>;

struct Waiting {
    called: bool,
    bell: Arc<Notify>,
}

#[derive(Default)]
struct Line {
    waiting: fair::Line<OrgId, ProjectId, Waiting>,
    called: usize,
}

impl Line {
    fn call(&mut self, spot: Place) {
        if let Some(waiting) = self.waiting.get_mut(spot)
            && !std::mem::replace(&mut waiting.called, true)
        {
            self.called += 1;
            waiting.bell.notify_one();
        }
    }

    fn call_first(&mut self) {
        if let Some(spot) = self.waiting.first() {
            self.call(spot);
        }
    }

    /// Takes a request out of the line.
    fn leave(&mut self, spot: Place) -> Option<Waiting> {
        let left = self.waiting.leave(spot);
        self.called -= usize::from(left.as_ref().is_some_and(|left| left.called));
        left
    }
}

/// The line of a model, and the places at its upstreams that projects hold.
#[derive(Default)]
pub struct Queue {
    line: Mutex<Line>,
    /// How many wait: a caller that reads zero need not lock the line.
    count: AtomicUsize,
}

impl Queue {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the line; `None` where `most` wait already and none of them makes room. A called request no longer counts.
    pub fn join(&self, owner: Owner, shares: Shares, priority: Priority, most: u32) -> Option<Ticket<'_>> {
        let mut line = self.line();
        if line.waiting.len() - line.called >= most as usize {
            let out = line.waiting.yields(owner, shares)?;
            line.leave(out)?.bell.notify_one();
        }
        let bell = Arc::<Notify>::default();
        let spot = line.waiting.join(owner, shares, priority, Waiting { called: false, bell: bell.clone() });
        self.count.store(line.waiting.len(), Ordering::Release);
        Some(Ticket { queue: self, spot, bell })
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Notes that a project took a place at the model's upstreams.
    pub fn took(&self, owner: Owner, shares: Shares) {
        self.line().waiting.took(owner, shares);
    }

    /// Notes that a project gave a place back, and calls the first.
    pub fn gave(&self, owner: Owner) {
        let mut line = self.line();
        line.waiting.gave(owner);
        line.call_first();
    }

    /// Calls the first: an upstream may have become free.
    pub fn call(&self) {
        self.line().call_first();
    }
}

/// Whether a ticket is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It is next: it was called, or none is before it.
    Now,
    /// Others come first.
    Later,
    /// It had to make room, and waits no more.
    Out,
}

/// A place in the line. Dropping it leaves the line and calls the first of those who stay: a call that came to one who
/// leaves is not lost, and where more than one place became free, each who took one sees to the next.
pub struct Ticket<'a> {
    queue: &'a Queue,
    spot: Place,
    bell: Arc<Notify>,
}

impl Ticket<'_> {
    /// Waits for a call.
    pub async fn called(&self) {
        self.bell.notified().await;
    }

    /// Whether it is its turn. This answers the call.
    pub fn turn(&self) -> Turn {
        let mut line = self.queue.line();
        let Some(me) = line.waiting.get_mut(self.spot) else { return Turn::Out };
        let called = std::mem::take(&mut me.called);
        line.called -= usize::from(called);
        if called || line.waiting.first() == Some(self.spot) { Turn::Now } else { Turn::Later }
    }

    /// Calls who comes next: what is free is not for this one.
    pub fn pass_on(&self) {
        let mut line = self.queue.line();
        if let Some(next) = line.waiting.after(self.spot) {
            line.call(next);
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut line = self.queue.line();
        line.leave(self.spot);
        line.call_first();
        self.queue.count.store(line.waiting.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use uuid::Uuid;

    use super::*;

    fn is_called(ticket: &Ticket<'_>) -> bool {
        ticket.called().now_or_never().is_some()
    }

    fn is_now(ticket: &Ticket<'_>) -> bool {
        ticket.turn() == Turn::Now
    }

    /// The project of an organization that has one.
    fn project(number: u128) -> Owner {
        (OrgId(Uuid::from_u128(number)), ProjectId(Uuid::from_u128(number)))
    }

    fn join(queue: &Queue, of: u128, most: u32) -> Option<Ticket<'_>> {
        queue.join(project(of), Shares::default(), Priority::Normal, most)
    }

    fn normal(queue: &Queue) -> Ticket<'_> {
        join(queue, 1, 3).unwrap()
    }

    #[test]
    fn the_most_urgent_goes_first() {
        let queue = Queue::default();
        let mut tickets: Vec<_> = [None, Some("low"), Some("high"), Some("normal")]
            .map(|word| queue.join(project(1), Shares::default(), Priority::of(word), 4).unwrap())
            .into_iter()
            .map(Some)
            .collect();
        queue.call();
        for first in [2, 0, 3, 1] {
            for (index, ticket) in tickets.iter().enumerate() {
                let Some(ticket) = ticket else { continue };
                assert_eq!((is_called(ticket), is_now(ticket)), (index == first, index == first), "{index}");
            }
            // A ticket that leaves calls the next.
            tickets[first] = None;
        }
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn the_project_with_the_fewest_places_goes_first() {
        let queue = Queue::default();
        queue.took(project(1), Shares::default());
        let urgent = queue.join(project(1), Shares::default(), Priority::High, 9).unwrap();
        let other = join(&queue, 2, 9).unwrap();
        queue.call();
        assert_eq!((urgent.turn(), other.turn()), (Turn::Later, Turn::Now), "urgent is what is urgent to its project");
        queue.took(project(2), Shares::default());
        drop(other);
        assert!(is_called(&urgent) && is_now(&urgent));
    }

    #[test]
    fn nobody_overtakes_the_one_who_was_called() {
        let queue = Queue::default();
        let (first, second) = (normal(&queue), normal(&queue));
        queue.call();
        assert!(!is_now(&second) && !is_called(&second));
        assert!(is_now(&first) && is_called(&first));
        // It came too late and keeps its place.
        queue.call();
        assert!(!is_now(&second) && is_called(&first));
    }

    #[test]
    fn what_is_not_for_one_is_offered_to_the_next() {
        let queue = Queue::default();
        let (first, second, third) = (normal(&queue), normal(&queue), normal(&queue));
        first.pass_on();
        assert!(is_now(&second) && is_called(&second) && !is_now(&third));
        second.pass_on();
        third.pass_on();
        assert!(is_now(&third) && is_called(&third) && !is_now(&second));
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
        assert!(join(&queue, 1, 0).is_none());
        let tickets = [normal(&queue), normal(&queue), normal(&queue)];
        assert!(join(&queue, 1, 3).is_none());
        // Two calls of one ticket count as one.
        queue.call();
        queue.call();
        let more = normal(&queue);
        assert!(join(&queue, 1, 3).is_none());
        assert!(is_now(&tickets[0]));
        drop(more);
        assert!(is_now(&tickets[0]) && join(&queue, 1, 3).is_none());
    }

    #[test]
    fn an_organization_with_most_makes_room_however_many_projects_it_has() {
        let queue = Queue::default();
        let sibling = |number: u128| (OrgId(Uuid::from_u128(1)), ProjectId(Uuid::from_u128(number)));
        let tickets: Vec<_> =
            (10..13).filter_map(|n| queue.join(sibling(n), Shares::default(), Priority::Normal, 3)).collect();
        assert!(
            queue.join(sibling(13), Shares::default(), Priority::Normal, 3).is_none(),
            "one of each project is fair among them"
        );
        let other = join(&queue, 2, 3).unwrap();
        assert_eq!(tickets.iter().filter(|ticket| ticket.turn() == Turn::Out).count(), 1);
        queue.took(sibling(10), Shares::default());
        assert_eq!(other.turn(), Turn::Now, "none of its projects holds anything, and another organization one place");
    }

    #[test]
    fn the_project_with_most_makes_room() {
        let queue = Queue::default();
        let tickets = [normal(&queue), normal(&queue), normal(&queue)];
        let other = join(&queue, 2, 3).unwrap();
        assert!(is_called(&tickets[2]), "it is told");
        assert_eq!([0, 1, 2].map(|index| tickets[index].turn()), [Turn::Now, Turn::Later, Turn::Out]);
        assert!(join(&queue, 2, 3).is_none(), "two and two would be no fairer than two and one");
        assert_eq!((queue.len(), other.turn()), (3, Turn::Later));
        drop(tickets);
        assert_eq!((queue.len(), other.turn()), (1, Turn::Now));
    }
}
