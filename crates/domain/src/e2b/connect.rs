//! The Connect protocol with JSON: single calls are plain JSON, streams are messages behind a flag and a length.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{Code as Known, Error};

/// The content type of a single call.
pub const SINGLE: &str = "application/json";
/// The content type of a stream.
pub const STREAM: &str = "application/connect+json";
/// The largest message that has something to type, in bytes.
pub const LARGEST: usize = 4 << 20;
/// The largest of all others, as of every request in JSON.
pub const USUAL: usize = 256 << 10;
/// Bytes before a message.
const HEADER: usize = 5;
/// The flag of the last message.
const END: u8 = 2;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $word:literal, $status:literal;)*) => {
        /// Why a call failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code { $($(#[$doc])* $name,)* }

        impl Code {
            /// Its word.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// The HTTP status of a single call that fails so.
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }
        }
    };
}

codes! {
    /// The request breaks a rule.
    InvalidArgument = "invalid_argument", 400;
    /// The state does not allow it.
    FailedPrecondition = "failed_precondition", 400;
    /// No credential that counts.
    Unauthenticated = "unauthenticated", 401;
    /// The file system, or a role, says no.
    PermissionDenied = "permission_denied", 403;
    /// There is no such thing.
    NotFound = "not_found", 404;
    /// It is there already.
    AlreadyExists = "already_exists", 409;
    /// Too much, or too many.
    ResourceExhausted = "resource_exhausted", 429;
    /// Something is wrong on our side.
    Internal = "internal", 500;
    /// There is no such call.
    Unimplemented = "unimplemented", 501;
    /// The sandbox does not answer.
    Unavailable = "unavailable", 503;
    /// The time is over.
    DeadlineExceeded = "deadline_exceeded", 504;
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub code: Code,
    /// For people.
    pub message: String,
}

impl Refused {
    /// A failure with a message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Its JSON.
    pub fn body(&self) -> Value {
        json!({"code": self.code.as_str(), "message": self.message})
    }
}

impl From<&Error> for Refused {
    fn from(error: &Error) -> Self {
        let code = match (error.code, error.code.status()) {
            (Known::ProcessEnded, _) | (_, 404) => Code::NotFound,
            (Known::AlreadyExists, _) => Code::AlreadyExists,
            (_, 401) => Code::Unauthenticated,
            (_, 403) => Code::PermissionDenied,
            // SDKs take this for a limit that passes with time.
            (_, 429) => Code::ResourceExhausted,
            (_, 409) => Code::FailedPrecondition,
            (_, 400..=499) => Code::InvalidArgument,
            (_, 502 | 503) => Code::Unavailable,
            (_, 504) => Code::DeadlineExceeded,
            _ => Code::Internal,
        };
        Self::new(code, error.message.clone())
    }
}

/// A message of a stream.
pub fn message(content: &Value) -> Vec<u8> {
    enveloped(0, content)
}

/// The last message of a stream, which says whether it failed.
pub fn end(failure: Option<&Refused>) -> Vec<u8> {
    let content = failure.map_or_else(|| json!({}), |refused| json!({"error": refused.body()}));
    enveloped(END, &content)
}

fn enveloped(flags: u8, content: &Value) -> Vec<u8> {
    let text = content.to_string();
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&[flags][..], &length, text.as_bytes()].concat()
}

/// What a message says; an empty one says nothing of anything. Nothing of it is kept that is not asked for.
///
/// # Errors
/// What is wrong with it.
pub fn read<T: DeserializeOwned>(message: &[u8]) -> Result<T, Refused> {
    let message = if message.is_empty() { &b"{}"[..] } else { message };
    serde_json::from_slice(message)
        .map_err(|error| Refused::new(Code::InvalidArgument, format!("The request is wrong: {error}.")))
}

/// Messages of a stream that comes in pieces of any size.
#[derive(Default)]
pub struct Messages {
    rest: Vec<u8>,
    at: usize,
}

impl Messages {
    /// Takes bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.rest.drain(..self.at);
        self.at = 0;
        self.rest.extend_from_slice(bytes);
    }

    /// The next whole message, if it is there; the last one of a stream is none.
    ///
    /// # Errors
    /// It is compressed, too large, or not what is wanted.
    pub fn pop<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Refused> {
        loop {
            let rest = &self.rest[self.at..];
            let Some([flags, a, b, c, d]) = rest.first_chunk::<HEADER>().copied() else { return Ok(None) };
            let length = u32::from_be_bytes([a, b, c, d]);
            let length = usize::try_from(length).ok().filter(|length| *length <= LARGEST).ok_or_else(|| {
                Refused::new(Code::InvalidArgument, format!("A message has at most {LARGEST} bytes."))
            })?;
            let Some(content) = rest[HEADER..].get(..length) else { return Ok(None) };
            self.at += HEADER + length;
            match flags {
                0 => return read(content).map(Some),
                END => {}
                _ => return Err(Refused::new(Code::InvalidArgument, "Send messages without compression.")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_come_out_whole_however_they_are_cut(texts in prop::collection::vec(".{0,40}", 0..8), step in 1_usize..30) {
            let mut stream: Vec<u8> = texts.iter().flat_map(|text| message(&json!({"text": text}))).collect();
            stream.extend(end(None));
            let (mut messages, mut out) = (Messages::default(), Vec::new());
            for piece in stream.chunks(step) {
                messages.feed(piece);
                while let Some(message) = messages.pop::<Value>().unwrap() {
                    out.push(message["text"].as_str().unwrap().to_owned());
                }
            }
            prop_assert_eq!(out, texts);
        }

        #[test]
        fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut messages = Messages::default();
            messages.feed(&bytes);
            while let Ok(Some(_)) = messages.pop::<Value>() {}
        }
    }

    #[test]
    fn a_message_may_have_as_many_bytes_and_no_more() {
        let sized = |bytes: usize| {
            let mut messages = Messages::default();
            messages.feed(&[&[0][..], &u32::try_from(bytes).unwrap().to_be_bytes()].concat());
            messages.pop::<Value>()
        };
        assert_eq!(sized(LARGEST), Ok(None));
        assert_eq!(sized(LARGEST + 1).unwrap_err().code, Code::InvalidArgument);
        let mut compressed = Messages::default();
        compressed.feed(&[1, 0, 0, 0, 0]);
        assert_eq!(compressed.pop::<Value>().unwrap_err().code, Code::InvalidArgument);
    }

    #[test]
    fn a_failure_ends_a_stream_with_its_code() {
        let refused = Refused::from(&Error::new(Known::NotFound, "It is not there."));
        assert_eq!(&end(Some(&refused))[5..], br#"{"error":{"code":"not_found","message":"It is not there."}}"#);
        assert_eq!(end(None), b"\x02\0\0\0\x02{}");
        let code = |known| Refused::from(&Error::new(known, "")).code;
        assert_eq!(code(Known::AlreadyExists), Code::AlreadyExists);
        assert_eq!(code(Known::ProcessEnded), Code::NotFound);
        assert_eq!(code(Known::InvalidPath), Code::InvalidArgument);
        assert_eq!(code(Known::Unavailable), Code::Unavailable);
        assert_eq!(code(Known::Internal), Code::Internal);
        assert_eq!(
            (code(Known::PayloadTooLarge), code(Known::TooMany)),
            (Code::InvalidArgument, Code::ResourceExhausted)
        );
    }
}
