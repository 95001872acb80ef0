//! Ends streams whose client does not read: no task polls such a stream, so it cannot notice its own deadline.
//!
//! Between two pieces a stream is parked here. While its client reads, the stream takes itself out and minds its
//! deadline. The watcher ends a stream that is still parked after its deadline, which frees its place and closes the
//! upstream's connection.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// A place for something between two uses; empty while that is in use, and after its deadline.
pub struct Parked<T>(Arc<Mutex<Option<T>>>);

impl<T> Parked<T> {
    /// Takes the thing out; `None` after its deadline.
    pub fn take(&self) -> Option<T> {
        lock(&self.0).take()
    }

    /// Puts it back.
    pub fn put(&self, thing: T) {
        *lock(&self.0) = Some(thing);
    }
}

/// A place, whatever is parked in it.
trait Place: Send + Sync {
    /// Drops the thing.
    fn clear(&self);
}

impl<T: Send> Place for Mutex<Option<T>> {
    fn clear(&self) {
        let thing = lock(self).take();
        drop(thing);
    }
}

type Places = BTreeMap<(Instant, u64), Weak<dyn Place>>;

/// Everything parked, by deadline.
#[derive(Default)]
pub struct Parking {
    places: Mutex<(u64, Places)>,
}

impl Parking {
    /// Parks something until a deadline.
    pub fn park<T: Send + 'static>(&self, thing: T, deadline: Instant) -> Parked<T> {
        let place = Arc::new(Mutex::new(Some(thing)));
        let known: Weak<Mutex<Option<T>>> = Arc::downgrade(&place);
        let mut places = lock(&self.places);
        places.0 += 1;
        let key = (deadline, places.0);
        places.1.insert(key, known);
        Parked(place)
    }

    /// Drops things that are parked past their deadline, and forgets places that are gone.
    fn sweep(&self, now: Instant) {
        let over = {
            let mut places = lock(&self.places);
            places.1.retain(|_, place| place.strong_count() > 0);
            let later = places.1.split_off(&(now, 0));
            std::mem::replace(&mut places.1, later)
        };
        for place in over.into_values().filter_map(|place| place.upgrade()) {
            place.clear();
        }
    }

    /// Looks until told to stop.
    pub async fn watch(&self, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
            self.sweep(Instant::now());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_nobody_uses_ends_with_its_time() {
        let parking = Parking::default();
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_mins(1));
        let [early, used, late, gone] = [now, now, later, later].map(|deadline| parking.park("stream", deadline));
        let other = parking.park(7, now);
        let in_use = used.take();
        drop(gone);
        parking.sweep(now + Duration::from_secs(1));
        assert_eq!((early.take(), other.take(), late.take()), (None, None, Some("stream")));
        used.put(in_use.unwrap());
        assert_eq!(used.take(), Some("stream"));
        assert_eq!(lock(&parking.places).1.len(), 1);
    }
}
