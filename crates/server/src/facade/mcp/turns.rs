//! Turns: who reads something and writes it again does so alone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

/// Things of which nobody knows any more that are kept before they are let go of.
const KEPT: usize = 256;

type Things = HashMap<Vec<String>, Weak<tokio::sync::Mutex<()>>>;

/// Who has which turn.
#[derive(Clone, Default)]
pub struct Turns(Arc<Mutex<Things>>);

impl Turns {
    /// A turn with what has this name, once everybody who came before is done.
    pub async fn of(&self, name: &[&str]) -> OwnedMutexGuard<()> {
        let name: Vec<String> = name.iter().map(|part| (*part).to_owned()).collect();
        let turn = {
            let mut things = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if things.len() >= KEPT {
                things.retain(|_, turn| turn.strong_count() > 0);
            }
            let there = things.get(&name).and_then(Weak::upgrade);
            there.unwrap_or_else(|| {
                let turn = Arc::default();
                things.insert(name, Arc::downgrade(&turn));
                turn
            })
        };
        turn.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::poll;
    use std::pin::pin;

    #[tokio::test]
    async fn one_after_the_other_and_nobody_waits_for_something_else() {
        let turns = Turns::default();
        let first = turns.of(&["a", "b"]).await;
        let mut second = pin!(turns.of(&["a", "b"]));
        assert!(poll!(second.as_mut()).is_pending());
        drop(turns.of(&["ab", ""]).await);
        drop(first);
        drop(second.await);
        for number in 0..2 * KEPT {
            drop(turns.of(&[&number.to_string()]).await);
        }
        assert!(turns.0.lock().unwrap().len() <= KEPT);
    }
}
