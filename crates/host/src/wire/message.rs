//! What a connection says before it ends or becomes a stream.

use std::time::Duration;

use berth_domain::firewall::{MAX_MEMBERS, MAX_RULES};
use berth_domain::host::{Ask, EngineError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What both sides speak. It changes with everything that a host may be asked; hosts of another one answer nothing.
pub const VERSION: u32 = 10;
/// Most bytes of a question: a Dockerfile's instructions and the environment of a template fit several times.
pub const QUESTION: u32 = 4 << 20;
// The largest that a machine's start asks for: firewall rules, of 42 bytes an address and of 1,024 beside those.
const _: () = assert!(MAX_MEMBERS * 42 + MAX_RULES * 1024 < QUESTION as usize);
/// Most bytes of an answer: a MiB of a console, each byte of which is a number, fits three times.
pub const ANSWER: u32 = 16 << 20;
/// Most bytes that follow an answer: a picture of a screen.
pub const FOLLOWING: u32 = 32 << 20;
/// While a host works, it says so this often.
pub const BEAT: Duration = Duration::from_secs(5);
/// Who says nothing for this long is given up.
pub const SILENCE: Duration = Duration::from_secs(30);
/// What is sent behind a question, of those that can be called off, in order to do so.
pub const CALL_OFF: u8 = 0;

/// The first message of a connection.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// What its side speaks.
    pub version: u32,
    /// The question.
    pub ask: Ask,
}

/// The one thing that all versions have in common.
#[derive(Deserialize)]
struct Spoken {
    version: u32,
}

/// What a host says to a question: at last that it is answered or has failed.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// It is at work.
    Working,
    /// Lines that the question is about, as they come.
    Lines(String),
    /// The answer.
    Said(Value),
    /// There is no answer.
    Failed(EngineError),
}

impl From<Result<Value, EngineError>> for Told {
    fn from(answer: Result<Value, EngineError>) -> Self {
        answer.map_or_else(Self::Failed, Self::Said)
    }
}

impl Asked {
    /// Reads a question.
    ///
    /// # Errors
    /// What whoever asked is told: another version is not understood, and neither is what is no question.
    pub fn read(bytes: &[u8]) -> Result<Ask, EngineError> {
        let nonsense = |error: serde_json::Error| EngineError::Permanent(format!("this is no question: {error}"));
        let Spoken { version } = serde_json::from_slice(bytes).map_err(nonsense)?;
        if version != VERSION {
            return Err(EngineError::Transient(format!(
                "this host is asked in version {VERSION}, not {version}; install the same Berth on both sides"
            )));
        }
        serde_json::from_slice::<Self>(bytes).map(|asked| asked.ask).map_err(nonsense)
    }
}
