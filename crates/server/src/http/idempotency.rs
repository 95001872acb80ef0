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
use serde_json::Value;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::auth::Caller;
use super::envelope::ApiError;
use super::reply::REPLAYED;
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

/// A key bound to its caller and its body.
#[derive(Clone, Debug)]
pub struct Idempotency {
    caller: Uuid,
    path: String,
    key: String,
    body_hash: String,
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
    /// Binds the key; `None` where the request has none.
    pub fn bind(self, caller: &Caller, body: &Value) -> Option<Idempotency> {
        let body_hash = hex(&Sha256::digest(body.to_string()));
        Some(Idempotency { caller: caller.id(), path: self.path, key: self.key?, body_hash })
    }
}

impl Idempotency {
    /// The answer given before to the same request, if there is one; 422 if the body differs.
    pub async fn replay(&self, tx: &mut Tx, now: Timestamp) -> Result<Option<Replay>> {
        let kept = self.slot().find(tx, now.plus_seconds(-KEPT_SECONDS)).await?;
        match kept {
            None => Ok(None),
            Some(kept) if kept.body_hash == self.body_hash => {
                Ok(Some(Replay { location: kept.location, body: kept.body }))
            }
            Some(_) => Err(Error::new(
                Code::IdempotencyMismatch,
                "This Idempotency-Key was used with another body. Use a new key for a new request.",
            )),
        }
    }

    /// Keeps the answer beside what it created.
    pub async fn keep(&self, tx: &mut Tx, now: Timestamp, location: &str, body: &str) -> Result<()> {
        let since = now.plus_seconds(-KEPT_SECONDS);
        let kept = Kept { body_hash: self.body_hash.clone(), location: location.to_owned(), body: body.to_owned() };
        self.slot().put(tx, &kept, now, since).await?;
        Ok(())
    }

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
