//! Frames of a terminal: `[type u8][length u32, big-endian][payload]`, in both bodies of its request.
//!
//! The host turns them into WebSocket messages and back: bytes are binary messages, text is JSON.

use serde::{Deserialize, Serialize};

/// The largest payload of a frame, in bytes.
pub const MAX_PAYLOAD: usize = 256 * 1024;
/// Bytes before the payload.
pub const HEADER_LEN: usize = 5;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Bytes typed or shown: type 0.
    Bytes(Vec<u8>),
    /// JSON, a [`FromServer`] or a [`FromClient`]: type 1.
    Text(String),
}

/// Why bytes are not frames. The stream cannot be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The type is neither 0 nor 1.
    UnknownType(u8),
    /// The payload is longer than [`MAX_PAYLOAD`].
    TooLong(u32),
    /// A text that is not UTF-8.
    NotUtf8,
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownType(kind) => write!(f, "frames have type 0 (bytes) or 1 (text), not {kind}"),
            Self::TooLong(length) => write!(f, "a frame has at most {MAX_PAYLOAD} bytes, not {length}"),
            Self::NotUtf8 => f.write_str("a text frame must be UTF-8"),
        }
    }
}

impl std::error::Error for FrameError {}

/// The header of a frame with `length` bytes, which must not exceed [`MAX_PAYLOAD`].
pub fn header(text: bool, length: usize) -> [u8; HEADER_LEN] {
    let length = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    [u8::from(text), length[0], length[1], length[2], length[3]]
}

/// The bytes of one frame.
pub fn encode(frame: &Frame) -> Vec<u8> {
    let (text, payload) = match frame {
        Frame::Bytes(bytes) => (false, bytes.as_slice()),
        Frame::Text(text) => (true, text.as_bytes()),
    };
    [&header(text, payload.len()), payload].concat()
}

/// Turns bytes into frames.
#[derive(Debug, Default)]
pub struct Decoder {
    pending: Vec<u8>,
}

impl Decoder {
    /// Takes bytes from the stream. Call [`Self::next`] until it has nothing more.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// The next whole frame, if it is there.
    #[expect(clippy::should_implement_trait, reason = "more bytes may follow a None")]
    pub fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(header) = self.pending.first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let (kind, length) = (header[0], u32::from_be_bytes([header[1], header[2], header[3], header[4]]));
        if kind > 1 {
            return Err(FrameError::UnknownType(kind));
        }
        let end = HEADER_LEN + length as usize;
        if end > HEADER_LEN + MAX_PAYLOAD {
            return Err(FrameError::TooLong(length));
        }
        if self.pending.len() < end {
            return Ok(None);
        }
        let payload = self.pending[HEADER_LEN..end].to_vec();
        self.pending.drain(..end);
        match kind {
            0 => Ok(Some(Frame::Bytes(payload))),
            _ => String::from_utf8(payload).map(|text| Some(Frame::Text(text))).map_err(|_| FrameError::NotUtf8),
        }
    }
}

/// What the agent says in text frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromServer {
    /// The first frame: the terminal is there.
    Ready {
        /// The id with which a client attaches to it again.
        id: String,
        /// Its first process.
        pid: i32,
    },
    /// The last frame: its first process ended.
    Exit {
        /// Its exit code, if it returned.
        code: Option<i32>,
        /// The signal that ended it, such as `SIGKILL`.
        signal: Option<String>,
    },
    /// The agent refused something that the client sent; the terminal goes on.
    Error {
        /// One of [`crate::agent::error::code`].
        code: String,
        /// What to do about it.
        message: String,
    },
}

/// What the client says in text frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromClient {
    /// The window has another size now.
    Resize {
        /// Columns, 1 to 10,000.
        cols: u16,
        /// Rows, 1 to 10,000.
        rows: u16,
    },
    /// Send a signal to the process in the foreground.
    Signal {
        /// Its name, such as `SIGINT`.
        signal: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame() -> impl Strategy<Value = Frame> {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..300).prop_map(Frame::Bytes),
            any::<String>().prop_map(Frame::Text),
        ]
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in(frames in prop::collection::vec(frame(), 0..8), step in 1_usize..64) {
            let bytes = frames.iter().flat_map(encode).collect::<Vec<_>>();
            let mut decoder = Decoder::default();
            let mut out = Vec::new();
            for chunk in bytes.chunks(step) {
                decoder.feed(chunk);
                while let Some(frame) = decoder.next().unwrap() {
                    out.push(frame);
                }
            }
            prop_assert_eq!(out, frames);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut decoder = Decoder::default();
            decoder.feed(&bytes);
            while let Ok(Some(_)) = decoder.next() {}
        }
    }

    #[test]
    fn a_payload_may_have_its_limit_and_no_more() {
        let mut decoder = Decoder::default();
        decoder.feed(&encode(&Frame::Bytes(vec![1; MAX_PAYLOAD])));
        assert!(matches!(decoder.next(), Ok(Some(Frame::Bytes(bytes))) if bytes.len() == MAX_PAYLOAD));
        decoder.feed(&header(false, MAX_PAYLOAD + 1));
        assert_eq!(decoder.next(), Err(FrameError::TooLong(262_145)));
    }

    #[test]
    fn other_types_and_broken_text_are_refused() {
        let mut decoder = Decoder::default();
        decoder.feed(&[2, 0, 0, 0, 0]);
        assert_eq!(decoder.next(), Err(FrameError::UnknownType(2)));
        let mut decoder = Decoder::default();
        decoder.feed(&[1, 0, 0, 0, 1, 0xff]);
        assert_eq!(decoder.next(), Err(FrameError::NotUtf8));
    }

    #[test]
    fn texts_are_what_the_contract_shows() {
        let ready = serde_json::to_string(&FromServer::Ready { id: "a".into(), pid: 7 }).unwrap();
        assert_eq!(ready, r#"{"type":"ready","id":"a","pid":7}"#);
        let exit = serde_json::to_string(&FromServer::Exit { code: Some(0), signal: None }).unwrap();
        assert_eq!(exit, r#"{"type":"exit","code":0,"signal":null}"#);
        let resize: FromClient = serde_json::from_str(r#"{"type":"resize","cols":80,"rows":24}"#).unwrap();
        assert_eq!(resize, FromClient::Resize { cols: 80, rows: 24 });
    }
}
