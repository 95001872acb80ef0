//! Who may work inside which sandbox: the extractors of the runtime.
//!
//! The path names the sandbox alone, so its row tells the project, and from there all is as everywhere: 401
//! before 404 before 403. A sandbox that comes up is waited for, one that cannot be reached says why. What is asked of one that
//! is paused resumes it where its owner wants that, whatever it is: even who only looks needs the machine.

use std::fmt::Display;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_stream::stream;
use axum::BoxError;
use axum::body::{Body, HttpBody};
use axum::extract::{FromRequestParts, Path};
use axum::http::HeaderValue;
use axum::http::request::Parts;
use berth_domain::identity::Action;
use berth_domain::ids::SandboxId;
use berth_domain::sandbox::Phase;
use berth_domain::sandbox::entry::{self, Entry, not_found};
use berth_domain::{Code, Error};
use berth_host::EngineError;
use berth_host::sandbox::agent::Connection;
use bytes::Bytes;
use futures::StreamExt;
use http_body_util::BodyDataStream;
use tokio::time::{Instant, timeout_at};

use super::flag::asks;
use super::state::Runtime;
use crate::db::{Signal, settled};
use crate::http::auth::{Gate, Grant, Granted, Right, Scope, Watch, scope_at};
use crate::http::envelope::ApiError;
use crate::http::query;
use crate::services::sandbox::store::standing::Standing;
use crate::services::sandbox::{Sandboxes, ops, store};

/// How long a sandbox that comes up is waited for (contract, section 3).
const COMING_UP: Duration = Duration::from_secs(30);

/// Between two tries to reach one that is there and does not answer.
const AGAIN: Duration = Duration::from_millis(500);

/// A sandbox that a caller works in.
pub(super) struct Inside {
    /// Its id.
    pub id: SandboxId,
    /// The way to its agent.
    pub connection: Connection,
    /// Who works there.
    pub scope: Scope,
    watch: Watch,
    action: Action,
}

impl Inside {
    /// What requests to the agent bear.
    pub(super) fn authorization(&self) -> Result<HeaderValue, ApiError> {
        let mut value =
            HeaderValue::from_str(&self.connection.authorization).map_err(|e| Error::internal(e.to_string()))?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// Returns when the caller may not do this any more.
    pub(super) async fn over(&self) {
        self.watch.over(&self.scope, self.action).await;
    }

    /// A body for as long as the caller may; then it breaks off, and what it belongs to with it. The sandbox is in use
    /// until it ends.
    pub(super) fn guarded<B>(self: Arc<Self>, body: B) -> Body
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError> + Send,
    {
        Body::from_stream(stream! {
            let mut pieces = BodyDataStream::new(body);
            let mut over = pin!(self.over());
            loop {
                let piece: Option<Result<Bytes, BoxError>> = tokio::select! {
                    piece = pieces.next() => piece.map(|piece| piece.map_err(Into::into)),
                    () = &mut over => Some(Err(no_longer().into())),
                };
                let Some(piece) = piece else { return };
                let breaks = piece.is_err();
                yield piece;
                if breaks {
                    return;
                }
            }
        })
    }

    async fn enter(parts: &mut Parts, runtime: &Runtime, action: Action) -> Result<Self, ApiError> {
        let id = id_of(parts).await;
        let project = match id {
            Some(id) => store::standing::place(&runtime.db, id).await?,
            None => None,
        };
        let scope = scope_at::<Sandboxes>(parts, project, action).await?.ok_or_else(not_found)?;
        // The agent reads what there is, and an old one passes over the rest.
        query::refuse_unknown(parts)?;
        let id = id.ok_or_else(not_found)?;
        let watch = Watch::from_request_parts(parts, runtime).await?;
        let connection = reach(runtime, id, changing(parts, &scope).as_ref()).await?;
        Ok(Self { id, connection, scope, watch, action })
    }
}

async fn id_of(parts: &mut Parts) -> Option<SandboxId> {
    let path = Path::<std::collections::HashMap<String, String>>::from_request_parts(parts, &()).await.ok()?;
    path.0.get("sandbox_id")?.parse().ok()
}

/// The caller as who changes resources, if the roles allow that: who resumes a sandbox changes it, whatever is asked of it then.
fn changing(parts: &Parts, scope: &Scope) -> Option<Scope> {
    let action = Action::ChangeResources;
    scope.require(action).ok()?;
    let gate = parts.extensions.get::<Arc<dyn Gate>>()?.clone();
    let right = Some(Sandboxes::SCOPES);
    let mut scope = scope.clone();
    let grant = Grant::Project { org: scope.org, project: scope.project, action, right };
    scope.caller.granted = Some(Granted::new(gate, grant));
    Some(scope)
}

/// Waits until the sandbox is there, or tells why it will not be. Who may change it, if the caller may, resumes it.
async fn reach(runtime: &Runtime, id: SandboxId, changing: Option<&Scope>) -> Result<Connection, Error> {
    let mut signals = runtime.db.watch();
    let deadline = Instant::now() + COMING_UP;
    let mut resumed = false;
    loop {
        let standing = store::standing::find(&runtime.db, id).await?.ok_or_else(not_found)?;
        let (mut until, mut late) = (deadline, coming_up(standing.phase));
        resumed |= standing.phase == Phase::Resuming;
        match (entry::on_request(seen(&standing, changing.is_some(), resumed))?, changing) {
            (Entry::Enter, _) if standing.host_is_lost => return Err(away()),
            (Entry::Enter, _) => match connect(runtime, &standing).await {
                Ok(connection) => return Ok(connection),
                // It may be on its way down, which its row tells, or be silent for a moment.
                Err(EngineError::Transient(cause)) => {
                    (until, late) = (deadline.min(Instant::now() + AGAIN), silent(COMING_UP, &cause));
                }
                Err(error) => return Err(Error::new(Code::SandboxInterrupted, error.to_string())),
            },
            (Entry::Resume, Some(scope)) => {
                resume(runtime, scope, id).await?;
                resumed = true;
                continue;
            }
            (Entry::Wait | Entry::Resume, _) => {}
        }
        let changed = async {
            while let Ok(signal) = signals.recv().await {
                if signal == Signal::Row("sandboxes", id.0) {
                    return;
                }
            }
        };
        if timeout_at(until, changed).await.is_err() && Instant::now() >= deadline {
            return Err(late);
        }
    }
}

/// Asks the host of a sandbox's machine for a session with its agent.
async fn connect(runtime: &Runtime, standing: &Standing) -> Result<Connection, EngineError> {
    let host = standing.host.unwrap_or_else(|| runtime.fleet.own());
    runtime.fleet.of(host)?.sandbox.connect(standing.machine).await
}

/// The 503 of a sandbox whose host is lost.
fn away() -> Error {
    let message =
        "The host that the sandbox is on does not answer. It may go on there: try again once the host is back.";
    unavailable(message.into(), None)
}

/// What the domain decides by.
fn seen(standing: &Standing, may_change: bool, resumed: bool) -> entry::Standing<'_> {
    let Standing { phase, auto_resume, moves, .. } = *standing;
    entry::Standing { phase, message: standing.message.as_deref(), auto_resume, moves, may_change, resumed }
}

/// Records the caller's wish to resume a sandbox that was paused a moment ago. Once this returns, every look sees it, also where
/// somebody else had it before, whose commit was on its way.
async fn resume(runtime: &Runtime, scope: &Scope, id: SandboxId) -> Result<(), Error> {
    match Box::pin(settled(ops::sandbox::resume_at(&runtime.db, runtime.clock.now(), scope, id))).await? {
        // It stands somewhere else by now, which the next look tells.
        Err(error) if error.code == Code::InvalidPhase => Ok(()),
        resumed => resumed.map(drop),
    }
}

fn coming_up(phase: Phase) -> Error {
    let seconds = COMING_UP.as_secs();
    let next = match phase {
        // The next request resumes it then, or it goes on by itself.
        Phase::Pausing | Phase::Paused => "Try again shortly.",
        _ => "Wait for the phase Ready, and try again.",
    };
    unavailable(format!("The sandbox is still {phase} after {seconds} s. {next}"), None)
}

/// The 503 of a sandbox that is there and does not answer.
pub(super) fn silent(waited: Duration, cause: &impl Display) -> Error {
    let message = format!("The sandbox is Ready and has not answered for {} s. Try again shortly.", waited.as_secs());
    unavailable(message, Some(cause.to_string()))
}

fn unavailable(message: String, cause: Option<String>) -> Error {
    Error { retry_after: Some(5), cause, ..Error::new(Code::Unavailable, message) }
}

/// The 403 of a caller who may not go on.
pub(super) fn no_longer() -> Error {
    Error::new(Code::Forbidden, "You may not do this any more: your credential, your role or the organization changed.")
}

/// A caller who may read what a process writes; with `hold`, who may work in the sandbox: who only looks holds nobody up.
pub(super) struct Following(pub Inside);

impl FromRequestParts<Arc<Runtime>> for Following {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, runtime: &Arc<Runtime>) -> Result<Self, ApiError> {
        let holds = asks(parts.uri.query(), "hold");
        let action = if holds { Action::ChangeResources } else { Action::ReadProject };
        Ok(Self(Inside::enter(parts, runtime, action).await?))
    }
}

macro_rules! extractors {
    ($($(#[$doc:meta])* $name:ident needs $action:ident;)*) => {$(
        $(#[$doc])*
        pub(super) struct $name(pub Inside);

        impl FromRequestParts<Arc<Runtime>> for $name {
            type Rejection = ApiError;

            async fn from_request_parts(parts: &mut Parts, runtime: &Arc<Runtime>) -> Result<Self, ApiError> {
                Ok(Self(Inside::enter(parts, runtime, Action::$action).await?))
            }
        }
    )*};
}

extractors! {
    /// A caller who may look into the sandbox.
    Viewing needs ReadProject;
    /// A caller who may work in the sandbox.
    Working needs ChangeResources;
}
