//! What administrators of the platform do with people: make, promote, demote and delete them.

use berth_domain::identity::admin::NewUser;
use berth_domain::ids::UserId;
use berth_domain::{Code, Error, Result};
use serde_json::json;

use super::quota;
use super::user::{email_taken, leave, new_user, settle};
use crate::db::Tx;
use crate::db::tenant::Whose;
use crate::http::auth::Person;
use crate::http::idempotency::{Idempotency, Outcome};
use crate::services::identity::absence::not_found;
use crate::services::identity::password::Asker;
use crate::services::identity::store::user::UserRow;
use crate::services::identity::wire::suspension::AdminUserView;
use crate::services::identity::{Identity, mail, store, token};

/// Makes a person with an organization and a project of their own. The administrator answers for the address where
/// they choose the password; without one a mail has a link that chooses it, and only who reads the mail gets in.
pub(in crate::services::identity) async fn create(
    identity: &Identity,
    admin: &Person,
    request: NewUser,
    key: Idempotency,
) -> Result<Outcome<AdminUserView>> {
    let inner = &identity.inner;
    if key.is_given() {
        let mut tx = inner.db.begin_as(admin).await?;
        if let Some(replayed) = key.replay(&mut tx, inner.clock.now()).await? {
            return Ok(replayed);
        }
    }
    let chosen = request.password.is_some();
    let password = match request.password {
        Some(password) => {
            inner.config.password_rules().require("password", &password, &request.email)?;
            password.0
        }
        // Nobody knows it.
        None => token::new_opaque()?,
    };
    let hash = inner.hasher.hash(Asker::Account, password).await?;
    let now = inner.clock.now();
    let user = UserRow {
        name: request.name,
        is_admin: request.administrator,
        email_verified_at: chosen.then_some(now),
        ..new_user(request.email, hash, now)
    };
    let mut tx = inner.db.begin_as(admin).await?;
    if store::user::by_email(&mut tx, &user.email).await?.is_some() {
        return Err(email_taken());
    }
    let (org, project) = settle(&mut tx, &user, now).await?;
    quota::begin(identity, &mut tx, Whose::Org(org.id), now).await?;
    quota::begin(identity, &mut tx, Whose::Project(project.id), now).await?;
    if !chosen {
        store::outbox::put(&mut tx, mail::RESET_PASSWORD, &user.email, None, now).await?;
    }
    let data = json!({"email": user.email, "administrator": user.is_admin});
    admin.caller.audit("user.create", &user.id.to_string()).with(data).write(&mut tx, now).await?;
    let location = format!("/api/v1/admin/users/{}", user.id);
    let created = key.created(&mut tx, now, location, AdminUserView::from(&user)).await?;
    tx.commit().await?;
    Ok(created)
}

/// Makes a person an administrator of the platform, or takes that back.
pub(in crate::services::identity) async fn promote(
    identity: &Identity,
    admin: &Person,
    id: UserId,
    administrator: bool,
) -> Result<UserRow> {
    let inner = &identity.inner;
    if id == admin.user && !administrator {
        return Err(Error::new(Code::Conflict, "Nobody demotes themselves. Ask another administrator."));
    }
    let now = inner.clock.now();
    let mut tx = inner.db.begin_as(admin).await?;
    let mut user = store::user::find(&mut tx, id).await?.ok_or_else(|| not_found("person"))?;
    if user.is_admin != administrator {
        if !administrator {
            keep_an_administrator(&mut tx).await?;
        }
        store::user::set_admin(&mut tx, id, administrator, now).await?;
        (user.is_admin, user.updated_at) = (administrator, now);
        let action = if administrator { "user.promote" } else { "user.demote" };
        let data = json!({"email": user.email});
        admin.caller.audit(action, &id.to_string()).with(data).write(&mut tx, now).await?;
        let user = id;
        identity.once_committed(&mut tx, move |inner| inner.cache.forget_person(user));
        tx.commit().await?;
    }
    Ok(user)
}

/// Deletes a person, with the organizations that are nobody else's and empty.
pub(in crate::services::identity) async fn delete(identity: &Identity, admin: &Person, id: UserId) -> Result<()> {
    let inner = &identity.inner;
    if id == admin.user {
        let message = "Nobody deletes themselves here. Delete your account with DELETE /api/v1/users/me.";
        return Err(Error::new(Code::Conflict, message));
    }
    let now = inner.clock.now();
    let mut tx = inner.db.begin_as(admin).await?;
    let user = store::user::find(&mut tx, id).await?.ok_or_else(|| not_found("person"))?;
    if user.is_admin {
        keep_an_administrator(&mut tx).await?;
    }
    let left = leave(identity, &mut tx, id, "This person is", now).await?;
    let data = json!({"email": user.email});
    admin.caller.audit("user.delete", &id.to_string()).with(data).write(&mut tx, now).await?;
    identity.once_committed(&mut tx, move |inner| left.forget(&inner.cache, id, now));
    Ok(tx.commit().await?)
}

/// Refuses to take the last administrator away: of two who take each other's rights at once, the second is refused.
async fn keep_an_administrator(tx: &mut Tx) -> Result<()> {
    if store::user::administrators(tx).await? > 1 {
        return Ok(());
    }
    Err(Error::new(Code::Conflict, "This is the last administrator of the platform. Promote somebody first."))
}
