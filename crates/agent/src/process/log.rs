//! The bounded log of a process: the output of both of its streams, in the order in which it came. Pure.
//!
//! It is a list of chunks; a chunk holds bytes, and the places where the streams take turns. The log drops whole chunks
//! from the front. It does not look for lines while a program writes: readers cut the lines. Offsets count bytes.

use std::collections::VecDeque;

/// Least number of bytes kept, once there were so many.
pub const KEPT: usize = 8 * 1024 * 1024;
/// Most bytes of memory for a log whose streams take turns.
const MEMORY: usize = 2 * KEPT;
const CHUNK: usize = 64 * 1024;
/// Bytes of memory for each turn of a stream.
const TURN: usize = size_of::<(usize, bool)>();

/// Bytes of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run<'a> {
    /// The offset of the first byte.
    pub offset: u64,
    /// Whether it is of the error stream.
    pub stderr: bool,
    /// The bytes.
    pub bytes: &'a [u8],
}

#[derive(Debug)]
struct Chunk {
    start: u64,
    data: Vec<u8>,
    /// Where each turn ends in the data, and whether it was the error stream's.
    turns: Vec<(usize, bool)>,
}

impl Chunk {
    fn memory(&self) -> usize {
        self.data.len() + self.turns.len() * TURN
    }
}

/// The log.
#[derive(Debug, Default)]
pub struct Log {
    chunks: VecDeque<Chunk>,
    /// The offset behind the last byte.
    end: u64,
    /// Bytes of all chunks and turns.
    memory: usize,
}

impl Log {
    /// Appends output of a stream.
    pub fn append(&mut self, stderr: bool, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.chunks.back().is_none_or(|chunk| chunk.memory() >= CHUNK) {
            self.chunks.push_back(Chunk { start: self.end, data: Vec::new(), turns: Vec::new() });
        }
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.data.extend_from_slice(bytes);
            match chunk.turns.last_mut() {
                Some((end, of)) if *of == stderr => *end = chunk.data.len(),
                _ => {
                    chunk.turns.push((chunk.data.len(), stderr));
                    self.memory += TURN;
                }
            }
        }
        self.memory += bytes.len();
        self.end += bytes.len() as u64;
        self.trim();
    }

    /// The first offset that is kept.
    pub fn start(&self) -> u64 {
        self.chunks.front().map_or(self.end, |chunk| chunk.start)
    }

    /// The offset behind the last byte.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Bytes of memory it takes.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Drops everything; offsets go on.
    pub fn clear(&mut self) {
        self.chunks = VecDeque::new();
        self.memory = 0;
    }

    /// Output of one stream from an offset on, at most so many bytes; nothing at the end. An offset before the kept
    /// part counts as [`Self::start`].
    pub fn read(&self, offset: u64, most: usize) -> Option<Run<'_>> {
        let offset = offset.max(self.start());
        let index = self.chunks.partition_point(|chunk| chunk.start <= offset).checked_sub(1)?;
        let chunk = self.chunks.get(index)?;
        let from = usize::try_from(offset - chunk.start).ok().filter(|from| *from < chunk.data.len())?;
        let (end, stderr) = *chunk.turns.get(chunk.turns.partition_point(|(end, _)| *end <= from))?;
        let bytes = chunk.data.get(from..end.min(from.saturating_add(most)))?;
        Some(Run { offset, stderr, bytes })
    }

    fn trim(&mut self) {
        while let Some(second) = self.chunks.get(1) {
            let kept = self.end - second.start;
            if kept < KEPT as u64 && self.memory <= MEMORY {
                break;
            }
            if let Some(chunk) = self.chunks.pop_front() {
                self.memory -= chunk.memory();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_reader_goes_on_where_it_was() {
        let mut log = Log::default();
        assert_eq!(log.read(0, 9), None);
        log.append(false, b"ab\n");
        log.append(true, b"");
        log.append(true, b"\n");
        assert_eq!(log.read(0, 9), Some(Run { offset: 0, stderr: false, bytes: b"ab\n" }));
        assert_eq!(log.read(0, 2), Some(Run { offset: 0, stderr: false, bytes: b"ab" }));
        assert_eq!(log.read(3, 9), Some(Run { offset: 3, stderr: true, bytes: b"\n" }));
        log.append(true, b"c");
        assert_eq!(log.read(4, 9), Some(Run { offset: 4, stderr: true, bytes: b"c" }));
        assert_eq!(log.read(1, 1), Some(Run { offset: 1, stderr: false, bytes: b"b" }));
        assert_eq!((log.read(5, 9), log.read(99, 9)), (None, None));
    }

    #[test]
    fn what_is_older_than_the_limit_goes() {
        let mut log = Log::default();
        let line = [b'x'; 1024];
        for _ in 0..KEPT / 1024 {
            log.append(false, &line);
        }
        assert_eq!(log.start(), 0, "as much as the limit is kept");
        for _ in 0..1000 {
            log.append(false, &line);
        }
        let kept = log.end - log.start();
        assert!(kept >= KEPT as u64 && kept <= (KEPT + 2 * CHUNK + 4096) as u64, "{kept}");
        assert_eq!(log.read(0, 9).unwrap().offset, log.start());
    }

    #[test]
    fn turns_do_not_take_more_memory_than_said() {
        let mut log = Log::default();
        for turn in 0..3_000_000 {
            log.append(turn % 2 == 0, b"\n");
        }
        assert!(log.memory() <= MEMORY + 2 * CHUNK, "{}", log.memory());
        let counted: usize = log.chunks.iter().map(Chunk::memory).sum();
        assert_eq!(log.memory(), counted);
        log.clear();
        assert_eq!((log.memory(), log.start(), log.end), (0, 3_000_000, 3_000_000));
    }

    proptest! {
        #[test]
        fn every_offset_reads_the_same_bytes(
            pieces in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..40_000)), 1..12),
            from in 0.0_f64..1.0, most in 1_usize..100_000,
        ) {
            let mut log = Log::default();
            let mut all = Vec::new();
            for (stderr, bytes) in &pieces {
                log.append(*stderr, bytes);
                all.extend(bytes.iter().map(|byte| (*stderr, *byte)));
            }
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a place")]
            let from = (from * all.len() as f64) as usize;
            let mut out = Vec::new();
            while let Some(run) = log.read((from + out.len()) as u64, most) {
                prop_assert_eq!(run.offset, (from + out.len()) as u64);
                prop_assert!(!run.bytes.is_empty() && run.bytes.len() <= most);
                out.extend(run.bytes.iter().map(|byte| (run.stderr, *byte)));
            }
            prop_assert_eq!(&out[..], &all[from..]);
        }
    }
}
