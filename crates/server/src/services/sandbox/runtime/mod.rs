//! Work inside a sandbox: files, commands, processes, terminals, ports, at its `connect_url`.
//!
//! The agent in the guest does it all; here is decided who may, and that what comes back does no harm. No
//! network of the guest is involved: a session over the machine's serial port carries everything.

mod create;
mod events;
mod files;
mod flag;
mod forward;
mod frames;
mod inside;
mod looking;
mod patience;
mod port;
mod processes;
mod refused;
mod state;
mod terminal;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::routing::any;
use berth_domain::{Code, Error};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::http::envelope::ApiError;
use crate::http::path::PathText;
use forward::Reply;
use inside::Working;
use looking::RootParam;
use refused::Refused;
pub use state::Runtime;

/// Every route of the runtime.
pub fn routes(runtime: Runtime) -> OpenApiRouter {
    let terminal = OpenApiRouter::new().routes(routes!(connect_terminal));
    let ports = OpenApiRouter::with_openapi(Ports::openapi())
        .route("/sandbox/{sandbox_id}/ports/{port}", any(reach_port))
        .route("/sandbox/{sandbox_id}/ports/{port}/", any(reach_port))
        .route("/sandbox/{sandbox_id}/ports/{port}/{*rest}", any(reach_port));
    files::routes().merge(processes::routes()).merge(terminal).merge(ports).with_state(Arc::new(runtime))
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
    params(("sandbox_id" = uuid::Uuid, Path), RootParam,
        ("cols" = Option<u16>, Query, description = "default 80", minimum = 1, maximum = 10_000),
        ("rows" = Option<u16>, Query, description = "default 24", minimum = 1, maximum = 10_000),
        ("id" = Option<String>, Query, description = "the terminal to take up"),
        ("cmd" = Option<String>, Query, description = "what runs instead of the login shell"),
        ("cwd" = Option<String>, Query), ("user" = Option<String>, Query, description = "`user` or `root`; with `root` any account")),
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
