//! The Model Context Protocol at `/mcp`: what agents do with sandboxes, VMs and models, as tools and resources.
//!
//! The transport is streamable HTTP without sessions: each request brings its credential and stands for itself, so whichever
//! replica is active answers, and a restart ends no conversation. Streams can be resumed ([`events`]), and calls given up
//! ([`cancel`]). `docs/mcp.md` says how
//! clients are set up, and lists the tools.

mod answer;
mod caller;
mod cancel;
mod command;
mod events;
mod file;
mod model;
mod progress;
mod resource;
mod sandbox;
mod server;
mod snapshot;
mod tool;
mod toolbox;
mod vm;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};

use self::caller::Caller;
use self::cancel::{Asked, Running};
use self::events::Shared as Events;
use self::server::Server;
use self::toolbox::Tools;
use super::api::Api;
use crate::http::envelope::{ApiError, keep_shape};

/// The largest request, in bytes: a file to write, in base64.
const LARGEST: usize = 16 << 20;

/// What the facade works with.
#[derive(Clone)]
pub struct Mcp {
    api: Api,
    service: StreamableHttpService<Server, NeverSessionManager>,
    running: Running,
}

impl Mcp {
    /// The facade over the API's routes.
    pub fn new(api: Router) -> Self {
        let (tools, running) = (Arc::new(Tools::all()), Running::default());
        // Who asks is known by what they send, which no page of a browser adds by itself; pages are judged in `caller`.
        let config = StreamableHttpServerConfig::default()
            .with_legacy_session_mode(false)
            .disable_allowed_hosts()
            .with_max_request_body_bytes(LARGEST);
        let sessions = NeverSessionManager::default().with_event_store(Arc::new(Events::default()));
        let calls = running.clone();
        let server = move || Ok(Server::new(tools.clone(), calls.clone()));
        let service = StreamableHttpService::new(server, Arc::new(sessions), config);
        Self { api: Api::new(api), service, running }
    }
}

/// Its routes.
pub fn routes(mcp: Mcp) -> Router {
    Router::new().route("/mcp", any(answer)).with_state(mcp)
}

async fn answer(State(mcp): State<Mcp>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let caller = match Caller::of(&mcp.api, &mut parts).await {
        Ok(caller) => caller,
        Err(refused) => return refused.into_response(),
    };
    let asked = Asked::of(&parts.headers);
    let body = match mcp.running.notice(caller.project(), &asked, &parts.headers, body).await {
        Ok(body) => body,
        Err(refused) => return ApiError(refused).into_response(),
    };
    let (guard, session) = (asked.guard(), asked.new_session(&parts.headers));
    parts.extensions.insert(caller);
    parts.extensions.insert(asked);
    let answer = mcp.service.handle(Request::from_parts(parts, body)).await;
    let mut answer = answer.map(|body| cancel::guarded(Body::new(body), guard));
    if answer.status().is_success() {
        cancel::bring(session, answer.headers_mut());
    }
    if answer.status().is_client_error() && answer.status() != StatusCode::PAYLOAD_TOO_LARGE {
        return keep_shape(answer);
    }
    answer
}
