//! Who speaks when: bounds how many texts are let in, and how many of them have programs at work.
//!
//! A text that was let in holds memory, and programs that wait, until its client has read the last of it, and the
//! client may delay that. The service cannot take the room back soon, so an organization has at most as many texts as
//! it leaves free, and a project leaves the last of those to another ([`domain::fair`](berth_domain::fair)). Places at
//! work change hands quickly: the next one goes to the waiting organization that has the fewest for its quota, as at
//! the upstreams of a model ([`Queue`]). So one organization's long texts delay another's by no more than one text.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_domain::ids::{OrgId, Owner, ProjectId};
use berth_domain::{Code, Error, Result, fair};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::services::gateway::upstream::queue::{Priority, Queue, Shares, Turn as Line};

/// Whose text is spoken.
#[derive(Clone, Copy)]
pub struct Asker {
    /// Whose text it is.
    pub owner: Owner,
    /// Its shares of the places.
    pub shares: Shares,
}

/// The texts that are let in, and those at work.
pub(super) struct Turns {
    /// Nobody waits here: a text that finds no room is refused.
    admitted: Mutex<fair::Queue<OrgId, ProjectId, ()>>,
    queue: Queue,
    places: Arc<Semaphore>,
}

impl Turns {
    /// No texts yet. `places` texts may be at work, and `beside` more may be let in.
    pub fn new(places: usize, beside: usize) -> Arc<Self> {
        Arc::new(Self {
            admitted: Mutex::new(fair::Queue::new(places + beside)),
            queue: Queue::default(),
            places: Arc::new(Semaphore::new(places)),
        })
    }

    fn admitted(&self) -> MutexGuard<'_, fair::Queue<OrgId, ProjectId, ()>> {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a text in and waits for a place; 429 where its owner has all the room that is for them, or there is none.
    pub async fn begin(self: &Arc<Self>, asker: Asker) -> Result<Turn> {
        if !self.admits(asker.owner) {
            return Err(many());
        }
        let mut turn = Turn { turns: self.clone(), asker, place: None };
        turn.resume().await?;
        Ok(turn)
    }

    fn admits(&self, owner: Owner) -> bool {
        let mut admitted = self.admitted();
        admitted.push(Some(owner), ());
        let fits = admitted.begin().is_some();
        admitted.retain(|()| false);
        fits
    }
}

fn many() -> Error {
    let message = "Too many texts wait to be spoken, of this organization or of all. Try again in 1 s.";
    Error::new(Code::RateLimited, message).retry_after(1)
}

/// The right to run programs: with a place at work, or paused. Dropping it gives both back.
pub(super) struct Turn {
    turns: Arc<Turns>,
    asker: Asker,
    place: Option<OwnedSemaphorePermit>,
}

impl Turn {
    /// Gives the place at work to others.
    pub fn pause(&mut self) {
        if self.place.take().is_some() {
            self.turns.queue.gave(self.asker.owner);
        }
    }

    /// Waits for a place at work.
    pub async fn resume(&mut self) -> Result<()> {
        let Asker { owner, shares } = self.asker;
        let Turns { queue, places, .. } = &*self.turns;
        // No more texts wait than were let in, so the queue needs no bound.
        let ticket = queue.join(owner, shares, Priority::default(), u32::MAX).ok_or_else(many)?;
        self.place = loop {
            if ticket.turn() == Line::Now
                && let Ok(place) = places.clone().try_acquire_owned()
            {
                queue.took(owner, shares);
                break Some(place);
            }
            ticket.called().await;
        };
        Ok(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.pause();
        self.turns.admitted().done(Some(&self.asker.owner));
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use futures::FutureExt;
    use uuid::Uuid;

    use super::*;

    fn asker(org: u128, project: u128) -> Asker {
        Asker { owner: (OrgId(Uuid::from_u128(org)), ProjectId(Uuid::from_u128(project))), shares: Shares::default() }
    }

    /// A turn that has its place at once.
    fn begin(turns: &Arc<Turns>, asker: Asker) -> Turn {
        turns.begin(asker).now_or_never().expect("a place").expect("a turn")
    }

    /// Whether a text is refused at once; a text that is not refused leaves again.
    fn is_refused(turns: &Arc<Turns>, asker: Asker) -> bool {
        turns.begin(asker).now_or_never().is_some_and(|turn| turn.is_err())
    }

    fn waits(turn: &mut Pin<Box<impl Future>>) -> bool {
        turn.as_mut().now_or_never().is_none()
    }

    #[test]
    fn an_organization_has_as_many_as_it_leaves_however_many_projects_it_has() {
        let turns = Turns::new(2, 6);
        let mut held = vec![begin(&turns, asker(1, 1)), begin(&turns, asker(1, 1))];
        let mut waiting = [1, 2].map(|project| Box::pin(turns.begin(asker(1, project))));
        assert!(waiting.iter_mut().all(waits), "two are let in beside those at work");
        assert!(is_refused(&turns, asker(1, 1)) && is_refused(&turns, asker(1, 3)));
        let mut other = Box::pin(turns.begin(asker(2, 9)));
        assert!(waits(&mut other), "another organization is let in");
        drop(held.pop());
        held.push(other.now_or_never().expect("it has none, so it is next").expect("a turn"));
        assert!(waiting.iter_mut().all(waits));
        drop((held, waiting));
        assert_eq!((turns.places.available_permits(), Arc::strong_count(&turns)), (2, 1));
        assert!(!is_refused(&turns, asker(1, 1)));
    }

    #[test]
    fn a_project_leaves_the_last_of_its_organization_s_to_another() {
        let turns = Turns::new(8, 0);
        let held = [(); 3].map(|()| begin(&turns, asker(1, 1)));
        assert!(is_refused(&turns, asker(1, 1)) && !is_refused(&turns, asker(1, 2)));
        drop(held);
        assert!(!is_refused(&turns, asker(1, 1)));
    }

    #[test]
    fn who_pauses_lets_the_next_one_work_and_comes_back_behind() {
        let turns = Turns::new(1, 7);
        let mut slow = begin(&turns, asker(1, 1));
        let mut next = Box::pin(turns.begin(asker(2, 2)));
        assert!(next.as_mut().now_or_never().is_none());
        slow.pause();
        let next = next.now_or_never().expect("a place").expect("a turn");
        let mut resuming = Box::pin(slow.resume());
        assert!(resuming.as_mut().now_or_never().is_none());
        drop(next);
        assert!(resuming.now_or_never().is_some_and(|resumed| resumed.is_ok()));
    }
}
