//! Events out of pieces of any size.
//!
//! A hostile sender may cut an event of a megabyte into single bytes, or send one that never ends. So every byte is
//! searched once, moved twice at most, and held only as long as the event and its line are within [`Bounds`]. What is
//! wrong is found at the same event in every cutting, after all events before it, and nothing follows it.

use std::fmt;

use memchr::memchr2;

use super::cut::{MARK, end_of_event, fields};

/// The name of an event that has none.
pub const MESSAGE: &str = "message";

/// Most bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Of a line, without its break.
    pub line: usize,
    /// Of an event, with the blank line behind it.
    pub event: usize,
}

impl Bounds {
    /// Events with lines of so many bytes, which all together are no longer than two of those.
    pub const fn of_line(line: usize) -> Self {
        Self { line, event: line.saturating_mul(2) }
    }
}

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// What it is: [`MESSAGE`] where nothing else was said.
    pub name: String,
    /// Its data: lines with LF between them.
    pub data: String,
    /// The id that this event or one before it said last; empty where none did.
    pub id: String,
    /// Milliseconds after which to connect again, where this stream has said so.
    pub retry: Option<u64>,
}

/// Why a stream cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// A line is longer than this.
    Line(usize),
    /// An event is longer than this.
    Event(usize),
    /// An event is no UTF-8.
    Text,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(most) => write!(f, "a line of more than {most} bytes"),
            Self::Event(most) => write!(f, "an event of more than {most} bytes"),
            Self::Text => f.write_str("an event that is no UTF-8"),
        }
    }
}

impl std::error::Error for Unreadable {}

/// Reads events.
#[derive(Debug)]
pub struct Reader {
    bounds: Bounds,
    held: Vec<u8>,
    /// Where the present event begins in what is held.
    begin: usize,
    /// Bytes of the present event that were searched for its end.
    searched: usize,
    /// Bytes of the line that has not ended among them.
    line: usize,
    /// Whether the first event is over: a byte order mark may stand before it.
    begun: bool,
    id: String,
    retry: Option<u64>,
    unreadable: Option<Unreadable>,
    #[cfg(test)]
    pub(super) work: usize,
}

impl Reader {
    /// A reader of a stream that begins.
    pub const fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            held: Vec::new(),
            begin: 0,
            searched: 0,
            line: 0,
            begun: false,
            id: String::new(),
            retry: None,
            unreadable: None,
            #[cfg(test)]
            work: 0,
        }
    }

    /// Takes what came. To be followed by [`Self::pop`] until that has nothing more: what is fed is held.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.unreadable.is_some() {
            return;
        }
        if self.begin > 0 {
            #[cfg(test)]
            {
                self.work += self.held.len() - self.begin;
            }
            self.held.drain(..std::mem::take(&mut self.begin));
        }
        self.held.extend_from_slice(bytes);
    }

    /// The next event that is whole.
    ///
    /// # Errors
    /// Why the stream cannot be read on; the same from then on.
    pub fn pop(&mut self) -> Result<Option<Event>, Unreadable> {
        if let Some(unreadable) = self.unreadable {
            return Err(unreadable);
        }
        let next = self.search();
        if let Err(unreadable) = next {
            self.unreadable = Some(unreadable);
            self.held = Vec::new();
        }
        next
    }

    fn search(&mut self) -> Result<Option<Event>, Unreadable> {
        loop {
            let rest = &self.held[self.begin..];
            let end = end_of_event(rest, self.searched);
            let known = end.unwrap_or(rest.len());
            #[cfg(test)]
            {
                self.work += known - self.searched;
            }
            self.line = measure(&rest[..known], self.searched, self.line, self.bounds)?;
            if end.is_none() {
                self.searched = known;
                return Ok(None);
            }
            let event = self.read(self.begin + known)?;
            self.begin += known;
            (self.searched, self.line, self.begun) = (0, 0, true);
            if event.is_some() {
                return Ok(event);
            }
        }
    }

    /// The present event, which ends there; nothing where it has no data, as a comment.
    fn read(&mut self, end: usize) -> Result<Option<Event>, Unreadable> {
        let bytes = &self.held[self.begin..end];
        let bytes = if self.begun { bytes } else { bytes.strip_prefix(MARK).unwrap_or(bytes) };
        let (mut name, mut data) = ("", None::<String>);
        for (field, value) in fields(bytes) {
            let value = std::str::from_utf8(value).map_err(|_| Unreadable::Text)?;
            match field {
                b"event" => name = value,
                b"data" => match &mut data {
                    None => data = Some(value.to_owned()),
                    Some(data) => {
                        data.push('\n');
                        data.push_str(value);
                    }
                },
                b"id" if !value.contains('\0') => value.clone_into(&mut self.id),
                b"retry" if value.bytes().all(|digit| digit.is_ascii_digit()) => {
                    self.retry = value.parse().ok().or(self.retry);
                }
                _ => {}
            }
        }
        let Some(data) = data else { return Ok(None) };
        let name = if name.is_empty() { MESSAGE } else { name }.to_owned();
        Ok(Some(Event { name, data, id: self.id.clone(), retry: self.retry }))
    }
}

/// Looks whether an event fits, from a place on at which its present line had so many bytes; returns how many it has at
/// the end. Of two bounds the one counts that is crossed first, so that where the event was cut does not matter.
fn measure(event: &[u8], from: usize, line: usize, bounds: Bounds) -> Result<usize, Unreadable> {
    let (mut at, mut line) = (from, line);
    while at < event.len() {
        let stop = memchr2(b'\n', b'\r', &event[at..]).map_or(event.len(), |length| at + length);
        let too_long = (line + stop - at > bounds.line).then(|| at + bounds.line - line);
        if too_long.is_some_and(|place| place <= bounds.event) {
            return Err(Unreadable::Line(bounds.line));
        }
        (line, at) = if stop < event.len() { (0, stop + 1) } else { (line + stop - at, stop) };
        if at > bounds.event {
            return Err(Unreadable::Event(bounds.event));
        }
    }
    Ok(line)
}
