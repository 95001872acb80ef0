//! The last events of a watch. Pure.

use std::collections::VecDeque;

use berth_domain::agent::runtime::Change;

/// Events that are kept.
pub const KEPT: usize = 4096;

/// The last events, numbered from 0.
#[derive(Debug, Default)]
pub struct Ring {
    events: VecDeque<(&'static str, String)>,
    first: u64,
}

impl Ring {
    /// Appends a change. When a program writes in many pieces, the kernel reports that once for each time it is asked.
    pub fn change(&mut self, change: &Change) {
        let data = serde_json::to_string(change).unwrap_or_default();
        self.push("change", data);
    }

    /// Appends that events are missing.
    pub fn overflow(&mut self) {
        self.push("overflow", "{}".to_owned());
    }

    fn push(&mut self, name: &'static str, data: String) {
        if self.events.len() >= KEPT {
            self.events.pop_front();
            self.first += 1;
        }
        self.events.push_back((name, data));
    }

    /// The number of the first event that is kept.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The event with a number: its name and its data.
    pub fn get(&self, number: u64) -> Option<(&'static str, &str)> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.events.get(index).map(|(name, data)| (*name, data.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_the_limit_are_kept() {
        let mut ring = Ring::default();
        for _ in 0..KEPT {
            ring.overflow();
        }
        assert_eq!((ring.first(), ring.get(0)), (0, Some(("overflow", "{}"))));
        ring.overflow();
        assert_eq!((ring.first(), ring.get(0)), (1, None));
        assert!(ring.get(KEPT as u64).is_some() && ring.get(KEPT as u64 + 1).is_none());
    }
}
