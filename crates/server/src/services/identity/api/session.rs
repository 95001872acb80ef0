//! Signing in and out, sessions, the keys of tokens.

use std::net::SocketAddr;

use axum::Json;
use axum::extract::{ConnectInfo, FromRequest, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::http::auth::Person;
use crate::http::body::{self, OptionalJson};
use crate::http::envelope::{ErrorBody, RequestId};
use crate::http::list::{Asked, List, PageParams};
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::identity::wire::session::{
    Client, Login, LoginBody, Logout, LogoutBody, RefreshBody, SessionView, TokensView, refresh_token,
};
use crate::services::identity::{Identity, ops, store};

/// Longest name of a program that is kept.
const PROGRAM: usize = 200;

/// Signs a person in.
#[utoipa::path(post, path = "/api/v1/auth/login", operation_id = "login", tag = "identity",
    request_body = LoginBody, responses((status = 200, body = TokensView), (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 413, body = ErrorBody),
    (status = 415, body = ErrorBody), (status = 429, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn login(State(identity): State<Identity>, id: RequestId, request: Request) -> Reply<Response> {
    let client = client(&request);
    if let Some(ConnectInfo(address)) = request.extensions().get::<ConnectInfo<SocketAddr>>() {
        identity.inner.throttle.client(address.ip(), identity.inner.clock.now())?;
    }
    let body::Json(body) = body::Json::from_request(request, &()).await?;
    Ok(private(ops::session::login(&identity, Login::try_from(&body)?, client, &id).await?))
}

fn client(request: &Request) -> Client {
    let program = request.headers().get(header::USER_AGENT).and_then(|value| value.to_str().ok());
    let address = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip().to_string());
    Client { program: program.map(|text| text.chars().take(PROGRAM).collect()), address }
}

/// Exchanges a refresh token for new tokens.
#[utoipa::path(post, path = "/api/v1/auth/refresh", operation_id = "refresh", tag = "identity",
    request_body = RefreshBody, responses((status = 200, body = TokensView), (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 413, body = ErrorBody),
    (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn refresh(
    State(identity): State<Identity>,
    id: RequestId,
    body::Json(body): body::Json,
) -> Reply<Response> {
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
    params(PageParams), responses((status = 200, body = List<SessionView>), (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_sessions(
    State(identity): State<Identity>,
    person: Person,
    Asked(page): Asked,
) -> Reply<Json<List<SessionView>>> {
    let now = identity.inner.clock.now();
    let (rows, total) = store::session::list(&identity.inner.db, person.user, now, page).await?;
    Ok(Json(List::new(rows.into_iter().map(|row| SessionView::of(row, person.session)).collect(), page, total)))
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
