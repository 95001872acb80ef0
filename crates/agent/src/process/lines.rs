//! Cuts a stream of bytes into lines as they come. Pure.

/// The most bytes of one piece: longer lines come in several.
pub const MAX_PIECE: usize = 64 * 1024;

/// Bytes without a newline yet.
#[derive(Debug, Default)]
pub struct Lines {
    pending: Vec<u8>,
}

impl Lines {
    /// Adds bytes and emits each complete line without its newline; `true` says that it had one.
    pub fn feed(&mut self, mut bytes: &[u8], mut emit: impl FnMut(&[u8], bool)) {
        while let Some(at) = memchr::memchr(b'\n', bytes) {
            let (line, rest) = (&bytes[..at], &bytes[at + 1..]);
            if self.pending.is_empty() && line.len() <= MAX_PIECE {
                emit(line, true);
            } else {
                self.pending.extend_from_slice(line);
                self.cut_long(&mut emit);
                emit(&self.pending, true);
                self.pending.clear();
            }
            bytes = rest;
        }
        self.pending.extend_from_slice(bytes);
        self.cut_long(&mut emit);
    }

    /// Emits the rest: the stream ended, or the other stream writes next.
    pub fn finish(&mut self, mut emit: impl FnMut(&[u8], bool)) {
        if !self.pending.is_empty() {
            emit(&self.pending, false);
            self.pending = Vec::new();
        }
    }

    /// How many bytes have no newline yet.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    fn cut_long(&mut self, emit: &mut impl FnMut(&[u8], bool)) {
        let mut done = 0;
        while self.pending.len() - done > MAX_PIECE {
            let length = whole_characters(&self.pending[done..done + MAX_PIECE]);
            emit(&self.pending[done..done + length], false);
            done += length;
        }
        self.pending.drain(..done);
    }
}

/// How many of these bytes come before an incomplete UTF-8 character at the end.
pub fn whole_characters(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(3);
    for at in (tail..bytes.len()).rev() {
        let needed = match bytes[at] {
            0x80..=0xbf => continue,
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => 1,
        };
        return if at + needed > bytes.len() { at } else { bytes.len() };
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Pieces = Vec<(Vec<u8>, bool)>;

    fn joined(pieces: &Pieces) -> Vec<u8> {
        pieces.iter().flat_map(|(bytes, newline)| bytes.iter().copied().chain(newline.then_some(b'\n'))).collect()
    }

    #[test]
    fn long_lines_are_cut_at_the_limit_and_at_characters() {
        for (length, pieces) in [(MAX_PIECE, 1), (MAX_PIECE + 1, 2), (2 * MAX_PIECE, 2), (2 * MAX_PIECE + 1, 3)] {
            let mut out = Pieces::new();
            let line = [vec![b'a'; length], b"\n".to_vec()].concat();
            Lines::default().feed(&line, |bytes, newline| out.push((bytes.to_vec(), newline)));
            assert_eq!((out.len(), joined(&out)), (pieces, line), "{length}");
        }
        let mut out = Pieces::new();
        let mut lines = Lines::default();
        lines.feed("€".repeat(MAX_PIECE).as_bytes(), |bytes, newline| out.push((bytes.to_vec(), newline)));
        assert!(out.len() >= 2 && out.iter().all(|(bytes, _)| std::str::from_utf8(bytes).is_ok()));
    }

    proptest! {
        #[test]
        fn nothing_is_lost_added_or_moved(
            bytes in prop::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..300),
            step in 1_usize..40,
        ) {
            let mut out = Pieces::new();
            let mut lines = Lines::default();
            for chunk in bytes.chunks(step) {
                lines.feed(chunk, |bytes, newline| out.push((bytes.to_vec(), newline)));
            }
            lines.finish(|bytes, newline| out.push((bytes.to_vec(), newline)));
            prop_assert!(out.iter().all(|(bytes, _)| !bytes.contains(&b'\n')));
            prop_assert_eq!(joined(&out), bytes);
        }

        #[test]
        fn text_never_becomes_bytes(text in "[a€😀ß\n]{0,200}", step in 1_usize..7) {
            let mut lines = Lines::default();
            for chunk in text.as_bytes().chunks(step) {
                lines.feed(chunk, |bytes, _| assert!(std::str::from_utf8(bytes).is_ok()));
            }
            lines.finish(|bytes, _| assert!(std::str::from_utf8(bytes).is_ok()));
        }
    }
}
