//! One function for each verb. Each owns its transaction: intent, audit and event become true together, and the
//! worker is woken by the commit.

pub mod admin;
pub mod build_log;
mod durable;
pub mod fork;
mod gpu;
pub mod sandbox;
pub mod snapshot;
pub mod template;
pub mod upload;

use berth_domain::{Code, Error, Result};
use uuid::Uuid;

use super::{Sandboxes, store};
use crate::db::Tx;
use crate::db::tenant::Whose;
use crate::http::auth::Scope;

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

/// Refuses with 403 a project that keeps as much as it may already, or whose organization does. What is under way
/// counts as large as it may become, so that many things at once do not get past the bound.
async fn admit_stored(tx: &mut Tx, sandboxes: &Sandboxes, scope: &Scope) -> Result<()> {
    let config = sandboxes.config();
    let bounds = [
        (Whose::Project(scope.project), config.project_stored_gb),
        (Whose::Org(scope.org), config.organization_stored_gb),
    ];
    for (whose, most) in bounds {
        let kept = store::stored::bytes(tx, whose, config.upload_mb.saturating_mul(1 << 20)).await?;
        if kept >= most.saturating_mul(1 << 30) {
            let message = format!(
                "The {} keeps {} GiB of snapshots, templates, captured memories and uploads, and may keep {most}. Delete \
                 some of them first.",
                whose.word(),
                kept >> 30
            );
            return Err(Error::new(Code::QuotaExceeded, message));
        }
    }
    Ok(())
}

/// A name for what was given none: a word and the random end of its id.
fn made_up(word: &str, id: Uuid) -> String {
    format!("{word}-{}", id.simple().to_string().split_off(26))
}
