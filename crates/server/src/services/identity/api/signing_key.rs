//! The keys that sign access tokens.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::http::auth::Administrator;
use crate::http::envelope::ErrorBody;
use crate::http::reply::Reply;
use crate::services::identity::{Identity, ops};

/// A key that signs from now on.
#[derive(serde::Serialize, utoipa::ToSchema)]
#[schema(as = SigningKeyResponse)]
pub(super) struct SigningKeyView {
    /// Its name in tokens and in the key set.
    kid: String,
}

/// Signs access tokens with a new key from now on; what older keys signed stays valid until it ends.
#[utoipa::path(post, path = "/api/v1/admin/signing_keys", operation_id = "rotateSigningKey", tag = "administration",
    responses((status = 201, body = SigningKeyView), (status = 401, body = ErrorBody), (status = 403,
    body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn rotate_signing_key(
    State(identity): State<Identity>,
    Administrator(admin): Administrator,
) -> Reply<(StatusCode, [(HeaderName, &'static str); 1], Json<SigningKeyView>)> {
    let kid = ops::signing_key::rotate(&identity, &admin).await?;
    let location = [(header::LOCATION, "/.well-known/jwks.json")];
    Ok((StatusCode::CREATED, location, Json(SigningKeyView { kid })))
}

/// The keys that access tokens are verified with.
#[utoipa::path(get, path = "/.well-known/jwks.json", operation_id = "getJWKS", tag = "identity",
    responses((status = 200, body = serde_json::Value)))]
pub(super) async fn jwks(State(identity): State<Identity>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], identity.signer().jwks().to_owned()).into_response()
}
