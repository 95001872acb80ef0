//! Reports a failure: to people with what to type next, to programs as JSON.

use std::process::ExitCode;

use berth_client::Error as ClientError;

use crate::context::{API_KEY, api_key};
use crate::{failure, typed};

/// Reports what went wrong, and what to type if that is known; or as JSON the service's code and fields, with the
/// message in the words of the command line.
pub fn report(error: &anyhow::Error, json: bool) -> ExitCode {
    if json {
        eprintln!("{}", failure::for_programs(error));
        return ExitCode::from(failure::code(error));
    }
    // Further lines are indented below the first.
    eprintln!("berth: {}", typed::sentence(&format!("{error:#}")).replace('\n', "\n       "));
    if let Some(error) = error.downcast_ref::<ClientError>() {
        hint(error);
    }
    ExitCode::from(failure::code(error))
}

fn hint(error: &ClientError) {
    match error {
        ClientError::Api { status: 401, code, .. } if no_credential(code) && api_key().is_some() => eprintln!(
            "The key in {API_KEY} expired, was revoked or does not allow this. Sign in to see it: berth key list"
        ),
        ClientError::Api { status: 401, code, .. } if no_credential(code) => eprintln!("Type: berth login"),
        ClientError::Api { code, .. } if code == "model_not_found" => {
            eprintln!("List them: berth model list; offer one: berth model serve FILE.gguf, or berth model add ID URL");
        }
        ClientError::Api { code, .. } if code == "model_exists" => {
            eprintln!("Replace it: berth model add ID URL --replace; or remove it: berth model remove ID");
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

/// Whether an error's code says that the credential is not valid; below `/v1` that is OpenAI's code.
fn no_credential(code: &str) -> bool {
    ["unauthorized", "invalid_api_key"].contains(&code)
}
