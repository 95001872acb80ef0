//! Work inside a sandbox: files, commands, processes, terminals, ports, at its `connect_url`.
//!
//! The agent in the guest does it all; here is decided who may, and that what comes back does no harm. No
//! network of the guest is involved: a session over the machine's serial port carries everything.

mod create;
mod events;
mod files;
mod forward;
mod frames;
mod inside;
mod patience;
mod port;
mod processes;
mod terminal;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::routing::any;
use berth_domain::{Code, Error};
use utoipa::OpenApi;
use utoipa::openapi::{RefOr, Response, ResponseBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::engine::SandboxEngine;
use crate::clock::Clock;
use crate::db::Db;
use crate::http::envelope::{ApiError, ErrorBody};
use crate::http::path::PathText;
use forward::Reply;
use inside::Working;

/// What the runtime's routes need.
pub struct Runtime {
    /// The rows of sandboxes.
    pub db: Db,
    /// The time.
    pub clock: Clock,
    /// The way to their machines.
    pub engine: Arc<dyn SandboxEngine>,
}

/// Every route of the runtime.
pub fn routes(runtime: Runtime) -> OpenApiRouter {
    let terminal = OpenApiRouter::new().routes(routes!(connect_terminal));
    let ports = OpenApiRouter::with_openapi(Ports::openapi())
        .route("/sandbox/{sandbox_id}/ports/{port}", any(reach_port))
        .route("/sandbox/{sandbox_id}/ports/{port}/", any(reach_port))
        .route("/sandbox/{sandbox_id}/ports/{port}/{*rest}", any(reach_port));
    files::routes().merge(processes::routes()).merge(terminal).merge(ports).with_state(Arc::new(runtime))
}

/// What any route of the runtime may refuse with.
struct Refused;

impl utoipa::IntoResponses for Refused {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let reasons = [
            ("400", "invalid request"),
            ("401", "unauthorized"),
            ("403", "the role, the key's scope or the file system says no"),
            ("404", "no such sandbox, file, process or terminal"),
            ("409", "paused, failed or interrupted; or the state inside says no"),
            ("413", "the body is too large"),
            ("415", "the body's type is not accepted"),
            ("416", "the range is not there"),
            ("429", "too many at once"),
            ("500", "unexpected internal error"),
            ("502", "nothing answers on the port"),
            ("503", "the sandbox did not come up in time"),
            ("507", "the disk is full"),
        ];
        let refusal = |text: &str| {
            let schema = utoipa::openapi::Ref::from_schema_name(<ErrorBody<'_> as utoipa::ToSchema>::name());
            let content = utoipa::openapi::ContentBuilder::new().schema(Some(schema)).build();
            ResponseBuilder::new().description(text).content("application/json", content).build().into()
        };
        reasons.iter().map(|(status, text)| ((*status).to_owned(), refusal(text))).collect()
    }
}

/// The upgrade, if the request asks for one: so that authentication is decided first.
struct MaybeUpgrade(Option<WebSocketUpgrade>);

impl<S: Send + Sync> FromRequestParts<S> for MaybeUpgrade {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        Ok(Self(WebSocketUpgrade::from_request_parts(parts, state).await.ok()))
    }
}

/// Opens a terminal, or takes up one that is there. Binary frames are bytes; text frames are JSON: first
/// `{"type": "ready", "id", "pid"}`, last `{"type": "exit", "code", "signal"}`, and from the client `resize
/// {cols, rows}` and `signal {signal}`. It survives a dropped connection and shows its last 256 KiB again.
/// Browsers send the token as the subprotocols `berth` and `bearer.<token>`.
#[utoipa::path(get, path = "/sandbox/{sandbox_id}/terminal", operation_id = "connectSandboxTerminal", tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path),
        ("cols" = Option<u16>, Query, description = "default 80", minimum = 1, maximum = 10_000),
        ("rows" = Option<u16>, Query, description = "default 24", minimum = 1, maximum = 10_000),
        ("id" = Option<String>, Query, description = "the terminal to take up"),
        ("cmd" = Option<String>, Query, description = "what runs instead of the login shell"),
        ("cwd" = Option<String>, Query), ("user" = Option<String>, Query, description = "`user` or `root`")),
    responses((status = 101, description = "switching to WebSocket"), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn connect_terminal(Working(inside): Working, upgrade: MaybeUpgrade, request: Request) -> Reply {
    terminal::connect(inside, request.uri().query(), upgrade.0).await
}

/// Routes that take any method, which no macro of the router knows.
#[derive(OpenApi)]
#[openapi(paths(reach_port))]
struct Ports;

/// Sends a request of any method, with any path below, to the server that listens on the port in the sandbox; WebSockets
/// pass. The answer is the server's own. The caller's credential stays here.
#[utoipa::path(get, path = "/sandbox/{sandbox_id}/ports/{port}/{path}", operation_id = "reachSandboxPort", tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path), ("port" = u16, Path, description = "1 to 65535"),
        ("path" = String, Path, description = "path of the server inside; may be empty and may have slashes")),
    responses((status = 200, description = "what the server inside answers", content_type = "*/*", body = String),
        (status = 101, description = "switching to WebSocket"), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn reach_port(Working(inside): Working, path: PathText, request: Request<Body>) -> Reply {
    let port = path.text("port").parse().ok().filter(|port| *port != 0);
    let port: u16 = port.ok_or_else(|| Error::new(Code::InvalidRequest, "A port is a number from 1 to 65535."))?;
    // As it was sent, percent signs and all.
    let below = request.uri().path().splitn(6, '/').nth(5).unwrap_or_default().to_owned();
    port::reach(inside, port, &below, request).await
}
