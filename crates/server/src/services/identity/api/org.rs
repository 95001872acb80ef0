//! Organizations.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use berth_domain::identity::org::{ChangeOrg, NewOrg};

use crate::http::auth::{OrgOwner, OrgReader, Person};
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::list::{List, NameParams, PageParams, Params};
use crate::http::reply::Reply;
use crate::services::identity::absence::org_not_found;
use crate::services::identity::wire::org::{ChangeOrgBody, NamedBody, OrgView};
use crate::services::identity::{Identity, ops, store};

/// The organizations the caller belongs to, newest first.
#[utoipa::path(get, path = "/api/v1/orgs", operation_id = "listOrgs", tag = "identity", params(PageParams, NameParams),
    responses((status = 200, body = List<OrgView>), (status = 400, body = ErrorBody), (status = 401,
    body = ErrorBody), (status = 403, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_orgs(
    State(identity): State<Identity>,
    person: Person,
    mut params: Params,
) -> Reply<Json<List<OrgView>>> {
    let listing = params.listing(&store::org::LISTED);
    params.finish()?;
    let (rows, total) = store::org::list_of(&identity.inner.db, person.user, &listing).await?;
    Ok(Json(List::new(rows.iter().map(OrgView::from).collect(), listing.page, total)))
}

/// Makes an organization; the caller owns it.
#[utoipa::path(post, path = "/api/v1/orgs", operation_id = "createOrg", tag = "identity",
    params(KeyParam), request_body = NamedBody, responses((status = 201, body = OrgView),
    (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
    (status = 409, body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody),
    (status = 422, body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn create_org(
    State(identity): State<Identity>,
    person: Person,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Outcome<OrgView>> {
    let key = key.bind(&person.caller, &body).await?;
    Ok(ops::org::create(&identity, &person, NewOrg::try_from(&body)?, key).await?)
}

/// One organization.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}", operation_id = "getOrg", tag = "identity",
    params(("org_id" = String, Path)), responses((status = 200, body = OrgView), (status = 401, body = ErrorBody),
    (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn get_org(State(identity): State<Identity>, OrgReader(scope): OrgReader) -> Reply<Json<OrgView>> {
    let row = store::org::of(&identity.inner.db, scope.person.user, &scope.org.to_string()).await?;
    Ok(Json(OrgView::from(&row.ok_or_else(org_not_found)?)))
}

/// Changes an organization's name, slug, or how long its API keys live at most (owners).
#[utoipa::path(patch, path = "/api/v1/orgs/{org_id}", operation_id = "updateOrg", tag = "identity",
    params(("org_id" = String, Path)), request_body = ChangeOrgBody, responses((status = 200, body = OrgView),
    (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody),
    (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn update_org(
    State(identity): State<Identity>,
    OrgOwner(scope): OrgOwner,
    body::Json(body): body::Json,
) -> Reply<Json<OrgView>> {
    Ok(Json(ops::org::update(&identity, &scope, ChangeOrg::try_from(&body)?).await?))
}

/// Deletes an organization that holds nothing, with its empty projects (owners).
#[utoipa::path(delete, path = "/api/v1/orgs/{org_id}", operation_id = "deleteOrg", tag = "identity",
    params(("org_id" = String, Path)), responses((status = 204, description = "deleted"), (status = 401,
    body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409,
    body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn delete_org(State(identity): State<Identity>, OrgOwner(scope): OrgOwner) -> Reply<StatusCode> {
    ops::org::delete(&identity, &scope).await?;
    Ok(StatusCode::NO_CONTENT)
}
