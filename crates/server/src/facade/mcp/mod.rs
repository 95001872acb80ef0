//! The Model Context Protocol at `/mcp`: what agents do with sandboxes, VMs and models, as tools and resources.
//!
//! The transport is streamable HTTP without sessions: each request brings its credential and stands for itself, so whichever
//! replica is active answers, and a restart ends no conversation. Streams can be resumed ([`events`]), and calls given up
//! ([`cancel`]). `docs/mcp.md` says how clients are set up, and lists the tools.

mod answer;
mod bound;
mod caller;
mod cancel;
mod cell;
mod command;
mod events;
mod file;
mod head;
mod list;
mod lock;
mod message;
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
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use berth_domain::Result;
use bytes::Bytes;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::json;

use self::caller::Caller;
use self::cancel::{Asked, Running};
use self::events::{Events, Own};
use self::message::{LARGEST, Message};
use self::server::Server;
use self::toolbox::Tools;
use super::api::Api;
use crate::http::body::read_of;
use crate::http::envelope::{ApiError, keep_shape};
use crate::http::streams::{Place, Streams};

type Service = StreamableHttpService<Server, NeverSessionManager>;

/// What the facade works with.
#[derive(Clone)]
pub struct Mcp {
    api: Api,
    server: Server,
    running: Running,
    events: Arc<Events>,
}

impl Mcp {
    /// The facade over the API's routes.
    pub fn new(api: Router) -> Self {
        let running = Running::default();
        let server = Server::new(Tools::all(), running.clone());
        Self { api: Api::new(api), server, running, events: Arc::default() }
    }

    /// The library's service for one request of a caller. In versions where the end of a stream gives up its call, none is kept.
    fn service(&self, caller: &Caller, asked: &Asked) -> Service {
        // Who asks is known by what they send, which no page of a browser adds by itself; pages are judged in `caller`.
        let config = StreamableHttpServerConfig::default()
            .with_legacy_session_mode(false)
            .disable_allowed_hosts()
            .with_max_request_body_bytes(LARGEST);
        let config = if asked.is_primed() { config } else { config.with_sse_retry(None) };
        let sessions = NeverSessionManager::default();
        let sessions = if asked.is_by_closing() {
            sessions
        } else {
            sessions.with_event_store(Arc::new(Own::of(&self.events, &caller.owner())))
        };
        let server = self.server.clone();
        StreamableHttpService::new(move || Ok(server.clone()), Arc::new(sessions), config)
    }

    /// A message's id and body; none where it is none. What it gives up is given up: the library reads no notification where
    /// there are no sessions.
    async fn message(
        &self,
        caller: &Caller,
        asked: &Asked,
        parts: &Parts,
        body: Body,
    ) -> Result<Option<(String, Bytes)>> {
        let bytes = read_of(parts, body, LARGEST).await?;
        let Some(message) = Message::read(&bytes)? else { return Ok(None) };
        if let Some(request) = message.given_up {
            self.running.give_up(caller.project(), asked, request);
        }
        Ok(Some((message.id, bytes)))
    }

    async fn answered(&self, request: Request) -> Result<Response, Response> {
        let (mut parts, body) = request.into_parts();
        let caller = Caller::of(&self.api, &mut parts).await.map_err(IntoResponse::into_response)?;
        let asked = Asked::of(&parts.headers);
        let refuse = |error| ApiError(error).into_response();
        let (id, bytes) = match self.message(&caller, &asked, &parts, body).await.map_err(refuse)? {
            Some(message) => message,
            None if parts.method == Method::POST => return Err(unreadable()),
            None => Default::default(),
        };
        // Who listens again holds a connection, as who listens to a call does.
        let listens = parts.method == Method::GET && parts.headers.contains_key("last-event-id");
        let place = if listens { place(&caller, &parts).map_err(refuse)? } else { None };
        let (guard, session) = (asked.guard(), asked.new_session());
        let service = self.service(&caller, &asked);
        let by_closing = asked.is_by_closing();
        parts.extensions.insert(caller);
        parts.extensions.insert(asked);
        let request = Request::from_parts(parts, Body::from(bytes));
        let answering = async move { service.handle(request).await.map(Body::new) };
        let answer = if by_closing { head::in_time(answering, id).await } else { answering.await };
        let mut answer = answer.map(|body| cancel::guarded(cancel::guarded(body, guard), place));
        if answer.status().is_success() {
            cancel::bring(session, answer.headers_mut());
        }
        // What the library says in plain text gets the API's form.
        let is_json =
            answer.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
        Ok(if answer.status().is_client_error() && is_json { keep_shape(answer) } else { answer })
    }
}

/// A place for an answer without an end.
fn place(caller: &Caller, parts: &Parts) -> Result<Option<Place>> {
    parts.extensions.get::<Arc<Streams>>().map(|streams| streams.enter(caller.holders())).transpose()
}

/// What whoever sends no JSON is answered.
fn unreadable() -> Response {
    let error = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "The body is no JSON."}});
    keep_shape((StatusCode::BAD_REQUEST, axum::Json(error)).into_response())
}

/// Its routes.
pub fn routes(mcp: Mcp) -> Router {
    Router::new().route("/mcp", any(answer)).with_state(mcp)
}

async fn answer(State(mcp): State<Mcp>, request: Request) -> Response {
    mcp.answered(request).await.unwrap_or_else(|refused| refused)
}
