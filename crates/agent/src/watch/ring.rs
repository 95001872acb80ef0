//! The last events of a watch. Pure.

use std::collections::VecDeque;

use berth_domain::agent::runtime::Change;

/// Events that are kept.
pub const KEPT: usize = 4096;

/// What a watch tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Something changed.
    Change(Change),
    /// Events are missing.
    Overflow,
}

impl Event {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Change(_) => "change",
            Self::Overflow => "overflow",
        }
    }

    /// Its data.
    pub fn data(&self) -> String {
        match self {
            Self::Change(change) => serde_json::to_string(change).unwrap_or_default(),
            Self::Overflow => "{}".to_owned(),
        }
    }
}

/// The last events, numbered from 0.
#[derive(Debug, Default)]
pub struct Ring {
    events: VecDeque<Event>,
    first: u64,
}

impl Ring {
    /// Appends an event. When a program writes in many pieces, the kernel reports that once for each time it is asked.
    pub fn push(&mut self, event: Event) {
        if self.events.len() >= KEPT {
            self.events.pop_front();
            self.first += 1;
        }
        self.events.push_back(event);
    }

    /// The number of the first event that is kept.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The event with a number.
    pub fn get(&self, number: u64) -> Option<&Event> {
        self.events.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_the_limit_are_kept() {
        let mut ring = Ring::default();
        for _ in 0..KEPT {
            ring.push(Event::Overflow);
        }
        assert_eq!((ring.first(), ring.get(0)), (0, Some(&Event::Overflow)));
        ring.push(Event::Overflow);
        assert_eq!((ring.first(), ring.get(0)), (1, None));
        assert!(ring.get(KEPT as u64).is_some() && ring.get(KEPT as u64 + 1).is_none());
        assert_eq!((Event::Overflow.name(), Event::Overflow.data().as_str()), ("overflow", "{}"));
    }
}
