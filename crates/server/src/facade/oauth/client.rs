//! Clients register, and are known again by their ids.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use berth_domain::oauth::Refusal;
use berth_domain::oauth::client::Client;
use berth_domain::{Error, Result};
use serde_json::json;

use super::state::OAuth;
use crate::http::body::read;
use crate::http::envelope::{ApiError, keep_shape};

/// The largest registration, in bytes.
const LARGEST: usize = 16 << 10;
/// Keeps the MAC of an id from being one of something else.
const PURPOSE: &str = "oauth client";

/// Registers a client.
pub(super) async fn register(State(oauth): State<OAuth>, request: Request) -> Response {
    let bytes = match read(request, LARGEST).await {
        Ok(bytes) => bytes,
        Err(error) => return ApiError(error).into_response(),
    };
    let Ok(metadata) = serde_json::from_slice(&bytes) else {
        return refuse(&Refusal::new("invalid_client_metadata", "The body must be JSON."));
    };
    let client = match Client::parse(&metadata) {
        Ok(client) => client,
        Err(refusal) => return refuse(&refusal),
    };
    match oauth.id_of(&client) {
        Ok(id) => {
            let told = Json(client.registered(&id, oauth.clock.now().seconds()));
            (StatusCode::CREATED, [(header::CACHE_CONTROL, "no-store")], told).into_response()
        }
        Err(error) => ApiError(error).into_response(),
    }
}

/// A refusal in the protocol's form (RFC 6749, 5.2).
pub(super) fn refuse(refusal: &Refusal) -> Response {
    let told = Json(json!({"error": refusal.error, "error_description": refusal.description}));
    keep_shape((StatusCode::BAD_REQUEST, [(header::CACHE_CONTROL, "no-store")], told).into_response())
}

impl OAuth {
    /// The id of a client: what it said, and a MAC.
    fn id_of(&self, client: &Client) -> Result<String> {
        let said = URL_SAFE_NO_PAD.encode(serde_json::to_vec(client).map_err(Error::internal)?);
        let mac = self.sealer.mac(format!("{PURPOSE}:{said}").as_bytes())?;
        Ok(format!("{said}.{mac}"))
    }

    /// The client that has an id; none where the service never gave that out.
    pub(super) fn client(&self, id: &str) -> Option<Client> {
        let (said, mac) = id.split_once('.')?;
        if !self.sealer.is_mac(format!("{PURPOSE}:{said}").as_bytes(), mac) {
            return None;
        }
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(said).ok()?).ok()
    }
}
