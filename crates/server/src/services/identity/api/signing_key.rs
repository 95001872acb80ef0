//! The keys that sign access tokens.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::http::auth::Administrator;
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::reply::Reply;
use crate::services::identity::wire::signing_key::SigningKeyView;
use crate::services::identity::{Identity, ops};

/// Signs access tokens with a new key from now on; what older keys signed stays valid until it ends.
#[utoipa::path(post, path = "/api/v1/admin/signing_keys", operation_id = "rotateSigningKey", tag = "administration",
    params(KeyParam), responses((status = 201, body = SigningKeyView), (status = 401, body = ErrorBody), (status = 403,
    body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn rotate_signing_key(
    State(identity): State<Identity>,
    Administrator(admin): Administrator,
    key: IdempotencyKey,
) -> Reply<Outcome<SigningKeyView>> {
    let key = key.bind(&admin.caller, &serde_json::Value::Null).await?;
    Ok(ops::signing_key::rotate(&identity, &admin, key).await?)
}

/// The keys that access tokens are verified with.
#[utoipa::path(get, path = "/.well-known/jwks.json", operation_id = "getJWKS", tag = "operation",
    responses((status = 200, body = serde_json::Value)))]
pub(super) async fn jwks(State(identity): State<Identity>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], identity.signer().jwks().to_owned()).into_response()
}
