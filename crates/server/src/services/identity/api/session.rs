//! Signing in and out, and sessions.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use berth_domain::identity::session::{self, Login, Logout, refresh_token};

use super::counted::counted;
use crate::http::auth::Person;
use crate::http::body::OptionalJson;
use crate::http::client_address::ClientAddress;
use crate::http::envelope::{ErrorBody, RequestId};
use crate::http::list::{List, PageParams, Params, SortParams};
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::identity::limits::Door;
use crate::services::identity::wire::session::{Client, LoginBody, LogoutBody, RefreshBody, SessionView, TokensView};
use crate::services::identity::{Identity, ops, store};

/// Signs a person in.
#[utoipa::path(post, path = "/api/v1/auth/login", operation_id = "login", tag = "identity",
    request_body = LoginBody, responses((status = 200, body = TokensView), (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 413, body = ErrorBody),
    (status = 415, body = ErrorBody), (status = 429, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn login(
    State(identity): State<Identity>,
    id: RequestId,
    from: ClientAddress,
    request: Request,
) -> Reply<Response> {
    let client = client(request.headers(), from);
    let body = counted(&identity, Door::Login, from, request).await?;
    Ok(private(ops::session::login(&identity, Login::try_from(&body)?, client, &id).await?))
}

fn client(headers: &HeaderMap, from: ClientAddress) -> Client {
    let program = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
    Client { program: program.map(session::program), address: from }
}

/// Exchanges a refresh token for new tokens.
#[utoipa::path(post, path = "/api/v1/auth/refresh", operation_id = "refresh", tag = "identity",
    request_body = RefreshBody, responses((status = 200, body = TokensView), (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 413, body = ErrorBody),
    (status = 415, body = ErrorBody), (status = 429, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn refresh(
    State(identity): State<Identity>,
    id: RequestId,
    from: ClientAddress,
    request: Request,
) -> Reply<Response> {
    let body = counted(&identity, Door::Refresh, from, request).await?;
    Ok(private(ops::session::refresh(&identity, &refresh_token(&body)?, &id).await?))
}

/// An answer with tokens: nobody on the way keeps it.
fn private(view: TokensView) -> Response {
    ([(header::CACHE_CONTROL, "no-store")], Json(view)).into_response()
}

/// Ends this session, the session of a refresh token, or all sessions of the caller.
#[utoipa::path(post, path = "/api/v1/auth/logout", operation_id = "logout", tag = "identity",
    request_body = Option<LogoutBody>, responses((status = 204, description = "ended"), (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 413, body = ErrorBody),
    (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn logout(State(identity): State<Identity>, person: Person, body: OptionalJson) -> Reply<StatusCode> {
    let request = body.0.as_ref().map(Logout::try_from).transpose()?.unwrap_or_default();
    ops::session::logout(&identity, &person, request).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The caller's sessions, newest first.
#[utoipa::path(get, path = "/api/v1/users/me/sessions", operation_id = "listSessions", tag = "identity",
    params(PageParams, SortParams), responses((status = 200, body = List<SessionView>), (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_sessions(
    State(identity): State<Identity>,
    person: Person,
    mut params: Params,
) -> Reply<Json<List<SessionView>>> {
    let listing = params.listing(&store::session::LISTED);
    params.finish()?;
    let now = identity.inner.clock.now();
    let (rows, total) = store::session::list(&identity.inner.db, person.user, now, &listing).await?;
    Ok(Json(List::new(rows.into_iter().map(|row| SessionView::of(row, person.session)).collect(), listing.page, total)))
}

/// Ends one of the caller's sessions.
#[utoipa::path(delete, path = "/api/v1/users/me/sessions/{session_id}", operation_id = "endSession",
    tag = "identity", params(("session_id" = uuid::Uuid, Path)), responses((status = 204, description = "ended"),
    (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn end_session(State(identity): State<Identity>, person: Person, path: PathText) -> Reply<StatusCode> {
    ops::session::end(&identity, &person, path.id("session_id")?).await?;
    Ok(StatusCode::NO_CONTENT)
}
