//! Passwords: forgotten, reset, changed.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use berth_domain::identity::password::{ChangePassword, ResetPassword, address};

use super::counted::counted;
use crate::http::auth::Person;
use crate::http::body;
use crate::http::client_address::ClientAddress;
use crate::http::envelope::{ErrorBody, RequestId};
use crate::http::reply::Reply;
use crate::services::identity::limits::Door;
use crate::services::identity::wire::password::{AddressBody, ChangePasswordBody, ResetPasswordBody};
use crate::services::identity::{Identity, ops};

/// Has a link sent that sets a new password. The answer is the same whether there is an account or not.
#[utoipa::path(post, path = "/api/v1/auth/password/forgot", operation_id = "forgotPassword", tag = "identity",
    request_body = AddressBody, responses((status = 202, description = "a mail follows, if there is an account"),
    (status = 400, body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody),
    (status = 429, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn forgot_password(
    State(identity): State<Identity>,
    from: ClientAddress,
    request: Request,
) -> Reply<StatusCode> {
    let body = counted(&identity, Door::Message, from, request).await?;
    ops::password::forgot(&identity, &address(&body)?).await?;
    Ok(StatusCode::ACCEPTED)
}

/// Sets a new password by the link of a mail, once, and ends every session.
#[utoipa::path(post, path = "/api/v1/auth/password/reset", operation_id = "resetPassword", tag = "identity",
    request_body = ResetPasswordBody, responses((status = 204, description = "set"), (status = 400,
    body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 429,
    body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn reset_password(
    State(identity): State<Identity>,
    id: RequestId,
    from: ClientAddress,
    request: Request,
) -> Reply<StatusCode> {
    let body = counted(&identity, Door::Proof, from, request).await?;
    let rules = identity.inner.config.password_rules();
    ops::password::reset(&identity, ResetPassword::read(&body, rules)?, from.network(), &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Changes the caller's password, and ends the other sessions.
#[utoipa::path(post, path = "/api/v1/auth/password/change", operation_id = "changePassword", tag = "identity",
    request_body = ChangePasswordBody, responses((status = 204, description = "changed"), (status = 400,
    body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 413,
    body = ErrorBody), (status = 415, body = ErrorBody), (status = 429, body = ErrorBody), (status = 503,
    body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn change_password(
    State(identity): State<Identity>,
    person: Person,
    from: ClientAddress,
    body::Json(body): body::Json,
) -> Reply<StatusCode> {
    let rules = identity.inner.config.password_rules();
    ops::password::change(&identity, &person, from.network(), ChangePassword::read(&body, rules)?).await?;
    Ok(StatusCode::NO_CONTENT)
}
