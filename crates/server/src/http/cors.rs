//! Pages of other origins: which of them may call the API from a browser.
//!
//! There are no cookies, so a page can do nothing by itself: it needs a token that somebody gave it. The list names the
//! origins whose pages may read the answers.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::Response;

/// The methods that a page may use.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, PUT, PATCH, DELETE");
const HEADERS: HeaderValue = HeaderValue::from_static(
    "authorization, content-type, idempotency-key, x-api-key, x-project-id, x-priority, x-request-id, last-event-id, \
     range, traceparent, mcp-protocol-version, mcp-session-id, mcp-method, mcp-name",
);
/// The headers that a page may read, besides those that are always readable.
const READABLE: HeaderValue = HeaderValue::from_static(
    "x-request-id, location, retry-after, ratelimit, ratelimit-policy, idempotent-replayed, content-range, \
     accept-ranges, content-digest, mcp-session-id, www-authenticate",
);
/// Seconds for which a browser may reuse the answer.
const REMEMBERED: HeaderValue = HeaderValue::from_static("600");

/// A request comes from a page that may call.
#[derive(Clone, Copy, Debug)]
pub struct Listed;

/// The origins whose pages may call.
#[derive(Clone, Debug, Default)]
pub struct Cors(Vec<HeaderValue>);

impl Cors {
    /// The listed origins, each in the form in which browsers write it.
    pub fn new(origins: &[String]) -> Self {
        Self(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()).collect())
    }

    /// The origin of a request, if the list has it.
    pub fn origin(&self, request: &Request) -> Option<HeaderValue> {
        let origin = request.headers().get(header::ORIGIN)?;
        self.0.contains(origin).then(|| origin.clone())
    }

    /// Whether answers depend on the origin.
    pub fn counts(&self) -> bool {
        !self.0.is_empty()
    }
}

/// Whether a browser asks here if it may send a request (a preflight).
pub fn asks_first(request: &Request) -> bool {
    request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// The answer to a preflight.
pub fn leave() -> Response {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    let headers = answer.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HEADERS);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, REMEMBERED);
    answer
}

/// Allows the page of an origin to read the answer.
pub fn allow(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, READABLE);
}
