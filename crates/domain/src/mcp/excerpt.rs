//! Output that fits a context: of what is too long its beginning and its end, and where the rest is.
//!
//! Errors stand at the end, what was attempted at the beginning; of a log of a million lines a model needs both, and where to
//! read on.

use std::collections::VecDeque;
use std::ops::Range;

/// The beginning and the end of what was pushed.
#[derive(Debug)]
pub struct Excerpt {
    most: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    /// Where its first byte stands.
    from: u64,
    /// Bytes that were pushed.
    pushed: u64,
}

/// What of some output is told.
#[derive(Debug, PartialEq, Eq)]
pub struct Shown {
    /// Text, in which a line stands for what was left out.
    pub text: String,
    /// Which bytes were left out, counted as the output is.
    pub left_out: Option<Range<u64>>,
}

impl Excerpt {
    /// Of at most so many bytes, of output that begins at an offset.
    pub fn new(most: usize, from: u64) -> Self {
        Self { most, head: Vec::new(), tail: VecDeque::new(), from, pushed: 0 }
    }

    /// More of it.
    pub fn push(&mut self, bytes: &[u8]) {
        self.pushed += bytes.len() as u64;
        let room = (self.most / 2).saturating_sub(self.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at(room);
        self.head.extend(first);
        let ends = self.most - self.most / 2;
        // Of a long piece nothing but its end can stay.
        self.tail.extend(&rest[rest.len().saturating_sub(ends)..]);
        self.tail.drain(..self.tail.len().saturating_sub(ends));
    }

    /// Where what follows begins.
    pub const fn end(&self) -> u64 {
        self.from + self.pushed
    }

    /// What is told. Bytes that are no text stand as `�`.
    pub fn shown(&self) -> Shown {
        let kept = (self.head.len() + self.tail.len()) as u64;
        if kept == self.pushed {
            let whole: Vec<u8> = self.head.iter().chain(&self.tail).copied().collect();
            return Shown { text: String::from_utf8_lossy(&whole).into_owned(), left_out: None };
        }
        // A character that was cut in two is left out whole.
        let head = &self.head[..whole_characters(&self.head)];
        let skipped = self.tail.iter().take_while(|byte| **byte & 0xC0 == 0x80).take(3).count();
        let tail: Vec<u8> = self.tail.iter().skip(skipped).copied().collect();
        let left_out = self.from + head.len() as u64..self.end() - tail.len() as u64;
        let (head, tail) = (String::from_utf8_lossy(head), String::from_utf8_lossy(&tail));
        let more = left_out.end - left_out.start;
        let text = format!("{head}\n[{more} bytes are left out here, from offset {}]\n{tail}", left_out.start);
        Shown { text, left_out: Some(left_out) }
    }
}

/// How many of these bytes are left when the last character is taken off that is not whole.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_fits_is_told_whole() {
        let mut excerpt = Excerpt::new(8, 0);
        excerpt.push(b"abcd");
        excerpt.push(b"efgh");
        assert_eq!(excerpt.shown(), Shown { text: "abcdefgh".into(), left_out: None });
        excerpt.push(b"i");
        let shown = excerpt.shown();
        assert_eq!(shown.left_out, Some(4..5));
        assert!(shown.text.starts_with("abcd\n[1 bytes") && shown.text.ends_with("]\nfghi"), "{}", shown.text);
    }

    #[test]
    fn no_character_is_cut_in_two() {
        let mut excerpt = Excerpt::new(8, 100);
        excerpt.push("abcääääääxyz".as_bytes());
        let shown = excerpt.shown();
        assert!(!shown.text.contains('\u{fffd}'), "{}", shown.text);
        assert_eq!(shown.left_out, Some(103..103 + 12));
    }

    proptest! {
        #[test]
        fn however_it_comes_the_same_is_told(
            text in proptest::collection::vec(any::<u8>(), 0..200),
            cuts in proptest::collection::vec(0_usize..200, 0..8),
            most in 2_usize..60,
            from in 0_u64..1000,
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let (mut whole, mut pieces) = (Excerpt::new(most, from), Excerpt::new(most, from));
            whole.push(&text);
            for pair in cuts.windows(2) {
                pieces.push(&text[pair[0]..pair[1]]);
            }
            prop_assert_eq!(whole.shown(), pieces.shown());
            prop_assert_eq!(whole.end(), from + text.len() as u64);
            match whole.shown().left_out {
                None => prop_assert!(text.len() <= most),
                Some(left) => prop_assert!(text.len() > most && left.start >= from && left.end <= whole.end()),
            }
        }
    }
}
