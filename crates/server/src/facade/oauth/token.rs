//! Where a client fetches its key.

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use berth_domain::oauth::Refusal;
use serde_json::{Value, json};

use super::client::refuse;
use super::code::Holder;
use super::state::OAuth;

/// The largest request, in bytes.
const LARGEST: usize = 16 << 10;

/// Answers the key for a code (RFC 6749, 4.1.3).
pub(super) async fn exchange(State(oauth): State<OAuth>, body: Body) -> Response {
    let Ok(bytes) = to_bytes(body, LARGEST).await else {
        return refuse(&Refusal::new("invalid_request", "The body must have at most 16 KiB."));
    };
    match oauth.exchanged(&bytes) {
        Ok(token) => ([(header::CACHE_CONTROL, "no-store")], Json(token)).into_response(),
        Err(refusal) => refuse(&refusal),
    }
}

impl OAuth {
    fn exchanged(&self, form: &[u8]) -> Result<Value, Refusal> {
        let field = |name: &str| {
            let mut found = form_urlencoded::parse(form).filter(|(named, _)| named == name);
            let value = found.next().map(|(_, value)| value.into_owned());
            value.ok_or_else(|| Refusal::new("invalid_request", format!("The form has no {name}.")))
        };
        if field("grant_type")? != "authorization_code" {
            let message = "grant_type must be authorization_code. There are no refresh tokens: ask the person again.";
            return Err(Refusal::new("unsupported_grant_type", message));
        }
        let (client, redirect) = (field("client_id")?, field("redirect_uri")?);
        self.client(&client).ok_or_else(|| Refusal::new("invalid_client", "Register first."))?;
        let holder = Holder { client, redirect };
        let granted = self.codes.redeem(&field("code")?, &holder, &field("code_verifier")?)?;
        Ok(json!({
            "access_token": granted.key,
            "token_type": "Bearer",
            "expires_in": granted.seconds,
            "scope": granted.scope,
        }))
    }
}
