//! What a client reads first: where keys come from (RFC 9728), and how (RFC 8414).

use axum::Json;
use axum::http::header;
use axum::response::IntoResponse;
use berth_domain::identity::api_key::KeyScope;
use serde_json::{Value, json};

use crate::http::base_url::BaseUrl;

/// What the tools for agents are.
pub(super) async fn resource(BaseUrl(base): BaseUrl) -> impl IntoResponse {
    fresh(json!({
        "resource": format!("{base}/mcp"),
        "resource_name": "Berth",
        "authorization_servers": [base],
        "scopes_supported": scopes(),
        "bearer_methods_supported": ["header"],
    }))
}

/// Who gives out keys for them.
pub(super) async fn server(BaseUrl(base): BaseUrl) -> impl IntoResponse {
    fresh(json!({
        "issuer": base,
        "authorization_endpoint": format!("{base}/oauth/authorize"),
        "token_endpoint": format!("{base}/oauth/token"),
        "registration_endpoint": format!("{base}/oauth/register"),
        "scopes_supported": scopes(),
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code"],
        "token_endpoint_auth_methods_supported": ["none"],
        "code_challenge_methods_supported": ["S256"],
        "authorization_response_iss_parameter_supported": true,
    }))
}

/// Names its caller's own way to the service, so that nobody keeps it for others.
fn fresh(told: Value) -> impl IntoResponse {
    ([(header::CACHE_CONTROL, "no-store")], Json(told))
}

fn scopes() -> Vec<&'static str> {
    KeyScope::ALL.iter().map(|scope| scope.as_str()).collect()
}
