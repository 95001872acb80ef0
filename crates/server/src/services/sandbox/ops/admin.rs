//! What administrators of the platform do with everybody's sandboxes. They write the same wishes as the owners.

use berth_domain::Result;
use berth_domain::ids::SandboxId;
use berth_domain::sandbox::state::{Verb, on_verb};
use berth_domain::sandbox::{Phase, Wish};
use serde_json::json;

use super::sandbox::{deleting, write};
use super::sandbox_not_found;
use crate::db::Tx;
use crate::http::auth::Person;
use crate::services::sandbox::reconcile::sandbox::enter;
use crate::services::sandbox::store::sandbox::SandboxRow;
use crate::services::sandbox::{Sandboxes, store};

/// Records the wish to pause, with the memory kept.
pub async fn pause(sandboxes: &Sandboxes, admin: &Person, id: SandboxId) -> Result<SandboxRow> {
    let now = sandboxes.clock().now();
    let mut tx = sandboxes.db().begin_as(admin).await?;
    let before = find(&mut tx, id).await?;
    let Some(phase) = on_verb(Verb::Pause, before.phase)? else { return Ok(before) };
    let mut row = before.clone();
    enter(&mut row, phase, Some("an administrator of the platform pauses it".into()), now);
    row.wish = Wish::Paused;
    (row.keep_memory, row.updated_at) = (true, now);
    write(&mut tx, Some(&admin.caller), &before, &row, "sandbox.pause", json!({})).await?;
    tx.commit().await?;
    Ok(row)
}

/// Records the wish to delete, in any phase.
pub async fn delete(sandboxes: &Sandboxes, admin: &Person, id: SandboxId) -> Result<()> {
    let now = sandboxes.clock().now();
    let mut tx = sandboxes.db().begin_as(admin).await?;
    let before = find(&mut tx, id).await?;
    if before.phase == Phase::Deleting {
        return Ok(());
    }
    let row = deleting(&before, "an administrator of the platform deletes it", now);
    write(&mut tx, Some(&admin.caller), &before, &row, "sandbox.delete", json!({})).await?;
    Ok(tx.commit().await?)
}

async fn find(tx: &mut Tx, id: SandboxId) -> Result<SandboxRow> {
    let found = store::sandbox::load(tx, id).await?;
    found.filter(|row| row.deleted_at.is_none()).ok_or_else(sandbox_not_found)
}
