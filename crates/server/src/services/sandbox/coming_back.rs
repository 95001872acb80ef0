//! What the service's own host lacks of what its rows say, and gets from the store of backups.

use std::sync::{Mutex, MutexGuard, PoisonError};

use berth_domain::Timestamp;

use super::store::archive::Thing;

/// What comes back.
#[derive(Debug, Default)]
pub struct ComingBack(Mutex<Left>);

#[derive(Debug, Default)]
struct Left {
    things: Vec<Thing>,
    /// When the last of them had come.
    ended: Option<Timestamp>,
}

impl ComingBack {
    fn left(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on these come back, the first one first.
    pub fn wait_for(&self, things: Vec<Thing>) {
        self.left().things = things;
    }

    /// The next one that has not come.
    pub fn next(&self) -> Option<Thing> {
        self.left().things.first().copied()
    }

    /// One has come, or never will.
    pub fn came(&self, thing: Thing) {
        self.left().things.retain(|other| *other != thing);
    }

    /// One comes later: others have their turn before.
    pub fn put_off(&self, thing: Thing) {
        let mut left = self.left();
        if let Some(at) = left.things.iter().position(|other| *other == thing) {
            let thing = left.things.remove(at);
            left.things.push(thing);
        }
    }

    /// Nothing comes back any more.
    pub fn end(&self, now: Timestamp) {
        self.left().ended = Some(now);
    }

    /// Whether one of these has not come yet.
    pub fn lacks(&self, things: &[Thing]) -> bool {
        self.left().things.iter().any(|thing| things.contains(thing))
    }

    /// Whether nothing comes back.
    pub fn is_empty(&self) -> bool {
        self.left().things.is_empty()
    }

    /// When the last one had come: until then no time passed for those that waited.
    pub fn ended(&self) -> Option<Timestamp> {
        self.left().ended
    }
}

#[cfg(test)]
mod tests {
    use berth_domain::ids::{LayerId, MemoryId};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn what_does_not_come_keeps_none_of_the_others() {
        let things = [1, 2, 3].map(|number| Thing::Layer(LayerId(Uuid::from_u128(number))));
        let coming = ComingBack::default();
        coming.wait_for(things.to_vec());
        coming.put_off(things[0]);
        assert_eq!(coming.next(), Some(things[1]));
        coming.came(things[1]);
        coming.put_off(things[2]);
        assert_eq!(coming.next(), Some(things[0]));
        assert!(coming.lacks(&[things[1], things[2]]) && !coming.lacks(&[things[1]]));
        assert!(!coming.lacks(&[Thing::Memory(MemoryId(Uuid::from_u128(2)))]));
        for thing in things {
            coming.came(thing);
        }
        assert!(coming.is_empty() && coming.ended().is_none());
        coming.end(Timestamp(7));
        assert_eq!(coming.ended(), Some(Timestamp(7)));
    }
}
