//! Verbs on stored keys.

use berth_domain::ids::SshKeyId;
use berth_domain::ssh_key::{MOST, StoreKey, without_comment};
use berth_domain::{Code, Error, Result};
use uuid::Uuid;

use crate::http::idempotency::{Idempotency, Outcome};
use crate::services::ssh_key::keeper::Keeper;
use crate::services::ssh_key::store::ssh_key::SshKeyRow;
use crate::services::ssh_key::wire::ssh_key::SshKeyView;
use crate::services::ssh_key::{SshKeys, store};

/// Stores a key.
pub(in crate::services::ssh_key) async fn create(
    keys: &SshKeys,
    keeper: Keeper<'_>,
    new: StoreKey,
    key: Idempotency,
) -> Result<Outcome<SshKeyView>> {
    let now = keys.clock.now();
    let mut tx = keys.db.begin_as(&keeper).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    let row = SshKeyRow {
        id: SshKeyId(Uuid::now_v7()),
        owner: keeper.owner(),
        name: new.name.as_str().to_owned(),
        bare_key: without_comment(&new.public_key),
        public_key: new.public_key,
        created_at: now,
    };
    let others = store::ssh_key::of_owner(&mut tx, keeper.owner()).await?;
    require_new(&others, &row, keeper)?;
    store::ssh_key::insert(&mut tx, &row).await?;
    let view = SshKeyView::from(&row);
    keeper.audit("ssh_key.create", &view.id).with(view.told()).write_and_tell(&mut tx, now).await?;
    let outcome = key.created(&mut tx, now, format!("{}/{}", keeper.path(), view.id), view).await?;
    tx.commit().await?;
    Ok(outcome)
}

/// Refuses a name that another key has, a key that has another name, and one too many.
fn require_new(others: &[SshKeyRow], row: &SshKeyRow, keeper: Keeper<'_>) -> Result<()> {
    let owner = keeper.word();
    if others.iter().any(|other| other.name == row.name) {
        let message = format!("The {owner} has an SSH key '{}' already. Give this one another name.", row.name);
        return Err(Error::new(Code::SshKeyExists, message));
    }
    if let Some(same) = others.iter().find(|other| other.bare_key == row.bare_key) {
        let message = format!("The {owner} has this SSH key already, under the name '{}'.", same.name);
        return Err(Error::new(Code::SshKeyExists, message));
    }
    if others.len() >= MOST {
        let message = format!("There are at most {MOST} SSH keys of one {owner}. Delete one that is not needed.");
        return Err(Error::new(Code::Conflict, message));
    }
    Ok(())
}

/// Forgets a key; machines that have it keep it.
pub(in crate::services::ssh_key) async fn delete(keys: &SshKeys, keeper: Keeper<'_>, id: SshKeyId) -> Result<()> {
    let now = keys.clock.now();
    let mut tx = keys.db.begin_as(&keeper).await?;
    let row = store::ssh_key::find(&mut tx, keeper.owner(), id).await?.ok_or_else(not_found)?;
    store::ssh_key::remove(&mut tx, &row).await?;
    let view = SshKeyView::from(&row);
    keeper.audit("ssh_key.delete", &view.id).with(view.told()).write_and_tell(&mut tx, now).await?;
    Ok(tx.commit().await?)
}

/// The 404 of a stored key.
pub(in crate::services::ssh_key) fn not_found() -> Error {
    Error::new(Code::NotFound, "There is no such SSH key here.")
}
