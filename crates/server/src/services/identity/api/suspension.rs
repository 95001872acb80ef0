//! People and organizations as administrators of the platform see and suspend them (extensions).

use axum::Json;
use axum::extract::State;
use berth_domain::identity::suspension::reason;

use crate::http::auth::Administrator;
use crate::http::body::OptionalJson;
use crate::http::envelope::ErrorBody;
use crate::http::list::{List, NameParams, PageParams, Params};
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::identity::wire::org::OrgView;
use crate::services::identity::wire::suspension::{AdminUserView, SuspendBody};
use crate::services::identity::{Identity, ops, store};

/// Everybody, newest first; `email` is a part of the address.
#[utoipa::path(get, path = "/api/v1/admin/users", operation_id = "listUsers", tag = "administration",
    params(("email" = Option<String>, Query), NameParams, PageParams), responses((status = 200, body = List<AdminUserView>),
    (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
    (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn list_users(
    State(identity): State<Identity>,
    _admin: Administrator,
    mut params: Params,
) -> Reply<Json<List<AdminUserView>>> {
    let listing = params.listing(&store::user::LISTED);
    let email = params.get("email").unwrap_or_default().to_owned();
    params.finish()?;
    let (rows, total) = store::user::list(&identity.inner.db, &email, &listing).await?;
    Ok(Json(List::new(rows.iter().map(AdminUserView::from).collect(), listing.page, total)))
}

/// Suspends a person: everything of theirs is refused at once.
#[utoipa::path(post, path = "/api/v1/admin/users/{user_id}/suspend", operation_id = "suspendUser",
    tag = "administration", params(("user_id" = uuid::Uuid, Path)), request_body = Option<SuspendBody>,
    responses((status = 200, body = AdminUserView), (status = 400, body = ErrorBody), (status = 401,
    body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409,
    body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 503,
    body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn suspend_user(
    State(identity): State<Identity>,
    Administrator(admin): Administrator,
    path: PathText,
    body: OptionalJson,
) -> Reply<Json<AdminUserView>> {
    let reason = body.0.as_ref().map(reason).transpose()?.flatten();
    let id = path.id("user_id")?;

    let row = ops::suspension::user(&identity, &admin, id, true, reason).await?;
    Ok(Json(AdminUserView::from(&row)))
}

/// Lifts the suspension of a person.
#[utoipa::path(post, path = "/api/v1/admin/users/{user_id}/unsuspend", operation_id = "unsuspendUser",
    tag = "administration", params(("user_id" = uuid::Uuid, Path)), responses((status = 200, body = AdminUserView),
    (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn unsuspend_user(
    State(identity): State<Identity>,
    Administrator(admin): Administrator,
    path: PathText,
) -> Reply<Json<AdminUserView>> {
    let row = ops::suspension::user(&identity, &admin, path.id("user_id")?, false, None).await?;
    Ok(Json(AdminUserView::from(&row)))
}

/// Every organization, newest first.
#[utoipa::path(get, path = "/api/v1/admin/orgs", operation_id = "listAllOrgs", tag = "administration",
    params(PageParams, NameParams), responses((status = 200, body = List<OrgView>), (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_all_orgs(
    State(identity): State<Identity>,
    _admin: Administrator,
    mut params: Params,
) -> Reply<Json<List<OrgView>>> {
    let listing = params.listing(&store::org::LISTED);
    params.finish()?;
    let (rows, total) = store::org::list(&identity.inner.db, &listing).await?;
    Ok(Json(List::new(rows.iter().map(OrgView::from).collect(), listing.page, total)))
}

/// Suspends an organization: everything of it is refused at once, and its machines stop.
#[utoipa::path(post, path = "/api/v1/admin/orgs/{org_id}/suspend", operation_id = "suspendOrg",
    tag = "administration", params(("org_id" = uuid::Uuid, Path)), request_body = Option<SuspendBody>,
    responses((status = 200, body = OrgView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
    (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 413, body = ErrorBody),
    (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn suspend_org(
    State(identity): State<Identity>,
    Administrator(admin): Administrator,
    path: PathText,
    body: OptionalJson,
) -> Reply<Json<OrgView>> {
    let reason = body.0.as_ref().map(reason).transpose()?.flatten();
    let id = path.id("org_id")?;

    Ok(Json(OrgView::from(&ops::suspension::org(&identity, &admin, id, true, reason).await?)))
}

/// Lifts the suspension of an organization. Its machines stay stopped until somebody starts them.
#[utoipa::path(post, path = "/api/v1/admin/orgs/{org_id}/unsuspend", operation_id = "unsuspendOrg",
    tag = "administration", params(("org_id" = uuid::Uuid, Path)), responses((status = 200, body = OrgView),
    (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn unsuspend_org(
    State(identity): State<Identity>,
    Administrator(admin): Administrator,
    path: PathText,
) -> Reply<Json<OrgView>> {
    Ok(Json(OrgView::from(&ops::suspension::org(&identity, &admin, path.id("org_id")?, false, None).await?)))
}
