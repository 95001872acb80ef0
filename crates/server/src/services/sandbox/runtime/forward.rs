//! Carrying a request to the agent and its answer back.
//!
//! The guest is somebody's, and may be hostile: of its answer only what the route's users need gets through,
//! and nothing that a browser would take for a page of ours.

use std::sync::Arc;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use berth_domain::agent::error::ErrorBody;
use berth_domain::ids::SandboxId;
use berth_domain::{Code, Error, FieldError};
use berth_host::sandbox::agent::{AgentError, soon};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;

use super::events::{self, Ending};
use super::flag::asks;
use super::inside::{Inside, no_longer, silent};
use super::patience::Sent;
use crate::http::BODY_LIMIT;
use crate::http::body;
use crate::http::envelope::ApiError;
use crate::http::paced::{Paced, Refusal};
use crate::http::reply::EVENTS;

/// Seconds after which somebody may have let go of what there are too many of in a sandbox.
const COME_AGAIN: u64 = 5;
/// The largest refusal of an agent that is read, in bytes.
const LARGEST_REFUSAL: usize = 64 << 10;
/// Headers of a request that an agent needs.
const ASKED: [HeaderName; 6] = [
    header::ACCEPT,
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::RANGE,
    header::IF_RANGE,
    HeaderName::from_static("last-event-id"),
];
/// Headers of an answer that a user needs.
const TOLD: [HeaderName; 6] = [
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::ACCEPT_RANGES,
    header::LAST_MODIFIED,
    header::LOCATION,
];

/// How large a body may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// As a request in JSON.
    Usual,
    /// As the sandbox's disk; it has to keep coming.
    Unlimited,
    /// Without an end: what somebody types comes when they type it.
    Open,
}

/// Asks the agent on its route and answers with what it answers.
pub(super) async fn forward(inside: Inside, route: &str, request: Request<Body>, size: Size) -> Reply {
    let (parts, body) = request.into_parts();
    let (body, broken) = bounded(&parts, body, size).await?;
    let (body, since) = Sent::of(body);
    let asked = question(&inside, route, &parts, Body::new(body))?;
    let patience = inside.connection.patience;
    let late = async {
        match size {
            Size::Usual | Size::Unlimited => since.over(patience).await,
            // What is typed is taken when the program reads it.
            Size::Open => std::future::pending().await,
        }
    };
    let answer = tokio::select! {
        answer = inside.connection.session.send(asked) => answer,
        () = late => return Err(silent(patience, &AgentError::Timeout).into()),
        () = inside.over() => return Err(no_longer().into()),
    };
    let answer = answer.map_err(|error| broken.get().map_or_else(|| lost(error), ApiError))?;
    let (answered, body) = answer.into_parts();
    if !answered.status.is_success() {
        return Ok(refusal(answered.status, body).await.into_response());
    }
    let form = answered.headers.get(header::CONTENT_TYPE).and_then(events::Form::of);
    let mut told = HeaderMap::new();
    for name in TOLD {
        if let Some(value) = answered.headers.get(&name) {
            told.insert(name, value.clone());
        }
    }
    if matches!(form, Some(events::Form::Events(_))) {
        told.insert(header::CONTENT_TYPE, EVENTS);
    }
    place(&mut told, answered.status, inside.id);
    make_harmless(&mut told);
    let body = match form {
        Some(form) => events::guarded(body, inside, ending(route, parts.uri.query()), form),
        None => Arc::new(inside).guarded(body),
    };
    Ok((answered.status, told, body).into_response())
}

/// A log that is not followed ends where there is no more of it yet.
fn ending(route: &str, query: Option<&str>) -> Ending {
    if route.ends_with("/logs") && !asks(query, "follow") { Ending::Silence } else { Ending::Event }
}

/// The answer of every route of the runtime.
pub(super) type Reply = Result<Response, ApiError>;

/// The body as the agent gets it, and where the reason stands if it breaks off. What is small is there before it goes
/// on: what it asks for begins when all of it came from somebody who still may.
pub(super) async fn bounded(parts: &Parts, body: Body, size: Size) -> Result<(Body, Refusal), ApiError> {
    match size {
        Size::Usual => Ok((body::read_of(parts, body, BODY_LIMIT).await?.into(), Refusal::default())),
        Size::Unlimited => {
            let paced = Paced::of(parts, body);
            let refusal = paced.refusal();
            Ok((Body::new(paced), refusal))
        }
        Size::Open => Ok((body, Refusal::default())),
    }
}

/// Where the agent's routes are: those of the whole machine apart, so that an agent that does not know of them refuses.
pub(super) fn room(query: Option<&str>) -> &'static str {
    if asks(query, "root") { "machine" } else { "runtime" }
}

fn question(inside: &Inside, route: &str, parts: &Parts, body: Body) -> Result<Request<Body>, ApiError> {
    let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let uri: Uri = format!("http://agent/{}/{route}{query}", room(parts.uri.query()))
        .parse()
        .map_err(|_| Error::new(Code::InvalidRequest, "The path is not valid."))?;
    let mut request = Request::new(body);
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = uri;
    for name in ASKED {
        if let Some(value) = parts.headers.get(&name) {
            request.headers_mut().insert(name, value.clone());
        }
    }
    request.headers_mut().insert(header::AUTHORIZATION, inside.authorization()?);
    Ok(request)
}

/// Where what was made is. The agent knows its own paths only, relative to its root; one that leads out of the sandbox's
/// is a guest's who wants a client of the service to go elsewhere.
fn place(told: &mut HeaderMap, status: StatusCode, id: SandboxId) {
    let inner = told.get(header::LOCATION).and_then(|value| value.to_str().ok());
    let plain = |part: &str| !part.is_empty() && !part.contains(['.', '\\', '%']);
    let plain = |place: &&str| place.split('?').next().is_some_and(|path| path.split('/').all(plain));
    let outer = inner.filter(|path| status == StatusCode::CREATED && plain(path));
    match outer.and_then(|path| HeaderValue::from_str(&format!("/sandbox/{id}/{path}")).ok()) {
        Some(location) => told.insert(header::LOCATION, location),
        None => told.remove(header::LOCATION),
    };
}

/// Content of a sandbox is never a page of this host: it runs no script here and reads no cookie.
pub(super) fn make_harmless(told: &mut HeaderMap) {
    told.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    told.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    told.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

/// Asks the agent for something whose body has no end of its own: a connection that goes on once it has answered.
pub(super) async fn open(inside: &Inside, asked: Request<Body>) -> Result<Response<Incoming>, ApiError> {
    let patience = inside.connection.patience;
    let answer = tokio::time::timeout(patience, inside.connection.session.send(asked)).await;
    answer.map_err(|_| silent(patience, &AgentError::Timeout))?.map_err(lost)
}

/// A refusal of the agent as one of the service, if it makes sense.
pub(super) async fn refusal(status: StatusCode, body: Incoming) -> ApiError {
    let whole = Limited::new(body, LARGEST_REFUSAL).collect();
    let bytes = soon(async { whole.await.map_err(|e| AgentError::Gone(e.to_string())) }).await;
    let bytes = bytes.map(http_body_util::Collected::to_bytes);
    read_refusal(status, bytes.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

fn read_refusal(status: StatusCode, told: Option<ErrorBody>) -> ApiError {
    let known = |told: &ErrorBody| Code::ALL.iter().copied().find(|code| code.as_str() == told.code);
    match told.and_then(|told| Some((known(&told)?, told))) {
        Some((code, told)) if code.status() == status.as_u16() && status != StatusCode::UNAUTHORIZED => {
            let field = |d: berth_domain::agent::error::FieldError| FieldError { field: d.field, message: d.message };
            let details = told.details.into_iter().map(field).collect();
            let retry_after = (status == StatusCode::TOO_MANY_REQUESTS).then_some(COME_AGAIN);
            ApiError(Error { details, retry_after, ..Error::new(code, told.message) })
        }
        _ => ApiError(Error::unavailable(format!("the agent refused with {status}"))),
    }
}

/// A session that ended before the answer began.
pub(super) fn lost(error: AgentError) -> ApiError {
    let message = "The sandbox was interrupted before it answered. Look at its phase, and try again.";
    ApiError(Error { cause: Some(error.to_string()), ..Error::new(Code::SandboxInterrupted, message) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_too_much_in_a_sandbox_is_told_when_to_come_again() {
        let refusal = |status: u16, code: &str| {
            let told = serde_json::json!({"code": code, "message": "No."});
            read_refusal(StatusCode::from_u16(status).unwrap(), serde_json::from_value(told).ok()).0
        };
        let too_many = refusal(429, "too_many");
        assert_eq!((too_many.code, too_many.retry_after), (Code::TooMany, Some(COME_AGAIN)));
        assert_eq!(refusal(404, "not_found").retry_after, None);
    }

    #[test]
    fn a_guest_leads_nobody_out_of_its_sandbox() {
        let id = SandboxId(uuid::Uuid::nil());
        let placed = |status: u16, path: &'static str| {
            let mut told = HeaderMap::from_iter([(header::LOCATION, HeaderValue::from_static(path))]);
            place(&mut told, StatusCode::from_u16(status).unwrap(), id);
            told.get(header::LOCATION).map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(placed(201, "processes/7"), Some(format!("/sandbox/{id}/processes/7")));
        assert_eq!(placed(201, "files/stat?path=a.b"), Some(format!("/sandbox/{id}/files/stat?path=a.b")));
        for (status, path) in [
            (200, "processes/7"),
            (201, "../../api/v1/users/me"),
            (201, "a/%2e%2e/b"),
            (201, "a\\b"),
            (201, "//example.org"),
            (201, ""),
        ] {
            assert_eq!(placed(status, path), None, "{status} {path}");
        }
    }

    #[test]
    fn only_a_log_that_is_not_followed_ends_in_silence() {
        for (route, query, expected) in [
            ("processes/7/logs", None, Ending::Silence),
            ("processes/7/logs", Some("offset=1&follow=false"), Ending::Silence),
            ("processes/7/logs", Some("offset=1&follow=true"), Ending::Event),
            ("processes/7/logs", Some("follow"), Ending::Event),
            ("commands", None, Ending::Event),
            ("files/watch", Some("follow=false"), Ending::Event),
        ] {
            assert_eq!(ending(route, query), expected, "{route} {query:?}");
        }
    }
}
