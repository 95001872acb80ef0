//! Output that fits a context: of what is too long its beginning and its end, and where the rest is.
//!
//! Errors stand at the end, what was attempted at the beginning; of a log of a million lines a model needs both, and where to
//! read on.

use std::collections::VecDeque;
use std::ops::Range;

/// The beginning and the end of what was pushed.
#[derive(Debug)]
pub struct Excerpt {
    /// Most bytes of the beginning, and of the end.
    begins: usize,
    ends: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    /// Where its first byte stands.
    from: u64,
    /// Bytes that were pushed or skipped.
    passed: u64,
    /// Whether something was skipped, so that nothing follows the beginning.
    skipped: bool,
}

/// What of some output is told.
#[derive(Debug, PartialEq, Eq)]
pub struct Shown {
    /// Text, in which a line stands for what was left out.
    pub text: String,
    /// Which bytes were left out, counted as the output is.
    pub left_out: Option<Range<u64>>,
    /// Where what follows begins.
    pub next: u64,
}

impl Excerpt {
    /// The beginning and the end, together at most so many bytes, of output that begins at an offset.
    pub const fn new(most: usize, from: u64) -> Self {
        Self::of(most / 2, most - most / 2, from)
    }

    /// The first so many bytes.
    pub const fn first(most: usize, from: u64) -> Self {
        Self::of(most, 0, from)
    }

    /// The last so many bytes.
    pub const fn last(most: usize, from: u64) -> Self {
        Self::of(0, most, from)
    }

    const fn of(begins: usize, ends: usize, from: u64) -> Self {
        Self { begins, ends, head: Vec::new(), tail: VecDeque::new(), from, passed: 0, skipped: false }
    }

    /// More of it.
    pub fn push(&mut self, bytes: &[u8]) {
        self.passed = self.passed.saturating_add(bytes.len() as u64);
        let room = if self.skipped { 0 } else { self.begins.saturating_sub(self.head.len()) };
        let (first, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend(first);
        // Of a long piece nothing but its end can stay.
        self.tail.extend(&rest[rest.len().saturating_sub(self.ends)..]);
        self.tail.drain(..self.tail.len().saturating_sub(self.ends));
    }

    /// What follows begins at an offset; what is before that is gone.
    pub fn skip_to(&mut self, offset: u64) {
        if self.passed == 0 {
            self.from = self.from.max(offset);
        } else if offset > self.end() {
            self.passed = offset.saturating_sub(self.from);
            self.skipped = true;
            self.tail.clear();
        }
    }

    /// Whether nothing that follows is told.
    pub const fn is_full(&self) -> bool {
        self.ends == 0 && self.passed >= self.begins as u64
    }

    /// Whether there is nothing to tell yet, while more may come.
    pub fn is_empty(&self) -> bool {
        self.shown(true).next <= self.from
    }

    /// Where what follows begins.
    pub const fn end(&self) -> u64 {
        self.from.saturating_add(self.passed)
    }

    /// What is told. Bytes that are no text stand as `�`. While more may come, a character of which a part has come is left to
    /// what follows.
    pub fn shown(&self, more_may_come: bool) -> Shown {
        let kept = (self.head.len() + self.tail.len()) as u64;
        if kept == self.passed {
            let whole: Vec<u8> = self.head.iter().chain(&self.tail).copied().collect();
            let told = if more_may_come { whole_characters(&whole) } else { whole.len() };
            let next = self.from.saturating_add(told as u64);
            return Shown { text: String::from_utf8_lossy(&whole[..told]).into_owned(), left_out: None, next };
        }
        // A character that was cut in two is left out whole.
        let head = &self.head[..whole_characters(&self.head)];
        let cut = self.tail.iter().take_while(|byte| **byte & 0xC0 == 0x80).take(3).count();
        let tail: Vec<u8> = self.tail.iter().skip(cut).copied().collect();
        let told = if more_may_come { whole_characters(&tail) } else { tail.len() };
        let next = self.end().saturating_sub((tail.len() - told) as u64);
        let left_out = self.from.saturating_add(head.len() as u64)..self.end().saturating_sub(tail.len() as u64);
        let (head, tail) = (String::from_utf8_lossy(head), String::from_utf8_lossy(&tail[..told]));
        if self.ends == 0 {
            // Who reads on begins behind it.
            return Shown { text: head.into_owned(), next: left_out.start, left_out: None };
        }
        let more = left_out.end.saturating_sub(left_out.start);
        let mark = format!("[{more} bytes are left out here, from offset {}]\n", left_out.start);
        let text = if head.is_empty() { format!("{mark}{tail}") } else { format!("{head}\n{mark}{tail}") };
        Shown { text, left_out: Some(left_out), next }
    }
}

/// How many of these bytes are left when the last character is taken off that is not whole.
pub fn whole_characters(bytes: &[u8]) -> usize {
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
        assert_eq!(excerpt.shown(false), Shown { text: "abcdefgh".into(), left_out: None, next: 8 });
        excerpt.push(b"i");
        let shown = excerpt.shown(false);
        assert_eq!(shown.left_out, Some(4..5));
        assert!(shown.text.starts_with("abcd\n[1 bytes") && shown.text.ends_with("]\nfghi"), "{}", shown.text);
    }

    #[test]
    fn no_character_is_cut_in_two() {
        let mut excerpt = Excerpt::new(8, 100);
        excerpt.push("abcääääääxyz".as_bytes());
        let shown = excerpt.shown(false);
        assert!(!shown.text.contains('\u{fffd}'), "{}", shown.text);
        assert_eq!(shown.left_out, Some(103..103 + 12));
    }

    #[test]
    fn a_character_that_comes_in_parts_is_told_when_it_is_whole() {
        let mut excerpt = Excerpt::new(100, 0);
        excerpt.push(&"ä".as_bytes()[..1]);
        assert_eq!(excerpt.shown(true), Shown { text: String::new(), left_out: None, next: 0 });
        assert_eq!(excerpt.shown(false).text, "\u{fffd}");
        assert!(excerpt.is_empty());
        excerpt.push(&"ä".as_bytes()[1..]);
        assert_eq!(excerpt.shown(true), Shown { text: "ä".into(), left_out: None, next: 2 });
        assert!(!excerpt.is_empty());
    }

    #[test]
    fn the_beginning_stays_where_the_middle_is_gone() {
        let mut excerpt = Excerpt::new(8, 0);
        excerpt.push(b"ab");
        excerpt.skip_to(100);
        excerpt.push(b"yz");
        let shown = excerpt.shown(false);
        assert_eq!((shown.left_out, shown.next), (Some(2..100), 102));
        assert!(shown.text.starts_with("ab\n[98 bytes") && shown.text.ends_with("yz"), "{}", shown.text);
        let mut later = Excerpt::new(8, 5);
        later.skip_to(50);
        later.push(b"a");
        assert_eq!(later.shown(false), Shown { text: "a".into(), left_out: None, next: 51 });
        later.skip_to(u64::MAX);
        later.push(b"b");
        assert_eq!(later.end(), u64::MAX);
    }

    #[test]
    fn the_last_bytes_begin_with_what_was_left_out() {
        let mut excerpt = Excerpt::last(3, 0);
        excerpt.push(b"abcdef");
        let shown = excerpt.shown(false);
        assert_eq!((shown.left_out, shown.next), (Some(0..3), 6));
        assert!(shown.text.starts_with("[3 bytes") && shown.text.ends_with("def"), "{}", shown.text);
    }

    proptest! {
        #[test]
        fn parts_are_the_whole(text in ".{0,200}", most in 4_usize..40) {
            let (mut parts, mut from) = (String::new(), 0);
            while from < text.len() {
                let mut part = Excerpt::first(most, from as u64);
                part.push(&text.as_bytes()[from..]);
                let shown = part.shown(false);
                prop_assert!(shown.text.len() <= most && shown.left_out.is_none());
                parts.push_str(&shown.text);
                prop_assert!(shown.next > from as u64);
                from = usize::try_from(shown.next).unwrap();
            }
            prop_assert_eq!(parts, text);
        }

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
            prop_assert_eq!(whole.shown(false), pieces.shown(false));
            prop_assert_eq!(whole.end(), from + text.len() as u64);
            match whole.shown(false).left_out {
                None => prop_assert!(text.len() <= most),
                Some(left) => prop_assert!(text.len() > most && left.start >= from && left.end <= whole.end()),
            }
        }
    }
}
