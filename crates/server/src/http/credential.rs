//! The credential of a request: `Authorization: Bearer …`, `X-API-Key`, or a WebSocket's subprotocols.

use std::borrow::Cow;

use axum::http::header;
use axum::http::request::Parts;
use berth_domain::e2b;
use berth_domain::identity::api_key;

/// The header of an API key, for clients that keep `Authorization` for other things.
const API_KEY: &str = "x-api-key";

/// The access token or API key of a request. `Authorization` wins; `X-API-Key` takes API keys only, in E2B's form, too.
pub fn of(parts: &Parts) -> Option<Cow<'_, str>> {
    if let Some(value) = parts.headers.get(header::AUTHORIZATION) {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        return scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().into());
    }
    if let Some(value) = parts.headers.get(API_KEY) {
        let text = value.to_str().ok()?;
        let own = text.starts_with(api_key::PREFIX).then_some(Cow::Borrowed(text));
        return own.or_else(|| e2b::key::read(text).map(Cow::Owned));
    }
    // Browsers cannot set a header on a WebSocket, so they send `berth, bearer.<token>`.
    let protocols = parts.headers.get(header::SEC_WEBSOCKET_PROTOCOL)?.to_str().ok()?;
    protocols.split(',').find_map(|p| p.trim().strip_prefix("bearer.")).map(Cow::Borrowed)
}
