//! Where a session begins on a stream that may hold anything.
//!
//! A port keeps bytes that nobody read, a restored machine is in the middle of a frame, and neither side learns that
//! the other one was replaced. So the host sends [`MAGIC`] and a nonce of its choice, again and again, until the agent
//! answers with the same bytes; both discard what comes before. In case a frame was cut in half, the host first sends
//! filler of at least [`crate::agent::MAX_FRAME`] bytes, which ends it.
//!
//! The agent answers each nonce once, and the session begins at HTTP/2's preface. Markers between the agent's answer
//! and the preface are repetitions that were already on their way.

/// The beginning of a marker.
pub const MAGIC: [u8; 16] =
    [0xd3, 0x52, 0x1e, 0x70, 0x1d, 0xdd, 0x0a, 0x74, 0xe1, 0x53, 0x4c, 0x58, 0xbe, 0xed, 0x48, 0x3b];
/// The first bytes that an HTTP/2 client sends (RFC 9113, section 3.4).
pub const PREFACE: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of a whole marker.
pub const MARKER_LEN: usize = 32;

/// Ties an answer to its marker.
pub type Nonce = [u8; 16];

/// The bytes of the marker with a nonce.
pub fn marker(nonce: Nonce) -> [u8; MARKER_LEN] {
    let mut bytes = [0; MARKER_LEN];
    bytes[..16].copy_from_slice(&MAGIC);
    bytes[16..].copy_from_slice(&nonce);
    bytes
}

/// What a [`Scanner`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A marker with a nonce that is not answered yet: answer with [`marker`] of it.
    Marker(Nonce),
    /// The preface: a session begins with these bytes, which include the preface.
    Session(Vec<u8>),
}

/// The agent's side: looks for markers, and after the first one for the session.
#[derive(Debug, Default)]
pub struct Scanner {
    pending: Vec<u8>,
    answered: Option<Nonce>,
}

impl Scanner {
    /// Takes bytes from the stream. Call [`Self::next`] until it has nothing more.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// The next finding, or nothing until more bytes are fed. It discards what cannot belong to one: between calls it
    /// keeps fewer than [`MARKER_LEN`] bytes.
    #[expect(clippy::should_implement_trait, reason = "more bytes may follow a None")]
    pub fn next(&mut self) -> Option<Found> {
        loop {
            let at = (0..self.pending.len()).find(|at| self.may_begin(&self.pending[*at..]));
            self.pending.drain(..at.unwrap_or(self.pending.len()));
            if self.answered.is_some() && self.pending.starts_with(&PREFACE) {
                return Some(Found::Session(std::mem::take(&mut self.pending)));
            }
            if self.pending.len() < MARKER_LEN || !self.pending.starts_with(&MAGIC) {
                return None;
            }
            let mut nonce = Nonce::default();
            nonce.copy_from_slice(&self.pending[16..MARKER_LEN]);
            self.pending.drain(..MARKER_LEN);
            if self.answered.replace(nonce) != Some(nonce) {
                return Some(Found::Marker(nonce));
            }
        }
    }

    fn may_begin(&self, rest: &[u8]) -> bool {
        let agrees = |pattern: &[u8]| rest.iter().zip(pattern).all(|(a, b)| a == b);
        agrees(&MAGIC) || (self.answered.is_some() && agrees(&PREFACE))
    }
}

/// The host's side: looks for the answer to its marker.
#[derive(Debug)]
pub struct Answer {
    marker: [u8; MARKER_LEN],
    pending: Vec<u8>,
}

impl Answer {
    /// Waits for the answer to the marker with this nonce.
    pub fn to(nonce: Nonce) -> Self {
        Self { marker: marker(nonce), pending: Vec::new() }
    }

    /// Takes bytes from the stream. Once they contain the answer, returns what follows it: the session's first bytes.
    pub fn feed(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.pending.extend_from_slice(bytes);
        if let Some(at) = self.pending.windows(MARKER_LEN).position(|window| window == self.marker) {
            return Some(self.pending.split_off(at + MARKER_LEN));
        }
        let keep = self.pending.len().saturating_sub(MARKER_LEN - 1);
        self.pending.drain(..keep);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(scanner: &mut Scanner, bytes: &[u8], step: usize) -> Vec<Found> {
        let mut found = Vec::new();
        for chunk in bytes.chunks(step) {
            scanner.feed(chunk);
            while let Some(one) = scanner.next() {
                found.push(one);
            }
            assert!(scanner.pending.len() < MARKER_LEN, "no more is kept than a marker may need");
        }
        found
    }

    fn nonces(found: &[Found]) -> Vec<Nonce> {
        found.iter().filter_map(|one| if let Found::Marker(nonce) = one { Some(*nonce) } else { None }).collect()
    }

    #[test]
    fn a_marker_amid_a_session_reads_as_a_frame_that_is_too_large() {
        let length = u32::from_be_bytes([0, MAGIC[0], MAGIC[1], MAGIC[2]]);
        assert!(length > crate::agent::MAX_FRAME);
    }

    #[test]
    fn the_preface_counts_only_after_a_marker() {
        let mut scanner = Scanner::default();
        assert_eq!(run(&mut scanner, &PREFACE, 5), []);
        let bytes = [&marker([7; 16])[..], &PREFACE].concat();
        let found = run(&mut scanner, &bytes, bytes.len());
        assert_eq!(found, [Found::Marker([7; 16]), Found::Session(PREFACE.to_vec())]);
    }

    #[test]
    fn a_marker_that_was_cut_short_costs_one_repetition_at_most() {
        let wanted = [9; 16];
        for cut in 0..MARKER_LEN {
            let bytes = [&marker([1; 16])[..cut], &marker(wanted), &marker(wanted)].concat();
            assert!(nonces(&run(&mut Scanner::default(), &bytes, 7)).contains(&wanted), "cut at {cut}");
        }
    }

    proptest! {
        #[test]
        fn markers_are_found_in_any_filler_and_any_pieces(
            filler in prop::collection::vec(any::<u8>(), 0..200),
            first: Nonce, second: Nonce, repeats in 1_usize..5, step in 1_usize..80,
            rest in prop::collection::vec(any::<u8>(), 0..50),
        ) {
            prop_assume!(first != second);
            let mut bytes = filler;
            for nonce in [first, second] {
                for _ in 0..repeats {
                    bytes.extend(marker(nonce));
                }
            }
            bytes.extend(PREFACE);
            let mut scanner = Scanner::default();
            prop_assert_eq!(nonces(&run(&mut scanner, &bytes[..bytes.len() - 1], step)), [first, second]);
            scanner.feed(&[&PREFACE[23..], &rest].concat());
            let session = [&PREFACE[..], &rest].concat();
            prop_assert_eq!(scanner.next(), Some(Found::Session(session)));
        }

        #[test]
        fn an_answer_is_found_and_what_follows_is_kept(
            filler in prop::collection::vec(any::<u8>(), 0..200), nonce: Nonce, step in 1_usize..80,
        ) {
            let bytes = [&filler[..], &marker(nonce)].concat();
            let mut answer = Answer::to(nonce);
            let mut rest = None;
            for (at, chunk) in bytes.chunks(step).enumerate() {
                prop_assert!(rest.is_none());
                rest = answer.feed(chunk);
                prop_assert_eq!(rest.is_some(), (at + 1) * step >= bytes.len());
            }
            prop_assert_eq!(rest, Some(Vec::new()));
        }

        #[test]
        fn no_bytes_make_it_panic_or_grow(bytes in prop::collection::vec(any::<u8>(), 0..500), step in 1_usize..80) {
            run(&mut Scanner::default(), &bytes, step);
        }
    }
}
