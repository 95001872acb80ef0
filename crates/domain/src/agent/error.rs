//! What a refusal says.

use serde::{Deserialize, Serialize};

/// The body of every answer of 4xx and 5xx.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// One of [`code`].
    pub code: String,
    /// What to do about it.
    pub message: String,
    /// Every wrong field, if fields are wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<FieldError>,
}

/// One field that broke a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldError {
    /// Its name.
    pub field: String,
    /// The rule, as a sentence.
    pub message: String,
}

/// The codes, and the status that carries each.
pub mod code {
    /// 400: a field of the request or its form is wrong; `details` names each.
    pub const INVALID_REQUEST: &str = "invalid_request";
    /// 400: a path that is absolute, leads out of the workspace, or cannot be one.
    pub const INVALID_PATH: &str = "invalid_path";
    /// 400: a directory is needed and something else is there.
    pub const NOT_A_DIRECTORY: &str = "not_a_directory";
    /// 400: a directory is there and something else is needed.
    pub const IS_A_DIRECTORY: &str = "is_a_directory";
    /// 400: the program of a command does not exist.
    pub const COMMAND_NOT_FOUND: &str = "command_not_found";
    /// 400: a command could not be started.
    pub const SPAWN_FAILED: &str = "spawn_failed";
    /// 400: a body that is not the archive it should be, or has an entry that is refused.
    pub const INVALID_ARCHIVE: &str = "invalid_archive";
    /// 401: the bearer token is missing or not this sandbox's.
    pub const WRONG_TOKEN: &str = "wrong_token";
    /// 403: the file system refuses.
    pub const PERMISSION_DENIED: &str = "permission_denied";
    /// 404: no such route, file, process or terminal.
    pub const NOT_FOUND: &str = "not_found";
    /// 405: the route has other methods; `Allow` names them.
    pub const METHOD_NOT_ALLOWED: &str = "method_not_allowed";
    /// 409: something of that name exists.
    pub const ALREADY_EXISTS: &str = "already_exists";
    /// 409: the directory is not empty.
    pub const NOT_EMPTY: &str = "not_empty";
    /// 409: the process has ended, or its input is closed.
    pub const PROCESS_ENDED: &str = "process_ended";
    /// 409: the host has not told the machine to boot its root file system.
    pub const NOT_BOOTED: &str = "not_booted";
    /// 409: the file is busy, or of a kind on which this is not possible.
    pub const CONFLICT: &str = "conflict";
    /// 413: the body is too large.
    pub const PAYLOAD_TOO_LARGE: &str = "payload_too_large";
    /// 415: the body must be `application/json`.
    pub const UNSUPPORTED_MEDIA_TYPE: &str = "unsupported_media_type";
    /// 416: the range begins behind the end; `Content-Range` tells the size.
    pub const RANGE_NOT_SATISFIABLE: &str = "range_not_satisfiable";
    /// 429: the limit of these at one time is reached.
    pub const TOO_MANY: &str = "too_many";
    /// 500: a fault of the agent or its machine.
    pub const INTERNAL_ERROR: &str = "internal_error";
    /// 502: nothing listens on the port.
    pub const PORT_REFUSED: &str = "port_refused";
    /// 503: the sandbox has no identity yet.
    pub const NOT_READY: &str = "not_ready";
    /// 507: the disk is full.
    pub const NO_SPACE: &str = "no_space";
}
