//! The journal of usage: what requests took, on its way to the database.
//!
//! A record is a line of JSON, a list of its fields, appended to the present segment by one write(2). What was written
//! outlives the process; power that fails may take what the machine had not put on its disk yet. A segment's name has
//! its number, which orders it, and the run of the service that wrote it: `00000000000000000042-<id>.jsonl`. A segment is
//! sealed to be moved, and no file is written again by another run, so at most the last line of a file is torn.
//!
//! Where the file system refuses, lines are kept in memory, in their place between the files.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use berth_domain::ids::{KeyId, OrgId, ProjectId, UserId};
use serde::ser::SerializeTuple;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

/// Bytes after which a segment is sealed, whoever moves it: what is read at once is bounded.
const SEGMENT_BYTES: u64 = 8 << 20;
/// Sealed segments up to which their lines stay in memory: a few MB each.
const KNOWN: usize = 2;
/// Most bytes kept in memory: some 100,000 records.
const KEPT_BYTES: usize = 32 << 20;

/// A record as the journal and the database have it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Line {
    /// The request.
    pub id: Uuid,
    /// When it was made, in microseconds since 1970.
    pub at: i64,
    /// The organization.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
    /// The API key that asked.
    pub key: Option<KeyId>,
    /// The person who asked.
    pub user: Option<UserId>,
    /// The model.
    #[serde(deserialize_with = "shared")]
    pub model: Arc<str>,
    /// The operation's word.
    pub operation: Cow<'static, str>,
    /// Status of the answer.
    pub status: u16,
    /// Tokens of the prompt.
    pub prompt: i64,
    /// Tokens of the answer.
    pub completion: i64,
    /// Cost, in billionths.
    pub cost: i64,
    /// Whether the tokens are an estimate.
    pub estimated: bool,
}

fn shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
    String::deserialize(deserializer).map(Into::into)
}

/// Without the names of its fields: they would be a third of what is written and read.
impl Serialize for Line {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { id, at, org, project, key, user, model, operation, status, prompt, completion, cost, estimated } =
            self;
        let mut list = serializer.serialize_tuple(13)?;
        list.serialize_element(id)?;
        list.serialize_element(at)?;
        list.serialize_element(org)?;
        list.serialize_element(project)?;
        list.serialize_element(key)?;
        list.serialize_element(user)?;
        list.serialize_element(&**model)?;
        list.serialize_element(operation)?;
        list.serialize_element(status)?;
        list.serialize_element(prompt)?;
        list.serialize_element(completion)?;
        list.serialize_element(cost)?;
        list.serialize_element(estimated)?;
        list.end()
    }
}

/// Lines of a segment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// The last line of each request, in the order of the first ones.
    pub lines: Vec<Line>,
    /// Whole lines that could not be read.
    pub unread: usize,
}

impl Lines {
    /// Reads lines. What stands behind the last line break is a write that was cut off.
    fn parse(bytes: &[u8]) -> Self {
        let whole = bytes.split_inclusive(|b| *b == b'\n').filter(|text| text.ends_with(b"\n"));
        let read: Vec<_> = whole.map(serde_json::from_slice::<Line>).collect();
        let unread = read.iter().filter(|line| line.is_err()).count();
        Self { unread, ..Self::of(read.into_iter().flatten()) }
    }

    /// Lines in the order in which they were written.
    fn of(written: impl Iterator<Item = Line>) -> Self {
        let mut lines: Vec<Line> = Vec::new();
        let mut places: HashMap<Uuid, usize> = HashMap::new();
        for line in written {
            let place = *places.entry(line.id).or_insert(lines.len());
            match lines.get_mut(place) {
                Some(earlier) => *earlier = line,
                None => lines.push(line),
            }
        }
        Self { lines, unread: 0 }
    }
}

#[derive(Clone, Debug)]
enum Source {
    /// With its lines, where they are still known.
    File(PathBuf, Option<Arc<[Line]>>),
    Memory(Arc<[u8]>),
}

/// Lines that no more are added to.
#[derive(Clone, Debug)]
pub struct Segment {
    /// The run of the service that wrote them.
    pub service: Uuid,
    source: Source,
}

impl Segment {
    /// Its lines. A file that somebody took away has none.
    pub fn read(&self) -> io::Result<Lines> {
        match &self.source {
            Source::Memory(bytes) => Ok(Lines::parse(bytes)),
            Source::File(_, Some(known)) => Ok(Lines::of(known.iter().cloned())),
            Source::File(path, None) => match fs::read(path) {
                Ok(bytes) => Ok(Lines::parse(&bytes)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    tracing::error!(file = %path.display(), "a file of usage is not there any more");
                    Ok(Lines::default())
                }
                Err(error) => Err(error),
            },
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

    fn bytes_in_memory(&self) -> usize {
        match &self.source {
            Source::Memory(bytes) => bytes.len(),
            Source::File(..) => 0,
        }
    }
}

/// What became of a record.
#[derive(Debug)]
pub enum Appended {
    /// It stands in a file.
    Written,
    /// It could not be written, and is kept in memory.
    Kept(io::Error),
    /// It could not be written, and there is no room to keep it.
    Lost(io::Error),
}

/// The segment that is written. There is one only while it holds something.
#[derive(Debug)]
struct Current {
    file: File,
    path: PathBuf,
    bytes: u64,
    lines: Vec<Line>,
}

/// The journal of one run of a service.
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    service: Uuid,
    next: u64,
    current: Option<Current>,
    /// Lines that could not be written; older than the present segment, younger than every sealed one.
    kept: Vec<u8>,
    sealed: VecDeque<Segment>,
    in_memory: usize,
    line: Vec<u8>,
}

impl Journal {
    /// Opens the journal of a folder, which it makes. What earlier runs left is sealed, in their order.
    pub fn open(dir: &Path, service: Uuid) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let mut left = Vec::new();
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if let Some((number, service)) = named(&path) {
                left.push((number, Segment { service, source: Source::File(path, None) }));
            }
        }
        left.sort_by_key(|(number, _)| *number);
        let next = left.last().map_or(1, |(number, _)| number.saturating_add(1));
        Ok(Self {
            dir: dir.to_owned(),
            service,
            next,
            current: None,
            kept: Vec::new(),
            sealed: left.into_iter().map(|(_, segment)| segment).collect(),
            in_memory: 0,
            line: Vec::new(),
        })
    }

    /// Appends a record.
    pub fn append(&mut self, line: &Line) -> Appended {
        self.line.clear();
        if let Err(error) = serde_json::to_writer(&mut self.line, line) {
            return Appended::Lost(error.into());
        }
        self.line.push(b'\n');
        match self.write(line) {
            Ok(()) => Appended::Written,
            Err(error) if self.in_memory + self.line.len() > KEPT_BYTES => Appended::Lost(error),
            Err(error) => {
                self.in_memory += self.line.len();
                self.kept.extend_from_slice(&self.line);
                Appended::Kept(error)
            }
        }
    }

    fn write(&mut self, line: &Line) -> io::Result<()> {
        let mut current = match self.current.take() {
            Some(current) => current,
            None => self.create()?,
        };
        let written = current.file.write_all(&self.line);
        if written.is_ok() {
            current.bytes += self.line.len() as u64;
            current.lines.push(line.clone());
        } else {
            // Half a line would swallow the next one. Should this fail, too, it stays the last of its file.
            let _ = current.file.set_len(current.bytes);
        }
        if written.is_ok() && current.bytes < SEGMENT_BYTES {
            self.current = Some(current);
        } else {
            self.retire(current);
        }
        written
    }

    fn create(&mut self) -> io::Result<Current> {
        let path = self.dir.join(format!("{:020}-{}.jsonl", self.next, self.service));
        self.next = self.next.saturating_add(1);
        let file = OpenOptions::new().append(true).create_new(true).open(&path)?;
        Ok(Current { file, path, bytes: 0, lines: Vec::new() })
    }

    fn retire(&mut self, current: Current) {
        if current.bytes == 0 {
            // Left behind, it would be read as what it is: nothing.
            let _ = fs::remove_file(&current.path);
            return;
        }
        self.seal_kept();
        // They are read from their file where many wait, or where this is another run of the service.
        let known = (self.sealed.len() < KNOWN).then(|| current.lines.into());
        self.sealed.push_back(Segment { service: self.service, source: Source::File(current.path, known) });
    }

    fn seal_kept(&mut self) {
        if !self.kept.is_empty() {
            let bytes = std::mem::take(&mut self.kept).into();
            self.sealed.push_back(Segment { service: self.service, source: Source::Memory(bytes) });
        }
    }

    /// Seals everything that was appended so far.
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

    /// Forgets the oldest of them, which has been moved.
    pub fn forget_oldest(&mut self) {
        if let Some(segment) = self.sealed.pop_front() {
            self.in_memory = self.in_memory.saturating_sub(segment.bytes_in_memory());
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

    fn line(id: Uuid, completion: i64) -> Line {
        Line {
            id,
            at: 1,
            org: OrgId(Uuid::nil()),
            project: ProjectId(Uuid::nil()),
            key: None,
            user: Some(UserId(Uuid::nil())),
            model: "a/\"b\"\nü".into(),
            operation: "chat".into(),
            status: 200,
            prompt: 1,
            completion,
            cost: -1,
            estimated: true,
        }
    }

    fn files(dir: &Path) -> usize {
        fs::read_dir(dir).map_or(0, Iterator::count)
    }

    /// Everything that is sealed, as if it had been moved.
    fn moved(journal: &mut Journal) -> Vec<(Uuid, Lines)> {
        let mut all = Vec::new();
        while let Some(segment) = journal.oldest() {
            all.push((segment.service, segment.read().unwrap()));
            segment.remove().unwrap();
            journal.forget_oldest();
        }
        all
    }

    #[test]
    fn what_is_appended_is_read_and_the_last_of_a_request_counts() {
        let dir = tempfile::tempdir().unwrap();
        let service = Uuid::now_v7();
        let mut journal = Journal::open(dir.path(), service).unwrap();
        let (one, other) = (Uuid::now_v7(), Uuid::now_v7());
        for (id, completion) in [(one, 1), (other, 2), (one, 3)] {
            assert!(matches!(journal.append(&line(id, completion)), Appended::Written));
        }
        assert_eq!((journal.sealed(), files(dir.path())), (0, 1));
        journal.seal();
        journal.seal();
        let lines = vec![line(one, 3), line(other, 2)];
        assert_eq!(moved(&mut journal), [(service, Lines { lines, unread: 0 })]);
        assert_eq!((journal.sealed(), files(dir.path())), (0, 0));
    }

    #[test]
    fn a_line_reads_as_it_was_written() {
        let line = line(Uuid::now_v7(), 7);
        let text = serde_json::to_string(&line).unwrap();
        assert!(text.starts_with('[') && !text.contains('\n'), "{text}");
        assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line);
        let Line { id, at, org, project, user, model, operation, status, prompt, completion, cost, .. } = line.clone();
        let named = serde_json::json!({
            "id": id, "at": at, "org": org, "project": project, "key": null, "user": user, "model": &*model,
            "operation": operation, "status": status, "prompt": prompt, "completion": completion, "cost": cost,
            "estimated": true,
        });
        assert_eq!(serde_json::from_value::<Line>(named).unwrap(), line);
    }

    #[test]
    fn what_waits_for_long_is_read_from_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path(), Uuid::now_v7()).unwrap();
        let ids: Vec<_> = (0..=KNOWN).map(|_| Uuid::now_v7()).collect();
        for id in &ids {
            journal.append(&line(*id, 1));
            journal.seal();
        }
        let known = journal.sealed.iter().filter(|segment| matches!(segment.source, Source::File(_, Some(_)))).count();
        assert_eq!((known, journal.sealed()), (KNOWN, KNOWN + 1));
        let found: Vec<_> = moved(&mut journal).iter().map(|(_, lines)| lines.lines[0].id).collect();
        assert_eq!(found, ids);
    }

    #[test]
    fn what_dead_services_left_comes_in_order_without_what_was_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let ids: Vec<_> = (0..3).map(|_| Uuid::now_v7()).collect();
        let (first, second) = (Uuid::now_v7(), Uuid::now_v7());
        let mut journal = Journal::open(dir.path(), first).unwrap();
        journal.append(&line(ids[0], 1));
        journal.seal();
        journal.append(&line(ids[1], 1));
        drop(journal);
        let torn = dir.path().join(format!("{:020}-{second}.jsonl", 10));
        let mut bytes = serde_json::to_vec(&line(ids[2], 1)).unwrap();
        bytes.extend_from_slice(b"\n{\"half\": \n{\"id\":\"01");
        fs::write(&torn, bytes).unwrap();
        for other in ["note.txt", "x-y.jsonl", "7.jsonl"] {
            fs::write(dir.path().join(other), "x").unwrap();
        }
        let mut journal = Journal::open(dir.path(), Uuid::now_v7()).unwrap();
        let third = Uuid::now_v7();
        journal.append(&line(third, 1));
        journal.seal();
        assert!(dir.path().join(format!("{:020}-{}.jsonl", 11, journal.service)).exists());
        let all = moved(&mut journal);
        let found: Vec<_> = all.iter().map(|(service, lines)| (*service, lines.lines[0].id, lines.unread)).collect();
        let own = journal.service;
        assert_eq!(found, [(first, ids[0], 0), (first, ids[1], 0), (second, ids[2], 1), (own, third, 0)]);
        assert_eq!(files(dir.path()), 3);
    }

    #[test]
    fn what_cannot_be_written_is_kept_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let usage = dir.path().join("usage");
        let mut journal = Journal::open(&usage, Uuid::now_v7()).unwrap();
        let id = Uuid::now_v7();
        journal.append(&line(id, 1));
        journal.seal();
        let away = dir.path().join("away");
        fs::rename(&usage, &away).unwrap();
        for completion in [2, 3] {
            assert!(matches!(journal.append(&line(id, completion)), Appended::Kept(_)));
        }
        fs::rename(&away, &usage).unwrap();
        journal.append(&line(id, 4));
        journal.seal();
        let completions: Vec<_> = moved(&mut journal).into_iter().map(|(_, lines)| lines.lines[0].completion).collect();
        assert_eq!(completions, [1, 3, 4]);
        assert_eq!((journal.in_memory, files(&usage)), (0, 0));
    }

    #[test]
    fn memory_and_segments_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let usage = dir.path().join("usage");
        let mut journal = Journal::open(&usage, Uuid::now_v7()).unwrap();
        let mut long = line(Uuid::now_v7(), 1);
        long.model = "m".repeat(1 << 20).into();
        for _ in 0..9 {
            journal.append(&long);
        }
        assert_eq!((journal.sealed(), files(&usage)), (1, 2));
        fs::remove_dir_all(&usage).unwrap();
        journal.seal();
        let kept = (0..40).filter(|_| matches!(journal.append(&long), Appended::Kept(_))).count();
        assert_eq!(kept, 31);
        assert!(matches!(journal.append(&long), Appended::Lost(_)));
        journal.seal();
        // The files went with their folder; what was known and what was kept did not.
        assert_eq!(moved(&mut journal).iter().filter(|(_, lines)| lines.lines.len() == 1).count(), 3);
        assert!(matches!(journal.append(&long), Appended::Kept(_)));
    }
}
