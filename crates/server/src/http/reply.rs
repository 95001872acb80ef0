//! Answers that succeed.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use async_stream::stream;
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{Stream, StreamExt};
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

/// The content type of server-sent events. They are UTF-8 in any case, but some readers want to see it.
pub const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");

/// Longest silence of a stream of events.
const SILENCE: Duration = Duration::from_secs(15);
/// A comment that ends it.
const COMMENT: &[u8] = b":\n\n";

/// An answer of server-sent events, as [`sse::write`](berth_domain::sse::write) writes them. A silent stream sends
/// comments, so that the reader knows it is alive.
pub fn events(events: impl Stream<Item = Vec<u8>> + Send + 'static) -> Response {
    let pieces = stream! {
        let mut events = pin!(events);
        loop {
            let piece = match tokio::time::timeout(SILENCE, events.next()).await {
                Ok(Some(event)) => Bytes::from(event),
                Ok(None) => return,
                Err(_) => Bytes::from_static(COMMENT),
            };
            yield Ok::<_, Infallible>(piece);
        }
    };
    let headers = [(header::CONTENT_TYPE, EVENTS), (header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))];
    (headers, Body::from_stream(pieces)).into_response()
}

/// The header that marks an answer as the repetition of an earlier one.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
