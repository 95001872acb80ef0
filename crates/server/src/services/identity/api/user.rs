//! People.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use berth_domain::identity::user::{ChangeMe, SignUp, confirmation};

use super::counted::counted;
use crate::http::auth::{Person, unauthorized};
use crate::http::body;
use crate::http::client_address::ClientAddress;
use crate::http::envelope::{ErrorBody, RequestId};
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::reply::Reply;
use crate::services::identity::limits::Door;
use crate::services::identity::wire::user::{ChangeMeBody, DeleteMeBody, SignUpBody, SignUpView, UserView};
use crate::services::identity::{Identity, ops, store};

/// Signs a person up: with an organization and a first project of their own.
#[utoipa::path(post, path = "/api/v1/auth/signup", operation_id = "signUp", tag = "identity",
    params(KeyParam), request_body = SignUpBody, responses((status = 201, body = SignUpView), (status = 400, body = ErrorBody),
    (status = 403, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody),
    (status = 415, body = ErrorBody), (status = 429, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn sign_up(
    State(identity): State<Identity>,
    id: RequestId,
    from: ClientAddress,
    key: IdempotencyKey,
    request: Request,
) -> Reply<Outcome<SignUpView>> {
    ops::user::refuse_closed(&identity)?;
    let body = counted(&identity, Door::SignUp, from, request).await?;
    let request = SignUp::read(&body, identity.inner.config.password_rules())?;
    // Who signs up is nobody yet but the address they name.
    let key = key.bind_as(&request.email.to_lowercase(), &body).await?;
    Ok(ops::user::sign_up(&identity, request, &id, key).await?)
}

/// The caller.
#[utoipa::path(get, path = "/api/v1/users/me", operation_id = "getMe", tag = "identity", responses((status = 200,
    body = UserView), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 503,
    body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn get_me(State(identity): State<Identity>, person: Person) -> Reply<Json<UserView>> {
    let row = store::user::find(&identity.inner.db, person.user).await?.ok_or_else(unauthorized)?;
    Ok(Json(UserView::from(&row)))
}

/// Changes the caller's name, phone number or address.
#[utoipa::path(patch, path = "/api/v1/users/me", operation_id = "updateMe", tag = "identity",
    request_body = ChangeMeBody, responses((status = 200, body = UserView), (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 409, body = ErrorBody),
    (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 429, body = ErrorBody),
    (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn update_me(
    State(identity): State<Identity>,
    person: Person,
    from: ClientAddress,
    body::Json(body): body::Json,
) -> Reply<Json<UserView>> {
    Ok(Json(ops::user::change(&identity, &person, from.network(), ChangeMe::try_from(&body)?).await?))
}

/// Deletes the caller's account, with the organizations that are nobody else's and empty. It needs the password, but for
/// the ten minutes after a sign-in.
#[utoipa::path(delete, path = "/api/v1/users/me", operation_id = "deleteMe", tag = "identity",
    request_body = DeleteMeBody,
    responses((status = 204, description = "deleted"), (status = 400, body = ErrorBody), (status = 401,
    body = ErrorBody), (status = 403, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413,
    body = ErrorBody), (status = 415, body = ErrorBody), (status = 429, body = ErrorBody), (status = 503,
    body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn delete_me(
    State(identity): State<Identity>,
    person: Person,
    from: ClientAddress,
    body: body::OptionalJson,
) -> Reply<StatusCode> {
    let current_password = confirmation(&body.or_empty())?;
    ops::user::delete(&identity, &person, from.network(), current_password).await?;
    Ok(StatusCode::NO_CONTENT)
}
