//! What every answer passes through: the request id, the log line, the form of errors, and the catch of panics.

use std::convert::Infallible;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use berth_domain::{Code, Error, FieldError};
use futures::FutureExt;
use serde::Serialize;
use utoipa::ToSchema;

use super::client_address::ClientAddress;
use super::limit::Slot;
use super::traffic::{Class, TRAFFIC};
use crate::db::settled;

/// The header that carries the request id in both directions.
pub const REQUEST_ID: &str = "x-request-id";

/// Bytes of a body that fit a connection's buffers.
const SMALL: u64 = 8192;

/// The id of the present request, and where it comes from; in the extensions of every request.
#[derive(Clone, Debug, Default)]
pub struct RequestId {
    /// The id that the answer and the log have.
    pub id: String,
    /// Where the request comes from, where that is known.
    pub from: Option<IpAddr>,
}

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

/// Marks an answer whose body already has the form of an error, and keeps that error.
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

/// The answer for a path without a route.
pub async fn unknown_route() -> ApiError {
    ApiError(Error::new(Code::NotFound, "There is no such route. See /docs for those that exist."))
}

/// The outermost layer.
pub async fn envelope(request: Request, next: Next) -> Response {
    let answer = async |request| match settled(next.run(request)).await {
        Ok(response) => response,
        Err(error) => ApiError::from(error).into_response(),
    };
    enveloped(request, answer).await
}

/// Calls `answer` and gives its result the form that callers get.
pub async fn enveloped<F>(mut request: Request, answer: impl FnOnce(Request) -> F) -> Response
where
    F: Future<Output = Response>,
{
    let id = request_id(&request);
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let class = Class::of(&path);
    let client = request.extensions().get::<ClientAddress>().and_then(|client| client.known());
    let bulky = bulky(request.headers());
    request.extensions_mut().insert(RequestId { id: id.clone(), from: client });
    let limit = Slot::default();
    request.extensions_mut().insert(limit.clone());
    let began = Instant::now();
    let mut response = match AssertUnwindSafe(answer(request)).catch_unwind().await {
        Ok(response) => shaped(response),
        Err(panic) => ApiError(Error::internal(format!("panic: {}", panic_text(&*panic)))).into_response(),
    };
    if let (Some(dialect), Some(Shaped(Some(error)))) = (Dialect::at(&path), response.extensions().get::<Shaped>()) {
        let body = dialect.envelope(error);
        response = super::openai::reshaped(response, body);
    }
    let status = response.status();
    let took = began.elapsed();
    TRAFFIC.count(class, status.as_u16(), took);
    let failure = response.extensions().get::<Shaped>().and_then(|shaped| shaped.0.as_deref());
    Line { id: &id, method: &method, path: &path, class, status, took, client, asker: &limit }.write(failure);
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    limit.tell(response.headers_mut());
    // No browser may take an answer for another type than it declares.
    response.headers_mut().entry(header::X_CONTENT_TYPE_OPTIONS).or_insert(HeaderValue::from_static("nosniff"));
    if bulky && (status.is_client_error() || status.is_server_error()) {
        // The service does not read a refused body to its end, so the connection serves no other request.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// A protocol of others, whose clients read errors in another form.
#[derive(Clone, Copy)]
enum Dialect {
    OpenAi,
    E2b,
}

impl Dialect {
    fn at(path: &str) -> Option<Self> {
        match path {
            _ if super::openai::is_spoken_at(path) => Some(Self::OpenAi),
            _ if path == "/e2b" || path.starts_with("/e2b/") || path == "/files" => Some(Self::E2b),
            _ => None,
        }
    }

    fn envelope(self, error: &Error) -> String {
        match self {
            Self::OpenAi => super::openai::envelope(error),
            Self::E2b => {
                let code = error.code;
                let told =
                    serde_json::json!({"code": code.status(), "message": error.message, "error_code": code.as_str()});
                told.to_string()
            }
        }
    }
}

/// The error that an answer tells, if it is one of the service's own.
pub fn error_of(response: &Response) -> Option<Error> {
    response.extensions().get::<Shaped>()?.0.as_deref().cloned()
}

/// The log line of a request.
struct Line<'a> {
    id: &'a str,
    method: &'a Method,
    path: &'a str,
    class: Class,
    status: StatusCode,
    took: Duration,
    client: Option<IpAddr>,
    asker: &'a Slot,
}

impl Line<'_> {
    /// Probes and models have so many requests that a line for each would bury the rest, so these are at a lower level.
    /// A failure is logged as an error only where the service is at fault: failures of a server in a sandbox or of a
    /// model's server are for their owners to see.
    fn write(&self, failure: Option<&Error>) {
        let is_ours = failure.is_some_and(|error| matches!(error.code, Code::Internal | Code::Unavailable));
        let cause = failure.and_then(|error| error.cause.as_deref());
        macro_rules! tell {
            ($level:ident, $target:literal, $text:literal $(, $cause:ident)?) => {
                tracing::$level!(
                    target: $target, request_id = self.id, method = %self.method, path = self.path,
                    status = self.status.as_u16(), ms = self.millis(), who = self.asker.asker(),
                    client = self.client.map(tracing::field::display), $($cause,)? $text
                )
            };
        }
        match (cause, self.class) {
            (Some(cause), _) if is_ours => tell!(error, "berth_server::requests", "request failed", cause),
            (Some(cause), _) => tell!(info, "berth_server::requests", "request", cause),
            (None, Class::Probes) => tell!(debug, "berth_server::probes", "request"),
            (None, Class::Models) => tell!(debug, "berth_server::model_requests", "request"),
            (None, _) => tell!(info, "berth_server::requests", "request"),
        }
    }

    fn millis(&self) -> f64 {
        // A tenth of a millisecond is precise enough.
        (self.took.as_secs_f64() * 10_000.0).round() / 10.0
    }
}

/// Whether a request's body may be larger than the part that is read when the request is refused.
fn bulky(headers: &HeaderMap) -> bool {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    headers.contains_key(header::TRANSFER_ENCODING) || length.is_some_and(|length| length > SMALL)
}

/// Gives the form of errors to the framework's own refusals (405, bad path encodings, …).
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

/// The caller's id if it is 1 to 128 printable ASCII characters, else a new one.
fn request_id(request: &Request) -> String {
    request
        .headers()
        .get(REQUEST_ID)
        .and_then(|value| value.to_str().ok())
        .filter(|id| (1..=128).contains(&id.len()) && id.bytes().all(|b| (0x20..0x7f).contains(&b)))
        .map_or_else(|| uuid::Uuid::now_v7().to_string(), str::to_owned)
}

/// What a panic says.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text")
}

/// Marks a 4xx or 5xx answer that deliberately has a body of its own form.
pub fn keep_shape(mut response: Response) -> Response {
    response.extensions_mut().insert(Shaped(None));
    response
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use berth_domain::ids::{SessionId, UserId};
    use serde_json::Value;
    use uuid::Uuid;

    use super::*;
    use crate::http::auth::Who;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The log lines at a level for a request to a path.
    async fn logged(level: &str, path: &str) -> Vec<Value> {
        answered(level, path, StatusCode::NO_CONTENT).await
    }

    /// The same with this answer.
    async fn answered(level: &str, path: &str, answer: impl IntoResponse) -> Vec<Value> {
        let log = Log::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().json().with_env_filter(level).with_writer(move || writer.clone()).finish();
        let _subscribed = tracing::subscriber::set_default(subscriber);
        let mut request = axum::http::Request::get(path).header(REQUEST_ID, "r-1").body(Body::empty()).unwrap();
        request.extensions_mut().insert(ClientAddress::At([192, 0, 2, 7].into()));
        enveloped(request, |request| async move {
            let slot = request.extensions().get::<Slot>().unwrap().clone();
            let user = UserId(Uuid::nil());
            slot.asked_by(Who::Person { user, session: SessionId(Uuid::nil()), is_admin: false });
            answer.into_response()
        })
        .await;
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["fields"].clone()).collect()
    }

    #[tokio::test]
    async fn a_request_is_a_line_of_the_log_that_says_who_and_from_where() {
        let lines = logged("info", "/api/v1/orgs").await;
        let [line] = lines.as_slice() else { unreachable!("{lines:?}") };
        for (field, value) in [
            ("request_id", "r-1"),
            ("method", "GET"),
            ("path", "/api/v1/orgs"),
            ("who", "user 00000000-0000-0000-0000-000000000000"),
            ("client", "192.0.2.7"),
        ] {
            assert_eq!(line[field], value, "{line}");
        }
        assert!(line["status"] == 204 && line["ms"].is_f64(), "{line}");
    }

    #[tokio::test]
    async fn what_others_do_wrong_is_no_error_of_the_service() {
        let failed = |code| ApiError(Error { cause: Some("it hung up".into()), ..Error::new(code, "It failed.") });
        for (code, errors) in
            [(Code::Internal, 1), (Code::Unavailable, 1), (Code::PortRefused, 0), (Code::InvalidRequest, 0)]
        {
            assert_eq!(answered("error", "/api/v1/orgs", failed(code)).await.len(), errors, "{code:?}");
            let lines = answered("info", "/api/v1/orgs", failed(code)).await;
            assert!(lines.len() == 1 && lines[0]["cause"] == "it hung up", "{lines:?}");
        }
    }

    #[tokio::test]
    async fn what_is_asked_all_the_time_is_logged_for_who_wants_it() {
        for path in ["/healthz", "/readyz", "/metrics", "/v1/chat/completions"] {
            assert_eq!((logged("info", path).await.len(), logged("debug", path).await.len()), (0, 1), "{path}");
        }
        assert_eq!(logged("info,berth_server::model_requests=debug", "/v1/models").await.len(), 1);
    }
}
