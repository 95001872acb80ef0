//! What a connection says before it ends or becomes a stream.

use std::time::Duration;

use berth_domain::firewall::{MAX_MEMBERS, MAX_RULES};
use berth_domain::host::{Ask, EngineError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What this side speaks. It grows with everything that a host may be asked.
pub const VERSION: u32 = 13;
/// The earliest that is still spoken with a host, or by one. What was said in it is read as before, and written as before:
/// `crates/testkit/tests/ask/spoken` has some of it.
pub const OLDEST: u32 = 10;
/// The questions that are younger than [`OLDEST`], with the version that brought them. A host of an earlier one is not asked.
const YOUNGER: &[(&str, u32)] = &[
    ("guest.version", 11),
    ("guest.files", 11),
    ("guest.expect", 11),
    ("guest.adopt", 11),
    ("stream.guest_file", 11),
    ("stream.take_guest", 11),
    ("layer.file", 11),
    ("layer.expect", 11),
    ("stream.layer_file", 11),
    ("stream.take_layer", 11),
    ("memory.file", 11),
    ("memory.expect", 11),
    ("stream.memory_file", 11),
    ("stream.take_memory", 11),
    ("migration.describe", 11),
    ("migration.expect", 11),
    ("migration.mirrored", 11),
    ("migration.hand_over", 11),
    ("migration.taken", 11),
    ("migration.call_off", 11),
    ("stream.send", 11),
    ("stream.fill", 11),
    ("shared_disk.reach", 12),
    ("shared_disk.make", 12),
    ("shared_disk.grow", 12),
    ("shared_disk.remove", 12),
    ("shared_disk.attach", 12),
    ("shared_snapshot.make", 13),
    ("shared_snapshot.copy", 13),
    ("shared_snapshot.restore", 13),
    ("shared_snapshot.remove", 13),
];
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
        if !(OLDEST..=VERSION).contains(&version) {
            return Err(EngineError::Transient(format!(
                "this host is asked in versions {OLDEST} to {VERSION}, not {version}; install the same Berth on both sides"
            )));
        }
        serde_json::from_slice::<Self>(bytes).map(|asked| asked.ask).map_err(nonsense)
    }

    /// The question as a host is asked that speaks no later version than this.
    ///
    /// # Errors
    /// That version is not spoken any more, or has no such question: until the host is upgraded it cannot be asked.
    pub fn of_version(spoken: u32, ask: Ask) -> Result<Self, EngineError> {
        let version = spoken.min(VERSION);
        if version < OLDEST {
            return Err(EngineError::Transient(format!(
                "the host is asked in version {version}, and this service asks in {OLDEST} to {VERSION}; install the same \
                 Berth there"
            )));
        }
        if version < since(ask.verb()) {
            return Err(EngineError::Transient(format!(
                "the host's Berth is older than this service's and has no {}; install the same there",
                ask.verb()
            )));
        }
        Ok(Self { version, ask })
    }
}

/// Whether a host that speaks no later version than this has a question.
pub fn has(spoken: u32, verb: &str) -> bool {
    since(verb) <= spoken
}

/// The version that brought a question.
fn since(verb: &str) -> u32 {
    YOUNGER.iter().find(|(younger, _)| *younger == verb).map_or(OLDEST, |(_, version)| *version)
}

#[cfg(test)]
mod tests {
    use berth_domain::host::ask::host;

    use super::*;

    #[test]
    fn a_host_is_asked_in_the_latest_version_that_both_sides_speak() {
        let describe = || Ask::from(host::Ask::from(host::Describe {}));
        for (spoken, asked) in [(OLDEST, OLDEST), (VERSION, VERSION), (VERSION + 1, VERSION)] {
            assert_eq!(Asked::of_version(spoken, describe()).unwrap().version, asked, "{spoken}");
        }
        let Err(EngineError::Transient(said)) = Asked::of_version(OLDEST - 1, describe()) else {
            panic!("it is asked")
        };
        assert!(said.contains("install the same Berth there"), "{said}");
    }

    #[test]
    fn questions_that_are_younger_are_some_and_came_in_a_version_since_the_oldest() {
        let all: Vec<_> = Ask::VERBS.concat();
        for (verb, version) in YOUNGER {
            assert!(all.contains(verb), "{verb} is no question");
            assert!((OLDEST + 1..=VERSION).contains(version), "{verb} came in {version}");
        }
    }
}
