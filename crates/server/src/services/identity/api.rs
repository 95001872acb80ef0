//! The routes of identity.

use std::net::SocketAddr;

use axum::Json;
use axum::extract::{ConnectInfo, FromRequest, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use berth_domain::identity::policy::{Action, may};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::ops::{self, Outcome};
use super::wire::requests::{LoginBody, LogoutBody, NamedBody, RefreshBody, SignUpBody};
use super::wire::{
    Login, Logout, Named, OrgView, ProjectView, SignUp, SignUpView, TokensView, UserView, refresh_token,
};
use super::{Identity, org_not_found, project_not_found, store};
use crate::http::auth::{Caller, OrgManager, OrgScope, Scope, unauthorized};
use crate::http::body;
use crate::http::envelope::{ApiError, ErrorBody, RequestId};
use crate::http::idempotency::IdempotencyKey;
use crate::http::list::{List, PageParams, Params};
use crate::http::path::PathText;
use crate::http::reply::{Created, Reply};

/// Every route of the service.
pub(super) fn routes() -> OpenApiRouter<Identity> {
    OpenApiRouter::new()
        .routes(routes!(sign_up))
        .routes(routes!(login))
        .routes(routes!(refresh))
        .routes(routes!(logout))
        .routes(routes!(jwks))
        .routes(routes!(get_me))
        .routes(routes!(list_orgs, create_org))
        .routes(routes!(get_org))
        .routes(routes!(list_projects, create_project))
        .routes(routes!(get_project))
}

/// Signs a person up: with an organization and a first project of their own.
#[utoipa::path(post, path = "/api/v1/auth/signup", operation_id = "signUp", tag = "identity",
    request_body = SignUpBody,
    responses((status = 201, body = SignUpView), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 429, body = ErrorBody),
        (status = 503, body = ErrorBody)))]
async fn sign_up(
    State(identity): State<Identity>,
    id: RequestId,
    body::Json(body): body::Json,
) -> Reply<Created<SignUpView>> {
    let view = ops::sign_up(&identity, SignUp::try_from(&body)?, &id).await?;
    Ok(Created { location: "/api/v1/users/me".into(), body: view })
}

/// Signs a person in.
#[utoipa::path(post, path = "/api/v1/auth/login", operation_id = "login", tag = "identity", request_body = LoginBody,
    responses((status = 200, body = TokensView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody),
        (status = 429, body = ErrorBody), (status = 503, body = ErrorBody)))]
async fn login(State(identity): State<Identity>, id: RequestId, request: Request) -> Reply<Response> {
    if let Some(ConnectInfo(address)) = request.extensions().get::<ConnectInfo<SocketAddr>>() {
        identity.inner.throttle.client(address.ip(), identity.inner.clock.now())?;
    }
    let body::Json(body) = body::Json::from_request(request, &()).await?;
    Ok(private(ops::login(&identity, Login::try_from(&body)?, &id).await?))
}

/// Exchanges a refresh token for new tokens.
#[utoipa::path(post, path = "/api/v1/auth/refresh", operation_id = "refresh", tag = "identity",
    request_body = RefreshBody,
    responses((status = 200, body = TokensView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)))]
async fn refresh(State(identity): State<Identity>, id: RequestId, body::Json(body): body::Json) -> Reply<Response> {
    Ok(private(ops::refresh(&identity, &refresh_token(&body)?, &id).await?))
}

/// An answer with tokens: nobody on the way keeps it.
fn private(view: TokensView) -> Response {
    ([(header::CACHE_CONTROL, "no-store")], Json(view)).into_response()
}

/// Ends this session, the session of a refresh token, or all sessions of the caller.
#[utoipa::path(post, path = "/api/v1/auth/logout", operation_id = "logout", tag = "identity",
    request_body = LogoutBody,
    responses((status = 204, description = "ended"), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
async fn logout(State(identity): State<Identity>, caller: Caller, body: OptionalJson) -> Reply<StatusCode> {
    let request = body.0.as_ref().map(Logout::try_from).transpose()?.unwrap_or_default();
    ops::logout(&identity, &caller, request).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A JSON body that may be absent.
struct OptionalJson(Option<serde_json::Value>);

impl<S: Send + Sync> FromRequest<S> for OptionalJson {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        if request.headers().contains_key(header::CONTENT_TYPE) {
            let body::Json(body) = body::Json::from_request(request, state).await?;
            return Ok(Self(Some(body)));
        }
        let bytes = body::read(request, crate::http::BODY_LIMIT).await?;
        Ok(Self(if bytes.is_empty() { None } else { Some(body::parse(&bytes)?) }))
    }
}

/// The keys that access tokens are verified with.
#[utoipa::path(get, path = "/.well-known/jwks.json", operation_id = "getJWKS", tag = "identity",
    responses((status = 200, body = serde_json::Value)))]
async fn jwks(State(identity): State<Identity>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], identity.inner.signer.jwks().to_owned()).into_response()
}

/// The caller.
#[utoipa::path(get, path = "/api/v1/users/me", operation_id = "getMe", tag = "identity",
    responses((status = 200, body = UserView), (status = 401, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
async fn get_me(State(identity): State<Identity>, caller: Caller) -> Reply<Json<UserView>> {
    let row = store::user(&identity.inner.db, caller.user).await?.ok_or_else(unauthorized)?;
    Ok(Json(UserView::from(&row)))
}

/// The organizations the caller belongs to, newest first.
#[utoipa::path(get, path = "/api/v1/orgs", operation_id = "listOrgs", tag = "identity", params(PageParams),
    responses((status = 200, body = List<OrgView>), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
async fn list_orgs(State(identity): State<Identity>, caller: Caller, mut params: Params) -> Reply<Json<List<OrgView>>> {
    let page = params.page();
    params.finish()?;
    let (rows, total) = store::orgs_of(&identity.inner.db, caller.user, page).await?;
    Ok(Json(List::new(rows.iter().map(OrgView::from).collect(), page, total)))
}

/// Makes an organization; the caller owns it.
#[utoipa::path(post, path = "/api/v1/orgs", operation_id = "createOrg", tag = "identity",
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 characters; kept 24 hours",
            min_length = 1, max_length = 255, pattern = "^[ -~]*[!-~][ -~]*$")),
    request_body = NamedBody,
    responses((status = 201, body = OrgView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody),
        (status = 422, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
async fn create_org(
    State(identity): State<Identity>,
    caller: Caller,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Response> {
    let key = key.bind(caller.user, &body);
    Ok(match ops::create_org(&identity, &caller, Named::try_from(&body)?, key).await? {
        Outcome::Created(view) => Created { location: view.location(), body: view }.into_response(),
        Outcome::Replayed(replay) => replay.into_response(),
    })
}

/// One organization.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}", operation_id = "getOrg", tag = "identity",
    params(("org_id" = String, Path)),
    responses((status = 200, body = OrgView), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
async fn get_org(State(identity): State<Identity>, caller: Caller, path: PathText) -> Reply<Json<OrgView>> {
    let row = store::org_of(&identity.inner.db, caller.user, path.text("org_id")).await?;
    Ok(Json(OrgView::from(&row.ok_or_else(org_not_found)?)))
}

/// The projects of an organization that the caller sees, newest first.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects", operation_id = "listProjects", tag = "identity",
    params(("org_id" = String, Path), PageParams),
    responses((status = 200, body = List<ProjectView>), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
async fn list_projects(
    State(identity): State<Identity>,
    scope: OrgScope,
    mut params: Params,
) -> Reply<Json<List<ProjectView>>> {
    let page = params.page();
    params.finish()?;
    let all = may(scope.role, None, Action::ReadProject);
    let (rows, total) = store::projects_of(&identity.inner.db, scope.org, scope.caller.user, all, page).await?;
    Ok(Json(List::new(rows.iter().map(ProjectView::from).collect(), page, total)))
}

/// Makes a project of an organization.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects", operation_id = "createProject", tag = "identity",
    params(("org_id" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 255 characters; kept 24 hours",
            min_length = 1, max_length = 255, pattern = "^[ -~]*[!-~][ -~]*$")),
    request_body = NamedBody,
    responses((status = 201, body = ProjectView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 422, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
async fn create_project(
    State(identity): State<Identity>,
    OrgManager(scope): OrgManager,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Response> {
    let key = key.bind(scope.caller.user, &body);
    Ok(match ops::create_project(&identity, &scope, Named::try_from(&body)?, key).await? {
        Outcome::Created(view) => Created { location: view.location(scope.org), body: view }.into_response(),
        Outcome::Replayed(replay) => replay.into_response(),
    })
}

/// One project.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}", operation_id = "getProject",
    tag = "identity", params(("org_id" = String, Path), ("project_id" = String, Path)),
    responses((status = 200, body = ProjectView), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
async fn get_project(State(identity): State<Identity>, scope: Scope, path: PathText) -> Reply<Json<ProjectView>> {
    let name = path.text("project_id");
    let row = store::project_of(&identity.inner.db, scope.org, scope.caller.user, name).await?;
    Ok(Json(ProjectView::from(&row.ok_or_else(project_not_found)?)))
}
