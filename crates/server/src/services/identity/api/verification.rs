//! Proving that a person reads an address or a number.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use berth_domain::identity::password::address;
use berth_domain::identity::verification::{VerifyEmail, VerifyPhone, number};

use super::counted::counted;
use crate::http::auth::Person;
use crate::http::body;
use crate::http::client_address::ClientAddress;
use crate::http::envelope::{ErrorBody, RequestId};
use crate::http::reply::Reply;
use crate::services::identity::limits::Door;
use crate::services::identity::wire::password::AddressBody;
use crate::services::identity::wire::verification::{PhoneBody, VerifyEmailBody, VerifyPhoneBody};
use crate::services::identity::{Identity, ops};

/// Has a link and a code sent that verify an address. The answer is always the same.
#[utoipa::path(post, path = "/api/v1/auth/email/verification", operation_id = "requestEmailVerification",
    tag = "identity", request_body = AddressBody, responses((status = 202, description = "a mail follows,
    if there is an account to verify"), (status = 400, body = ErrorBody), (status = 413, body = ErrorBody),
    (status = 415, body = ErrorBody), (status = 429, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn request_email_verification(
    State(identity): State<Identity>,
    from: ClientAddress,
    request: Request,
) -> Reply<StatusCode> {
    let body = counted(&identity, Door::Message, from, request).await?;
    ops::verification::ask_email(&identity, &address(&body)?).await?;
    Ok(StatusCode::ACCEPTED)
}

/// Verifies an address by the link or the code of a mail.
#[utoipa::path(post, path = "/api/v1/auth/email/verify", operation_id = "verifyEmail", tag = "identity",
    request_body = VerifyEmailBody, responses((status = 204, description = "verified"), (status = 400,
    body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 429,
    body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn verify_email(
    State(identity): State<Identity>,
    id: RequestId,
    from: ClientAddress,
    request: Request,
) -> Reply<StatusCode> {
    let body = counted(&identity, Door::Proof, from, request).await?;
    ops::verification::verify_email(&identity, VerifyEmail::try_from(&body)?, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Has a code sent to a phone number.
#[utoipa::path(post, path = "/api/v1/auth/phone/verification", operation_id = "requestPhoneVerification",
    tag = "identity", request_body = PhoneBody, responses((status = 202, description = "a message follows"),
    (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
    (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 429, body = ErrorBody),
    (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn request_phone_verification(
    State(identity): State<Identity>,
    person: Person,
    body::Json(body): body::Json,
) -> Reply<StatusCode> {
    ops::verification::ask_phone(&identity, &person, &number(&body)?).await?;
    Ok(StatusCode::ACCEPTED)
}

/// Verifies a phone number by its code; it becomes the caller's number.
#[utoipa::path(post, path = "/api/v1/auth/phone/verify", operation_id = "verifyPhone", tag = "identity",
    request_body = VerifyPhoneBody, responses((status = 204, description = "verified"), (status = 400,
    body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 413,
    body = ErrorBody), (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn verify_phone(
    State(identity): State<Identity>,
    person: Person,
    body::Json(body): body::Json,
) -> Reply<StatusCode> {
    ops::verification::verify_phone(&identity, &person, VerifyPhone::try_from(&body)?).await?;
    Ok(StatusCode::NO_CONTENT)
}
