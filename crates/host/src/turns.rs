//! Turns of those who do something to the same thing of this host.
//!
//! A service whose line broke asks again while what it asked before may still be under way. So whoever is asked waits until nobody else
//! does something to what it is asked about, and what nobody is at any more takes no room.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

/// Who is at which thing.
pub struct Turns<K>(Mutex<HashMap<K, Weak<tokio::sync::Mutex<()>>>>);

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> Turns<K> {
    /// Waits until nobody else is at this one.
    pub async fn of(&self, key: K) -> OwnedMutexGuard<()> {
        let turn = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|_, turn| turn.strong_count() > 0);
            let turn = all.get(&key).and_then(Weak::upgrade).unwrap_or_default();
            all.insert(key, Arc::downgrade(&turn));
            turn
        };
        turn.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use futures::poll;

    use super::*;

    #[tokio::test]
    async fn one_at_a_time_is_at_a_thing_and_nobody_waits_for_who_is_at_another() {
        let turns = Turns::default();
        let first = turns.of(1).await;
        let mut second = Box::pin(turns.of(1));
        assert!(poll!(&mut second).is_pending());
        drop(turns.of(2).await);
        drop(first);
        drop(second.await);
        drop(turns.of(2).await);
        assert_eq!(turns.0.lock().expect("no panic").len(), 1, "who is over is forgotten");
    }
}
