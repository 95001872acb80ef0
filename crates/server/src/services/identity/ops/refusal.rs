//! Attempts that were refused: recorded, so that an attack is seen.

use berth_domain::identity::api_key;
use berth_domain::{Error, Result};
use serde_json::json;

use super::by_nobody;
use crate::db::audit::{Actor, Audit};
use crate::http::envelope::RequestId;
use crate::services::identity::notice::Noted;
use crate::services::identity::store::user::UserRow;
use crate::services::identity::{Identity, store, token};

/// Subject of the record of refusals that have none.
const MORE: &str = "refusals of this minute";
/// Subject of a record about an account that does not exist.
const NO_ACCOUNT: &str = "no account";

/// Records a sign-in that was refused, and the wait it brought. Known and unknown addresses cost the same.
pub(in crate::services::identity) async fn login(
    identity: &Identity,
    email: &str,
    user: Option<&UserRow>,
    reason: &str,
    wait: Option<u64>,
    request: &RequestId,
) -> Result<()> {
    let now = identity.inner.clock.now();
    match identity.inner.notices.each(request.from.into(), now) {
        Noted::Itself => {}
        Noted::More => return more(identity, request).await,
        Noted::Not => return Ok(()),
    }
    let subject = user.map_or_else(|| NO_ACCOUNT.to_owned(), |user| user.id.to_string());
    let mut tx = identity.inner.db.begin().await?;
    let data = json!({"email": email, "reason": reason});
    by_nobody(request, "user.login_failed", &subject).with(data).write(&mut tx, now).await?;
    if let Some(seconds) = wait {
        let data = json!({"email": email, "wait_seconds": seconds});
        by_nobody(request, "user.locked_out", &subject).with(data).write(&mut tx, now).await?;
    }
    Ok(tx.commit().await?)
}

/// Records that a minute has more refusals than records.
async fn more(identity: &Identity, request: &RequestId) -> Result<()> {
    let mut tx = identity.inner.db.begin().await?;
    let record = Audit { actor: Actor::Platform, from: None, ..by_nobody(request, "refusals.more", MORE) };
    record.write(&mut tx, identity.inner.clock.now()).await?;
    Ok(tx.commit().await?)
}

/// Records a key that was refused, once a minute for each key and network; where the key is or was one, its project sees
/// that.
pub(in crate::services::identity) async fn key(
    identity: &Identity,
    text: &str,
    refusal: &Error,
    request: &RequestId,
) -> Result<()> {
    let Some(public) = api_key::public_part(text) else { return Ok(()) };
    let now = identity.inner.clock.now();
    match identity.inner.notices.once(public, request.from.into(), now) {
        Noted::Itself => {}
        Noted::More => return more(identity, request).await,
        Noted::Not => return Ok(()),
    }
    let row = store::api_key::by_hash(&identity.inner.db, &token::hash(text)).await?;
    let reason = match &row {
        None => "unknown",
        Some(row) if row.revoked_at.is_some() => "revoked",
        Some(row) if !row.lives(now) => "expired",
        Some(_) => refusal.code.as_str(),
    };
    let subject = row.as_ref().map_or_else(|| public.to_owned(), |row| row.id.to_string());
    let name = row.as_ref().map(|row| row.name.clone());
    let record = by_nobody(request, "api_key.refused", &subject);
    let record = record.with(json!({"name": name, "key": public, "reason": reason}));
    let record = match &row {
        Some(row) => Audit { org: Some(row.org), project: Some(row.project), actor: Actor::Key(row.id), ..record },
        None => record,
    };
    let mut tx = identity.inner.db.begin().await?;
    record.write(&mut tx, now).await?;
    Ok(tx.commit().await?)
}
