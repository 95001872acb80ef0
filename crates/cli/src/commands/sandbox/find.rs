//! Finds the sandbox with a name or an id.

use anyhow::Result;
use berth_client::{Page, ProjectClient, Sandbox, SandboxFilter};

use crate::id::is_id;
use crate::pick::{Noun, candidates};

/// The noun, for messages.
pub const SANDBOX: Noun = Noun { one: "sandbox", list: "berth sandbox list" };

/// Whether a path does not begin at the workspace, but at the machine's root.
pub fn is_beyond(path: &str) -> bool {
    path.starts_with('/')
}

/// The sandbox with a name or an id.
pub async fn find(project: &ProjectClient, text: &str) -> Result<Sandbox> {
    if is_id(text) {
        return Ok(project.sandbox(text).await?);
    }
    let filter = SandboxFilter { name: Some(text.to_owned()), ..SandboxFilter::default() };
    let page = |at: Page| SandboxFilter { page: Some(at.page), limit: Some(at.limit), ..SandboxFilter::default() };
    let found = project.sandboxes(&filter).await?.data;
    let found = candidates(text, found, async |at| project.sandboxes(&page(at)).await).await?;
    SANDBOX.of(found, text, |sandbox| &sandbox.id, |sandbox| sandbox.name.as_deref() == Some(text))
}
