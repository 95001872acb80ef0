//! What a host could not do.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a host, or one of its engines, could not do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineError {
    /// Trying again later may work.
    Transient(String),
    /// Trying again will not help; the owner of what it was for reads the sentence.
    Permanent(String),
    /// The host has not enough of something; the sentence says of what.
    NoCapacity(String),
    /// It was decided for a generation of a machine, or a revision of a network, that is over: the host acted on
    /// this one last.
    Outdated(i64),
}

/// The result of what a host was asked.
pub type Result<T> = std::result::Result<T, EngineError>;

/// Most characters of what a host says that it could not do.
pub const MOST_SAID: usize = 1000;

impl EngineError {
    /// The same in so many characters at most, and without those that are no text: a host may say anything.
    #[must_use]
    pub fn bounded(self) -> Self {
        let text = |text: String| -> String { text.chars().filter(|c| !c.is_control()).take(MOST_SAID).collect() };
        match self {
            Self::Transient(said) => Self::Transient(text(said)),
            Self::Permanent(said) => Self::Permanent(text(said)),
            Self::NoCapacity(said) => Self::NoCapacity(text(said)),
            Self::Outdated(known) => Self::Outdated(known),
        }
    }

    /// Whether trying again will not help.
    pub const fn is_final(&self) -> bool {
        match self {
            Self::Transient(_) | Self::Outdated(_) => false,
            Self::Permanent(_) | Self::NoCapacity(_) => true,
        }
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transient(text) | Self::Permanent(text) => f.write_str(text),
            Self::Outdated(known) => write!(f, "the host has acted on a later decision, of generation {known}"),
            Self::NoCapacity(text) => write!(f, "insufficient_capacity: {text}"),
        }
    }
}

impl std::error::Error for EngineError {}
