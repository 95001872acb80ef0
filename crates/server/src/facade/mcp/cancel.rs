//! Calls that their callers give up.
//!
//! In the present version of the protocol a client closes the stream of an answer, and that gives up the call. In earlier ones
//! a stream that breaks off is taken up again ([`events`](super::events)), and a notification names the call by the id of its
//! request, which each client counts by itself. So the answer to a handshake brings an id of a session, as those versions
//! foresee; it tells clients of one key apart and nothing is kept for it. A call is found by the replica that runs it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use berth_domain::{Code, Error, Result};
use futures::StreamExt;
use rmcp::model::RequestId;
use serde::Deserialize;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// The first version in which a closed stream gives up its call: of this date.
const BY_CLOSING: &[u8] = b"2026-07-28";
/// The longest id of a session that is read, in bytes.
const LONGEST: usize = 64;
/// The longest notification that is read, in bytes: it may tell a reason.
const NOTICE: usize = 4096;

/// A request whose caller may give it up.
#[derive(Clone)]
pub struct Asked {
    /// Says that it is given up.
    pub given_up: CancellationToken,
    session: Option<String>,
    by_closing: bool,
}

impl Asked {
    /// By the headers of a request.
    pub fn of(headers: &HeaderMap) -> Self {
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let session = text(SESSION).filter(|id| id.len() <= LONGEST).map(str::to_owned);
        let by_closing = text(VERSION).is_some_and(|version| version.as_bytes() >= BY_CLOSING);
        Self { given_up: CancellationToken::new(), session, by_closing }
    }

    /// What gives up the request when it is dropped, where closing does.
    pub fn guard(&self) -> Option<DropGuard> {
        self.by_closing.then(|| self.given_up.clone().drop_guard())
    }

    /// The id of a session that the answer brings, where the client has none and its version knows of them.
    pub fn new_session(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let is_greeting = self.session.is_none() && !headers.contains_key(VERSION);
        is_greeting.then(|| HeaderValue::from_str(&Uuid::new_v4().to_string()).ok()).flatten()
    }
}

/// Puts the id of a session into an answer.
pub fn bring(session: Option<HeaderValue>, headers: &mut HeaderMap) {
    if let Some(session) = session {
        headers.insert(SESSION, session);
    }
}

/// The body of an answer, whose end or whose drop lets go of a guard.
pub fn guarded(body: Body, guard: Option<DropGuard>) -> Body {
    let Some(guard) = guard else { return body };
    Body::from_stream(body.into_data_stream().inspect(move |_| {
        let _ = &guard;
    }))
}

/// A notification that gives up a call.
#[derive(Deserialize)]
struct Notice {
    method: String,
    params: NoticeParams,
}

#[derive(Deserialize)]
struct NoticeParams {
    #[serde(rename = "requestId")]
    request_id: RequestId,
}

/// A call by its project, its session and the id of its request.
type Name = (String, String, RequestId);

/// The calls under way that a notification may name.
#[derive(Clone, Default)]
pub struct Running(Arc<Mutex<HashMap<Name, CancellationToken>>>);

/// A call that is among them until this is dropped.
pub struct Named(Running, Name);

impl Running {
    fn calls(&self) -> MutexGuard<'_, HashMap<Name, CancellationToken>> {
        // Nothing in there is left half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a call of a project.
    pub fn add(&self, project: &str, asked: &Asked, request: &RequestId) -> Option<Named> {
        let name = (project.to_owned(), asked.session.clone()?, request.clone());
        self.calls().insert(name.clone(), asked.given_up.clone());
        Some(Named(self.clone(), name))
    }

    /// Gives up the call that a message names, where that is what it says: the library reads no notification where there are
    /// no sessions. Returns the body of the message, which is read where it is short enough for a notification.
    ///
    /// # Errors
    /// The body breaks off.
    pub async fn notice(&self, project: &str, by: &Asked, headers: &HeaderMap, body: Body) -> Result<Body> {
        let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let may_be_one = by.session.is_some() && length.is_some_and(|length: usize| length <= NOTICE);
        if !may_be_one {
            return Ok(body);
        }
        let broken = |error| Error::new(Code::InvalidRequest, format!("The body cannot be read: {error}."));
        let bytes = to_bytes(body, NOTICE).await.map_err(broken)?;
        if let Ok(Notice { method, params: NoticeParams { request_id } }) = serde_json::from_slice(&bytes)
            && method == "notifications/cancelled"
        {
            self.give_up(project, by, request_id);
        }
        Ok(Body::from(bytes))
    }

    /// Gives up a call of a project, in the session of whoever says so.
    fn give_up(&self, project: &str, by: &Asked, request: RequestId) {
        let Some(session) = by.session.clone() else { return };
        if let Some(call) = self.calls().get(&(project.to_owned(), session, request)) {
            call.cancel();
        }
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        self.0.calls().remove(&self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked_with(headers: &[(HeaderName, &'static str)]) -> (Asked, HeaderMap) {
        let headers: HeaderMap =
            headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect();
        (Asked::of(&headers), headers)
    }

    #[test]
    fn a_closed_stream_gives_up_a_call_of_the_present_version_alone() {
        for (version, expected) in [("2025-11-25", false), ("2026-07-28", true), ("2027-01-01", true)] {
            let (asked, _) = asked_with(&[(VERSION, version)]);
            drop(asked.guard());
            assert_eq!(asked.given_up.is_cancelled(), expected, "{version}");
        }
    }

    #[test]
    fn a_session_is_brought_to_who_has_none_and_may_have_one() {
        let (greets, headers) = asked_with(&[]);
        assert!(greets.new_session(&headers).is_some());
        for known in [[(VERSION, "2026-07-28")], [(VERSION, "2025-06-18")], [(SESSION, "a")]] {
            let (asked, headers) = asked_with(&known);
            assert!(asked.new_session(&headers).is_none(), "{known:?}");
        }
    }

    #[test]
    fn a_call_is_given_up_by_its_own_project_and_session() {
        let (running, request) = (Running::default(), RequestId::Number(1));
        let (own, _) = asked_with(&[(SESSION, "own")]);
        let (other, _) = asked_with(&[(SESSION, "other")]);
        let named = running.add("project", &own, &request);
        running.give_up("project", &other, request.clone());
        running.give_up("another", &own, request.clone());
        running.give_up("project", &own, RequestId::Number(2));
        assert!(!own.given_up.is_cancelled());
        running.give_up("project", &own, request);
        assert!(own.given_up.is_cancelled());
        drop(named);
        assert!(running.calls().is_empty());
    }
}
