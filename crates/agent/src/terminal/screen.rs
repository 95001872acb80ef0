//! The last bytes of a terminal. Pure.

use std::collections::VecDeque;

/// The bytes that are kept.
pub const KEPT: usize = 256 * 1024;

/// The last bytes, and their offset since the terminal was opened.
#[derive(Debug, Default)]
pub struct Screen {
    bytes: VecDeque<u8>,
    end: u64,
}

impl Screen {
    /// Appends output.
    pub fn append(&mut self, bytes: &[u8]) {
        self.end += bytes.len() as u64;
        let bytes = &bytes[bytes.len().saturating_sub(KEPT)..];
        let excess = (self.bytes.len() + bytes.len()).saturating_sub(KEPT);
        self.bytes.drain(..excess);
        self.bytes.extend(bytes);
    }

    /// The offset behind the last byte.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// At most `limit` bytes from a reader's offset, which moves on. A reader that fell behind sees what is left.
    pub fn read(&self, offset: &mut u64, limit: usize) -> Vec<u8> {
        let start = self.end - self.bytes.len() as u64;
        *offset = (*offset).clamp(start, self.end);
        let skip = usize::try_from(*offset - start).unwrap_or(self.bytes.len());
        let bytes = self.bytes.iter().skip(skip).take(limit).copied().collect::<Vec<_>>();
        *offset += bytes.len() as u64;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn as_much_as_the_limit_is_kept() {
        let mut screen = Screen::default();
        screen.append(&vec![1; KEPT]);
        assert_eq!(screen.read(&mut 0, usize::MAX), vec![1; KEPT]);
        screen.append(&[2]);
        let mut offset = 0;
        let bytes = screen.read(&mut offset, usize::MAX);
        assert_eq!((bytes.len(), bytes[0], bytes[KEPT - 1], offset), (KEPT, 1, 2, KEPT as u64 + 1));
        screen.append(&vec![3; 2 * KEPT]);
        assert_eq!(screen.read(&mut offset, usize::MAX), vec![3; KEPT]);
    }

    proptest! {
        #[test]
        fn a_reader_who_keeps_up_sees_everything(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..20), limit in 1_usize..100,
        ) {
            let (mut screen, mut offset, mut seen) = (Screen::default(), 0, Vec::new());
            for piece in &pieces {
                screen.append(piece);
                seen.extend(screen.read(&mut offset, limit));
            }
            loop {
                let more = screen.read(&mut offset, limit);
                if more.is_empty() {
                    break;
                }
                seen.extend(more);
            }
            prop_assert_eq!(seen, pieces.concat());
        }
    }
}
