//! Bodies: content type, size, JSON.

use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use berth_domain::{Code, Error, Result, json};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::{Map, Value};

use super::BODY_LIMIT;
use super::envelope::ApiError;

/// A JSON body: any value, its fields not yet looked at.
pub struct Json(pub Value);

impl<S: Send + Sync> FromRequest<S> for Json {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        require_json(request.headers())?;
        let bytes = read(request, BODY_LIMIT).await?;
        Ok(Self(json::parse(&bytes)?))
    }
}

/// A JSON body that may be absent or null.
pub struct OptionalJson(pub Option<Value>);

impl<S: Send + Sync> FromRequest<S> for OptionalJson {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let declared = request.headers().get(header::CONTENT_TYPE).is_some().then(|| require_json(request.headers()));
        let bytes = read(request, BODY_LIMIT).await?;
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

/// Refuses with 415 a body that is not declared as JSON.
pub fn require_json(headers: &HeaderMap) -> Result<()> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json")) {
        return Ok(());
    }
    Err(Error::new(Code::UnsupportedMediaType, "Send the body as JSON, with 'Content-Type: application/json'."))
}

/// Reads a whole body of at most `limit` bytes.
pub async fn read(request: Request, limit: usize) -> Result<bytes::Bytes> {
    let too_large = || Error::new(Code::PayloadTooLarge, format!("The body may have at most {limit} bytes."));
    let declared = request.headers().get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|n| n > limit as u64) {
        return Err(too_large());
    }
    match Limited::new(request.into_body(), limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(e) if e.is::<LengthLimitError>() => Err(too_large()),
        Err(e) => Err(Error::new(Code::InvalidRequest, format!("The body could not be read: {e}."))),
    }
}
