//! The readers of a terminal, and how far they are. Pure.
//!
//! A program with much output waits a moment for its readers, as it would for a real terminal. A reader that does not
//! read at all is given up, and sees what is left when it reads again.

use std::collections::HashMap;

/// How far a reader may be behind before the program waits, in bytes. Less than what the terminal keeps.
const BEHIND: u64 = 128 * 1024;

#[derive(Debug)]
struct Reader {
    offset: u64,
    given_up: bool,
}

/// Readers by number.
#[derive(Debug, Default)]
pub struct Readers {
    by_number: HashMap<u64, Reader>,
    next: u64,
}

impl Readers {
    /// Adds a reader at an offset; returns its number.
    pub fn add(&mut self, offset: u64) -> u64 {
        self.next += 1;
        self.by_number.insert(self.next, Reader { offset, given_up: false });
        self.next
    }

    /// Removes a reader.
    pub fn remove(&mut self, number: u64) {
        self.by_number.remove(&number);
    }

    /// Notes how far a reader is.
    pub fn moved(&mut self, number: u64, offset: u64, end: u64) {
        if let Some(reader) = self.by_number.get_mut(&number) {
            reader.offset = offset;
            reader.given_up &= offset < end;
        }
    }

    /// Whether the program has to wait for a reader.
    pub fn are_behind(&self, end: u64) -> bool {
        self.by_number.values().any(|reader| !reader.given_up && end.saturating_sub(reader.offset) > BEHIND)
    }

    /// Stops waiting for readers that are behind, until they have read everything.
    pub fn give_up(&mut self, end: u64) {
        for reader in self.by_number.values_mut() {
            reader.given_up |= end.saturating_sub(reader.offset) > BEHIND;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_is_waited_for_and_who_does_not_is_given_up() {
        let mut readers = Readers::default();
        let (one, two) = (readers.add(0), readers.add(0));
        assert!(!readers.are_behind(BEHIND) && readers.are_behind(BEHIND + 1));
        readers.moved(one, BEHIND, BEHIND + 1);
        assert!(readers.are_behind(BEHIND + 1), "the other one");
        readers.give_up(BEHIND + 1);
        assert!(!readers.are_behind(BEHIND + 1));
        readers.moved(two, 10, BEHIND + 1);
        assert!(!readers.are_behind(2 * BEHIND), "he has not read everything");
        readers.moved(two, BEHIND + 1, BEHIND + 1);
        assert!(readers.are_behind(2 * BEHIND + 2), "now he has");
        readers.remove(one);
        readers.remove(two);
        assert!(!readers.are_behind(u64::MAX));
    }
}
