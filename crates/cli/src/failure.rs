//! Failures: their messages and exit codes.

use berth_client::Error as ClientError;
use serde_json::{Value, json};

use crate::typed;

/// The exit code for what is not there.
pub const NOT_FOUND: u8 = 4;

/// A failure of this side, with its exit code.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    text: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

impl Failure {
    /// A failure with an exit code.
    pub fn of(code: u8, text: impl Into<String>) -> anyhow::Error {
        Self { code, text: text.into() }.into()
    }

    /// The command is not valid.
    pub fn usage(text: impl Into<String>) -> anyhow::Error {
        Self { code: 2, text: text.into() }.into()
    }

    /// The credential does not allow this.
    pub fn not_allowed(text: impl Into<String>) -> anyhow::Error {
        Self { code: 3, text: text.into() }.into()
    }

    /// There is no such thing.
    pub fn not_found(text: impl Into<String>) -> anyhow::Error {
        Self { code: 4, text: text.into() }.into()
    }

    /// The time is up.
    pub fn late(text: impl Into<String>) -> anyhow::Error {
        Self { code: 6, text: text.into() }.into()
    }
}

/// A failure as JSON: the service's answer with its code and fields, or this side's own with its code. Both messages
/// say what to type.
pub fn for_programs(error: &anyhow::Error) -> Value {
    if let Some(ClientError::Api { code, message, details, request_id, .. }) = error.downcast_ref() {
        let details: Vec<_> = details.iter().map(|d| json!({"field": d.field, "message": d.message})).collect();
        let message = typed::sentence(message);
        return json!({"code": code, "message": message, "details": details, "request_id": request_id});
    }
    let word = match code(error) {
        2 => "usage",
        3 => "not_signed_in",
        4 => "not_found",
        5 => "conflict",
        6 => "unavailable",
        _ => "failed",
    };
    json!({"code": word, "message": typed::sentence(&format!("{error:#}"))})
}

/// The exit code for a failure.
pub fn code(error: &anyhow::Error) -> u8 {
    if let Some(failure) = error.downcast_ref::<Failure>() {
        return failure.code;
    }
    match error.downcast_ref::<ClientError>() {
        Some(ClientError::Api { code, .. }) if code == "invalid_status" || code == "invalid_phase" => 5,
        Some(ClientError::Api { status, .. }) => match status {
            400 | 413 | 415 | 422 => 2,
            401 | 403 => 3,
            404 => 4,
            409 => 5,
            429 | 503 => 6,
            _ => 1,
        },
        Some(ClientError::Unreachable { .. }) => 6,
        _ => 1,
    }
}
