//! Invitations to organizations, by mail.

use berth_domain::identity::contact::masked;
use berth_domain::identity::invitation::{NewInvitation, ProjectRoleGiven};
use berth_domain::identity::policy::may;
use berth_domain::identity::{Action, OrgRole, ProjectRole};
use berth_domain::ids::{InvitationId, OrgId, ProjectId};
use berth_domain::{Code, Error, Result, Secret, Timestamp};
use serde_json::json;
use uuid::Uuid;

use super::verification::require_verified;
use super::{by_themselves, invalid_token, quota, verification};
use crate::db::audit::Audit;
use crate::db::{On, Tx};
use crate::http::auth::{OrgScope, Person, unauthorized};
use crate::http::envelope::RequestId;
use crate::http::idempotency::{Idempotency, Outcome};
use crate::services::identity::absence::{not_found, org_not_found};
use crate::services::identity::store::invitation::InvitationRow;
use crate::services::identity::store::org::OrgRow;
use crate::services::identity::store::user::UserRow;
use crate::services::identity::wire::invitation::InvitationView;
use crate::services::identity::wire::org::OrgView;
use crate::services::identity::{Identity, mail, store, token};

/// Invites an address.
pub(in crate::services::identity) async fn create(
    identity: &Identity,
    scope: &OrgScope,
    new: NewInvitation,
    key: Idempotency,
) -> Result<Outcome<InvitationView>> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(scope).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    require_giver(&mut tx, scope, new.role).await?;
    require_verified(identity, &mut tx, scope.person.user).await?;
    check_projects(&mut tx, scope.org, &new.project_roles).await?;
    refuse_known(&mut tx, scope.org, &new.email, now).await?;
    identity.inner.limits.invitation(scope.person.user, scope.org, &new.email, now)?;
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

/// Refuses who may not give a role: owners are made by owners.
async fn require_giver(tx: &mut Tx, scope: &OrgScope, role: OrgRole) -> Result<()> {
    if role == OrgRole::Owner { scope.require_in(tx, Action::OwnOrganization).await } else { Ok(()) }
}

/// Refuses an invitation whose sender may not give its role any more.
async fn require_sender(tx: &mut Tx, invitation: &InvitationRow) -> Result<()> {
    let role = store::member::active_role(tx, invitation.org, invitation.invited_by).await?;
    let gives = if invitation.role == OrgRole::Owner { Action::OwnOrganization } else { Action::ManageOrganization };
    if may(role, None, gives) {
        return Ok(());
    }
    Err(Error::new(
        Code::InvalidToken,
        "The invitation does not count any more: who sent it may not give this role now. Ask for a new one.",
    ))
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
    let mut tx = identity.inner.db.begin_as(scope).await?;
    let mut invitation = open(&mut tx, scope, id, now).await?;
    require_giver(&mut tx, scope, invitation.role).await?;
    require_verified(identity, &mut tx, scope.person.user).await?;
    invitation.invited_by = scope.person.user;
    identity.inner.limits.invitation(scope.person.user, scope.org, &invitation.email, now)?;
    invitation.expires_at = now.plus_seconds(identity.inner.config.invitation_seconds);
    store::invitation::update(&mut tx, &invitation).await?;
    store::outbox::put(&mut tx, mail::INVITATION, &invitation.email, Some(&id.to_string()), now).await?;
    let subject = id.to_string();
    scope.audit("invitation.resend", &subject).with(json!({"email": invitation.email})).write(&mut tx, now).await?;
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
    let mut tx = identity.inner.db.begin_as(scope).await?;
    let mut invitation = open(&mut tx, scope, id, now).await?;
    invitation.revoked_at = Some(now);
    store::invitation::update(&mut tx, &invitation).await?;
    store::one_time::end(&mut tx, mail::INVITATION, &id.to_string(), now).await?;
    let subject = id.to_string();
    scope.audit("invitation.revoke", &subject).with(json!({"email": invitation.email})).write(&mut tx, now).await?;
    Ok(tx.commit().await?)
}

/// Accepts an invitation as the person whose address it is for.
pub(in crate::services::identity) async fn accept(
    identity: &Identity,
    person: &Person,
    presented: &Secret,
) -> Result<OrgView> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(person).await?;
    let mut user = store::user::find(&mut tx, person.user).await?.ok_or_else(unauthorized)?;
    let request = RequestId { id: person.caller.request_id.clone(), from: person.caller.from };
    let org = take(identity, &mut tx, &presented.0, &mut user, &request, now).await?;
    identity.forgets_org(&mut tx, org.id);
    tx.commit().await?;
    Ok(OrgView::from(&org))
}

/// The open invitation of an address that a link leads to. Who holds the link of another's is told so.
pub(super) async fn open_by(on: impl On, presented: &str, email: &str, now: Timestamp) -> Result<InvitationRow> {
    let found = store::invitation::by_link(on, mail::INVITATION, &token::hash(presented)).await?;
    let invitation = found.filter(|invitation| invitation.is_open(now)).ok_or_else(invalid_token)?;
    if invitation.email.eq_ignore_ascii_case(email) {
        return Ok(invitation);
    }
    let message = "This invitation is for another address, ADDRESS. Sign in or sign up with that one.";
    Err(Error::new(Code::InvalidToken, message.replace("ADDRESS", &masked(&invitation.email))))
}

/// Makes a person a member by an invitation's link. Who has the link reads the address.
pub(super) async fn take(
    identity: &Identity,
    tx: &mut Tx,
    presented: &str,
    user: &mut UserRow,
    request: &RequestId,
    now: Timestamp,
) -> Result<OrgRow> {
    let mut invitation = open_by(&mut *tx, presented, &user.email, now).await?;
    let org = store::org::find(&mut *tx, invitation.org).await?.ok_or_else(org_not_found)?;
    require_sender(tx, &invitation).await?;
    let held = store::member::role(&mut *tx, org.id, user.id).await?;
    let role = held.map_or(invitation.role, |held| held.max(invitation.role));
    if role == OrgRole::Owner && held != Some(OrgRole::Owner) {
        quota::one_more(identity, tx, user.id, user.is_admin).await?;
    }
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
    let data = json!({"role": role.as_str()});
    let audit = by_themselves(user.id, request, "invitation.accept", &subject);
    Audit { org: Some(org.id), data, ..audit }.write(tx, now).await?;
    Ok(OrgRow { role: Some(role), ..org })
}

/// Gives a role in a project, if the project is still there.
async fn give(tx: &mut Tx, project: ProjectId, user: &UserRow, role: ProjectRole, now: Timestamp) -> Result<()> {
    if store::project::find(&mut *tx, project).await?.is_some() {
        store::member::put_in_project(tx, project, user.id, role, now).await?;
    }
    Ok(())
}
