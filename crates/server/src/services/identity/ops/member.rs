//! Members of organizations and of projects.

use berth_domain::identity::member::{NewMember, Whom};
use berth_domain::identity::{Action, OrgRole, ProjectRole};
use berth_domain::ids::{ProjectId, UserId};
use berth_domain::{Code, Error, Result, Timestamp};
use serde_json::json;

use super::{api_key, quota};
use crate::db::audit::Audit;
use crate::db::{Tx, event};
use crate::http::auth::{OrgScope, Scope};
use crate::http::idempotency::{Idempotency, Outcome};
use crate::services::identity::absence::not_found;
use crate::services::identity::wire::member::MemberView;
use crate::services::identity::{Identity, store};

/// Changes a member's role. Owners are managed by owners, and the last one stays.
pub(in crate::services::identity) async fn change_role(
    identity: &Identity,
    scope: &OrgScope,
    user: UserId,
    role: OrgRole,
) -> Result<MemberView> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(scope).await?;
    let before = authorize(&mut tx, scope, user).await?;
    if role == OrgRole::Owner {
        scope.require_in(&mut tx, Action::OwnOrganization).await?;
        if before != OrgRole::Owner {
            let them = store::user::find(&mut tx, user).await?.ok_or_else(|| not_found("member"))?;
            quota::one_more(identity, &mut tx, user, them.is_admin).await?;
        }
    }
    if before == OrgRole::Owner && role != OrgRole::Owner {
        keep_an_owner(&mut tx, scope).await?;
    }
    store::member::put(&mut tx, scope.org, user, role, now).await?;
    let ended = api_key::end_unseen(&mut tx, scope.org, user, now).await?;
    let data = json!({"from": before.as_str(), "to": role.as_str(), "ended_keys": ended});
    Audit { data, ..scope.audit("member.role", &user.to_string()) }.write(&mut tx, now).await?;
    let row = store::member::find(&mut tx, scope.org, user).await?.ok_or_else(|| not_found("member"))?;
    identity.forgets_org(&mut tx, scope.org);
    tx.commit().await?;
    Ok(MemberView::from(row))
}

/// Removes a member, or leaves. With the member go the keys they made and the invitations they sent.
pub(in crate::services::identity) async fn remove(identity: &Identity, scope: &OrgScope, user: UserId) -> Result<()> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(scope).await?;
    if authorize(&mut tx, scope, user).await? == OrgRole::Owner {
        keep_an_owner(&mut tx, scope).await?;
    }
    let left = store::member::remove(&mut tx, scope.org, user).await?;
    tell_left(&mut tx, &left, user, now).await?;
    let keys = api_key::end_unseen(&mut tx, scope.org, user, now).await?;
    let invitations = store::invitation::end_of(&mut tx, user, Some(scope.org), now).await?;
    let data = json!({"ended_keys": keys, "ended_invitations": invitations});
    Audit { data, ..scope.audit("member.remove", &user.to_string()) }.write(&mut tx, now).await?;
    identity.forgets_org(&mut tx, scope.org);
    Ok(tx.commit().await?)
}

/// Tells who watches these projects that somebody is a member no more.
pub(super) async fn tell_left(tx: &mut Tx, projects: &[ProjectId], user: UserId, now: Timestamp) -> Result<()> {
    for project in projects {
        event::emit(tx, *project, "project_member.remove", &user.to_string(), &json!({}), now).await?;
    }
    Ok(())
}

/// The present role of a member whom the caller may manage: everybody themselves, administrators members and
/// administrators, owners everybody.
async fn authorize(tx: &mut Tx, scope: &OrgScope, user: UserId) -> Result<OrgRole> {
    let role = store::member::role(&mut *tx, scope.org, user).await?.ok_or_else(|| not_found("member"))?;
    if user != scope.person.user {
        let needed = if role == OrgRole::Owner { Action::OwnOrganization } else { Action::ManageOrganization };
        scope.require_in(tx, needed).await?;
    }
    Ok(role)
}

async fn keep_an_owner(tx: &mut Tx, scope: &OrgScope) -> Result<()> {
    if store::member::owners(tx, scope.org).await? > 1 {
        return Ok(());
    }
    Err(Error::new(Code::LastOwner, "This is the last owner of the organization. Make somebody else an owner first."))
}

/// Makes a member of the organization a member of the project, too.
pub(in crate::services::identity) async fn add_to_project(
    identity: &Identity,
    scope: &Scope,
    new: NewMember,
    key: Idempotency,
) -> Result<Outcome<MemberView>> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(scope).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    let (field, user) = match new.whom {
        Whom::User(id) => ("user_id", Some(id)),
        Whom::Email(email) => ("email", store::user::by_email(&mut tx, &email).await?.map(|user| user.id)),
    };
    let stranger = || Error::field(field, "is not a member of the organization; invite them first");
    let user = user.ok_or_else(stranger)?;
    store::member::role(&mut tx, scope.org, user).await?.ok_or_else(stranger)?;
    if store::member::find_in_project(&mut tx, scope.project, user).await?.is_some() {
        return Err(Error::new(Code::Conflict, "This person is a member of the project already. Change their role."));
    }
    store::member::put_in_project(&mut tx, scope.project, user, new.role, now).await?;
    let data = json!({"role": new.role.as_str()});
    Audit { data, ..scope.audit("project_member.add", &user.to_string()) }.write_and_tell(&mut tx, now).await?;
    let row = store::member::find_in_project(&mut tx, scope.project, user).await?.ok_or_else(|| not_found("member"))?;
    let view = MemberView::from(row);
    let outcome = key.created(&mut tx, now, view.location(scope), view).await?;
    identity.forgets_org(&mut tx, scope.org);
    tx.commit().await?;
    Ok(outcome)
}

/// Changes the role of a member of the project.
pub(in crate::services::identity) async fn change_role_in_project(
    identity: &Identity,
    scope: &Scope,
    user: UserId,
    role: ProjectRole,
) -> Result<MemberView> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(scope).await?;
    let find = || not_found("member");
    store::member::find_in_project(&mut tx, scope.project, user).await?.ok_or_else(find)?;
    store::member::put_in_project(&mut tx, scope.project, user, role, now).await?;
    let data = json!({"role": role.as_str()});
    Audit { data, ..scope.audit("project_member.role", &user.to_string()) }.write_and_tell(&mut tx, now).await?;
    let row = store::member::find_in_project(&mut tx, scope.project, user).await?.ok_or_else(find)?;
    identity.forgets_org(&mut tx, scope.org);
    tx.commit().await?;
    Ok(MemberView::from(row))
}

/// Takes a member out of the project, and ends the keys they made there; who administers the organization keeps theirs.
pub(in crate::services::identity) async fn remove_from_project(
    identity: &Identity,
    scope: &Scope,
    user: UserId,
) -> Result<()> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(scope).await?;
    store::member::find_in_project(&mut tx, scope.project, user).await?.ok_or_else(|| not_found("member"))?;
    store::member::remove_from_project(&mut tx, scope.project, user).await?;
    let data = json!({"ended_keys": api_key::end_unseen(&mut tx, scope.org, user, now).await?});
    Audit { data, ..scope.audit("project_member.remove", &user.to_string()) }.write_and_tell(&mut tx, now).await?;
    identity.forgets_org(&mut tx, scope.org);
    Ok(tx.commit().await?)
}
