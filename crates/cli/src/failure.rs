//! Failures: what they say and which code the program ends with.

use std::process::ExitCode;

use berth_client::Error as ClientError;
use serde_json::{Value, json};

use crate::context::{API_KEY, api_key};
use crate::credentials::Store;
use crate::typed;

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
    /// With an exit code.
    pub fn of(code: u8, text: impl Into<String>) -> anyhow::Error {
        Self { code, text: text.into() }.into()
    }

    /// The command is not valid.
    pub fn usage(text: impl Into<String>) -> anyhow::Error {
        Self { code: 2, text: text.into() }.into()
    }

    /// Nobody is signed in.
    pub fn signed_out() -> anyhow::Error {
        let others = Store::load().is_ok_and(|store| !store.contexts.is_empty());
        let other = if others { "; or use another sign-in: berth context list" } else { "" };
        Self { code: 3, text: format!("You are not signed in. Type: berth login URL{other}") }.into()
    }

    /// The credential is not good for this.
    pub fn not_allowed(text: impl Into<String>) -> anyhow::Error {
        Self { code: 3, text: text.into() }.into()
    }

    /// There is no such thing.
    pub fn not_found(text: impl Into<String>) -> anyhow::Error {
        Self { code: 4, text: text.into() }.into()
    }

    /// The time is over.
    pub fn late(text: impl Into<String>) -> anyhow::Error {
        Self { code: 6, text: text.into() }.into()
    }
}

/// Says what went wrong, and what to type where that is known; or the same for a program, as JSON: the service's code and
/// fields, the message in the words of the command line.
pub fn report(error: &anyhow::Error, json: bool) -> ExitCode {
    if json {
        eprintln!("{}", for_programs(error));
        return ExitCode::from(code(error));
    }
    // What goes on stands below what it began with.
    eprintln!("berth: {}", typed::sentence(&format!("{error:#}")).replace('\n', "\n       "));
    if let Some(error) = error.downcast_ref::<ClientError>() {
        hint(error);
    }
    ExitCode::from(code(error))
}

/// The service's answer with its code and fields; what this side found, with a code of its own. The message says what to
/// type either way.
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

fn hint(error: &ClientError) {
    match error {
        ClientError::Api { status: 401, code, .. } if no_credential(code) && api_key().is_some() => eprintln!(
            "The key in {API_KEY} ended, was revoked or is not for this. Whoever is signed in sees it: berth key list"
        ),
        ClientError::Api { status: 401, code, .. } if no_credential(code) => eprintln!("Type: berth login"),
        ClientError::Api { code, .. } if code == "model_not_found" => {
            eprintln!("List them: berth model list; offer one: berth model serve FILE.gguf, or berth model add ID URL");
        }
        ClientError::Api { code, .. } if code == "model_exists" => {
            eprintln!("Another in its place: berth model add ID URL --replace; or away with it: berth model remove ID");
        }
        ClientError::Api { code, .. } if code == "sandbox_paused" => eprintln!("Type: berth sandbox resume SANDBOX"),
        ClientError::Api { code, .. } if code == "sandbox_failed" => {
            eprintln!("Its message: berth sandbox show SANDBOX; its snapshots: berth sandbox snapshot list SANDBOX");
        }
        ClientError::Api { code, .. } if code == "email_not_verified" => {
            eprintln!(
                "The link is in the mail: berth account verify LINK; another mail: berth account verify --email ADDRESS"
            );
        }
        ClientError::Api { status: 429, retry_after: Some(seconds), .. } => eprintln!("Try again in {seconds} s."),
        ClientError::Api { status: 500.., request_id, .. } => eprintln!("Request: {request_id}"),
        ClientError::Unreachable { .. } => {
            eprintln!(
                "Is the service running? Start it with script/quickstart or berth serve; another address is --url."
            );
        }
        _ => {}
    }
}

/// Whether an error's code says that the credential does not hold; below `/v1` it has OpenAI's word.
fn no_credential(code: &str) -> bool {
    ["unauthorized", "invalid_api_key"].contains(&code)
}

/// The code that the program ends with.
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
