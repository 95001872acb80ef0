//! The log of a build: its last MiB, read from any place on while it is written.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

/// Bytes that are kept.
pub const MAX_LOG: usize = 1024 * 1024;
/// Bytes of a line that are kept.
const MAX_LINE: usize = 4096;

/// The log. Clones share it.
#[derive(Clone, Debug)]
pub struct Log {
    kept: Arc<Mutex<Kept>>,
    end: watch::Sender<End>,
}

/// Where a log ends, for who waits for more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// In bytes since its beginning.
    pub at: u64,
    /// Whether nothing more comes.
    pub closed: bool,
}

#[derive(Debug, Default)]
struct Kept {
    bytes: VecDeque<u8>,
    /// Where the first of them stands.
    from: u64,
}

/// Part of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins, in bytes since the beginning of the log. Later than what was asked for where that is gone.
    pub from: u64,
    /// Whole lines.
    pub text: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { kept: Arc::default(), end: watch::Sender::new(End::default()) }
    }
}

impl Log {
    /// Adds a line. Control characters are left out, and what is too long is cut.
    pub fn line(&self, text: &str) {
        let mut line = String::new();
        for c in text.chars().filter(|c| *c == '\t' || !c.is_control()) {
            if line.len() + c.len_utf8() >= MAX_LINE {
                break;
            }
            line.push(c);
        }
        line.push('\n');
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes.extend(line.as_bytes());
        while kept.bytes.len() > MAX_LOG {
            let line = kept.bytes.iter().position(|byte| *byte == b'\n').map_or(kept.bytes.len(), |at| at + 1);
            kept.bytes.drain(..line);
            kept.from += line as u64;
        }
        let at = kept.from + kept.bytes.len() as u64;
        self.end.send_modify(|end| end.at = at);
    }

    /// Says that nothing more comes.
    pub fn close(&self) {
        self.end.send_modify(|end| end.closed = true);
    }

    /// What there is from a place on.
    pub fn read(&self, from: u64) -> Piece {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let from = from.clamp(kept.from, kept.from + kept.bytes.len() as u64);
        let skip = usize::try_from(from - kept.from).unwrap_or(usize::MAX);
        let bytes = kept.bytes.iter().skip(skip).copied().collect::<Vec<_>>();
        Piece { from, text: String::from_utf8_lossy(&bytes).into_owned() }
    }

    /// Where the log ends, for who waits for more.
    pub fn end(&self) -> watch::Receiver<End> {
        self.end.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_from_any_place_on() {
        let log = Log::default();
        log.line("one\x1b[0m\r");
        let end = log.end();
        log.line("two\tü");
        assert_eq!(log.read(0), Piece { from: 0, text: "one[0m\ntwo\tü\n".into() });
        assert_eq!(log.read(7).text, "two\tü\n");
        assert_eq!(log.read(99), Piece { from: 14, text: String::new() });
        assert_eq!((*end.borrow(), end.has_changed().unwrap()), (End { at: 14, closed: false }, true));
        log.close();
        assert!(end.borrow().closed);
    }

    #[test]
    fn a_log_keeps_its_last_lines_and_bounds_each() {
        let log = Log::default();
        for _ in 0..MAX_LOG / 1024 {
            log.line(&"x".repeat(1023));
        }
        assert_eq!((log.read(0).from, log.read(0).text.len()), (0, MAX_LOG));
        log.line("");
        assert_eq!((log.read(0).from, log.read(0).text.len()), (1024, MAX_LOG - 1023));
        log.line(&"ü".repeat(MAX_LINE));
        assert_eq!(log.read(0).text.lines().last().map(str::len), Some(MAX_LINE - 2));
    }
}
