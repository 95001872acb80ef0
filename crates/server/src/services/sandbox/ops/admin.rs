//! What administrators of the platform do with everybody's sandboxes. They write the same wishes as the owners.

use berth_domain::Result;
use berth_domain::ids::SandboxId;
use berth_domain::sandbox::Phase;
use serde_json::json;

use super::sandbox::{deleting, write};
use super::sandbox_not_found;
use crate::http::auth::Person;
use crate::services::sandbox::{Sandboxes, store};

/// Records the wish to delete, in any phase.
pub async fn delete(sandboxes: &Sandboxes, admin: &Person, id: SandboxId) -> Result<()> {
    let now = sandboxes.clock().now();
    let mut tx = sandboxes.db().begin_as(admin).await?;
    let found = store::sandbox::load(&mut tx, id).await?.filter(|row| row.deleted_at.is_none());
    let before = found.ok_or_else(sandbox_not_found)?;
    if before.phase == Phase::Deleting {
        return Ok(());
    }
    let row = deleting(&before, "an administrator of the platform deletes it", now);
    write(&mut tx, Some(&admin.caller), &before, &row, "sandbox.delete", json!({})).await?;
    Ok(tx.commit().await?)
}
