//! Answers that succeed.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::envelope::ApiError;

/// What every handler returns.
pub type Reply<T> = std::result::Result<T, ApiError>;

/// 201 with `Location`.
#[derive(Debug)]
pub struct Created<T> {
    /// Where the new thing is.
    pub location: String,
    /// The new thing.
    pub body: T,
}

impl<T: Serialize> IntoResponse for Created<T> {
    fn into_response(self) -> Response {
        let mut response = (StatusCode::CREATED, axum::Json(self.body)).into_response();
        if let Ok(value) = HeaderValue::from_str(&self.location) {
            response.headers_mut().insert(header::LOCATION, value);
        }
        response
    }
}

/// 202 with a body.
pub struct Accepted<T>(pub T);

impl<T: Serialize> IntoResponse for Accepted<T> {
    fn into_response(self) -> Response {
        (StatusCode::ACCEPTED, axum::Json(self.0)).into_response()
    }
}

/// What server-sent events are declared as. They are UTF-8 in any case, but there are readers that want to be told.
pub const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");

/// An answer of server-sent events.
pub fn events(answer: impl IntoResponse) -> Response {
    let mut answer = answer.into_response();
    answer.headers_mut().insert(header::CONTENT_TYPE, EVENTS);
    answer
}

/// The header that marks an answer as the repetition of an earlier one.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
