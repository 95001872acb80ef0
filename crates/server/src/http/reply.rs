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

/// The header that marks an answer as the repetition of an earlier one.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
