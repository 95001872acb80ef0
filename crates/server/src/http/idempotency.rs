//! `Idempotency-Key`: the answer of a creation is kept with what it created, in one transaction.
//!
//! Because the record is written by the transaction that creates, there is no moment at which one
//! exists without the other: a crash loses both or neither. A second request with the same key waits
//! for the first one's transaction and then finds its answer. Refusals are not kept.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use berth_domain::{Code, Error, Result, Timestamp};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::auth::Caller;
use super::envelope::ApiError;
use super::reply::{Created, REPLAYED};
use crate::db::Tx;
use crate::db::idempotency::{Kept, Slot};

/// Seconds for which an answer is kept.
pub const KEPT_SECONDS: i64 = 24 * 3600;

/// The key of a request, if it has one.
pub struct IdempotencyKey {
    key: Option<String>,
    path: String,
}

impl<S: Send + Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let Some(value) = parts.headers.get("idempotency-key") else {
            return Ok(Self { key: None, path: String::new() });
        };
        let key = value
            .to_str()
            .ok()
            .filter(|k| (1..=255).contains(&k.len()) && k.bytes().all(|b| b != b'\t') && !k.trim().is_empty());
        let key =
            key.ok_or_else(|| Error::field("Idempotency-Key", "must have 1 to 255 printable ASCII characters"))?;
        Ok(Self { key: Some(key.to_owned()), path: parts.uri.path().to_owned() })
    }
}

/// A key bound to its caller and its body. Of a request without a key nothing is kept and nothing replayed.
#[derive(Clone, Debug)]
pub struct Idempotency(Option<Bound>);

#[derive(Clone, Debug)]
struct Bound {
    caller: Uuid,
    path: String,
    key: String,
    body_hash: String,
}

/// What a creation is answered with.
#[derive(Debug)]
pub enum Outcome<V> {
    /// It was made now.
    Created(Created<V>),
    /// It was made before, by the same request.
    Replayed(Replay),
}

impl<V: Serialize> IntoResponse for Outcome<V> {
    fn into_response(self) -> Response {
        match self {
            Self::Created(created) => created.into_response(),
            Self::Replayed(replay) => replay.into_response(),
        }
    }
}

/// An answer that was given before.
#[derive(Debug)]
pub struct Replay {
    location: String,
    body: String,
}

impl IntoResponse for Replay {
    fn into_response(self) -> Response {
        let mut response =
            (StatusCode::CREATED, [(header::CONTENT_TYPE, "application/json")], self.body).into_response();
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
        if let Ok(value) = HeaderValue::from_str(&self.location) {
            response.headers_mut().insert(header::LOCATION, value);
        }
        response
    }
}

impl IdempotencyKey {
    /// Binds the key, if the request has one.
    pub fn bind(self, caller: &Caller, body: &Value) -> Idempotency {
        let Self { key, path } = self;
        Idempotency(key.map(|key| {
            let body_hash = hex(&Sha256::digest(body.to_string()));
            Bound { caller: caller.id(), path, key, body_hash }
        }))
    }
}

impl Idempotency {
    /// The answer given before to the same request, if there is one; 422 if the body differs.
    pub async fn replay<V>(&self, tx: &mut Tx, now: Timestamp) -> Result<Option<Outcome<V>>> {
        let Some(bound) = &self.0 else { return Ok(None) };
        match bound.slot().find(tx, now.plus_seconds(-KEPT_SECONDS)).await? {
            None => Ok(None),
            Some(kept) if kept.body_hash == bound.body_hash => {
                Ok(Some(Outcome::Replayed(Replay { location: kept.location, body: kept.body })))
            }
            Some(_) => Err(Error::new(
                Code::IdempotencyMismatch,
                "This Idempotency-Key was used with another body. Use a new key for a new request.",
            )),
        }
    }

    /// Keeps an answer beside what it created.
    pub async fn keep(&self, tx: &mut Tx, now: Timestamp, location: &str, view: &impl Serialize) -> Result<()> {
        let Some(bound) = &self.0 else { return Ok(()) };
        let body = serde_json::to_string(view).map_err(Error::internal)?;
        let kept = Kept { body_hash: bound.body_hash.clone(), location: location.to_owned(), body };
        Ok(bound.slot().put(tx, &kept, now, now.plus_seconds(-KEPT_SECONDS)).await?)
    }

    /// Keeps the answer and gives it.
    pub async fn created<V: Serialize>(
        &self,
        tx: &mut Tx,
        now: Timestamp,
        location: String,
        view: V,
    ) -> Result<Outcome<V>> {
        self.keep(tx, now, &location, &view).await?;
        Ok(Outcome::Created(Created { location, body: view }))
    }
}

impl Bound {
    fn slot(&self) -> Slot<'_> {
        Slot { caller: self.caller, path: &self.path, key: &self.key }
    }
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
