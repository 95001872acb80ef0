//! People.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use crate::http::auth::{Person, unauthorized};
use crate::http::body;
use crate::http::envelope::{ErrorBody, RequestId};
use crate::http::reply::{Created, Reply};
use crate::services::identity::wire::user::{ChangeMe, ChangeMeBody, SignUp, SignUpBody, SignUpView, UserView};
use crate::services::identity::{Identity, ops, store};

/// Signs a person up: with an organization and a first project of their own.
#[utoipa::path(post, path = "/api/v1/auth/signup", operation_id = "signUp", tag = "identity",
    request_body = SignUpBody, responses((status = 201, body = SignUpView), (status = 400, body = ErrorBody),
    (status = 409, body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody),
    (status = 429, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn sign_up(
    State(identity): State<Identity>,
    id: RequestId,
    body::Json(body): body::Json,
) -> Reply<Created<SignUpView>> {
    let view = ops::user::sign_up(&identity, SignUp::try_from(&body)?, &id).await?;
    Ok(Created { location: "/api/v1/users/me".into(), body: view })
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
    body::Json(body): body::Json,
) -> Reply<Json<UserView>> {
    Ok(Json(ops::user::change(&identity, &person, ChangeMe::try_from(&body)?).await?))
}

/// Deletes the caller's account, with the organizations that are nobody else's and empty.
#[utoipa::path(delete, path = "/api/v1/users/me", operation_id = "deleteMe", tag = "identity",
    responses((status = 204, description = "deleted"), (status = 401, body = ErrorBody), (status = 403,
    body = ErrorBody), (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn delete_me(State(identity): State<Identity>, person: Person) -> Reply<StatusCode> {
    ops::user::delete(&identity, &person).await?;
    Ok(StatusCode::NO_CONTENT)
}
