//! Invitations.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use berth_domain::identity::invitation::{NewInvitation, token};

use crate::http::auth::{OrgManager, Person};
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::list::{List, PageParams, Params, SortParams};
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::identity::wire::invitation::{InvitationView, NewInvitationBody, TokenBody};
use crate::services::identity::wire::org::OrgView;
use crate::services::identity::{Identity, ops, store};

/// The invitations of an organization, newest first.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/invitations", operation_id = "listInvitations", tag = "identity",
    params(("org_id" = String, Path), PageParams, SortParams,
    ("status" = Option<String>, Query, description = "only this status", pattern = "^(pending|accepted|revoked|expired)$")), responses((status = 200, body = List<InvitationView>),
    (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn list_invitations(
    State(identity): State<Identity>,
    OrgManager(scope): OrgManager,
    mut params: Params,
) -> Reply<Json<List<InvitationView>>> {
    let listing = params.listing(&store::invitation::LISTED);
    params.finish()?;
    let now = identity.inner.clock.now();
    let (rows, total) = store::invitation::list(&identity.inner.db, scope.org, now, &listing).await?;
    Ok(Json(List::new(rows.iter().map(|row| InvitationView::of(row, now)).collect(), listing.page, total)))
}

/// Invites an address, by mail.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/invitations", operation_id = "createInvitation",
    tag = "identity", params(("org_id" = String, Path), KeyParam), request_body = NewInvitationBody, responses((status = 201,
    body = InvitationView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403,
    body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413,
    body = ErrorBody), (status = 415, body = ErrorBody), (status = 422, body = ErrorBody), (status = 429,
    body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn create_invitation(
    State(identity): State<Identity>,
    OrgManager(scope): OrgManager,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Outcome<InvitationView>> {
    let key = key.bind(&scope.person.caller, &body).await?;
    Ok(ops::invitation::create(&identity, &scope, NewInvitation::try_from(&body)?, key).await?)
}

/// Sends the mail again; the invitation is good for its whole time from now on.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/invitations/{invitation_id}/resend",
    operation_id = "resendInvitation", tag = "identity", params(("org_id" = String, Path),
    ("invitation_id" = uuid::Uuid, Path)), responses((status = 202, body = InvitationView), (status = 400,
    body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404,
    body = ErrorBody), (status = 409, body = ErrorBody), (status = 429, body = ErrorBody),
    (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn resend_invitation(
    State(identity): State<Identity>,
    OrgManager(scope): OrgManager,
    path: PathText,
) -> Reply<(StatusCode, Json<InvitationView>)> {
    let view = ops::invitation::resend(&identity, &scope, path.id("invitation_id")?).await?;
    Ok((StatusCode::ACCEPTED, Json(view)))
}

/// Takes an invitation back.
#[utoipa::path(delete, path = "/api/v1/orgs/{org_id}/invitations/{invitation_id}",
    operation_id = "revokeInvitation", tag = "identity", params(("org_id" = String, Path),
    ("invitation_id" = uuid::Uuid, Path)), responses((status = 204, description = "revoked"), (status = 400,
    body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404,
    body = ErrorBody), (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn revoke_invitation(
    State(identity): State<Identity>,
    OrgManager(scope): OrgManager,
    path: PathText,
) -> Reply<StatusCode> {
    ops::invitation::revoke(&identity, &scope, path.id("invitation_id")?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Accepts an invitation as the person whose address it is for. Without an account, sign up with `invitation_token`.
#[utoipa::path(post, path = "/api/v1/invitations/accept", operation_id = "acceptInvitation", tag = "identity",
    request_body = TokenBody, responses((status = 200, body = OrgView), (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn accept_invitation(
    State(identity): State<Identity>,
    person: Person,
    body::Json(body): body::Json,
) -> Reply<Json<OrgView>> {
    Ok(Json(ops::invitation::accept(&identity, &person, &token(&body)?).await?))
}
