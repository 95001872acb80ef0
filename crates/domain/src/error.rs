//! The one error that crosses every layer.
//!
//! An error is a stable code, a public sentence that says what to do next, and, for invalid input,
//! every field that is wrong. What caused it inside is logged where it is handled and never shown.

use std::fmt;

/// The result of everything that can be refused.
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $text:literal, $status:literal;)*) => {
        /// Stable machine-readable codes: part of the API, listed as an enum in the OpenAPI document.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code { $($(#[$doc])* $variant,)* }

        impl Code {
            /// Every code, in the order of the document.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The code as it stands on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// The HTTP status that carries this code.
            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)* }
            }
        }
    };
}

codes! {
    /// The request is malformed or breaks a rule of its fields.
    InvalidRequest = "invalid_request", 400;
    /// The operation is not allowed in the current status.
    InvalidStatus = "invalid_status", 400;
    /// A disk named in the request is not one the project can use.
    DiskNotFound = "disk_not_found", 400;
    /// A network named in the request is not one the project can use.
    NetworkNotFound = "network_not_found", 400;
    /// An SSH key named in the request is stored neither by the caller nor by the project.
    SshKeyNotFound = "ssh_key_not_found", 400;
    /// A verification, reset or invitation token is wrong, used or expired.
    InvalidToken = "invalid_token", 400;
    /// The request names no project, and the credential stands for more than one.
    ProjectRequired = "project_required", 400;
    /// The current password given for a change is wrong.
    WrongPassword = "wrong_password", 400;
    /// A path is absolute, leads out of the workspace, or cannot be one.
    InvalidPath = "invalid_path", 400;
    /// A directory is needed and something else is there.
    NotADirectory = "not_a_directory", 400;
    /// A directory is there and something else is needed.
    IsADirectory = "is_a_directory", 400;
    /// The program of a command does not exist.
    CommandNotFound = "command_not_found", 400;
    /// A command could not be started.
    SpawnFailed = "spawn_failed", 400;
    /// A body is not the archive it should be, or has an entry that is refused.
    InvalidArchive = "invalid_archive", 400;
    /// No credential, or one that is not valid.
    Unauthorized = "unauthorized", 401;
    /// No API key, or one that is not valid: below `/v1`, as OpenAI says it.
    InvalidApiKey = "invalid_api_key", 401;
    /// Unknown address or wrong password.
    InvalidCredentials = "invalid_credentials", 401;
    /// The refresh token is unknown, used, revoked or expired.
    InvalidRefreshToken = "invalid_refresh_token", 401;
    /// The caller's role does not allow this.
    Forbidden = "forbidden", 403;
    /// The project's quota would be exceeded.
    QuotaExceeded = "quota_exceeded", 403;
    /// The address must be verified before signing in.
    EmailNotVerified = "email_not_verified", 403;
    /// Sign-up needs an invitation here.
    InvitationRequired = "invitation_required", 403;
    /// Nobody signs up here.
    SignupClosed = "signup_closed", 403;
    /// The account was suspended by an administrator of the platform.
    UserSuspended = "user_suspended", 403;
    /// The organization was suspended by an administrator of the platform.
    OrganizationSuspended = "organization_suspended", 403;
    /// The API key may not be used from the caller's address.
    AddressNotAllowed = "address_not_allowed", 403;
    /// The API key lacks the scope for this operation.
    MissingScope = "missing_scope", 403;
    /// The sandbox's file system says no.
    PermissionDenied = "permission_denied", 403;
    /// There is no such route or resource.
    NotFound = "not_found", 404;
    /// The organization or project does not exist, or the caller cannot see it.
    ProjectNotFound = "project_not_found", 404;
    /// The organization does not exist, or the caller cannot see it.
    OrganizationNotFound = "organization_not_found", 404;
    /// There is no such region.
    RegionNotFound = "region_not_found", 404;
    /// There is no such image.
    ImageNotFound = "image_not_found", 404;
    /// There is no such VM in this project.
    VmNotFound = "vm_not_found", 404;
    /// There is no such volume in this project.
    VolumeNotFound = "volume_not_found", 404;
    /// There is no such sandbox in this project.
    SandboxNotFound = "sandbox_not_found", 404;
    /// There is no such template that the project can use.
    TemplateNotFound = "template_not_found", 404;
    /// There is no such snapshot in this project.
    SnapshotNotFound = "snapshot_not_found", 404;
    /// There is no such backup in this project.
    BackupNotFound = "backup_not_found", 404;
    /// There is no such schedule of backups in this project.
    BackupScheduleNotFound = "backup_schedule_not_found", 404;
    /// There is no such model, or the project may not use it.
    ModelNotFound = "model_not_found", 404;
    /// The route exists, the method does not.
    MethodNotAllowed = "method_not_allowed", 405;
    /// The body did not come in time.
    RequestTimeout = "request_timeout", 408;
    /// The request conflicts with the present state.
    Conflict = "conflict", 409;
    /// The operation is not allowed in the sandbox's current phase.
    InvalidPhase = "invalid_phase", 409;
    /// The snapshot is not `Ready`.
    SnapshotNotReady = "snapshot_not_ready", 409;
    /// The backup is not `ready`.
    BackupNotReady = "backup_not_ready", 409;
    /// The project has a template of this name.
    TemplateExists = "template_exists", 409;
    /// There is a model of this name.
    ModelExists = "model_exists", 409;
    /// The disk is attached to a VM, or reserved by a creation under way.
    DiskInUse = "disk_in_use", 409;
    /// A VM or a sandbox belongs to the network.
    NetworkInUse = "network_in_use", 409;
    /// No address of the network is free.
    NetworkFull = "network_full", 409;
    /// The project has a network of this name, or one whose addresses overlap.
    NetworkExists = "network_exists", 409;
    /// The person or the project stores a key of this name, or the same key under another one.
    SshKeyExists = "ssh_key_exists", 409;
    /// This platform cannot do it.
    NotSupported = "not_supported", 409;
    /// An account with this address exists.
    EmailTaken = "email_taken", 409;
    /// The slug is taken.
    SlugTaken = "slug_taken", 409;
    /// A request with the same idempotency key is still running.
    RequestInProgress = "request_in_progress", 409;
    /// The image is used by a disk or is already there.
    ImageInUse = "image_in_use", 409;
    /// The last owner cannot leave or be demoted.
    LastOwner = "last_owner", 409;
    /// Something of that name is there.
    AlreadyExists = "already_exists", 409;
    /// A directory holds something.
    NotEmpty = "not_empty", 409;
    /// The process has ended, or its input is closed.
    ProcessEnded = "process_ended", 409;
    /// The sandbox is paused.
    SandboxPaused = "sandbox_paused", 409;
    /// The sandbox has failed; its message tells why.
    SandboxFailed = "sandbox_failed", 409;
    /// The body is larger than allowed.
    PayloadTooLarge = "payload_too_large", 413;
    /// The body's content type is not accepted here.
    UnsupportedMediaType = "unsupported_media_type", 415;
    /// The range begins behind the end.
    RangeNotSatisfiable = "range_not_satisfiable", 416;
    /// The idempotency key was used with another body.
    IdempotencyMismatch = "idempotency_mismatch", 422;
    /// Too many requests; `Retry-After` tells when to come back.
    RateLimited = "rate_limited", 429;
    /// As many as there may be at once.
    TooMany = "too_many", 429;
    /// A fault of the service; its log has the request id.
    Internal = "internal_error", 500;
    /// No server of the model gave an answer that is one.
    UpstreamError = "upstream_error", 502;
    /// Nothing answers on the port in the sandbox.
    PortRefused = "port_refused", 502;
    /// The sandbox was interrupted before it answered.
    SandboxInterrupted = "sandbox_interrupted", 503;
    /// The service cannot reach what it needs at the moment.
    Unavailable = "service_unavailable", 503;
    /// This host cannot speak: programs are missing.
    SpeechUnavailable = "speech_unavailable", 503;
    /// No server of the model answered in time.
    UpstreamTimeout = "upstream_timeout", 504;
    /// The sandbox's disk is full.
    NoSpace = "no_space", 507;
}

/// One field that broke a rule.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FieldError {
    /// Path of the field, like `root_disk.create_disk_request.size_gb` or `ssh_keys[2]`.
    pub field: String,
    /// The rule, as a sentence.
    pub message: String,
}

/// A refusal or a failure, ready to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The stable code.
    pub code: Code,
    /// A sentence for people: what is wrong and what to do.
    pub message: String,
    /// Every invalid field; empty where the error is not about fields.
    pub details: Vec<FieldError>,
    /// Seconds after which trying again makes sense.
    pub retry_after: Option<u64>,
    /// What happened inside: for the log, never for the wire.
    pub cause: Option<String>,
}

impl Error {
    /// An error with its public sentence.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Vec::new(), retry_after: None, cause: None }
    }

    /// Input that breaks rules; names every field.
    pub fn invalid(details: Vec<FieldError>) -> Self {
        let message = details.iter().map(|d| format!("{}: {}", d.field, d.message)).collect::<Vec<_>>().join("; ");
        Self { details, ..Self::new(Code::InvalidRequest, message) }
    }

    /// One invalid field.
    pub fn field(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::invalid(vec![FieldError { field: field.into(), message: message.into() }])
    }

    /// A fault of ours: the public sentence is fixed, the cause goes to the log.
    pub fn internal(cause: impl fmt::Display) -> Self {
        Self {
            cause: Some(cause.to_string()),
            ..Self::new(
                Code::Internal,
                "Something went wrong on our side. Try again; if it stays, give the operator the request id.",
            )
        }
    }

    /// Something we depend on does not answer.
    pub fn unavailable(cause: impl fmt::Display) -> Self {
        Self {
            cause: Some(cause.to_string()),
            retry_after: Some(1),
            ..Self::new(Code::Unavailable, "The service is busy or its database does not answer. Try again shortly.")
        }
    }

    /// Adds when trying again makes sense, in seconds.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.message)?;
        match &self.cause {
            Some(cause) => write!(f, " ({cause})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}
