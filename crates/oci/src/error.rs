//! What can go wrong, in words for whoever brought the image.

/// The result of everything here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. The sentences are meant for people; what happened inside is not in them.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was brought is not what it should be.
    #[error("{0}")]
    Invalid(String),
    /// It is larger than it may be.
    #[error("{0}")]
    TooLarge(String),
    /// Something that is named is not there.
    #[error("{0}")]
    NotFound(String),
    /// A registry does not give it, or is not asked.
    #[error("{0}")]
    Refused(String),
    /// A registry does not answer, or not to the end; trying again may help.
    #[error("{0}")]
    Unreachable(String),
    /// This machine failed.
    #[error("reading or writing failed: {0}")]
    Io(#[from] std::io::Error),
}

impl Error {
    /// Something that is not what it should be.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }

    /// As an error of a stream, from which [`Self::from_stream`] finds it again.
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
