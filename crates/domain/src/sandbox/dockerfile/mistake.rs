//! Mistakes in a Dockerfile, and instructions without an effect.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// A mistake at one place of a Dockerfile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mistake {
    /// The line its instruction begins at, from 1.
    pub line: usize,
    /// What is wrong, and what to write instead.
    pub message: String,
}

/// Something in a Dockerfile that has no effect.
pub type Note = Mistake;

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

/// All mistakes found; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes(pub Vec<Mistake>);

impl Mistakes {
    /// A single mistake, at a line.
    pub(super) fn one(line: usize, message: impl Into<String>) -> Self {
        Self(vec![Mistake { line, message: message.into() }])
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.0.iter().enumerate() {
            write!(f, "{}{mistake}", if index == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistakes {}

impl From<Mistakes> for Error {
    fn from(mistakes: Mistakes) -> Self {
        Self::field("dockerfile", mistakes.to_string())
    }
}
