//! A build machine that is reached through its agent.

use std::time::Duration;

use async_trait::async_trait;
use axum_core::body::Body;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_domain::agent::control::{self, Found, Identity, Pack};
use berth_domain::agent::runtime::{Exit, OutputEvent};
use berth_domain::sandbox::dockerfile::plan::Run;
use form_urlencoded::Serializer;
use futures::{StreamExt, TryStreamExt};
use http::{Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Serialize;

use super::BuildError;
use super::build_machine::{BuildMachine, Lines, Tar, Unpack};
use crate::sandbox::agent::{AgentError, Output, Session, soon, whole};

/// Bytes of a line that comes in pieces, before the log begins another one.
const LONGEST_LINE: usize = 64 << 10;
/// How much later than a program's end its last event may come.
const GRACE: Duration = Duration::from_secs(30);

/// A machine that booted a bare disk, and its agent.
pub struct AgentMachine<H = ()> {
    session: Session,
    /// What the machine becomes before programs run: its clock, its network. None leaves it as it is.
    identity: Option<Identity>,
    /// Held as long as the machine: dropping it may end the machine.
    held: H,
}

impl<H> AgentMachine<H> {
    /// The machine at the other end of a session, booted with `bare`. What is `held` goes with it.
    pub fn new(session: Session, identity: Option<Identity>, held: H) -> Self {
        Self { session, identity, held }
    }

    /// The session, for what comes after the build: freezing the disk.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// What is held with it.
    pub fn held(&self) -> &H {
        &self.held
    }

    async fn json<B: Serialize>(&self, route: &str, body: &B) -> Result<Response<Incoming>, BuildError> {
        let body = serde_json::to_vec(body).map_err(|_| AgentError::Nonsense)?;
        let request = Request::post(format!("http://agent/control/{route}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body))
            .map_err(|_| AgentError::Nonsense)?;
        self.ask(request).await
    }

    async fn ask(&self, request: Request<Body>) -> Result<Response<Incoming>, BuildError> {
        self.session.ask(request).await.map_err(|error| match error {
            AgentError::Refused { status: status @ StatusCode::INSUFFICIENT_STORAGE, .. } => {
                let message = "the disk is full; give the template a larger disk_gb".to_owned();
                AgentError::Refused { status, message }.into()
            }
            other => other.into(),
        })
    }
}

fn query_of(how: &Unpack) -> String {
    let mut query = Serializer::new(String::new());
    query.append_pair("path", how.path.as_deref().unwrap_or("/"));
    if how.keep {
        query.append_pair("keep", "true");
    }
    if let Some(owner) = &how.owner {
        query.append_pair("owner", owner);
    }
    if let Some(mode) = how.mode {
        query.append_pair("mode", &format!("{mode:04o}"));
    }
    query.finish()
}

#[async_trait]
impl<H: Send + Sync + 'static> BuildMachine for AgentMachine<H> {
    async fn unpack(&mut self, tar: Tar, how: Unpack) -> Result<(), BuildError> {
        let request = Request::post(format!("http://agent/control/unpack?{}", query_of(&how)))
            .header(header::CONTENT_TYPE, "application/x-tar")
            .body(Body::from_stream(tar))
            .map_err(|_| AgentError::Nonsense)?;
        let bytes = soon::<_, AgentError>(whole(self.ask(request).await?)).await?;
        serde_json::from_slice::<control::Unpacked>(&bytes).map(drop).map_err(|_| AgentError::Nonsense.into())
    }

    async fn pack(&mut self, what: Pack) -> Result<Tar, BuildError> {
        let response = soon(self.json("pack", &what)).await?;
        Ok(response.into_body().into_data_stream().map_err(std::io::Error::other).boxed())
    }

    async fn is_directory(&mut self, path: &str) -> Result<bool, BuildError> {
        let query = Serializer::new(String::new()).append_pair("path", path).finish();
        let request = Request::get(format!("http://agent/control/stat?{query}"))
            .body(Body::empty())
            .map_err(|_| AgentError::Nonsense)?;
        let found = async { Ok::<_, BuildError>(whole(self.ask(request).await?).await?) };
        match soon(found).await {
            Ok(bytes) => {
                let found = serde_json::from_slice::<Found>(&bytes).map_err(|_| AgentError::Nonsense)?;
                Ok(found.directory)
            }
            // Nothing there, or a file on the way: what is copied will tell.
            Err(BuildError::Agent(AgentError::Refused { status, .. })) if status.is_client_error() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn furnish(&mut self) -> Result<(), BuildError> {
        match &self.identity {
            Some(identity) => Ok(self.session.identify(identity).await?),
            None => Ok(()),
        }
    }

    async fn run(&mut self, run: &Run, patience: Duration, line: &mut Lines<'_>) -> Result<Exit, BuildError> {
        let wanted = control::Run {
            argv: run.argv.clone(),
            env: (*run.env).clone(),
            cwd: run.cwd.clone(),
            user: run.user.clone(),
            network: run.network,
            timeout_seconds: patience.as_secs().max(1),
        };
        let work = async {
            let response = soon(self.json("run", &wanted)).await?;
            follow(Output::of(response.into_body()), line).await
        };
        tokio::time::timeout(patience.saturating_add(GRACE), work).await.map_err(|_| AgentError::Timeout)?
    }
}

/// Tells lines until the end of a program.
async fn follow(mut output: Output, line: &mut Lines<'_>) -> Result<Exit, BuildError> {
    let mut partial = String::new();
    loop {
        match output.next().await? {
            OutputEvent::Output { output, .. } => {
                let decoded = output.base64.as_deref().and_then(|text| STANDARD.decode(text).ok());
                let bytes = decoded.as_deref().map(String::from_utf8_lossy);
                partial.push_str(output.line.as_deref().unwrap_or(bytes.as_deref().unwrap_or_default()));
                // A line in pieces is one line of the log, unless it never ends.
                if !output.partial || partial.len() > LONGEST_LINE {
                    line(&std::mem::take(&mut partial));
                }
            }
            OutputEvent::Truncated { .. } => line("… some output is lost: it came faster than it could be read"),
            OutputEvent::Start { .. } => {}
            OutputEvent::Exit(exit) => {
                if !partial.is_empty() {
                    line(&partial);
                }
                return Ok(exit);
            }
            OutputEvent::Error { message, .. } => return Err(AgentError::Gone(message).into()),
        }
    }
}
