//! `Idempotency-Key`: a creation keeps its answer beside what it created, in one transaction.
//!
//! The transaction that creates also writes the record, so there is no moment at which one exists without the other: a
//! crash loses both or neither. Refusals are not kept.
//!
//! Requests with one key take [turns](Turns): the second waits for the first to end and then finds its answer, or
//! learns that the first still runs. Of a body the service keeps only a MAC, which reveals nothing, since bodies hold
//! passwords.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use berth_domain::{Code, Error, Result, Timestamp};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::{Mutex as Gate, OwnedMutexGuard};
use tokio::time::timeout;
use utoipa::IntoParams;
use uuid::Uuid;

use super::auth::Caller;
use super::envelope::ApiError;
use super::reply::{Created, REPLAYED};
use crate::db::Tx;
use crate::db::idempotency::{Kept, Slot};
use crate::seal::Sealer;

/// Seconds for which an answer is kept.
pub const KEPT_SECONDS: i64 = 24 * 3600;
/// How long a request waits for the first with its key (contract, section 0).
const WAIT: Duration = Duration::from_secs(5);

/// The header, for the document.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "describes the header; `IdempotencyKey` reads it")]
pub struct KeyParam {
    /// 1 to 255 characters; kept 24 hours
    #[param(rename = "Idempotency-Key", min_length = 1, max_length = 255, pattern = "^[ -~]*[!-~][ -~]*$")]
    key: Option<String>,
}

/// The caller, the path and the key.
type Place = (Uuid, String, String);

/// The requests with a key that run now, and the sealer that makes the MACs of bodies. In the extensions of every
/// request; clones share one state.
///
/// They are in memory: only one service at a time works on a database ([`keeper`](crate::db::keeper)).
#[derive(Clone)]
pub struct Turns {
    gates: Arc<Mutex<HashMap<Place, Arc<Gate<()>>>>>,
    sealer: Sealer,
    patience: Duration,
}

impl Turns {
    /// No request runs yet.
    pub fn new(sealer: Sealer) -> Self {
        Self { gates: Arc::default(), sealer, patience: WAIT }
    }

    fn gate(&self, place: &Place) -> Arc<Gate<()>> {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates.entry(place.clone()).or_default().clone()
    }

    /// Waits for the requests before it.
    async fn take(&self, place: Place) -> Result<Turn> {
        let gate = self.gate(&place);
        // Dropped, also when the client leaves while waiting, this cleans up.
        let waiting = Waiting { turns: self.clone(), place, gate: Some(gate.clone()) };
        match timeout(self.patience, gate.lock_owned()).await {
            Ok(held) => Ok(Turn { _held: held, _waiting: waiting }),
            Err(_) => Err(Error::new(
                Code::RequestInProgress,
                "A request with this Idempotency-Key still runs. Send this one again when it has answered.",
            )),
        }
    }
}

/// A request that has a key to itself until it is dropped. Dropping it opens the gate before it gives up the place.
struct Turn {
    _held: OwnedMutexGuard<()>,
    _waiting: Waiting,
}

/// A request at a gate; the last one to leave removes the gate.
struct Waiting {
    turns: Turns,
    place: Place,
    gate: Option<Arc<Gate<()>>>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut gates = self.turns.gates.lock().unwrap_or_else(PoisonError::into_inner);
        self.gate = None;
        if let Entry::Occupied(entry) = gates.entry(std::mem::take(&mut self.place))
            && Arc::strong_count(entry.get()) == 1
        {
            entry.remove();
        }
    }
}

/// The key of a request, if it has one.
pub struct IdempotencyKey(Option<Asked>);

struct Asked {
    key: String,
    path: String,
    turns: Turns,
}

impl<S: Send + Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let Some(value) = parts.headers.get("idempotency-key") else { return Ok(Self(None)) };
        let key = value
            .to_str()
            .ok()
            .filter(|k| (1..=255).contains(&k.len()) && k.bytes().all(|b| b != b'\t') && !k.trim().is_empty());
        let key =
            key.ok_or_else(|| Error::field("Idempotency-Key", "must have 1 to 255 printable ASCII characters"))?;
        let turns = parts.extensions.get::<Turns>().cloned().ok_or_else(|| Error::internal("no turns"))?;
        Ok(Self(Some(Asked { key: key.to_owned(), path: parts.uri.path().to_owned(), turns })))
    }
}

/// A key bound to its caller and its body. For a request without a key, nothing is kept and nothing replayed.
pub struct Idempotency(Option<Bound>);

struct Bound {
    caller: Uuid,
    path: String,
    key: String,
    /// MACs of its body, one for each key of the secrets; the first one is stored.
    body_hashes: Vec<String>,
    turns: Turns,
    _turn: Turn,
}

/// The answer to a creation.
#[derive(Debug)]
pub enum Outcome<V> {
    /// This request created it.
    Created(Created<V>),
    /// An earlier, equal request created it.
    Replayed(Replay),
}

impl<V: Serialize> IntoResponse for Outcome<V> {
    fn into_response(self) -> Response {
        match self {
            Self::Created(created) => created.into_response(),
            Self::Replayed(replay) => replay.into_response(),
        }
    }
}

/// An answer given before.
#[derive(Debug)]
pub struct Replay {
    location: String,
    body: String,
}

impl IntoResponse for Replay {
    fn into_response(self) -> Response {
        let mut response =
            (StatusCode::CREATED, [(header::CONTENT_TYPE, "application/json")], self.body).into_response();
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
        // The creation of a directory in a sandbox has no location.
        if let Some(value) = HeaderValue::from_str(&self.location).ok().filter(|place| !place.is_empty()) {
            response.headers_mut().insert(header::LOCATION, value);
        }
        response
    }
}

impl IdempotencyKey {
    /// Whether the request has a key.
    pub const fn is_given(&self) -> bool {
        self.0.is_some()
    }

    /// Binds the key, if the request has one, when it is its turn.
    pub async fn bind(self, caller: &Caller, body: &Value) -> Result<Idempotency> {
        Ok(self.begin(caller).await?.of_body(&body.to_string()))
    }

    /// The same for somebody who is not signed in, under a name that they give.
    pub async fn bind_as(self, name: &str, body: &Value) -> Result<Idempotency> {
        let Some(asked) = self.0 else { return Ok(Idempotency(None)) };
        let digits = asked.turns.sealer.mac(name.as_bytes())?;
        let caller = u128::from_str_radix(&digits[..32], 16).map_err(Error::internal)?;
        Ok(asked.turn(Uuid::from_u128(caller)).await?.of_body(&body.to_string()))
    }

    /// Waits for the turn of the key before the body has arrived; [`Idempotency::of_body`] adds the body.
    pub async fn begin(self, caller: &Caller) -> Result<Idempotency> {
        match self.0 {
            Some(asked) => asked.turn(caller.id()).await,
            None => Ok(Idempotency(None)),
        }
    }
}

impl Asked {
    async fn turn(self, caller: Uuid) -> Result<Idempotency> {
        let Self { key, path, turns } = self;
        let turn = turns.take((caller, path.clone(), key.clone())).await?;
        Ok(Idempotency(Some(Bound { caller, path, key, body_hashes: Vec::new(), turns, _turn: turn })))
    }
}

impl Idempotency {
    /// Whether the request has a key.
    pub const fn is_given(&self) -> bool {
        self.0.is_some()
    }

    /// Adds the body, or its digest.
    #[must_use]
    pub fn of_body(mut self, body: &str) -> Self {
        if let Some(bound) = &mut self.0 {
            bound.body_hashes = bound.turns.sealer.macs(body.as_bytes());
        }
        self
    }

    /// Whether an answer is kept, for any body.
    pub async fn is_kept(&self, tx: &mut Tx, now: Timestamp) -> Result<bool> {
        let Some(bound) = &self.0 else { return Ok(false) };
        Ok(bound.slot().find(tx, now.plus_seconds(-KEPT_SECONDS)).await?.is_some())
    }

    /// The answer given before to the same request, if there is one; 422 if the body differs.
    pub async fn replay<V>(&self, tx: &mut Tx, now: Timestamp) -> Result<Option<Outcome<V>>> {
        let Some(bound) = &self.0 else { return Ok(None) };
        match bound.slot().find(tx, now.plus_seconds(-KEPT_SECONDS)).await? {
            None => Ok(None),
            Some(kept) if bound.body_hashes.contains(&kept.body_hash) => {
                if tx.is_shared() {
                    // A leader that is about to be lost may show what it will take along: what is answered again is committed again.
                    bound.slot().touch(tx).await?;
                    tx.commit_when_left();
                }
                Ok(Some(Outcome::Replayed(Replay { location: kept.location, body: kept.body })))
            }
            Some(_) => Err(Error::new(
                Code::IdempotencyMismatch,
                "This Idempotency-Key was used with another body. Use a new key for a new request.",
            )),
        }
    }

    /// Keeps an answer beside what it created.
    pub async fn keep(&self, tx: &mut Tx, now: Timestamp, location: &str, view: &impl Serialize) -> Result<()> {
        self.keep_text(tx, now, location, serde_json::to_string(view).map_err(Error::internal)?).await
    }

    /// Keeps an answer that is already serialized.
    pub async fn keep_text(&self, tx: &mut Tx, now: Timestamp, location: &str, body: String) -> Result<()> {
        let Some(bound) = &self.0 else { return Ok(()) };
        let body_hash = bound.body_hashes.first().cloned().unwrap_or_default();
        let kept = Kept { body_hash, location: location.to_owned(), body };
        Ok(bound.slot().put(tx, &kept, now, now.plus_seconds(-KEPT_SECONDS)).await?)
    }

    /// Keeps the answer and returns it.
    pub async fn created<V: Serialize>(
        &self,
        tx: &mut Tx,
        now: Timestamp,
        location: String,
        view: V,
    ) -> Result<Outcome<V>> {
        self.keep(tx, now, &location, &view).await?;
        Ok(Outcome::Created(Created { location, body: view }))
    }
}

impl Bound {
    fn slot(&self) -> Slot<'_> {
        Slot { caller: self.caller, path: &self.path, key: &self.key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secrets;
    use crate::db::Db;

    async fn turns(patience: Duration) -> (Turns, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&format!("sqlite:{}", dir.path().join("berth.db").display())).await.unwrap();
        let secrets = Secrets { key_file: dir.path().join("secrets.key"), ..Secrets::default() };
        let sealer = Sealer::open(&secrets, &db).await.unwrap();
        (Turns { patience, ..Turns::new(sealer) }, dir)
    }

    fn place(key: &str) -> Place {
        (Uuid::nil(), "/".into(), key.into())
    }

    #[tokio::test]
    async fn a_key_is_one_requests_at_a_time_and_leaves_nothing_behind() {
        let (turns, _dir) = turns(Duration::ZERO).await;
        let first = turns.take(place("a")).await.unwrap();
        assert_eq!(turns.take(place("a")).await.err().unwrap().code, Code::RequestInProgress);
        let other = turns.take(place("b")).await.unwrap();
        assert_eq!(turns.gates.lock().unwrap().len(), 2);
        drop(first);
        assert!(turns.take(place("a")).await.is_ok());
        drop(other);
        assert!(turns.gates.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn who_waits_gets_the_turn_when_the_first_ends() {
        let (turns, _dir) = turns(Duration::MAX).await;
        let first = turns.take(place("a")).await.unwrap();
        let mut second = Box::pin(turns.take(place("a")));
        assert!(futures::poll!(&mut second).is_pending());
        // A request that stops waiting does not affect those that still wait.
        let mut third = Box::pin(turns.take(place("a")));
        assert!(futures::poll!(&mut third).is_pending());
        drop(third);
        drop(first);
        drop(second.await.unwrap());
        assert!(turns.gates.lock().unwrap().is_empty());
    }
}
