//! Builds that are under way in this service, and memories.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use berth_domain::fair;
use berth_domain::ids::{MemoryId, OrgId, Owner, ProjectId, TemplateId};
use berth_host::sandbox::build::Log;

/// How long who waits for a place keeps its turn without asking again.
const PATIENCE: Duration = Duration::from_secs(10);

/// Builds that are under way: their logs, and how many there may be.
#[derive(Debug)]
pub struct Builds {
    logs: Mutex<HashMap<TemplateId, Log>>,
    places: Arc<Mutex<Places>>,
}

#[derive(Debug)]
struct Places {
    queue: fair::Queue<OrgId, ProjectId, TemplateId>,
    /// When each that waits asked last.
    asked: HashMap<TemplateId, Instant>,
}

/// A place among the builds, until it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Mutex<Places>>,
    owner: Option<Owner>,
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.places).queue.done(self.owner.as_ref());
    }
}

impl Builds {
    /// None yet, of so many at a time.
    pub fn new(most: usize) -> Self {
        let places = Places { queue: fair::Queue::new(most), asked: HashMap::new() };
        Self { logs: Mutex::default(), places: Arc::new(Mutex::new(places)) }
    }

    /// A place for a project's build, if it is its turn; else it waits for it, as long as it asks again.
    pub fn place(&self, owner: Option<Owner>, id: TemplateId) -> Option<Place> {
        self.place_at(Instant::now(), owner, id)
    }

    fn place_at(&self, now: Instant, owner: Option<Owner>, id: TemplateId) -> Option<Place> {
        let mut guard = lock(&self.places);
        let Places { queue, asked } = &mut *guard;
        if asked.insert(id, now).is_none() {
            queue.push(owner, id);
        }
        asked.retain(|_, last| now.duration_since(*last) < PATIENCE);
        queue.retain(|id| asked.contains_key(id));
        if queue.peek() != Some(&id) {
            return None;
        }
        let (owner, _) = queue.begin()?;
        asked.remove(&id);
        Some(Place { places: self.places.clone(), owner })
    }

    /// The log of a build, which begins here or is tried again.
    pub fn begin(&self, id: TemplateId) -> Log {
        self.logs().entry(id).or_default().clone()
    }

    /// The log of a build.
    pub fn log(&self, id: TemplateId) -> Option<Log> {
        self.logs().get(&id).cloned()
    }

    /// Forgets a build that is over.
    pub fn end(&self, id: TemplateId) {
        if let Some(log) = self.logs().remove(&id) {
            log.close();
        }
    }

    fn logs(&self) -> MutexGuard<'_, HashMap<TemplateId, Log>> {
        lock(&self.logs)
    }
}

/// Memories that are on their way to another host: each goes one way at a time, or two that go different ways leave it nowhere.
#[derive(Debug, Default)]
pub struct Carried(Arc<Mutex<HashSet<MemoryId>>>);

/// A memory that is on its way, until this is dropped.
#[derive(Debug)]
pub struct Carrying {
    id: MemoryId,
    all: Arc<Mutex<HashSet<MemoryId>>>,
}

impl Carried {
    /// Has a memory be on its way; none where it is already.
    pub fn begin(&self, id: MemoryId) -> Option<Carrying> {
        lock(&self.0).insert(id).then(|| Carrying { id, all: self.0.clone() })
    }
}

impl Drop for Carrying {
    fn drop(&mut self) {
        lock(&self.all).remove(&self.id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn template(number: u128) -> TemplateId {
        TemplateId(Uuid::from_u128(number))
    }

    #[test]
    fn a_memory_is_on_one_way_at_a_time() {
        let (carried, id) = (Carried::default(), MemoryId(Uuid::from_u128(1)));
        let first = carried.begin(id).expect("the first");
        assert!(carried.begin(id).is_none() && carried.begin(MemoryId(Uuid::from_u128(2))).is_some());
        drop(first);
        assert!(carried.begin(id).is_some());
    }

    #[test]
    fn organizations_share_the_places() {
        let owner = |org, project| (OrgId(Uuid::from_u128(org)), ProjectId(Uuid::from_u128(project)));
        let (builds, one, sibling, two) = (Builds::new(2), owner(1, 1), owner(1, 2), owner(2, 3));
        let now = Instant::now();
        let first = builds.place_at(now, Some(one), template(1)).expect("a place");
        assert!(builds.place_at(now, Some(one), template(2)).is_none(), "the other place is another organization's");
        assert!(builds.place_at(now, Some(sibling), template(5)).is_none(), "whichever of its projects asks");
        assert!(builds.place_at(now, Some(one), template(3)).is_none());
        let other = builds.place_at(now, Some(two), template(4)).expect("a place");
        drop(first);
        assert!(builds.place_at(now, Some(one), template(3)).is_none(), "another was first");
        let later = now + PATIENCE;
        assert!(builds.place_at(later, Some(one), template(3)).is_some(), "who does not ask any more loses the turn");
        drop(other);
    }
}
