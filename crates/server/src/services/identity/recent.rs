//! A table of what was lately, which strangers cannot make grow without bound.
//!
//! It has two halves. What is touched lives in the young one; when that is full, it becomes the old one, and what the
//! old one held and nobody touched meanwhile is forgotten. So no touch ever costs more than a few moves.

use std::collections::HashMap;
use std::hash::Hash;

/// Entries of each half.
const HALF: usize = 50_000;

/// A bounded table.
pub struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self { young: HashMap::new(), old: HashMap::new() }
    }
}

impl<K: Copy + Eq + Hash, V: Default> Recent<K, V> {
    /// What is known under a key; touched, and new where nothing is.
    pub fn touch(&mut self, key: K) -> &mut V {
        let known = self.old.remove(&key);
        if self.young.len() >= HALF && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.entry(key).or_insert_with(|| known.unwrap_or_default())
    }

    /// What is known under a key, if anything is.
    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        self.young.get_mut(&key).or_else(|| self.old.get_mut(&key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_touched_stays_and_the_rest_is_forgotten() {
        let mut table: Recent<usize, usize> = Recent::default();
        *table.touch(0) = 7;
        *table.touch(1) = 8;
        for key in 2..=HALF {
            table.touch(key);
        }
        assert_eq!(*table.touch(0), 7, "moved to the young half");
        for key in 0..2 * HALF {
            assert!(table.young.len() + table.old.len() <= 2 * HALF);
            table.touch(10 * HALF + key);
            if key % HALF == 0 {
                assert_eq!(*table.touch(0), 7);
            }
        }
        assert!(table.get_mut(1).is_none());
        assert_eq!(*table.touch(1), 0);
    }
}
