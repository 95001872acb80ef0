//! Hosts that join: for administrators of the platform, and for who has a token.

use axum::Json;
use axum::extract::{FromRequest, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use berth_domain::host::request::{Join, NewHost};
use serde_json::Value;

use crate::http::auth::Administrator;
use crate::http::base_url::BaseUrl;
use crate::http::body;
use crate::http::client_address::ClientAddress;
use crate::http::envelope::{ErrorBody, RequestId};
use crate::http::idempotency::{IdempotencyKey, KeyParam};
use crate::http::list::Params;
use crate::http::path::PathText;
use crate::http::query::truth;
use crate::http::reply::Reply;
use crate::services::host::wire::join::{JoinBody, JoinedView, NewHostBody, NewHostView};
use crate::services::host::{Enrolment, ops};

/// Names a host that is to join. `token` and `command` are shown only in this answer; the token holds once and for 24
/// hours.
#[utoipa::path(post, path = "/api/v1/admin/hosts", operation_id = "createHost", tag = "administration",
    params(KeyParam), request_body = NewHostBody,
    responses((status = 201, body = NewHostView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 422, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn create_host(
    State(enrolment): State<Enrolment>,
    Administrator(admin): Administrator,
    BaseUrl(base): BaseUrl,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Response> {
    let key = key.bind(&admin.caller, &body).await?;
    Ok(shown(ops::join::create(&enrolment, &admin, NewHost::try_from(&body)?, (key, &base)).await?))
}

/// An answer with a token: nobody on the way keeps it.
fn shown(answer: impl IntoResponse) -> Response {
    ([(header::CACHE_CONTROL, "no-store")], answer).into_response()
}

/// Gives a host another token, in the place of one that was not used. Once a host that joined before joins again with it,
/// what has its earlier certificate is asked no more.
#[utoipa::path(post, path = "/api/v1/admin/hosts/{host_id}/token", operation_id = "createHostToken",
    tag = "administration", params(("host_id" = uuid::Uuid, Path), KeyParam),
    responses((status = 201, body = NewHostView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 422, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn create_host_token(
    State(enrolment): State<Enrolment>,
    Administrator(admin): Administrator,
    BaseUrl(base): BaseUrl,
    path: PathText,
    key: IdempotencyKey,
) -> Reply<Response> {
    let (id, key) = (path.id("host_id")?, key.bind(&admin.caller, &Value::Null).await?);
    Ok(shown(ops::join::renew_token(&enrolment, &admin, id, (key, &base)).await?))
}

/// Removes a host, which is never asked again. One that has machines is not removed, unless with `lost=true`: it will not
/// come back, nor will what it has.
#[utoipa::path(delete, path = "/api/v1/admin/hosts/{host_id}", operation_id = "deleteHost", tag = "administration",
    params(("host_id" = uuid::Uuid, Path),
        ("lost" = Option<bool>, Query, description = "whether it will not come back")),
    responses((status = 204, description = "removed"), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn delete_host(
    State(enrolment): State<Enrolment>,
    Administrator(admin): Administrator,
    path: PathText,
    mut params: Params,
) -> Reply<StatusCode> {
    let id = path.id("host_id")?;
    let lost = params.read("lost", truth).unwrap_or(false);
    params.finish()?;
    ops::join::remove(&enrolment, &admin, id, lost).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Exchanges a token for a certificate of the platform's authority; a host asks this once and nothing else.
#[utoipa::path(post, path = "/api/v1/hosts/join", operation_id = "joinHost", tag = "administration",
    request_body = JoinBody,
    responses((status = 200, body = JoinedView), (status = 400, body = ErrorBody), (status = 413, body = ErrorBody),
        (status = 415, body = ErrorBody), (status = 429, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn join_host(
    State(enrolment): State<Enrolment>,
    id: RequestId,
    from: ClientAddress,
    request: Request,
) -> Reply<Json<JoinedView>> {
    (enrolment.counted)(from.network())?;
    let body::Json(body) = body::Json::from_request(request, &()).await?;
    Ok(Json(ops::join::join(&enrolment, Join::try_from(&body)?, &id).await?))
}
