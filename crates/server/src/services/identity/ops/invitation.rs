//! Invitations to organizations, by mail.

use berth_domain::identity::{Action, OrgRole, ProjectRole};
use berth_domain::ids::{InvitationId, OrgId, ProjectId};
use berth_domain::{Code, Error, Result, Timestamp};
use serde_json::json;
use uuid::Uuid;

use super::{invalid_token, verification};
use crate::config::Secret;
use crate::db::Tx;
use crate::db::audit::{Actor, Audit};
use crate::http::auth::{OrgScope, Person, unauthorized};
use crate::http::idempotency::{Idempotency, Outcome};
use crate::services::identity::store::invitation::InvitationRow;
use crate::services::identity::store::org::OrgRow;
use crate::services::identity::store::user::UserRow;
use crate::services::identity::wire::invitation::{InvitationView, NewInvitation, ProjectRoleGiven};
use crate::services::identity::wire::org::OrgView;
use crate::services::identity::{Identity, mail, not_found, org_not_found, store, token};

/// Invites an address.
pub(in crate::services::identity) async fn create(
    identity: &Identity,
    scope: &OrgScope,
    new: NewInvitation,
    key: Idempotency,
) -> Result<Outcome<InvitationView>> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin().await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    if new.role == OrgRole::Owner {
        scope.require(Action::OwnOrganization)?;
    }
    check_projects(&mut tx, scope.org, &new.project_roles).await?;
    refuse_known(&mut tx, scope.org, &new.email, now).await?;
    let invitation = InvitationRow {
        id: InvitationId(Uuid::now_v7()),
        org: scope.org,
        email: new.email,
        role: new.role,
        project_roles: serde_json::to_string(&new.project_roles).map_err(Error::internal)?,
        invited_by: scope.person.user,
        created_at: now,
        expires_at: now.plus_seconds(identity.inner.config.invitation_seconds),
        accepted_at: None,
        revoked_at: None,
    };
    store::invitation::insert(&mut tx, &invitation).await?;
    let subject = invitation.id.to_string();
    store::outbox::put(&mut tx, mail::INVITATION, &invitation.email, Some(&subject), now).await?;
    let data = json!({"email": invitation.email, "role": invitation.role.as_str()});
    Audit { data, ..scope.audit("invitation.create", &subject) }.write(&mut tx, now).await?;
    let view = InvitationView::of(&invitation, now);
    let outcome = key.created(&mut tx, now, view.location(scope.org), view).await?;
    tx.commit().await?;
    Ok(outcome)
}

async fn check_projects(tx: &mut Tx, org: OrgId, roles: &[ProjectRoleGiven]) -> Result<()> {
    for (index, given) in roles.iter().enumerate() {
        let found = store::project::find(&mut *tx, given.project_id).await?;
        if found.is_none_or(|project| project.org != org) {
            return Err(Error::field(
                format!("project_roles[{index}].project_id"),
                "is not a project of this organization",
            ));
        }
    }
    Ok(())
}

async fn refuse_known(tx: &mut Tx, org: OrgId, email: &str, now: Timestamp) -> Result<()> {
    if store::invitation::open_for(tx, org, email, now).await?.is_some() {
        return Err(Error::new(Code::Conflict, "There is an open invitation for this address. Resend or revoke it."));
    }
    if let Some(user) = store::user::by_email(&mut *tx, email).await?
        && store::member::role(tx, org, user.id).await?.is_some()
    {
        return Err(Error::new(Code::Conflict, "This person is a member of the organization already."));
    }
    Ok(())
}

async fn open(tx: &mut Tx, scope: &OrgScope, id: InvitationId, now: Timestamp) -> Result<InvitationRow> {
    let found = store::invitation::find(tx, id).await?.filter(|invitation| invitation.org == scope.org);
    let invitation = found.ok_or_else(|| not_found("invitation"))?;
    if invitation.accepted_at.is_some() || invitation.revoked_at.is_some() {
        let state = InvitationView::of(&invitation, now).status;
        return Err(Error::new(Code::Conflict, format!("The invitation is {state}. Invite the address anew.")));
    }
    Ok(invitation)
}

/// Sends the mail again; the invitation is good for its whole time from now on.
pub(in crate::services::identity) async fn resend(
    identity: &Identity,
    scope: &OrgScope,
    id: InvitationId,
) -> Result<InvitationView> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin().await?;
    let mut invitation = open(&mut tx, scope, id, now).await?;
    invitation.expires_at = now.plus_seconds(identity.inner.config.invitation_seconds);
    store::invitation::update(&mut tx, &invitation).await?;
    store::outbox::put(&mut tx, mail::INVITATION, &invitation.email, Some(&id.to_string()), now).await?;
    scope.audit("invitation.resend", &id.to_string()).write(&mut tx, now).await?;
    tx.commit().await?;
    Ok(InvitationView::of(&invitation, now))
}

/// Takes an invitation back.
pub(in crate::services::identity) async fn revoke(
    identity: &Identity,
    scope: &OrgScope,
    id: InvitationId,
) -> Result<()> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin().await?;
    let mut invitation = open(&mut tx, scope, id, now).await?;
    invitation.revoked_at = Some(now);
    store::invitation::update(&mut tx, &invitation).await?;
    store::one_time::end(&mut tx, mail::INVITATION, &id.to_string(), now).await?;
    scope.audit("invitation.revoke", &id.to_string()).write(&mut tx, now).await?;
    Ok(tx.commit().await?)
}

/// Accepts an invitation as the person whose address it is for.
pub(in crate::services::identity) async fn accept(
    identity: &Identity,
    person: &Person,
    presented: &Secret,
) -> Result<OrgView> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin().await?;
    let mut user = store::user::find(&mut tx, person.user).await?.ok_or_else(unauthorized)?;
    let org = take(&mut tx, &presented.0, &mut user, &person.caller.request_id, now).await?;
    tx.commit().await?;
    identity.inner.memory.forget_scopes();
    Ok(OrgView::from(&org))
}

/// The open invitation of an address that a link leads to.
pub(super) async fn open_by(
    tx: &mut Tx,
    presented: &str,
    email: &str,
    now: Timestamp,
) -> Result<Option<InvitationRow>> {
    let link = store::one_time::by_token(&mut *tx, mail::INVITATION, &token::hash(presented)).await?;
    let Some(link) = link.filter(|link| link.used_at.is_none()) else { return Ok(None) };
    let id: InvitationId = link.subject.parse().map_err(Error::internal)?;
    let found = store::invitation::find(tx, id).await?;
    Ok(found.filter(|i| i.is_open(now) && i.email.eq_ignore_ascii_case(email)))
}

/// Makes a person a member by an invitation's link. Who has the link reads the address.
pub(super) async fn take(
    tx: &mut Tx,
    presented: &str,
    user: &mut UserRow,
    request_id: &str,
    now: Timestamp,
) -> Result<OrgRow> {
    let mut invitation = open_by(tx, presented, &user.email, now).await?.ok_or_else(invalid_token)?;
    let org = store::org::find(&mut *tx, invitation.org).await?.ok_or_else(org_not_found)?;
    let held = store::member::role(&mut *tx, org.id, user.id).await?;
    let role = held.map_or(invitation.role, |held| held.max(invitation.role));
    store::member::put(tx, org.id, user.id, role, now).await?;
    let given: Vec<ProjectRoleGiven> = serde_json::from_str(&invitation.project_roles).map_err(Error::internal)?;
    for ProjectRoleGiven { project_id, role } in given {
        give(tx, project_id, user, role, now).await?;
    }
    invitation.accepted_at = Some(now);
    store::invitation::update(tx, &invitation).await?;
    let subject = invitation.id.to_string();
    store::one_time::end(tx, mail::INVITATION, &subject, now).await?;
    verification::verified(tx, user, now).await?;
    let audit = Audit {
        org: Some(org.id),
        project: None,
        actor: Actor::User(user.id),
        request_id,
        action: "invitation.accept",
        subject: &subject,
        data: json!({"role": role.as_str()}),
    };
    audit.write(tx, now).await?;
    Ok(OrgRow { role: Some(role), ..org })
}

/// Gives a role in a project, if the project is still there.
async fn give(tx: &mut Tx, project: ProjectId, user: &UserRow, role: ProjectRole, now: Timestamp) -> Result<()> {
    if store::project::find(&mut *tx, project).await?.is_some() {
        store::member::put_in_project(tx, project, user.id, role, now).await?;
    }
    Ok(())
}
