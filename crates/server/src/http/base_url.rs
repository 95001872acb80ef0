//! The address under which a caller knows the service: the configured one, else the one to which the request was sent.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{Uri, header};

use super::edge::Secure;
use super::envelope::ApiError;

/// The configured address; `None` where there is only the default, which is right on this machine alone.
#[derive(Clone)]
pub struct Configured(pub Option<Arc<str>>);

/// The address, without a slash at its end.
pub struct BaseUrl(pub String);

impl<S: Send + Sync> FromRequestParts<S> for BaseUrl {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let configured = parts.extensions.get::<Configured>().and_then(|configured| configured.0.clone());
        Ok(Self(configured.map_or_else(|| sent_to(parts), |base| base.to_string())))
    }
}

fn sent_to(parts: &Parts) -> String {
    let named = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
    let host = named.or_else(|| Uri::authority(&parts.uri).cloned());
    let scheme = if parts.extensions.get::<Secure>().is_some() { "https" } else { "http" };
    host.map(|host| format!("{scheme}://{host}")).unwrap_or_default()
}
