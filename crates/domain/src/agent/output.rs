//! The output of a program as frames: `[type u8][length u32][offset u64][payload]`, numbers big-endian.
//!
//! Text events cost a reader, and even more an emulated guest, a hundred times what their bytes cost. A client that
//! asks for [`CONTENT_TYPE`] gets the bytes as they came, lines and parts of lines, as many in a frame as came
//! together. The last frame is a final event; a stream without one broke off.

use super::runtime::OutputEvent;

/// The `Accept` of the request, and the `Content-Type` of the answer.
pub const CONTENT_TYPE: &str = "application/vnd.berth.output";
/// The largest payload, in bytes.
pub const MAX_PAYLOAD: usize = 256 * 1024;
/// Bytes before the payload.
pub const HEADER_LEN: usize = 13;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// No content: shows that the stream is alive. No payload.
    Nothing = 0,
    /// Bytes of the output; the offset is that of the first.
    Stdout = 1,
    /// Bytes of the error output; the offset is that of the first.
    Stderr = 2,
    /// An [`OutputEvent`]: its name, a newline, its data.
    Event = 3,
}

/// The beginning of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// Bytes of the payload.
    pub length: usize,
    /// Position of the payload in the process' output, in bytes since its start.
    pub offset: u64,
}

/// Why bytes are not frames. The stream cannot be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// An unknown type.
    UnknownType(u8),
    /// The payload is longer than [`MAX_PAYLOAD`].
    TooLong(u32),
    /// A malformed event.
    NoEvent,
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownType(kind) => write!(f, "frames have a type from 0 to 3, not {kind}"),
            Self::TooLong(length) => write!(f, "a frame has at most {MAX_PAYLOAD} bytes, not {length}"),
            Self::NoEvent => f.write_str("a frame has an event that makes no sense"),
        }
    }
}

impl std::error::Error for FrameError {}

impl Header {
    /// Its bytes.
    pub fn encode(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = self.kind as u8;
        bytes[1..5].copy_from_slice(&u32::try_from(self.length).unwrap_or(u32::MAX).to_be_bytes());
        bytes[5..].copy_from_slice(&self.offset.to_be_bytes());
        bytes
    }

    /// Reads the header at the beginning of a stream; nothing where there are too few bytes.
    ///
    /// # Errors
    /// The bytes are no header.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, FrameError> {
        let Some([kind, a, b, c, d, offset @ ..]) = bytes.first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let length = u32::from_be_bytes([*a, *b, *c, *d]);
        let kind = match kind {
            0 => Kind::Nothing,
            1 => Kind::Stdout,
            2 => Kind::Stderr,
            3 => Kind::Event,
            other => return Err(FrameError::UnknownType(*other)),
        };
        match usize::try_from(length) {
            Ok(length) if length <= MAX_PAYLOAD => Ok(Some(Self { kind, length, offset: u64::from_be_bytes(*offset) })),
            _ => Err(FrameError::TooLong(length)),
        }
    }
}

/// Writes a frame of bytes, of at most [`MAX_PAYLOAD`].
pub fn write(out: &mut Vec<u8>, stderr: bool, offset: u64, bytes: &[u8]) {
    let kind = if stderr { Kind::Stderr } else { Kind::Stdout };
    out.extend_from_slice(&Header { kind, length: bytes.len(), offset }.encode());
    out.extend_from_slice(bytes);
}

/// Writes a frame with an event.
pub fn write_event(out: &mut Vec<u8>, event: &OutputEvent) {
    let text = format!("{}\n{}", event.name(), event.data());
    out.extend_from_slice(&Header { kind: Kind::Event, length: text.len(), offset: 0 }.encode());
    out.extend_from_slice(text.as_bytes());
}

/// The event in a payload; nothing if a later version added it.
///
/// # Errors
/// The payload is malformed.
pub fn event(payload: &[u8]) -> Result<Option<OutputEvent>, FrameError> {
    let text = std::str::from_utf8(payload).map_err(|_| FrameError::NoEvent)?;
    let (name, data) = text.split_once('\n').ok_or(FrameError::NoEvent)?;
    if !["start", "truncated", "exit", "error"].contains(&name) {
        return Ok(None);
    }
    OutputEvent::parse(name, data).map(Some).map_err(|_| FrameError::NoEvent)
}

/// What a frame says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// That the stream is alive.
    Nothing,
    /// Bytes of the output.
    Output {
        /// Whether they are of the error output.
        stderr: bool,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// An event.
    Event(OutputEvent),
}

/// Frames that come in pieces of any size.
#[derive(Default)]
pub struct Frames {
    rest: Vec<u8>,
    at: usize,
}

impl Frames {
    /// Takes bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.rest.drain(..self.at);
        self.at = 0;
        self.rest.extend_from_slice(bytes);
    }

    /// The next whole frame, if it is there; events that a later version added are passed over.
    ///
    /// # Errors
    /// The bytes are no frames.
    pub fn pop(&mut self) -> Result<Option<Frame<'_>>, FrameError> {
        loop {
            let Some(header) = Header::parse(&self.rest[self.at..])? else { return Ok(None) };
            let begin = self.at + HEADER_LEN;
            if self.rest.len() < begin + header.length {
                return Ok(None);
            }
            self.at = begin + header.length;
            let payload = begin..self.at;
            return Ok(Some(match header.kind {
                Kind::Nothing => Frame::Nothing,
                Kind::Stdout | Kind::Stderr => {
                    Frame::Output { stderr: header.kind == Kind::Stderr, bytes: &self.rest[payload] }
                }
                Kind::Event => match event(&self.rest[payload])? {
                    Some(event) => Frame::Event(event),
                    None => continue,
                },
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_come_out_as_they_went_in(kind in 0_u8..4, length in 0..=MAX_PAYLOAD, offset: u64) {
            let kind = [Kind::Nothing, Kind::Stdout, Kind::Stderr, Kind::Event][usize::from(kind)];
            let header = Header { kind, length, offset };
            let bytes = header.encode();
            prop_assert_eq!(Header::parse(&bytes), Ok(Some(header)));
            prop_assert_eq!(Header::parse(&bytes[..HEADER_LEN - 1]), Ok(None));
        }
    }

    #[test]
    fn frames_come_out_whole_however_they_are_cut() {
        let mut stream = Vec::new();
        write(&mut stream, true, 0, b"ab");
        stream.extend(Header { kind: Kind::Nothing, length: 0, offset: 0 }.encode());
        let later = b"later\n{}";
        stream.extend(Header { kind: Kind::Event, length: later.len(), offset: 0 }.encode());
        stream.extend(later);
        write_event(&mut stream, &OutputEvent::Start { pid: 7 });
        for step in 1..stream.len() {
            let (mut frames, mut out) = (Frames::default(), Vec::new());
            for piece in stream.chunks(step) {
                frames.feed(piece);
                while let Some(frame) = frames.pop().unwrap() {
                    out.push(format!("{frame:?}"));
                }
            }
            let expected = ["Output { stderr: true, bytes: [97, 98] }", "Nothing", "Event(Start { pid: 7 })"];
            assert_eq!(out, expected, "{step}");
        }
        let mut frames = Frames::default();
        frames.feed(&[9; HEADER_LEN]);
        assert!(frames.pop().is_err());
    }

    #[test]
    fn other_types_and_long_payloads_are_refused() {
        let mut bytes = Header { kind: Kind::Event, length: MAX_PAYLOAD + 1, offset: 0 }.encode();
        assert_eq!(Header::parse(&bytes), Err(FrameError::TooLong(262_145)));
        bytes[0] = 4;
        assert_eq!(Header::parse(&bytes), Err(FrameError::UnknownType(4)));
    }

    #[test]
    fn events_are_read_and_unknown_ones_passed_over() {
        let mut out = Vec::new();
        let start = OutputEvent::Start { pid: 7 };
        write_event(&mut out, &start);
        let header = Header::parse(&out).unwrap().unwrap();
        assert_eq!((header.kind, header.length), (Kind::Event, out.len() - HEADER_LEN));
        assert_eq!(event(&out[HEADER_LEN..]), Ok(Some(start)));
        assert_eq!(event(b"later\n{}"), Ok(None));
        for bad in [&b"exit"[..], b"exit\n{", b"\xff\n"] {
            assert_eq!(event(bad), Err(FrameError::NoEvent));
        }
    }
}
