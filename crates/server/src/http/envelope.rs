//! What every answer passes: the request id, the log line, the shape of errors, the catch of panics.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use berth_domain::{Code, Error, FieldError};
use futures::FutureExt;
use serde::Serialize;
use utoipa::ToSchema;

use super::limit::Slot;

/// The header that carries the request id in both directions.
pub const REQUEST_ID: &str = "x-request-id";

/// Bytes of a body that fit a connection's buffers.
const SMALL: u64 = 8192;

/// The id of the request being answered; in the extensions of every request.
#[derive(Clone, Debug, Default)]
pub struct RequestId(pub String);

impl<S: Send + Sync> FromRequestParts<S> for RequestId {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}

/// An error on its way out.
#[derive(Debug)]
pub struct ApiError(pub Error);

impl<E: Into<Error>> From<E> for ApiError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

/// What a refused request is answered with.
#[derive(Serialize, ToSchema)]
#[schema(as = ErrorResponse)]
pub struct ErrorBody<'a> {
    /// Stable, machine-readable.
    #[schema(value_type = super::openapi::ErrorCode)]
    code: &'a str,
    /// For people: what is wrong and what to do.
    message: &'a str,
    /// Every invalid field.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schema(value_type = Vec<super::openapi::FieldErrorBody>, required = false)]
    details: &'a [FieldError],
}

/// Marks an answer whose body already has the shape of an error, and keeps the error it tells of.
#[derive(Clone)]
struct Shaped(Option<Box<Error>>);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Error { code, message, details, retry_after, .. } = &self.0;
        let status = StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = ErrorBody { code: code.as_str(), message, details };
        let mut response = (status, axum::Json(body)).into_response();
        let headers = response.headers_mut();
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = *retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response.extensions_mut().insert(Shaped(Some(Box::new(self.0))));
        response
    }
}

/// The answer of a path that no route knows.
pub async fn unknown_route() -> ApiError {
    ApiError(Error::new(Code::NotFound, "There is no such route. See /docs for those that exist."))
}

/// The outermost layer.
pub async fn envelope(request: Request, next: Next) -> Response {
    enveloped(request, |request| next.run(request)).await
}

/// What `answer` answers, as callers get it.
pub async fn enveloped<F>(mut request: Request, answer: impl FnOnce(Request) -> F) -> Response
where
    F: Future<Output = Response>,
{
    let id = request_id(&request);
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let speaks_openai = super::openai::is_below(&path);
    let bulky = bulky(request.headers());
    request.extensions_mut().insert(RequestId(id.clone()));
    let limit = Slot::default();
    request.extensions_mut().insert(limit.clone());
    let began = Instant::now();
    let mut response = match AssertUnwindSafe(answer(request)).catch_unwind().await {
        Ok(response) => shaped(response),
        Err(panic) => ApiError(Error::internal(format!("panic: {}", panic_text(&*panic)))).into_response(),
    };
    if speaks_openai && let Some(Shaped(Some(error))) = response.extensions().get::<Shaped>() {
        let body = super::openai::envelope(error);
        response = super::openai::reshaped(response, body);
    }
    let status = response.status();
    let millis = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    match response.extensions().get::<Shaped>().and_then(|s| s.0.as_ref()?.cause.as_deref()) {
        Some(cause) => {
            tracing::error!(request_id = %id, %method, path, status = status.as_u16(), millis, cause, "request failed");
        }
        None => {
            tracing::debug!(request_id = %id, %method, path, status = status.as_u16(), millis, "request");
        }
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    limit.tell(response.headers_mut());
    if bulky && (status.is_client_error() || status.is_server_error()) {
        // What is refused is not read to its end, so the connection serves no other request.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Whether a request's body may be larger than what is read of it when it is refused.
fn bulky(headers: &HeaderMap) -> bool {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    headers.contains_key(header::TRANSFER_ENCODING) || length.is_some_and(|length| length > SMALL)
}

/// Gives the shape of errors to what the framework refused by itself (405, bad path encodings, …).
fn shaped(response: Response) -> Response {
    let status = response.status();
    if !(status.is_client_error() || status.is_server_error()) || response.extensions().get::<Shaped>().is_some() {
        return response;
    }
    let (code, message) = match status {
        StatusCode::METHOD_NOT_ALLOWED => {
            (Code::MethodNotAllowed, "This route does not know that method. The Allow header lists those it knows.")
        }
        StatusCode::PAYLOAD_TOO_LARGE => (Code::PayloadTooLarge, "The body is too large."),
        StatusCode::UNSUPPORTED_MEDIA_TYPE => (Code::UnsupportedMediaType, "The content type is not accepted here."),
        StatusCode::NOT_FOUND => (Code::NotFound, "There is nothing here."),
        s if s.is_server_error() => (Code::Internal, "Something went wrong on our side. Try again."),
        _ => (Code::InvalidRequest, "The request is malformed."),
    };
    let (mut parts, _) = response.into_parts();
    let mut fresh = ApiError(Error::new(code, message)).into_response();
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.remove(header::CONTENT_TYPE);
    fresh.headers_mut().extend(parts.headers);
    *fresh.status_mut() = status;
    fresh.map(Body::new)
}

/// The caller's id where it is 1 to 128 printable ASCII characters, else a new one.
fn request_id(request: &Request) -> String {
    request
        .headers()
        .get(REQUEST_ID)
        .and_then(|value| value.to_str().ok())
        .filter(|id| (1..=128).contains(&id.len()) && id.bytes().all(|b| (0x20..0x7f).contains(&b)))
        .map_or_else(|| uuid::Uuid::now_v7().to_string(), str::to_owned)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text")
}

/// Marks an answer of 4xx or 5xx whose body has a shape of its own and is meant so.
pub fn keep_shape(mut response: Response) -> Response {
    response.extensions_mut().insert(Shaped(None));
    response
}
