//! What can go wrong with a call.

use serde::Deserialize;

/// A call's outcome.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The service refused it.
    #[error("{message}")]
    Api {
        /// HTTP status.
        status: u16,
        /// Stable code, as `vm_not_found`.
        code: String,
        /// Sentence for people.
        message: String,
        /// Invalid fields, one by one.
        details: Vec<FieldError>,
        /// Seconds to wait before the next try, if the service says so.
        retry_after: Option<u64>,
        /// Id of the request, for the operator's log.
        request_id: String,
    },
    /// The service cannot be reached.
    #[error("{base} cannot be reached: {cause}")]
    Unreachable {
        /// The service.
        base: String,
        /// The reason.
        cause: String,
        /// Whether the service may have got the request all the same.
        sent: bool,
    },
    /// The answer does not have the form of Berth's.
    #[error("{0}")]
    Protocol(String),
    /// A file on this side failed.
    #[error("{0}")]
    File(#[from] std::io::Error),
}

/// A field that is not valid.
#[derive(Clone, Debug, Deserialize)]
pub struct FieldError {
    /// Its path, as `root_disk.create_disk_request.size_gb`.
    pub field: String,
    /// The rule it breaks.
    pub message: String,
}

impl Error {
    /// The HTTP status, if there was an answer.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Api { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// The code, if there was an answer.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Api { code, .. } => Some(code),
            _ => None,
        }
    }
}
