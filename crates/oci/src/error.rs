//! Failures, described for the person who brought the image.

/// The result of everything here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure. The sentences are for people and contain no internal details.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The input is not what it should be.
    #[error("{0}")]
    Invalid(String),
    /// It is larger than it may be.
    #[error("{0}")]
    TooLarge(String),
    /// A named thing does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The registry refuses, or Berth does not ask it.
    #[error("{0}")]
    Refused(String),
    /// The registry does not answer, or not completely; trying again may help.
    #[error("{0}")]
    Unreachable(String),
    /// This machine failed.
    #[error("reading or writing failed: {0}")]
    Io(#[from] std::io::Error),
}

impl Error {
    /// The error for input that is not what it should be.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }

    /// Wraps this as an error of a stream, from which [`Self::from_stream`] recovers it.
    pub(crate) fn into_stream(self) -> std::io::Error {
        match self {
            Self::Io(error) => error,
            other => std::io::Error::other(other),
        }
    }

    /// The error that ended a stream of this crate.
    pub fn from_stream(error: std::io::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(inner) => inner,
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::InvalidData | std::io::ErrorKind::InvalidInput) =>
            {
                Self::invalid(format!("The archive is damaged ({error}); make it again."))
            }
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Self::invalid("The archive ends early; send all of it.")
            }
            Err(error) => Self::Io(error),
        }
    }
}
