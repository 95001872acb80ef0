//! The journal of usage: records of what requests took, on their way to the database.
//!
//! A record is a [`Line`], appended to the present segment by one write(2). A written line outlives the process; a
//! power failure may take what the machine had not yet put on its disk. A segment's name has its number, which orders
//! it, and the run of the service that wrote it: `00000000000000000042-<id>.jsonl`. The meter seals a segment before it
//! moves it, and no later run writes to a file again, so that at most the last line of a file is torn.
//!
//! Where the file system refuses a write, the journal keeps the sums of the lines in memory, as a segment in its place
//! between the files.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use uuid::Uuid;

use super::totals::{Line, Totals};

/// Bytes after which the journal seals a segment: a bound on what the meter reads at once.
const SEGMENT_BYTES: u64 = 8 << 20;
/// Up to so many sealed segments, their sums stay in memory.
const KNOWN: usize = 2;
/// Most groups that the journal keeps in memory where it can write nothing: a few MB.
const KEPT: usize = 20_000;

#[derive(Clone, Debug)]
enum Source {
    /// With its sums, where memory still has them.
    File(PathBuf, Option<Arc<Totals>>),
    Memory(Arc<Totals>),
}

/// A sealed segment: no more lines are added to it.
#[derive(Clone, Debug)]
pub struct Segment {
    /// The run of the service that wrote them.
    pub service: Uuid,
    /// Its place among those of the run.
    pub number: u64,
    source: Source,
}

/// The content of a segment.
#[derive(Debug, Default)]
pub struct Found {
    /// What its lines sum up to.
    pub totals: Arc<Totals>,
    /// Whole lines that could not be read.
    pub unread: usize,
}

impl Segment {
    /// Reads its sums. A file that is gone has none.
    pub fn read(&self) -> io::Result<Found> {
        let path = match &self.source {
            Source::Memory(totals) | Source::File(_, Some(totals)) => {
                return Ok(Found { totals: totals.clone(), unread: 0 });
            }
            Source::File(path, None) => path,
        };
        match fs::read(path) {
            Ok(bytes) => {
                let (totals, unread) = Totals::read(&bytes);
                Ok(Found { totals: totals.into(), unread })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                tracing::error!(file = %path.display(), "a file of usage is not there any more");
                Ok(Found::default())
            }
            Err(error) => Err(error),
        }
    }

    /// Removes its file.
    pub fn remove(&self) -> io::Result<()> {
        match &self.source {
            Source::Memory(_) => Ok(()),
            Source::File(path, _) => match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
        }
    }

    /// Renames its file, so that it is no segment any more and people can look at it.
    pub fn set_aside(&self) -> io::Result<()> {
        match &self.source {
            Source::Memory(_) => Ok(()),
            Source::File(path, _) => fs::rename(path, path.with_extension("unread")),
        }
    }

    /// Groups that exist only in memory.
    fn kept(&self) -> usize {
        match &self.source {
            Source::Memory(totals) => totals.len(),
            Source::File(..) => 0,
        }
    }
}

/// What became of an appended record.
#[derive(Debug)]
pub enum Appended {
    /// It stands in a file.
    Written,
    /// It could not be written, and is kept in memory.
    Kept(io::Error),
    /// It could not be written, and there is no room to keep it.
    Lost(io::Error),
}

/// The segment under way. There is one only while it holds something.
#[derive(Debug)]
struct Current {
    file: File,
    path: PathBuf,
    number: u64,
    bytes: u64,
    totals: Totals,
}

/// The journal of one run of a service.
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    service: Uuid,
    next: u64,
    current: Option<Current>,
    /// The lines that could not be written, under a number of their own: older than the present segment, younger than
    /// every sealed one.
    kept: Option<(u64, Totals)>,
    sealed: VecDeque<Segment>,
    /// Groups of sealed segments that exist only in memory.
    in_memory: usize,
}

impl Journal {
    /// Opens the journal of a folder, and makes the folder. Seals what earlier runs left, in their order.
    pub fn open(dir: &Path, service: Uuid) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let mut left = Vec::new();
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if let Some((number, service)) = named(&path) {
                left.push(Segment { service, number, source: Source::File(path, None) });
            }
        }
        left.sort_by_key(|segment| segment.number);
        let next = left.last().map_or(1, |last| last.number.saturating_add(1));
        let sealed = left.into();
        Ok(Self { dir: dir.to_owned(), service, next, current: None, kept: None, sealed, in_memory: 0 })
    }

    /// Appends a line; `text` is the same line as bytes.
    pub fn append(&mut self, line: &Line, text: &[u8]) -> Appended {
        match self.write(line, text) {
            Ok(()) => Appended::Written,
            Err(error) if self.keep(line) => Appended::Kept(error),
            Err(error) => Appended::Lost(error),
        }
    }

    fn write(&mut self, line: &Line, text: &[u8]) -> io::Result<()> {
        let mut current = match self.current.take() {
            Some(current) => current,
            None => self.create()?,
        };
        let written = current.file.write_all(text);
        if written.is_ok() {
            current.bytes += text.len() as u64;
            current.totals.add(line);
        } else {
            // Half a line would swallow the next one. If truncating fails, too, the torn line stays the last of its
            // file.
            let _ = current.file.set_len(current.bytes);
        }
        if written.is_ok() && current.bytes < SEGMENT_BYTES {
            self.current = Some(current);
        } else {
            self.retire(current);
        }
        written
    }

    /// Keeps a line in memory, if there is room.
    fn keep(&mut self, line: &Line) -> bool {
        let mut kept = self.kept.take().unwrap_or_else(|| (self.number(), Totals::default()));
        let fits = kept.1.contains(&line.group) || self.in_memory + kept.1.len() < KEPT;
        if fits {
            kept.1.add(line);
        }
        self.kept = Some(kept);
        fits
    }

    fn number(&mut self) -> u64 {
        let number = self.next;
        self.next = self.next.saturating_add(1);
        number
    }

    fn create(&mut self) -> io::Result<Current> {
        let number = self.number();
        let path = self.dir.join(format!("{number:020}-{}.jsonl", self.service));
        let file = OpenOptions::new().append(true).create_new(true).open(&path)?;
        Ok(Current { file, path, number, bytes: 0, totals: Totals::default() })
    }

    fn retire(&mut self, current: Current) {
        let Current { path, number, bytes, totals, .. } = current;
        if bytes == 0 {
            // An empty file that stays behind reads as an empty segment.
            let _ = fs::remove_file(&path);
            return;
        }
        self.seal_kept();
        // Where many wait, or in another run of the service, the meter reads the sums from the file.
        let known = (self.sealed.len() < KNOWN).then(|| totals.into());
        self.sealed.push_back(Segment { service: self.service, number, source: Source::File(path, known) });
    }

    fn seal_kept(&mut self) {
        if let Some((number, totals)) = self.kept.take().filter(|(_, totals)| !totals.is_empty()) {
            self.in_memory += totals.len();
            self.sealed.push_back(Segment { service: self.service, number, source: Source::Memory(totals.into()) });
        }
    }

    /// Seals what was appended so far.
    pub fn seal(&mut self) {
        if let Some(current) = self.current.take() {
            self.retire(current);
        }
        self.seal_kept();
    }

    /// How many segments are sealed.
    pub fn sealed(&self) -> usize {
        self.sealed.len()
    }

    /// The oldest of them.
    pub fn oldest(&self) -> Option<Segment> {
        self.sealed.front().cloned()
    }

    /// Forgets the oldest sealed segment, once it is in the database.
    pub fn forget_oldest(&mut self) {
        if let Some(segment) = self.sealed.pop_front() {
            self.in_memory = self.in_memory.saturating_sub(segment.kept());
        }
    }
}

/// Number and writer of a segment, by its file's name; `None` where it is something else.
fn named(path: &Path) -> Option<(u64, Uuid)> {
    let (number, service) = path.file_name()?.to_str()?.strip_suffix(".jsonl")?.split_once('-')?;
    Some((number.parse().ok()?, service.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(dir: &Path) -> usize {
        fs::read_dir(dir).map_or(0, Iterator::count)
    }

    /// A line that differs from others by its minute.
    fn line(minute: i64) -> Line {
        Line::sample(minute, "tiny")
    }

    fn append(journal: &mut Journal, line: &Line) -> Appended {
        journal.append(line, &line.text().unwrap())
    }

    /// The content of a segment: its run, its minutes with their requests, and the number of unreadable lines.
    type Said = (Uuid, Vec<(i64, i64)>, usize);

    /// Takes all sealed segments, as if the meter had moved them.
    fn moved(journal: &mut Journal) -> Vec<Said> {
        let (mut all, mut number) = (Vec::new(), 0);
        while let Some(segment) = journal.oldest() {
            assert!(segment.number > number, "segments come in the order of their numbers");
            number = segment.number;
            let Found { totals, unread } = segment.read().unwrap();
            let minutes = totals.iter().map(|(group, counts)| (group.minute.seconds() / 60, counts.requests));
            let mut minutes: Vec<_> = minutes.collect();
            minutes.sort_unstable();
            all.push((segment.service, minutes, unread));
            segment.remove().unwrap();
            journal.forget_oldest();
        }
        all
    }

    #[test]
    fn what_is_appended_is_summed_up() {
        let dir = tempfile::tempdir().unwrap();
        let service = Uuid::now_v7();
        let mut journal = Journal::open(dir.path(), service).unwrap();
        for minute in [1, 2, 1] {
            assert!(matches!(append(&mut journal, &line(minute)), Appended::Written));
        }
        assert_eq!((journal.sealed(), files(dir.path())), (0, 1));
        journal.seal();
        journal.seal();
        assert_eq!(moved(&mut journal), [(service, vec![(1, 2), (2, 1)], 0)]);
        assert_eq!((journal.sealed(), files(dir.path())), (0, 0));
    }

    #[test]
    fn what_waits_for_long_is_read_from_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let service = Uuid::now_v7();
        let mut journal = Journal::open(dir.path(), service).unwrap();
        for minute in [1, 2, 3] {
            append(&mut journal, &line(minute));
            append(&mut journal, &line(minute));
            journal.seal();
        }
        let known = journal.sealed.iter().filter(|segment| matches!(segment.source, Source::File(_, Some(_)))).count();
        assert_eq!((known, journal.sealed()), (KNOWN, KNOWN + 1));
        assert_eq!(moved(&mut journal), [1, 2, 3].map(|minute| (service, vec![(minute, 2)], 0)));
    }

    #[test]
    fn what_dead_services_left_comes_in_order_without_what_was_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (Uuid::now_v7(), Uuid::now_v7());
        let mut journal = Journal::open(dir.path(), first).unwrap();
        append(&mut journal, &line(1));
        journal.seal();
        append(&mut journal, &line(2));
        drop(journal);
        let torn = dir.path().join(format!("{:020}-{second}.jsonl", 10));
        fs::write(&torn, [line(3).text().unwrap(), b"{\"half\": \n[60000000,\"01".to_vec()].concat()).unwrap();
        for other in ["note.txt", "x-y.jsonl", "7.jsonl"] {
            fs::write(dir.path().join(other), "x").unwrap();
        }
        let mut journal = Journal::open(dir.path(), Uuid::now_v7()).unwrap();
        append(&mut journal, &line(4));
        journal.seal();
        assert!(dir.path().join(format!("{:020}-{}.jsonl", 11, journal.service)).exists());
        let own = journal.service;
        let expected = [(first, 1, 0), (first, 2, 0), (second, 3, 1), (own, 4, 0)];
        assert_eq!(moved(&mut journal), expected.map(|(run, minute, unread)| (run, vec![(minute, 1)], unread)));
        assert_eq!(files(dir.path()), 3);
    }

    #[test]
    fn what_cannot_be_written_is_kept_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let (usage, service) = (dir.path().join("usage"), Uuid::now_v7());
        let mut journal = Journal::open(&usage, service).unwrap();
        append(&mut journal, &line(1));
        journal.seal();
        let away = dir.path().join("away");
        fs::rename(&usage, &away).unwrap();
        for _ in 0..2 {
            assert!(matches!(append(&mut journal, &line(2)), Appended::Kept(_)));
        }
        fs::rename(&away, &usage).unwrap();
        append(&mut journal, &line(3));
        journal.seal();
        assert_eq!(moved(&mut journal), [(1, 1), (2, 2), (3, 1)].map(|minute| (service, vec![minute], 0)));
        assert_eq!((journal.in_memory, files(&usage)), (0, 0));
    }

    #[test]
    fn segments_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path(), Uuid::now_v7()).unwrap();
        let long = Line::sample(1, &"m".repeat(1 << 20));
        for _ in 0..9 {
            append(&mut journal, &long);
        }
        assert_eq!((journal.sealed(), files(dir.path())), (1, 2));
    }

    #[test]
    fn memory_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let usage = dir.path().join("usage");
        let mut journal = Journal::open(&usage, Uuid::now_v7()).unwrap();
        append(&mut journal, &line(0));
        journal.seal();
        fs::remove_dir_all(&usage).unwrap();
        let most = i64::try_from(KEPT).unwrap();
        for minute in 1..=most {
            assert!(matches!(append(&mut journal, &line(minute)), Appended::Kept(_)));
            if minute == most / 2 {
                journal.seal();
            }
        }
        assert!(matches!(append(&mut journal, &line(most)), Appended::Kept(_)), "it needs no more room");
        assert!(matches!(append(&mut journal, &line(most + 1)), Appended::Lost(_)));
        journal.seal();
        // The file is gone with its folder; its sums and the kept lines are in memory.
        let groups: Vec<_> = moved(&mut journal).iter().map(|(_, minutes, _)| minutes.len()).collect();
        assert_eq!(groups, [1, KEPT / 2, KEPT / 2]);
        assert!(matches!(append(&mut journal, &line(1)), Appended::Kept(_)));
    }
}
