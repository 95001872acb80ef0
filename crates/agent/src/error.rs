//! Refusals, and how the kernel's errors become refusals.

use berth_domain::agent::error::{ErrorBody, FieldError, code};
use http::{HeaderName, HeaderValue, StatusCode};
use rustix::io::Errno;

/// The result of everything that the agent can refuse.
pub type Result<T, E = Refusal> = std::result::Result<T, E>;

/// An answer of 4xx or 5xx.
#[derive(Debug)]
pub struct Refusal {
    /// Its status.
    pub status: StatusCode,
    /// One of [`code`].
    pub code: &'static str,
    /// What to do about it.
    pub message: String,
    /// Every field that is wrong.
    pub details: Vec<FieldError>,
    /// A header that goes with it.
    pub header: Option<Box<(HeaderName, HeaderValue)>>,
}

impl Refusal {
    /// The refusal with a code; the status follows from it.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { status: status(code), code, message: message.into(), details: Vec::new(), header: None }
    }

    /// The refusal of one wrong field.
    pub fn field(field: &str, message: impl Into<String>) -> Self {
        berth_domain::Error::field(field, message).into()
    }

    /// The agent's or the machine's own fault.
    pub fn internal(what: impl std::fmt::Display) -> Self {
        Self::new(code::INTERNAL_ERROR, format!("The sandbox failed: {what}. Try again, or restart the sandbox."))
    }

    /// A path that cannot be used.
    pub fn path(message: impl Into<String>) -> Self {
        Self::new(code::INVALID_PATH, message)
    }

    /// Nothing of that name.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(code::NOT_FOUND, message)
    }

    /// Adds a header.
    #[must_use]
    pub fn with(mut self, name: HeaderName, value: impl TryInto<HeaderValue>) -> Self {
        self.header = value.try_into().ok().map(|value| Box::new((name, value)));
        self
    }

    /// The body on the wire.
    pub fn body(&self) -> ErrorBody {
        ErrorBody { code: self.code.to_owned(), message: self.message.clone(), details: self.details.clone() }
    }
}

/// The status that carries a code.
fn status(code: &str) -> StatusCode {
    match code {
        code::WRONG_TOKEN => StatusCode::UNAUTHORIZED,
        code::PERMISSION_DENIED => StatusCode::FORBIDDEN,
        code::NOT_FOUND => StatusCode::NOT_FOUND,
        code::METHOD_NOT_ALLOWED => StatusCode::METHOD_NOT_ALLOWED,
        code::ALREADY_EXISTS | code::NOT_EMPTY | code::PROCESS_ENDED | code::NOT_BOOTED | code::CONFLICT => {
            StatusCode::CONFLICT
        }
        code::PAYLOAD_TOO_LARGE => StatusCode::PAYLOAD_TOO_LARGE,
        code::UNSUPPORTED_MEDIA_TYPE => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        code::RANGE_NOT_SATISFIABLE => StatusCode::RANGE_NOT_SATISFIABLE,
        code::TOO_MANY => StatusCode::TOO_MANY_REQUESTS,
        code::INTERNAL_ERROR => StatusCode::INTERNAL_SERVER_ERROR,
        code::PORT_REFUSED => StatusCode::BAD_GATEWAY,
        code::NOT_READY => StatusCode::SERVICE_UNAVAILABLE,
        code::NO_SPACE => StatusCode::INSUFFICIENT_STORAGE,
        _ => StatusCode::BAD_REQUEST,
    }
}

impl From<berth_domain::Error> for Refusal {
    fn from(error: berth_domain::Error) -> Self {
        let details = error.details.into_iter().map(|d| FieldError { field: d.field, message: d.message }).collect();
        Self { details, ..Self::new(code::INVALID_REQUEST, error.message) }
    }
}

/// Translates an error of the file system about a path.
impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        let (code, message) = match errno {
            Errno::NOENT => (code::NOT_FOUND, "There is nothing at this path."),
            Errno::EXIST => (code::ALREADY_EXISTS, "Something is at this path already."),
            Errno::NOTEMPTY => {
                (code::NOT_EMPTY, "The directory is not empty; say 'recursive' to remove what it holds.")
            }
            Errno::NOTDIR => (code::NOT_A_DIRECTORY, "The path needs a directory where something else is."),
            Errno::ISDIR => (code::IS_A_DIRECTORY, "There is a directory at this path."),
            Errno::ACCESS | Errno::PERM | Errno::ROFS => {
                (code::PERMISSION_DENIED, "The sandbox's user may not do this here.")
            }
            Errno::NOSPC | Errno::DQUOT => (code::NO_SPACE, "The disk is full; remove something and try again."),
            Errno::XDEV => (code::INVALID_PATH, "The path leads out of the workspace."),
            Errno::LOOP => (code::INVALID_PATH, "The path has a link that cannot be followed."),
            Errno::NAMETOOLONG => (code::INVALID_PATH, "The path is too long."),
            Errno::INVAL => (code::INVALID_PATH, "The path cannot be used for this."),
            Errno::AGAIN | Errno::BUSY | Errno::TXTBSY | Errno::STALE => {
                (code::CONFLICT, "The path is being changed or used at this moment; try again.")
            }
            Errno::FBIG => (code::NO_SPACE, "The file would be larger than the file system allows."),
            Errno::NXIO | Errno::OPNOTSUPP | Errno::MLINK => {
                (code::CONFLICT, "This cannot be done to what is at this path.")
            }
            other => return Self::internal(other),
        };
        Self::new(code, message)
    }
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        match Errno::from_io_error(&error) {
            Some(errno) => errno.into(),
            None => Self::internal(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_errors_have_the_contracts_codes() {
        let expected = [
            (Errno::NOENT, 404, "not_found"),
            (Errno::EXIST, 409, "already_exists"),
            (Errno::NOTEMPTY, 409, "not_empty"),
            (Errno::NOTDIR, 400, "not_a_directory"),
            (Errno::ISDIR, 400, "is_a_directory"),
            (Errno::ACCESS, 403, "permission_denied"),
            (Errno::PERM, 403, "permission_denied"),
            (Errno::NOSPC, 507, "no_space"),
            (Errno::DQUOT, 507, "no_space"),
            (Errno::XDEV, 400, "invalid_path"),
            (Errno::LOOP, 400, "invalid_path"),
            (Errno::NAMETOOLONG, 400, "invalid_path"),
            (Errno::AGAIN, 409, "conflict"),
            (Errno::IO, 500, "internal_error"),
        ];
        for (errno, status, code) in expected {
            let refusal = Refusal::from(errno);
            assert_eq!((refusal.status.as_u16(), refusal.code), (status, code), "{errno}");
        }
    }
}
