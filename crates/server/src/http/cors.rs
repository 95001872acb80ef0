//! Pages of other origins: which may call the API from a browser.
//!
//! There are no cookies, so that a page can do nothing by itself: it holds a token that somebody gave it. The list says
//! whose pages a browser lets read the answers.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::Response;

/// What a page may send besides what needs no leave.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, PUT, PATCH, DELETE");
const HEADERS: HeaderValue = HeaderValue::from_static(
    "authorization, content-type, idempotency-key, x-api-key, x-project-id, x-priority, x-request-id, last-event-id, \
     range, traceparent",
);
/// What a page may read besides what needs no leave.
const READABLE: HeaderValue = HeaderValue::from_static(
    "x-request-id, location, retry-after, ratelimit, ratelimit-policy, idempotent-replayed, content-range, \
     accept-ranges, content-digest",
);
/// Seconds for which a browser need not ask again.
const REMEMBERED: HeaderValue = HeaderValue::from_static("600");

/// The origins whose pages may call.
#[derive(Clone, Debug, Default)]
pub struct Cors(Vec<HeaderValue>);

impl Cors {
    /// These; each as browsers write it.
    pub fn new(origins: &[String]) -> Self {
        Self(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()).collect())
    }

    /// The origin of a request, where it is one of the list.
    pub fn origin(&self, request: &Request) -> Option<HeaderValue> {
        let origin = request.headers().get(header::ORIGIN)?;
        self.0.contains(origin).then(|| origin.clone())
    }

    /// Whether answers differ by who asks.
    pub fn counts(&self) -> bool {
        !self.0.is_empty()
    }
}

/// Whether a browser asks here if it may send something.
pub fn asks_first(request: &Request) -> bool {
    request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// The answer to who asks first.
pub fn leave() -> Response {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    let headers = answer.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HEADERS);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, REMEMBERED);
    answer
}

/// Tells a browser that the page of an origin may read the answer.
pub fn allow(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, READABLE);
}
