//! Files of a sandbox. Paths are relative to the workspace and cannot leave it, unless `root` says otherwise.

use std::sync::Arc;

use axum::extract::{Request, State};
use berth_domain::agent::runtime::{
    Archive, Changes, Entry, Exists, Extracted, Listing, Mkdir, Move, Remove, WatchCreated, WatchRequest,
};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::create::create;
use super::forward::{Reply, Size, forward};
use super::inside::Working;
use super::looking::{Looking, RootParams};
use super::refused::Refused;
use super::state::Runtime;
use crate::http::idempotency::{IdempotencyKey, KeyParam};
use crate::http::path::PathText;

pub(super) fn routes() -> OpenApiRouter<Arc<Runtime>> {
    OpenApiRouter::new()
        .routes(routes!(read_file, write_file))
        .routes(routes!(list_files))
        .routes(routes!(stat_file))
        .routes(routes!(file_exists))
        .routes(routes!(make_directory))
        .routes(routes!(remove_file))
        .routes(routes!(move_file))
        .routes(routes!(watch_files))
        .routes(routes!(open_watch))
        .routes(routes!(poll_watch, close_watch))
        .routes(routes!(pack_files))
        .routes(routes!(unpack_files))
}

/// The content of a file, or the part that `Range` names.
#[utoipa::path(get, path = "/sandbox/{sandbox_id}/files/content", operation_id = "readSandboxFile", tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path), RootParams, ("path" = String, Query), ("Range" = Option<String>, Header)),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>),
        (status = 206, content_type = "application/octet-stream", body = Vec<u8>), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn read_file(Looking(inside): Looking, request: Request) -> Reply {
    forward(inside, "files/content", request, Size::Usual).await
}

/// Writes a file, whole or not at all, and makes missing parents. The body is its content.
#[utoipa::path(put, path = "/sandbox/{sandbox_id}/files/content", operation_id = "writeSandboxFile", tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path), RootParams, ("path" = String, Query),
        ("mode" = Option<String>, Query, description = "octal; default that of the file it replaces, or 0644"),
        ("attribute.{name}" = Option<String>, Query,
            description = "sets the extended attribute `user.{name}`, for any name; repeated for others")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = Entry), (status = 201, body = Entry), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn write_file(Working(inside): Working, request: Request) -> Reply {
    forward(inside, "files/content", request, Size::Unlimited).await
}

/// What a directory holds, to a depth.
#[utoipa::path(get, path = "/sandbox/{sandbox_id}/files/list", operation_id = "listSandboxFiles", tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path), RootParams, ("path" = Option<String>, Query, description = "default the workspace"),
        ("depth" = Option<i64>, Query, description = "default 1", minimum = 1),
        ("limit" = Option<i64>, Query, description = "default 10000", minimum = 1, maximum = 100_000),
        ("details" = Option<bool>, Query, description = "tells `group`, `resolved` and `attributes`; default false")),
    responses((status = 200, body = Listing), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn list_files(Looking(inside): Looking, request: Request) -> Reply {
    forward(inside, "files/list", request, Size::Usual).await
}

/// What a path is. A link is not followed.
#[utoipa::path(get, path = "/sandbox/{sandbox_id}/files/stat", operation_id = "statSandboxFile", tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path), RootParams, ("path" = String, Query),
        ("details" = Option<bool>, Query, description = "tells `group`, `resolved` and `attributes`; default false")),
    responses((status = 200, body = Entry), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn stat_file(Looking(inside): Looking, request: Request) -> Reply {
    forward(inside, "files/stat", request, Size::Usual).await
}

/// Whether a path is there.
#[utoipa::path(get, path = "/sandbox/{sandbox_id}/files/exists", operation_id = "sandboxFileExists", tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path), RootParams, ("path" = String, Query)),
    responses((status = 200, body = Exists), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn file_exists(Looking(inside): Looking, request: Request) -> Reply {
    forward(inside, "files/exists", request, Size::Usual).await
}

/// Makes a directory.
#[utoipa::path(post, path = "/sandbox/{sandbox_id}/files/mkdir", operation_id = "makeSandboxDirectory",
    tag = "runtime", params(("sandbox_id" = uuid::Uuid, Path), RootParams, KeyParam), request_body = Mkdir,
    responses((status = 200, body = Entry), (status = 201, body = Entry), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn make_directory(
    State(runtime): State<Arc<Runtime>>,
    Working(inside): Working,
    key: IdempotencyKey,
    request: Request,
) -> Reply {
    create(runtime, inside, key, "files/mkdir", request).await
}

/// Removes a file or a directory.
#[utoipa::path(post, path = "/sandbox/{sandbox_id}/files/remove", operation_id = "removeSandboxFile", tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path), RootParams), request_body = Remove,
    responses((status = 204, description = "removed"), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn remove_file(Working(inside): Working, request: Request) -> Reply {
    forward(inside, "files/remove", request, Size::Usual).await
}

/// Moves a file or a directory.
#[utoipa::path(post, path = "/sandbox/{sandbox_id}/files/move", operation_id = "moveSandboxFile", tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path), RootParams), request_body = Move,
    responses((status = 200, body = Entry), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn move_file(Working(inside): Working, request: Request) -> Reply {
    forward(inside, "files/move", request, Size::Usual).await
}

/// What happens to files, as server-sent events: `change {kind: created|modified|removed|renamed, path, to?, metadata?}`.
/// `Last-Event-ID` goes on after a dropped connection.
#[utoipa::path(get, path = "/sandbox/{sandbox_id}/files/watch", operation_id = "watchSandboxFiles", tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path), RootParams, ("path" = Option<String>, Query, description = "default the workspace"),
        ("recursive" = Option<bool>, Query, description = "default false"),
        ("Last-Event-ID" = Option<String>, Header)),
    responses((status = 200, content_type = "text/event-stream", body = String), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn watch_files(Looking(inside): Looking, request: Request) -> Reply {
    forward(inside, "files/watch", request, Size::Usual).await
}

/// Watches files for who asks again and again what happened. A watch lives until it is removed; of more than 32, the one
/// that nobody asked for longest makes room.
#[utoipa::path(post, path = "/sandbox/{sandbox_id}/files/watches", operation_id = "openSandboxWatch", tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path), RootParams, KeyParam), request_body = WatchRequest,
    responses((status = 201, body = WatchCreated), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn open_watch(
    State(runtime): State<Arc<Runtime>>,
    Working(inside): Working,
    key: IdempotencyKey,
    request: Request,
) -> Reply {
    create(runtime, inside, key, "files/watches", request).await
}

/// What happened since it was asked last. What is told is not told again.
#[utoipa::path(get, path = "/sandbox/{sandbox_id}/files/watches/{watch_id}", operation_id = "pollSandboxWatch",
    tag = "runtime", params(("sandbox_id" = uuid::Uuid, Path), ("watch_id" = String, Path)),
    responses((status = 200, body = Changes), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn poll_watch(Working(inside): Working, path: PathText, request: Request) -> Reply {
    forward(inside, &watch_route(&path), request, Size::Usual).await
}

/// Removes a watch.
#[utoipa::path(delete, path = "/sandbox/{sandbox_id}/files/watches/{watch_id}", operation_id = "closeSandboxWatch",
    tag = "runtime", params(("sandbox_id" = uuid::Uuid, Path), ("watch_id" = String, Path)),
    responses((status = 204, description = "removed"), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn close_watch(Working(inside): Working, path: PathText, request: Request) -> Reply {
    forward(inside, &watch_route(&path), request, Size::Usual).await
}

/// The agent's route of a watch.
fn watch_route(path: &PathText) -> String {
    // What is no number names no watch; the agent says so.
    format!("files/watches/{:016x}", u64::from_str_radix(path.text("watch_id"), 16).unwrap_or_default())
}

/// Packs a file or a directory as tar.
#[utoipa::path(post, path = "/sandbox/{sandbox_id}/files/archive", operation_id = "packSandboxFiles", tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path), RootParams), request_body = Archive,
    responses((status = 200, content_type = "application/x-tar", body = Vec<u8>), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn pack_files(Looking(inside): Looking, request: Request) -> Reply {
    forward(inside, "files/archive", request, Size::Usual).await
}

/// Unpacks a tar into a directory. No entry leaves the workspace.
#[utoipa::path(post, path = "/sandbox/{sandbox_id}/files/extract", operation_id = "unpackSandboxFiles",
    tag = "runtime", params(("sandbox_id" = uuid::Uuid, Path), RootParams, ("path" = Option<String>, Query)),
    request_body(content = Vec<u8>, content_type = "application/octet-stream", description = "a tar archive"),
    responses((status = 200, body = Extracted), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn unpack_files(Working(inside): Working, request: Request) -> Reply {
    forward(inside, "files/extract", request, Size::Unlimited).await
}
