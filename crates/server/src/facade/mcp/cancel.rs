//! Calls that their callers give up.
//!
//! In the present version of the protocol a client closes the stream of an answer, and that gives up the call. In earlier ones
//! a stream that breaks off is taken up again ([`events`](super::events)), and a notification names the call by the id of its
//! request, which each client counts by itself. So the answer to a handshake brings an id of a session, as those versions
//! foresee; it tells clients of one key apart and nothing is kept for it. A call is found by the replica that runs it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use futures::StreamExt;
use rmcp::model::RequestId;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// The first version in which a closed stream gives up its call. Versions are dates.
const BY_CLOSING: &str = "2026-07-28";
/// The first version in which a stream begins with an event that has nothing but an id: earlier clients read it as a message.
const PRIMED: &str = "2025-11-25";
/// The longest id of a session that is read, in bytes.
const LONGEST: usize = 64;
/// How long a notification waits for its request, where it is quicker, and how many of them do, of one project and in all.
const EARLY: Duration = Duration::from_secs(10);
const OF_ONE: usize = 16;
const IN_ALL: usize = 4096;

/// A request whose caller may give it up.
#[derive(Clone)]
pub struct Asked {
    /// Says that it is given up.
    pub given_up: CancellationToken,
    session: Option<String>,
    /// The version of the protocol; none before its first answer.
    version: Option<String>,
}

impl Asked {
    /// By the headers of a request.
    pub fn of(headers: &HeaderMap) -> Self {
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let session = text(SESSION).filter(|id| id.len() <= LONGEST).map(str::to_owned);
        let version = headers.get(VERSION).map(|version| String::from_utf8_lossy(version.as_bytes()).into_owned());
        Self { given_up: CancellationToken::new(), session, version }
    }

    fn is_since(&self, first: &str) -> bool {
        self.version.as_deref().is_some_and(|version| version >= first)
    }

    /// Whether the end of the answer gives up the request.
    pub fn is_by_closing(&self) -> bool {
        self.is_since(BY_CLOSING)
    }

    /// Whether the answer begins with an event that has nothing but an id.
    pub fn is_primed(&self) -> bool {
        self.is_since(PRIMED)
    }

    /// What gives up the request when it is dropped, where closing does.
    pub fn guard(&self) -> Option<DropGuard> {
        self.is_by_closing().then(|| self.given_up.clone().drop_guard())
    }

    /// The id of a session that the answer brings, where the client has none and its version knows of them.
    pub fn new_session(&self) -> Option<HeaderValue> {
        let is_greeting = self.session.is_none() && self.version.is_none();
        is_greeting.then(|| HeaderValue::from_str(&Uuid::new_v4().to_string()).ok()).flatten()
    }
}

/// Puts the id of a session into an answer.
pub fn bring(session: Option<HeaderValue>, headers: &mut HeaderMap) {
    if let Some(session) = session {
        headers.insert(SESSION, session);
    }
}

/// The body of an answer, whose end or whose drop lets go of something.
pub fn guarded<T: Send + Sync + 'static>(body: Body, kept: Option<T>) -> Body {
    let Some(kept) = kept else { return body };
    Body::from_stream(body.into_data_stream().inspect(move |_| {
        let _ = &kept;
    }))
}

/// A call by its project, its session and the id of its request.
type Name = (String, String, RequestId);

/// The calls under way that a notification may name.
#[derive(Clone, Default)]
pub struct Running(Arc<Mutex<Calls>>);

#[derive(Default)]
struct Calls {
    running: HashMap<Name, (Uuid, CancellationToken)>,
    /// Calls that were given up before they came.
    early: VecDeque<(Instant, Name)>,
}

/// A call that is among them until this is dropped.
pub struct Named {
    running: Running,
    name: Name,
    own: Uuid,
}

impl Running {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        // Nothing in there is left half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a call of a project.
    pub fn add(&self, project: &str, asked: &Asked, request: &RequestId) -> Option<Named> {
        let name = (project.to_owned(), asked.session.clone()?, request.clone());
        let (own, mut calls) = (Uuid::new_v4(), self.calls());
        calls.running.insert(name.clone(), (own, asked.given_up.clone()));
        if let Some(place) = calls.early.iter().position(|(at, early)| *early == name && at.elapsed() <= EARLY) {
            calls.early.remove(place);
            asked.given_up.cancel();
        }
        drop(calls);
        Some(Named { running: self.clone(), name, own })
    }

    /// Gives up a call of a project, in the session of whoever says so.
    pub fn give_up(&self, project: &str, by: &Asked, request: RequestId) {
        let Some(session) = by.session.clone() else { return };
        let (name, mut calls) = ((project.to_owned(), session, request), self.calls());
        if let Some((_, call)) = calls.running.get(&name) {
            return call.cancel();
        }
        calls.early.retain(|(at, _)| at.elapsed() <= EARLY);
        let of_one = calls.early.iter().filter(|(_, early)| early.0 == name.0).count();
        if calls.early.len() >= IN_ALL || of_one >= OF_ONE {
            let oldest = calls.early.iter().position(|(_, early)| of_one < OF_ONE || early.0 == name.0);
            oldest.and_then(|oldest| calls.early.remove(oldest));
        }
        calls.early.push_back((Instant::now(), name));
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let mut calls = self.running.calls();
        // A client that uses an id twice has the later call under it.
        if calls.running.get(&self.name).is_some_and(|(own, _)| *own == self.own) {
            calls.running.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked_with(headers: &[(HeaderName, &'static str)]) -> Asked {
        let headers = headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
        Asked::of(&headers.collect())
    }

    #[test]
    fn a_closed_stream_gives_up_a_call_of_the_present_version_alone() {
        for (version, expected) in [("2025-11-25", false), ("2026-07-28", true), ("2027-01-01", true)] {
            let asked = asked_with(&[(VERSION, version)]);
            drop(asked.guard());
            assert_eq!(asked.given_up.is_cancelled(), expected, "{version}");
        }
    }

    #[test]
    fn a_session_is_brought_to_who_has_none_and_may_have_one() {
        assert!(asked_with(&[]).new_session().is_some());
        for known in [[(VERSION, "2026-07-28")], [(VERSION, "2025-06-18")], [(SESSION, "a")]] {
            assert!(asked_with(&known).new_session().is_none(), "{known:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_given_up_by_its_own_project_and_session() {
        let (running, request) = (Running::default(), RequestId::Number(1));
        let own = asked_with(&[(SESSION, "own")]);
        let other = asked_with(&[(SESSION, "other")]);
        let named = running.add("project", &own, &request);
        running.give_up("project", &other, request.clone());
        running.give_up("another", &own, request.clone());
        running.give_up("project", &own, RequestId::Number(2));
        assert!(!own.given_up.is_cancelled());
        running.give_up("project", &own, request);
        assert!(own.given_up.is_cancelled());
        drop(named);
        assert!(running.calls().running.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_notification_that_is_quicker_than_its_request_waits_for_it() {
        for (pause, expected) in [(EARLY, true), (EARLY + Duration::from_millis(1), false)] {
            let (running, request) = (Running::default(), RequestId::Number(1));
            let by = asked_with(&[(SESSION, "own")]);
            running.give_up("project", &by, request.clone());
            tokio::time::advance(pause).await;
            let call = asked_with(&[(SESSION, "own")]);
            let _named = running.add("project", &call, &request);
            assert_eq!(call.given_up.is_cancelled(), expected);
        }
    }

    #[test]
    fn the_first_call_of_an_id_leaves_the_second() {
        let (running, request) = (Running::default(), RequestId::Number(1));
        let first = asked_with(&[(SESSION, "own")]);
        let second = asked_with(&[(SESSION, "own")]);
        let named = running.add("project", &first, &request);
        let _later = running.add("project", &second, &request);
        drop(named);
        running.give_up("project", &first, request);
        assert!(second.given_up.is_cancelled() && !first.given_up.is_cancelled());
    }

    #[test]
    fn an_id_of_a_session_is_short() {
        for (length, is_one) in [(LONGEST, true), (LONGEST + 1, false)] {
            let mut headers = HeaderMap::new();
            headers.insert(SESSION, HeaderValue::from_str(&"x".repeat(length)).unwrap());
            assert_eq!(Asked::of(&headers).session.is_some(), is_one, "{length}");
        }
    }
}
