//! The host's side of the agent inside a sandbox.
//!
//! One stream, one session of HTTP/2 on it, in which the agent is the server. The guest is hostile: what it
//! says is bounded in size and time, and nothing it says is believed about anything but itself.

mod output;
mod session;

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum_core::body::Body;
use berth_domain::agent::control::{Boot, Booted, Freeze, Frozen, Identity, Metrics};
use berth_domain::agent::error::ErrorBody;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

pub use output::{BOUNDS, Output};
pub use session::{begin, connect};

/// The largest answer of a control route, in bytes.
const LARGEST: usize = 64 << 10;
/// How long a control route may take; a freeze writes what is dirty to the disk first.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long an agent may leave a user waiting for the head of its answer while it takes nothing of the request. It answers
/// at once what needs no work; what takes longest is to remove a large tree.
pub const ANSWER: Duration = Duration::from_mins(1);

/// What the agent could not do.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The session ended, or never began.
    #[error("the sandbox's agent does not answer: {0}")]
    Gone(String),
    /// It took too long.
    #[error("the sandbox's agent did not answer in time")]
    Timeout,
    /// It refused.
    #[error("the sandbox's agent refused ({status}): {message}")]
    Refused {
        /// The status of its answer.
        status: StatusCode,
        /// Its sentence.
        message: String,
    },
    /// Its answer made no sense.
    #[error("the sandbox's agent sent an answer that makes no sense")]
    Nonsense,
}

/// A session for the sake of a user: while it is held, the sandbox is in use.
pub struct Connection {
    /// The session.
    pub session: Session,
    /// What requests bear in `Authorization`.
    pub authorization: String,
    /// Since when the machine is this sandbox, as far as this service knows.
    pub since: Instant,
    /// How long the agent may take until it begins to answer: [`ANSWER`].
    pub patience: Duration,
    /// Held until what the user asked for is over.
    pub in_use: Arc<dyn Any + Send + Sync>,
}

/// A session with an agent. Clones share it.
#[derive(Clone)]
pub struct Session {
    sender: SendRequest<Body>,
    ended: watch::Receiver<bool>,
}

impl Session {
    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        *self.ended.borrow() || self.sender.is_closed()
    }

    /// Returns when it has ended.
    pub async fn over(&self) {
        let mut ended = self.ended.clone();
        // A sender that is gone has ended, too.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Sends a request as it is; its body and that of the answer are streams.
    pub async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, AgentError> {
        let mut sender = self.sender.clone();
        sender.ready().await.map_err(gone)?;
        sender.send_request(request).await.map_err(gone)
    }

    /// Sends a request, and gives its answer if it is no refusal.
    pub async fn ask(&self, request: Request<Body>) -> Result<Response<Incoming>, AgentError> {
        let response = self.send(request).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let reason = soon(whole(response)).await.unwrap_or_default();
        Err(refused(status, &reason))
    }

    /// Gives the machine its root file system.
    pub async fn boot(&self, boot: &Boot) -> Result<Booted, AgentError> {
        parse(&self.control(Method::POST, "boot", boot).await?)
    }

    /// Makes the machine this sandbox.
    pub async fn identify(&self, identity: &Identity) -> Result<(), AgentError> {
        self.control(Method::PUT, "identity", identity).await.map(drop)
    }

    /// Makes the disk consistent, and its users stand still if they should.
    pub async fn freeze(&self, processes: bool) -> Result<Frozen, AgentError> {
        parse(&self.control(Method::POST, "freeze", &Freeze { processes }).await?)
    }

    /// Undoes a freeze.
    pub async fn thaw(&self) -> Result<(), AgentError> {
        self.control(Method::POST, "thaw", &serde_json::json!({})).await.map(drop)
    }

    /// What the sandbox uses.
    pub async fn metrics(&self) -> Result<Metrics, AgentError> {
        parse(&self.control(Method::GET, "metrics", &()).await?)
    }

    async fn control<B: Serialize>(&self, method: Method, name: &str, body: &B) -> Result<Bytes, AgentError> {
        let body = if method == Method::GET { Vec::new() } else { serde_json::to_vec(body).map_err(nonsense)? };
        let request = Request::builder()
            .method(method)
            .uri(format!("http://agent/control/{name}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body))
            .map_err(nonsense)?;
        soon(async { whole(self.ask(request).await?).await }).await
    }
}

/// Waits for what needs no work.
pub async fn soon<T, E: From<AgentError>>(work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    tokio::time::timeout(PATIENCE, work).await.map_err(|_| AgentError::Timeout)?
}

/// An answer that is no stream.
pub async fn whole(response: Response<Incoming>) -> Result<Bytes, AgentError> {
    Ok(Limited::new(response.into_body(), LARGEST).collect().await.map_err(gone)?.to_bytes())
}

fn gone(error: impl std::fmt::Display) -> AgentError {
    AgentError::Gone(error.to_string())
}

fn nonsense(_: impl std::error::Error) -> AgentError {
    AgentError::Nonsense
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, AgentError> {
    serde_json::from_slice(bytes).map_err(nonsense)
}

fn refused(status: StatusCode, bytes: &[u8]) -> AgentError {
    let message = match serde_json::from_slice::<ErrorBody>(bytes) {
        Ok(body) => body.message.chars().filter(|c| !c.is_control()).take(500).collect(),
        Err(_) => "it gave no reason".to_owned(),
    };
    AgentError::Refused { status, message }
}
