//! API keys of projects.

use berth_domain::hex;
use berth_domain::identity::api_key::{ChangeKey, NewKey, refuse_long, refuse_past};
use berth_domain::ids::{KeyId, OrgId, UserId};
use berth_domain::{Code, Error, Result, Timestamp};
use serde_json::json;
use uuid::Uuid;

use super::verification::require_verified;
use crate::db::audit::Audit;
use crate::db::{Tx, event};
use crate::http::auth::{Scope, Who, unauthorized};
use crate::http::idempotency::{Idempotency, Outcome};
use crate::http::reply::Created;
use crate::services::identity::absence::{not_found, project_not_found};
use crate::services::identity::cache::KeyHash;
use crate::services::identity::store::api_key::KeyRow;
use crate::services::identity::wire::api_key::{KeyView, NewKeyView};
use crate::services::identity::{Identity, store, token};

/// Makes a key; the answer is the only place where it stands.
pub(in crate::services::identity) async fn create(
    identity: &Identity,
    scope: &Scope,
    new: NewKey,
    key: Idempotency,
) -> Result<Outcome<NewKeyView>> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(scope).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    refuse_past(new.expires_at, now)?;
    refuse_long(new.expires_at, now, longest(&mut tx, scope).await?)?;
    require_verified(identity, &mut tx, maker(scope)?).await?;
    let view = write(&mut tx, scope, new, now).await?;
    Audit { data: view.key.told(), ..scope.audit("api_key.create", &view.key.id) }.write_and_tell(&mut tx, now).await?;
    let created = shown_once(scope, &key, &mut tx, view, now).await?;
    tx.commit().await?;
    Ok(created)
}

/// The answer with the secret; what is kept of it shows none.
async fn shown_once(
    scope: &Scope,
    key: &Idempotency,
    tx: &mut Tx,
    view: NewKeyView,
    now: Timestamp,
) -> Result<Outcome<NewKeyView>> {
    let location = view.key.location(scope);
    key.keep(tx, now, &location, &view.key).await?;
    Ok(Outcome::Created(Created { location, body: view }))
}

/// How long a key of the organization may live that is made now, in seconds.
async fn longest(tx: &mut Tx, scope: &Scope) -> Result<Option<i64>> {
    Ok(store::org::find(tx, scope.org).await?.ok_or_else(project_not_found)?.max_key_seconds)
}

/// The person who makes a key.
fn maker(scope: &Scope) -> Result<UserId> {
    match scope.caller.who {
        Who::Person { user, .. } => Ok(user),
        Who::Key { .. } => Err(unauthorized()),
    }
}

async fn write(tx: &mut Tx, scope: &Scope, new: NewKey, now: Timestamp) -> Result<NewKeyView> {
    let (public_id, secret) = token::new_api_key()?;
    let row = KeyRow {
        id: KeyId(Uuid::now_v7()),
        org: scope.org,
        project: scope.project,
        name: new.name,
        public_id,
        hash: token::hash(&secret),
        scopes: new.scopes,
        created_by: maker(scope)?,
        created_at: now,
        updated_at: now,
        expires_at: new.expires_at,
        revoked_at: None,
        last_used_at: None,
        last_used_address: None,
        networks: new.networks,
        suspended: false,
        maker_email: None,
        longest: None,
    };
    store::api_key::insert(tx, &row).await?;
    let row = load(tx, scope, row.id).await?;
    Ok(NewKeyView { key: KeyView::of(&row, now), secret })
}

async fn load(tx: &mut Tx, scope: &Scope, id: KeyId) -> Result<KeyRow> {
    store::api_key::find(tx, scope.project, id).await?.ok_or_else(|| not_found("API key"))
}

/// Writes a changed key, and has every request from now on see it.
async fn commit(identity: &Identity, mut tx: Tx, row: &KeyRow) -> Result<()> {
    store::api_key::update(&mut tx, row).await?;
    let hash = hash_of(row)?;
    identity.once_committed(&mut tx, move |inner| inner.cache.forget_key(&hash));
    tx.commit().await?;
    Ok(())
}

fn hash_of(row: &KeyRow) -> Result<KeyHash> {
    hex::decode(&row.hash).ok_or_else(|| Error::internal("the hash of an API key is none"))
}

/// Changes name, scopes, networks or end.
pub(in crate::services::identity) async fn update(
    identity: &Identity,
    scope: &Scope,
    id: KeyId,
    change: ChangeKey,
) -> Result<KeyView> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(scope).await?;
    let before = load(&mut tx, scope, id).await?;
    let mut row = before.clone();
    if row.revoked_at.is_some() {
        return Err(Error::new(Code::Conflict, "The key is revoked. Make a new one."));
    }
    refuse_past(change.expires_at, now)?;
    if change.expires_at.is_some() {
        refuse_long(change.expires_at, row.created_at, row.longest)?;
    }
    row.networks = change.networks.unwrap_or(row.networks);
    row.name = change.name.unwrap_or(row.name);
    row.scopes = change.scopes.unwrap_or(row.scopes);
    row.expires_at = change.expires_at.or(row.expires_at);
    if row == before {
        return Ok(KeyView::of(&row, now));
    }
    row.updated_at = now;
    let view = KeyView::of(&row, now);
    Audit { data: view.told(), ..scope.audit("api_key.update", &view.id) }.write_and_tell(&mut tx, now).await?;
    commit(identity, tx, &row).await?;
    Ok(view)
}

/// Ends a key.
pub(in crate::services::identity) async fn revoke(identity: &Identity, scope: &Scope, id: KeyId) -> Result<()> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(scope).await?;
    let mut row = load(&mut tx, scope, id).await?;
    if row.revoked_at.is_some() {
        return Ok(());
    }
    row.revoked_at = Some(now);
    row.updated_at = now;
    let view = KeyView::of(&row, now);
    Audit { data: view.told(), ..scope.audit("api_key.revoke", &view.id) }.write_and_tell(&mut tx, now).await?;
    commit(identity, tx, &row).await
}

/// Ends the keys of an organization that a person made in projects which they do not see any more. How many.
pub(super) async fn end_unseen(tx: &mut Tx, org: OrgId, maker: UserId, now: Timestamp) -> Result<usize> {
    let keys = store::api_key::unseen(tx, org, maker).await?;
    end(tx, keys, now).await
}

/// Ends every key that a person made. How many.
pub(super) async fn end_all(tx: &mut Tx, maker: UserId, now: Timestamp) -> Result<usize> {
    let keys = store::api_key::of_maker(tx, maker).await?;
    end(tx, keys, now).await
}

/// Ends keys for what happened to who made them, and tells who watches their projects.
async fn end(tx: &mut Tx, keys: Vec<KeyRow>, now: Timestamp) -> Result<usize> {
    let ended = keys.len();
    for mut key in keys {
        (key.revoked_at, key.updated_at) = (Some(now), now);
        store::api_key::update(tx, &key).await?;
        let view = KeyView::of(&key, now);
        event::emit(tx, key.project, "api_key.revoke", &view.id, &view.told(), now).await?;
    }
    Ok(ended)
}

/// Makes a successor of a key; the old one ends after the overlap. The successor ends with it, or when the organization
/// lets it live no longer.
pub(in crate::services::identity) async fn rotate(
    identity: &Identity,
    scope: &Scope,
    id: KeyId,
    overlap_seconds: i64,
    key: Idempotency,
) -> Result<Outcome<NewKeyView>> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(scope).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    let mut old = load(&mut tx, scope, id).await?;
    if !old.lives(now) {
        return Err(Error::new(Code::Conflict, "The key has ended. Make a new one."));
    }
    require_verified(identity, &mut tx, maker(scope)?).await?;
    let latest = old.longest.map(|longest| now.plus_seconds(longest));
    let new = NewKey {
        name: old.name.clone(),
        scopes: old.scopes,
        expires_at: old.expires_at.into_iter().chain(latest).min(),
        networks: old.networks.clone(),
    };
    let view = write(&mut tx, scope, new, now).await?;
    if overlap_seconds == 0 {
        old.revoked_at = Some(now);
    } else {
        let end = now.plus_seconds(overlap_seconds);
        old.expires_at = Some(old.expires_at.map_or(end, |at| at.min(end)));
    }
    old.updated_at = now;
    let data = json!({"successor": view.key.id, "overlap_seconds": overlap_seconds});
    Audit { data, ..scope.audit("api_key.rotate", &id.to_string()) }.write_and_tell(&mut tx, now).await?;
    let created = shown_once(scope, &key, &mut tx, view, now).await?;
    commit(identity, tx, &old).await?;
    Ok(created)
}
