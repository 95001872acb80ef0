//! Requests to a sandbox that create: with an `Idempotency-Key` they create once.
//!
//! What is created is no row but a process or a directory in the machine, so the answer cannot be kept in the transaction
//! that creates it. It is kept right behind, by a task of its own: a client that leaves meanwhile, and asks again, finds
//! it. A service that dies in between has kept nothing: the same request then creates again, as it would without a key.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use berth_domain::{Error, Result, json};
use berth_host::sandbox::agent::AgentError;
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::forward::{Reply, Size, forward, lost, make_harmless};
use super::inside::Inside;
use super::state::Runtime;
use crate::http::BODY_LIMIT;
use crate::http::auth::Scope;
use crate::http::body::{read_of, require_json};
use crate::http::idempotency::{Idempotency, IdempotencyKey, Outcome};

/// What an answer has beside what it repeats of its request, in bytes.
const BESIDE: usize = 64 << 10;
/// How many times as long as in the request what it repeats of it may be: it tells a command as a shell would read it,
/// where a quote takes five bytes.
const REPEATED: usize = 8;
/// How long a sandbox has for its answer once nobody waits for it any more.
const LEFT: Duration = Duration::from_secs(30);

/// Asks the agent on a route that creates, unless the request has been answered before.
pub(super) async fn create(
    runtime: Arc<Runtime>,
    inside: Inside,
    key: IdempotencyKey,
    route: &'static str,
    request: Request,
) -> Reply {
    if !key.is_given() {
        return forward(inside, route, request, Size::Usual).await;
    }
    require_json(request.headers())?;
    let (parts, body) = request.into_parts();
    let body = read_of(&parts, body, BODY_LIMIT).await?;
    let key = key.bind(&inside.scope.caller, &asked(parts.uri.query(), json::parse(&body)?)).await?;
    let most = BESIDE + REPEATED * body.len();
    let request = Request::from_parts(parts, body.into());
    let left = CancellationToken::new();
    let _until_it_leaves = left.clone().drop_guard();
    let made = tokio::spawn(async move {
        tokio::select! {
            reply = once(&runtime, inside, &key, route, request, most) => reply,
            () = given_up(left) => Err(lost(AgentError::Timeout)),
        }
    });
    made.await.map_err(Error::internal)?
}

/// What a key stands for: the body, and a query that says what it means.
fn asked(query: Option<&str>, body: Value) -> Value {
    match query.filter(|query| !query.is_empty()) {
        Some(query) => Value::from(vec![Value::from(query), body]),
        None => body,
    }
}

/// Returns some time after a client has left.
async fn given_up(left: CancellationToken) {
    left.cancelled().await;
    tokio::time::sleep(LEFT).await;
}

/// Asks the agent, and keeps an answer of at most so many bytes, unless one is kept already.
async fn once(
    runtime: &Runtime,
    inside: Inside,
    key: &Idempotency,
    route: &str,
    request: Request,
    most: usize,
) -> Reply {
    let scope = inside.scope.clone();
    let mut tx = runtime.db.begin_as(&scope).await?;
    let replayed: Option<Outcome<Value>> = key.replay(&mut tx, runtime.clock.now()).await?;
    drop(tx);
    if let Some(replayed) = replayed {
        let mut response = replayed.into_response();
        make_harmless(response.headers_mut());
        return Ok(response);
    }
    let answer = forward(inside, route, request, Size::Usual).await?;
    if answer.status() != StatusCode::CREATED {
        return Ok(answer);
    }
    let (parts, body) = answer.into_parts();
    let body = Limited::new(body, most).collect().await.map_err(Error::unavailable)?.to_bytes();
    if let Err(error) = keep(runtime, &scope, key, &parts.headers, &body).await {
        // It was made, and whoever asked has to learn of it.
        tracing::warn!(%error, "the answer of a sandbox is not kept for its Idempotency-Key");
    }
    Ok(Response::from_parts(parts, Body::from(body)))
}

async fn keep(runtime: &Runtime, scope: &Scope, key: &Idempotency, told: &HeaderMap, body: &Bytes) -> Result<()> {
    let location = told.get(header::LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let text = String::from_utf8(body.to_vec()).map_err(Error::internal)?;
    let mut tx = runtime.db.begin_as(scope).await?;
    key.keep_text(&mut tx, runtime.clock.now(), location, text).await?;
    Ok(tx.commit().await?)
}
