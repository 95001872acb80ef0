//! What may be asked without signing in is counted first.

use axum::extract::{FromRequest, Request};
use serde_json::Value;

use crate::http::body;
use crate::http::client_address::ClientAddress;
use crate::http::reply::Reply;
use crate::services::identity::Identity;
use crate::services::identity::limits::Door;

/// The body of a request of somebody who is not signed in: it is counted for where it comes from before it is read.
pub(super) async fn counted(identity: &Identity, door: Door, from: ClientAddress, request: Request) -> Reply<Value> {
    identity.inner.limits.network(door, from.network(), identity.inner.clock.now())?;
    let body::Json(body) = body::Json::from_request(request, &()).await?;
    Ok(body)
}
