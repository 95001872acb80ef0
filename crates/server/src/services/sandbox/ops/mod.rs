//! One function for each verb. Each owns its transaction: intent, audit and event become true together, and the
//! worker is woken by the commit.

pub mod build_log;
pub mod fork;
pub mod sandbox;
pub mod snapshot;
pub mod template;
pub mod upload;

use berth_domain::{Code, Error};
use uuid::Uuid;

/// The 404 of a sandbox.
pub(super) fn sandbox_not_found() -> Error {
    Error::new(Code::SandboxNotFound, "There is no such sandbox in this project.")
}

/// The 404 of a snapshot.
pub(super) fn snapshot_not_found() -> Error {
    Error::new(Code::SnapshotNotFound, "There is no such snapshot in this project.")
}

/// The 404 of a template.
pub(super) fn template_not_found(name: &str) -> Error {
    Error::new(
        Code::TemplateNotFound,
        format!("There is no template '{name}' that this project can use. GET …/sandbox_templates lists them."),
    )
}

/// A name for what was given none: a word and the random end of its id.
fn made_up(word: &str, id: Uuid) -> String {
    format!("{word}-{}", id.simple().to_string().split_off(26))
}
