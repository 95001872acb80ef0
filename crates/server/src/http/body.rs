//! Bodies: content type, size, pace, JSON.
//!
//! The head of a request authorizes its sender. After a slow body, the service checks again that the sender still may
//! ([`paced`](super::paced)), so that nobody keeps a request open in order to use it later.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use berth_domain::{Code, Error, Result, json};
use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use http_body_util::{BodyDataStream, BodyExt, LengthLimitError, Limited};
use serde_json::{Map, Value};

use super::BODY_LIMIT;
use super::envelope::ApiError;
use super::paced::{self, Broken, Paced};
use super::query;

/// A JSON body: any value, whose fields are not yet checked.
pub struct Json(pub Value);

impl<S: Send + Sync> FromRequest<S> for Json {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        require_json(request.headers())?;
        Ok(Self(json::parse(&whole(request).await?)?))
    }
}

/// A JSON body that may be absent or null.
pub struct OptionalJson(pub Option<Value>);

impl<S: Send + Sync> FromRequest<S> for OptionalJson {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let declared = request.headers().get(header::CONTENT_TYPE).is_some().then(|| require_json(request.headers()));
        let bytes = whole(request).await?;
        // Many clients declare JSON and send nothing.
        if bytes.is_empty() {
            return Ok(Self(None));
        }
        declared.transpose()?;
        Ok(Self(Some(json::parse(&bytes)?).filter(|body| !body.is_null())))
    }
}

impl OptionalJson {
    /// The body; an empty object where there is none.
    pub fn or_empty(self) -> Value {
        self.0.unwrap_or_else(|| Value::Object(Map::new()))
    }
}

/// Refuses with 415 a body whose content type is not JSON.
pub fn require_json(headers: &HeaderMap) -> Result<()> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json")) {
        return Ok(());
    }
    Err(Error::new(Code::UnsupportedMediaType, "Send the body as JSON, with 'Content-Type: application/json'."))
}

/// Refuses with 415 a body of bytes whose content type says that it is something else.
pub fn require_octets(headers: &HeaderMap) -> Result<()> {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let essence = kind.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/octet-stream") {
        return Ok(());
    }
    let message = "Send the bytes as they are, with 'Content-Type: application/octet-stream' or without any.";
    Err(Error::new(Code::UnsupportedMediaType, message))
}

/// Reads the whole body of an operation, then refuses a query that the operation does not have. In this order the
/// connection can serve the next request.
async fn whole(request: Request) -> Result<Bytes> {
    let (parts, body) = request.into_parts();
    let query = query::refuse_with_body(&parts);
    let bytes = read_of(&parts, body, BODY_LIMIT).await?;
    query?;
    Ok(bytes)
}

/// Reads a whole body of at most `limit` bytes.
pub async fn read(request: Request, limit: usize) -> Result<Bytes> {
    let (parts, body) = request.into_parts();
    read_of(&parts, body, limit).await
}

/// The same for a request in parts.
pub async fn read_of(parts: &Parts, body: Body, limit: usize) -> Result<Bytes> {
    let too_large = || Error::new(Code::PayloadTooLarge, format!("The body may have at most {limit} bytes."));
    let declared = parts.headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|n| n > limit as u64) {
        return Err(too_large());
    }
    match Limited::new(Paced::whole(parts, body), limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(e) if e.is::<LengthLimitError>() => Err(too_large()),
        Err(e) => Err(e.downcast::<Broken>().map_or_else(|e| paced::broken(&*e), |broken| broken.0)),
    }
}

/// A body piece by piece, of any size.
pub fn stream(request: Request) -> impl Stream<Item = Result<Bytes>> + Unpin + Send {
    stream_within(request, Duration::MAX)
}

/// The same of a body for which the service waits no longer than this in all.
pub fn stream_within(request: Request, whole: Duration) -> impl Stream<Item = Result<Bytes>> + Unpin + Send {
    let (parts, body) = request.into_parts();
    BodyDataStream::new(Paced::within(&parts, body, whole)).map_err(|broken| broken.0)
}
