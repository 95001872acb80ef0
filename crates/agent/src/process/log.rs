//! The bounded log of a process: what both of its streams said, in the order it came. Pure.
//!
//! It is a list of chunks of records; a record is a header of four bytes and a piece of a line. Whole chunks are
//! dropped from the front, so what is kept begins at a record. Offsets count the bytes of pieces and newlines.

use std::collections::VecDeque;

/// The bytes that are kept at least, once there were so many.
pub const KEPT: usize = 8 * 1024 * 1024;
/// The bytes of memory that a log of many tiny lines may take, headers included.
const MEMORY: usize = 2 * KEPT;
const CHUNK: usize = 64 * 1024;
const HEADER: usize = 4;

/// A piece of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Where its first byte stands.
    pub offset: u64,
    /// Whether it is of the error stream.
    pub stderr: bool,
    /// Whether a newline follows.
    pub newline: bool,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// Where a reader is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    /// What it reads next.
    pub offset: u64,
    /// The chunk and the record in it that begin there, if it was there before.
    place: Option<(u64, usize)>,
}

impl Cursor {
    /// A reader that begins at an offset.
    pub fn at(offset: u64) -> Self {
        Self { offset, place: None }
    }
}

#[derive(Debug)]
struct Chunk {
    start: u64,
    data: Vec<u8>,
}

/// The log.
#[derive(Debug, Default)]
pub struct Log {
    chunks: VecDeque<Chunk>,
    /// The number of the first chunk, counted since the start.
    first: u64,
    /// The offset behind the last byte.
    end: u64,
    /// Bytes of all chunks, headers included.
    memory: usize,
}

impl Log {
    /// Appends a piece, of at most 64 KiB.
    pub fn append(&mut self, stderr: bool, bytes: &[u8], newline: bool) {
        if self.chunks.back().is_none_or(|chunk| chunk.data.len() >= CHUNK) {
            self.chunks.push_back(Chunk { start: self.end, data: Vec::new() });
        }
        let header = u32::try_from(bytes.len()).unwrap_or(0) << 2 | u32::from(newline) << 1 | u32::from(stderr);
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.data.extend_from_slice(&header.to_le_bytes());
            chunk.data.extend_from_slice(bytes);
        }
        self.memory += HEADER + bytes.len();
        self.end += bytes.len() as u64 + u64::from(newline);
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
        self.first += self.chunks.len() as u64;
        self.chunks = VecDeque::new();
        self.memory = 0;
    }

    /// If what a reader wants is gone, moves it to what is kept and says where that begins.
    pub fn catch_up(&self, cursor: &mut Cursor) -> Option<u64> {
        let start = self.start();
        (cursor.offset < start).then(|| {
            *cursor = Cursor { offset: start, place: None };
            start
        })
    }

    /// The next record of a reader, who has caught up; nothing at the end.
    pub fn next(&self, cursor: &mut Cursor) -> Option<Record<'_>> {
        if cursor.offset >= self.end {
            return None;
        }
        let (mut number, mut position, mut skip) = self.locate(cursor)?;
        if position >= self.chunk(number)?.data.len() {
            (number, position, skip) = (number + 1, 0, 0);
        }
        let data = &self.chunk(number)?.data;
        let (length, newline, stderr) = header(data, position)?;
        let begin = position + HEADER;
        let record = Record { offset: cursor.offset, stderr, newline, bytes: data.get(begin + skip..begin + length)? };
        cursor.offset += (length - skip) as u64 + u64::from(newline);
        cursor.place = Some((number, begin + length));
        Some(record)
    }

    fn chunk(&self, number: u64) -> Option<&Chunk> {
        self.chunks.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// The chunk and the record that hold a reader's offset, and the bytes of the record before it.
    fn locate(&self, cursor: &Cursor) -> Option<(u64, usize, usize)> {
        if let Some((number, position)) = cursor.place.filter(|(number, _)| *number >= self.first) {
            return Some((number, position, 0));
        }
        let index = self.chunks.partition_point(|chunk| chunk.start <= cursor.offset).checked_sub(1)?;
        let chunk = self.chunks.get(index)?;
        let (mut position, mut offset) = (0, chunk.start);
        loop {
            let (length, newline, _) = header(&chunk.data, position)?;
            let next = offset + length as u64 + u64::from(newline);
            if cursor.offset < next {
                let skip = usize::try_from(cursor.offset - offset).ok()?.min(length);
                return Some((self.first + index as u64, position, skip));
            }
            (position, offset) = (position + HEADER + length, next);
        }
    }

    fn trim(&mut self) {
        while let Some(second) = self.chunks.get(1) {
            let kept = self.end - second.start;
            if kept < KEPT as u64 && self.memory <= MEMORY {
                break;
            }
            if let Some(chunk) = self.chunks.pop_front() {
                self.memory -= chunk.data.len();
                self.first += 1;
            }
        }
    }
}

fn header(data: &[u8], position: usize) -> Option<(usize, bool, bool)> {
    let bytes = data.get(position..position + HEADER)?;
    let word = u32::from_le_bytes(bytes.try_into().ok()?);
    Some(((word >> 2) as usize, word & 2 != 0, word & 1 != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(log: &Log, cursor: &mut Cursor) -> Vec<(u64, bool, Vec<u8>, bool)> {
        let mut out = Vec::new();
        while let Some(r) = log.next(cursor) {
            out.push((r.offset, r.stderr, r.bytes.to_vec(), r.newline));
        }
        out
    }

    #[test]
    fn a_reader_goes_on_where_it_was() {
        let mut log = Log::default();
        let mut cursor = Cursor::default();
        assert_eq!(read(&log, &mut cursor), []);
        log.append(false, b"ab", true);
        log.append(true, b"", true);
        assert_eq!(read(&log, &mut cursor), [(0, false, b"ab".to_vec(), true), (3, true, vec![], true)]);
        log.append(false, b"c", false);
        assert_eq!(read(&log, &mut cursor), [(4, false, b"c".to_vec(), false)]);
        assert_eq!(read(&log, &mut Cursor::at(1)).first(), Some(&(1, false, b"b".to_vec(), true)));
        assert_eq!(read(&log, &mut Cursor::at(2)).first(), Some(&(2, false, vec![], true)));
        assert_eq!(read(&log, &mut Cursor::at(99)), []);
    }

    #[test]
    fn what_is_older_than_the_limit_goes_and_a_late_reader_is_told() {
        let mut log = Log::default();
        let line = [b'x'; 1023];
        let mut late = Cursor::default();
        for _ in 0..KEPT / 1024 {
            log.append(false, &line, true);
        }
        assert_eq!((log.start(), log.catch_up(&mut late)), (0, None), "as much as the limit is kept");
        for _ in 0..1000 {
            log.append(false, &line, true);
        }
        let kept = log.end - log.start();
        assert!(kept >= KEPT as u64 && kept <= (KEPT + 2 * CHUNK + 4096) as u64, "{kept}");
        assert_eq!(log.catch_up(&mut late), Some(log.start()));
        assert_eq!(log.next(&mut late).unwrap().offset, log.start());
    }

    #[test]
    fn tiny_lines_do_not_take_more_memory_than_said() {
        let mut log = Log::default();
        for _ in 0..6_000_000 {
            log.append(true, b"", true);
        }
        assert!(log.memory() <= MEMORY + 2 * CHUNK, "{}", log.memory());
        log.clear();
        assert_eq!((log.memory(), log.start(), log.end), (0, 6_000_000, 6_000_000));
    }

    proptest! {
        #[test]
        fn every_offset_reads_the_same_bytes(
            pieces in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..40_000), any::<bool>()), 1..12),
            from in 0.0_f64..1.0,
        ) {
            let mut log = Log::default();
            let mut all = Vec::new();
            for (stderr, bytes, newline) in &pieces {
                log.append(*stderr, bytes, *newline);
                all.extend_from_slice(bytes);
                all.extend(newline.then_some(b'\n'));
            }
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a place")]
            let from = (from * all.len() as f64) as usize;
            let mut cursor = Cursor::at(from as u64);
            let mut out = Vec::new();
            while let Some(record) = log.next(&mut cursor) {
                prop_assert_eq!(record.offset, (from + out.len()) as u64);
                out.extend_from_slice(record.bytes);
                out.extend(record.newline.then_some(b'\n'));
            }
            prop_assert_eq!(&out[..], &all[from..]);
        }
    }
}
