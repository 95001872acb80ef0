//! What an engine could not do.

/// What an engine could not do.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    /// Trying again later may work.
    #[error("{0}")]
    Transient(String),
    /// Trying again will not help; the owner of what it was for reads the sentence.
    #[error("{0}")]
    Permanent(String),
    /// The host has not enough of something; the sentence says of what.
    #[error("insufficient_capacity: {0}")]
    NoCapacity(String),
}

impl EngineError {
    /// Whether trying again will not help.
    pub const fn is_final(&self) -> bool {
        match self {
            Self::Transient(_) => false,
            Self::Permanent(_) | Self::NoCapacity(_) => true,
        }
    }
}

/// The result of an engine's work.
pub type Result<T> = std::result::Result<T, EngineError>;
