//! Suspending people and organizations: everything of theirs is refused at once, and their machines stop.

use berth_domain::ids::{OrgId, UserId};
use berth_domain::{Code, Error, Result};
use serde_json::json;

use crate::db::Signal;
use crate::db::audit::Audit;
use crate::http::auth::Person;
use crate::services::identity::absence::{not_found, org_not_found};
use crate::services::identity::store::org::OrgRow;
use crate::services::identity::store::user::UserRow;
use crate::services::identity::{Identity, store};

/// Suspends a person, or lifts that.
pub(in crate::services::identity) async fn user(
    identity: &Identity,
    admin: &Person,
    id: UserId,
    suspended: bool,
    reason: Option<String>,
) -> Result<UserRow> {
    if id == admin.user {
        return Err(Error::new(Code::Conflict, "Nobody suspends themselves. Ask another administrator."));
    }
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(admin).await?;
    let mut user = store::user::find(&mut tx, id).await?.ok_or_else(|| not_found("person"))?;
    user.suspended_at = suspended.then(|| user.suspended_at.unwrap_or(now));
    user.updated_at = now;
    store::user::update(&mut tx, &user).await?;
    let action = if suspended { "user.suspend" } else { "user.unsuspend" };
    let subject = id.to_string();
    Audit { data: json!({"reason": reason}), ..admin.caller.audit(action, &subject) }.write(&mut tx, now).await?;
    tx.signal(Signal::Work("suspensions"));
    identity.once_committed(&mut tx, |inner| inner.cache.forget_people());
    tx.commit().await?;
    Ok(user)
}

/// Suspends an organization, or lifts that.
pub(in crate::services::identity) async fn org(
    identity: &Identity,
    admin: &Person,
    id: OrgId,
    suspended: bool,
    reason: Option<String>,
) -> Result<OrgRow> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(admin).await?;
    let mut org = store::org::find(&mut tx, id).await?.ok_or_else(org_not_found)?;
    org.suspended_at = suspended.then(|| org.suspended_at.unwrap_or(now));
    org.updated_at = now;
    store::org::update(&mut tx, &org).await?;
    let action = if suspended { "org.suspend" } else { "org.unsuspend" };
    let subject = id.to_string();
    Audit { org: Some(id), data: json!({"reason": reason}), ..admin.caller.audit(action, &subject) }
        .write(&mut tx, now)
        .await?;
    tx.signal(Signal::Work("suspensions"));
    identity.once_committed(&mut tx, |inner| inner.cache.forget_people());
    tx.commit().await?;
    Ok(org)
}
