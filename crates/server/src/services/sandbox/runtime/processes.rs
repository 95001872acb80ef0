//! Commands and processes of a sandbox.

use std::sync::Arc;

use axum::extract::{Request, State};
use berth_domain::agent::runtime::{CommandRequest, Process, Processes, PtySize, SignalRequest};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::create::create;
use super::forward::{Reply, Size, forward};
use super::inside::{Following, Working};
use super::looking::{Looking, RootParam};
use super::refused::Refused;
use super::state::Runtime;
use crate::http::idempotency::{IdempotencyKey, KeyParam};
use crate::http::path::PathText;

pub(super) fn routes() -> OpenApiRouter<Arc<Runtime>> {
    OpenApiRouter::new()
        .routes(routes!(run_command))
        .routes(routes!(list_processes, start_process))
        .routes(routes!(get_process, stop_process))
        .routes(routes!(follow_process))
        .routes(routes!(feed_process))
        .routes(routes!(signal_process))
        .routes(routes!(resize_process))
}

/// The process, for the document.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "describes the parameter; `PathText` reads it")]
struct PidParam {
    /// its number, or `tag:` and its tag: the newest with that tag that runs
    pid: String,
}

/// The same of variables.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes the parameter; the agent reads it")]
struct EnvParam {
    /// tells the variables that were asked for; needs the role of who may work in the sandbox; default false
    env: Option<bool>,
}

/// The agent's route of a process.
fn route(path: &PathText, below: &str) -> String {
    format!("processes/{}{below}", named(path.text("pid")))
}

/// A process' number or its tag, as a part of a path.
fn named(pid: &str) -> String {
    if let Some(tag) = pid.strip_prefix("tag:") {
        let tag: String = form_urlencoded::byte_serialize(tag.as_bytes()).collect();
        // What is a space in a query is a plus in a path.
        return format!("tag:{}", tag.replace('+', "%20"));
    }
    // What is no number names no process; the agent says so.
    pid.parse::<u32>().map_or_else(|_| "0".to_owned(), |pid| pid.to_string())
}

/// Runs a command and tells what it writes, line by line, as server-sent events: `start`, `stdout` and `stderr`,
/// and exactly one of `exit` and `error`. A client that goes away ends the command unless `detach`. Without `detach`,
/// or with `hold`, the command waits for a client that reads more slowly than it writes.
#[utoipa::path(post, path = "/sandbox/{sandbox_id}/commands", operation_id = "runSandboxCommand", tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path), RootParam), request_body = CommandRequest,
    responses((status = 200, content_type = "text/event-stream", body = String), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn run_command(Working(inside): Working, request: Request) -> Reply {
    forward(inside, "commands", request, Size::Usual).await
}

/// Starts a process that goes on by itself.
#[utoipa::path(post, path = "/sandbox/{sandbox_id}/processes", operation_id = "startSandboxProcess", tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path), RootParam, KeyParam), request_body = CommandRequest,
    responses((status = 201, body = Process), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn start_process(
    State(runtime): State<Arc<Runtime>>,
    Working(inside): Working,
    key: IdempotencyKey,
    request: Request,
) -> Reply {
    create(runtime, inside, key, "processes", request).await
}

/// Processes, those that ended lately among them.
#[utoipa::path(get, path = "/sandbox/{sandbox_id}/processes", operation_id = "listSandboxProcesses", tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path), EnvParam),
    responses((status = 200, body = Processes), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn list_processes(Looking(inside): Looking, request: Request) -> Reply {
    forward(inside, "processes", request, Size::Usual).await
}

/// One process.
#[utoipa::path(get, path = "/sandbox/{sandbox_id}/processes/{pid}", operation_id = "getSandboxProcess",
    tag = "runtime", params(("sandbox_id" = uuid::Uuid, Path), PidParam, EnvParam),
    responses((status = 200, body = Process), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn get_process(Looking(inside): Looking, path: PathText, request: Request) -> Reply {
    forward(inside, &route(&path, ""), request, Size::Usual).await
}

/// Ends a process: SIGTERM, and SIGKILL after 5 seconds.
#[utoipa::path(delete, path = "/sandbox/{sandbox_id}/processes/{pid}", operation_id = "stopSandboxProcess",
    tag = "runtime", params(("sandbox_id" = uuid::Uuid, Path), PidParam),
    responses((status = 204, description = "told to end"), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn stop_process(Working(inside): Working, path: PathText, request: Request) -> Reply {
    forward(inside, &route(&path, ""), request, Size::Usual).await
}

/// What a process wrote, as server-sent events, from an offset on; 8 MiB are kept. With `hold`, a process that was
/// started with `hold` waits for this reader, who takes over from the one before.
#[utoipa::path(get, path = "/sandbox/{sandbox_id}/processes/{pid}/logs", operation_id = "followSandboxProcess",
    tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path), PidParam,
        ("follow" = Option<bool>, Query, description = "default false"),
        ("offset" = Option<i64>, Query, description = "default 0", minimum = 0),
        ("stream" = Option<String>, Query, description = "`stdout` or `stderr`; both by default"),
        ("hold" = Option<bool>, Query, description = "default false; needs the role of who may start processes")),
    responses((status = 200, content_type = "text/event-stream", body = String), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn follow_process(Following(inside): Following, path: PathText, request: Request) -> Reply {
    forward(inside, &route(&path, "/logs"), request, Size::Usual).await
}

/// Writes to a process' standard input; `eof` closes it, or types ^D into its terminal.
#[utoipa::path(post, path = "/sandbox/{sandbox_id}/processes/{pid}/stdin", operation_id = "feedSandboxProcess",
    tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path), PidParam,
        ("eof" = Option<bool>, Query, description = "default false")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 204, description = "written"), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn feed_process(Working(inside): Working, path: PathText, request: Request) -> Reply {
    forward(inside, &route(&path, "/stdin"), request, Size::Open).await
}

/// Sends a signal to a process.
#[utoipa::path(post, path = "/sandbox/{sandbox_id}/processes/{pid}/signal", operation_id = "signalSandboxProcess",
    tag = "runtime", params(("sandbox_id" = uuid::Uuid, Path), PidParam), request_body = SignalRequest,
    responses((status = 204, description = "sent"), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn signal_process(Working(inside): Working, path: PathText, request: Request) -> Reply {
    forward(inside, &route(&path, "/signal"), request, Size::Usual).await
}

/// Changes the size of a process' terminal.
#[utoipa::path(post, path = "/sandbox/{sandbox_id}/processes/{pid}/resize", operation_id = "resizeSandboxProcess",
    tag = "runtime", params(("sandbox_id" = uuid::Uuid, Path), PidParam), request_body = PtySize,
    responses((status = 204, description = "changed"), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn resize_process(Working(inside): Working, path: PathText, request: Request) -> Reply {
    forward(inside, &route(&path, "/resize"), request, Size::Usual).await
}

#[cfg(test)]
mod tests {
    use super::named;

    #[test]
    fn a_process_is_named_by_its_number_or_its_tag() {
        for (pid, part) in
            [("7", "7"), ("x", "0"), ("-1", "0"), ("tag:a b/../c+", "tag:a%20b%2F..%2Fc%2B"), ("tag:", "tag:")]
        {
            assert_eq!(named(pid), part);
        }
    }
}
