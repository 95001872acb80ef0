//! The reader for which a process waits. Pure.
//!
//! A process whose output is held goes on writing while its reader is less than [`AHEAD`] behind, and then waits for
//! the reader as it would for the other end of a pipe. A new reader takes over from the former one, which may be the
//! rest of a broken connection.

/// How far the reader may be behind before the process waits, in bytes. With the header of every line it is far less
/// than a log keeps, so that the log still has what the reader has not seen.
pub const AHEAD: u64 = 1024 * 1024;
/// How far the reader may be behind once the process has ended: the content of its pipes has to fit.
pub const LAST: u64 = 3 * 1024 * 1024;

#[derive(Debug)]
struct Held {
    reader: Option<u64>,
    offset: u64,
}

/// What makes a process wait.
#[derive(Debug, Default)]
pub struct Hold {
    held: Option<Held>,
    next: u64,
}

impl Hold {
    /// For a process that waits for a reader from its start, even before one comes.
    pub fn from_start() -> Self {
        Self { held: Some(Held { reader: None, offset: 0 }), next: 0 }
    }

    /// Registers a reader at an offset; returns its number. If the process waits for readers, it now waits for this
    /// one.
    pub fn attach(&mut self, offset: u64) -> u64 {
        self.next += 1;
        if let Some(held) = &mut self.held {
            *held = Held { reader: Some(self.next), offset };
        }
        self.next
    }

    /// Notes how far a reader is; returns whether the process may go on because of it.
    pub fn moved(&mut self, reader: u64, offset: u64, end: u64) -> bool {
        let behind = self.is_behind(end, AHEAD);
        if let Some(held) = self.held.as_mut().filter(|held| held.reader == Some(reader)) {
            held.offset = offset;
        }
        behind && !self.is_behind(end, AHEAD)
    }

    /// Notes that a reader left. Another one may come.
    pub fn leave(&mut self, reader: u64) {
        if let Some(held) = self.held.as_mut().filter(|held| held.reader == Some(reader)) {
            held.reader = None;
        }
    }

    /// Stops waiting for readers.
    pub fn release(&mut self) {
        self.held = None;
    }

    /// Whether the process waits for a reader that is not there.
    pub fn is_away(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.reader.is_none())
    }

    /// Whether the reader is more than so many bytes behind.
    pub fn is_behind(&self, end: u64, ahead: u64) -> bool {
        self.held.as_ref().is_some_and(|held| end.saturating_sub(held.offset) > ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_waits_for_who_is_too_far_behind() {
        let mut hold = Hold::from_start();
        assert!(!hold.is_behind(AHEAD, AHEAD) && hold.is_behind(AHEAD + 1, AHEAD), "before he is there, too");
        let reader = hold.attach(0);
        assert!(hold.is_behind(AHEAD + 1, AHEAD) && !hold.is_behind(AHEAD + 1, LAST));
        assert!(!hold.moved(reader, 1, AHEAD + 2), "still behind");
        assert!(hold.moved(reader, 2, AHEAD + 2), "now it goes on");
        assert!(!hold.moved(reader, 3, AHEAD + 2), "it went on already");
    }

    #[test]
    fn who_comes_later_takes_over() {
        let mut hold = Hold::from_start();
        let old = hold.attach(0);
        let new = hold.attach(10);
        assert!(!hold.moved(old, 5 * AHEAD, 2 * AHEAD), "nobody waits for the old one");
        assert!(hold.is_behind(2 * AHEAD, AHEAD));
        hold.leave(old);
        assert!(!hold.is_away());
        hold.leave(new);
        assert!(hold.is_away() && hold.is_behind(2 * AHEAD, AHEAD), "another one may come");
        hold.release();
        let late = hold.attach(0);
        assert!(!hold.is_away() && !hold.is_behind(u64::MAX, AHEAD) && !hold.moved(late, 1, 1), "nobody is held");
    }

    #[test]
    fn a_process_that_is_not_held_waits_for_nobody() {
        let mut hold = Hold::default();
        let reader = hold.attach(0);
        assert!(!hold.is_behind(u64::MAX, AHEAD));
        hold.leave(reader);
        assert!(!hold.is_away());
    }
}
