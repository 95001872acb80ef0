//! Where a client fetches its key.

use axum::Json;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use berth_domain::oauth::Refusal;
use berth_domain::oauth::request::is_for;
use serde_json::{Value, json};

use super::client::refuse;
use super::code::Holder;
use super::state::OAuth;
use crate::http::base_url::BaseUrl;
use crate::http::body::read_of;
use crate::http::envelope::ApiError;

/// The largest request, in bytes.
const LARGEST: usize = 16 << 10;

/// Answers the key for a code (RFC 6749, 4.1.3).
pub(super) async fn exchange(State(oauth): State<OAuth>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let base = match BaseUrl::from_request_parts(&mut parts, &()).await {
        Ok(BaseUrl(base)) => base,
        Err(refused) => return refused.into_response(),
    };
    let bytes = match read_of(&parts, body, LARGEST).await {
        Ok(bytes) => bytes,
        Err(error) => return ApiError(error).into_response(),
    };
    match oauth.exchanged(&bytes, &base).await {
        Ok(token) => ([(header::CACHE_CONTROL, "no-store")], Json(token)).into_response(),
        Err(refusal) => refuse(&refusal),
    }
}

impl OAuth {
    async fn exchanged(&self, form: &[u8], base: &str) -> Result<Value, Refusal> {
        let optional = |name: &str| {
            let mut found = form_urlencoded::parse(form).filter(|(named, _)| named == name);
            match (found.next(), found.next()) {
                (value, None) => Ok(value.map(|(_, value)| value.into_owned())),
                _ => Err(Refusal::new("invalid_request", format!("The form has {name} twice."))),
            }
        };
        let field = |name: &str| {
            optional(name)?.ok_or_else(|| Refusal::new("invalid_request", format!("The form has no {name}.")))
        };
        is_for(optional("resource")?.as_deref(), base)?;
        if field("grant_type")? != "authorization_code" {
            let message = "grant_type must be authorization_code. There are no refresh tokens: ask the person again.";
            return Err(Refusal::new("unsupported_grant_type", message));
        }
        let (client, redirect) = (field("client_id")?, field("redirect_uri")?);
        self.client(&client).ok_or_else(|| Refusal::new("invalid_client", "Register first."))?;
        let holder = Holder { client, redirect };
        let granted = self.codes.redeem(&field("code")?, &holder, &field("code_verifier")?).await?;
        Ok(json!({
            "access_token": granted.key,
            "token_type": "Bearer",
            "expires_in": granted.seconds,
            "scope": granted.scope,
        }))
    }
}
