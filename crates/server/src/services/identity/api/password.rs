//! Passwords: forgotten, reset, changed.

use axum::extract::State;
use axum::http::StatusCode;

use crate::http::auth::Person;
use crate::http::body;
use crate::http::envelope::{ErrorBody, RequestId};
use crate::http::reply::Reply;
use crate::services::identity::wire::password::{
    AddressBody, ChangePassword, ChangePasswordBody, ResetPassword, ResetPasswordBody, address,
};
use crate::services::identity::{Identity, ops};

/// Has a link sent that sets a new password. The answer is the same whether there is an account or not.
#[utoipa::path(post, path = "/api/v1/auth/password/forgot", operation_id = "forgotPassword", tag = "identity",
    request_body = AddressBody, responses((status = 202, description = "a mail follows, if there is an account"),
    (status = 400, body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody),
    (status = 503, body = ErrorBody)))]
pub(super) async fn forgot_password(
    State(identity): State<Identity>,
    body::Json(body): body::Json,
) -> Reply<StatusCode> {
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
    body::Json(body): body::Json,
) -> Reply<StatusCode> {
    ops::password::reset(&identity, ResetPassword::try_from(&body)?, &id).await?;
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
    body::Json(body): body::Json,
) -> Reply<StatusCode> {
    ops::password::change(&identity, &person, ChangePassword::try_from(&body)?).await?;
    Ok(StatusCode::NO_CONTENT)
}
