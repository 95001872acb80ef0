//! Locks by name: who reads something and writes it again does so alone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

/// Locks that there are before those are let go of that nobody holds.
const KEPT: usize = 256;

type Named = HashMap<Vec<String>, Weak<tokio::sync::Mutex<()>>>;

/// The locks.
#[derive(Clone, Default)]
pub struct Locks(Arc<Mutex<Named>>);

impl Locks {
    /// Holds the lock of this name, once everybody who came before is done.
    pub async fn hold(&self, name: &[&str]) -> OwnedMutexGuard<()> {
        let name: Vec<String> = name.iter().map(|part| (*part).to_owned()).collect();
        let lock = {
            let mut named = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if named.len() >= KEPT {
                named.retain(|_, lock| lock.strong_count() > 0);
            }
            let there = named.get(&name).and_then(Weak::upgrade);
            there.unwrap_or_else(|| {
                let lock = Arc::default();
                named.insert(name, Arc::downgrade(&lock));
                lock
            })
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::poll;
    use std::pin::pin;

    #[tokio::test]
    async fn one_after_the_other_and_nobody_waits_for_something_else() {
        let locks = Locks::default();
        let first = locks.hold(&["a", "b"]).await;
        let mut second = pin!(locks.hold(&["a", "b"]));
        assert!(poll!(second.as_mut()).is_pending());
        drop(locks.hold(&["ab", ""]).await);
        drop(first);
        drop(second.await);
        for number in 0..2 * KEPT {
            drop(locks.hold(&[&number.to_string()]).await);
        }
        assert!(locks.0.lock().unwrap().len() <= KEPT);
    }
}
