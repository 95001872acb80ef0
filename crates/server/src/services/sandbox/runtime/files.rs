//! Files of a sandbox. Paths are relative to the workspace and cannot leave it.

use std::sync::Arc;

use axum::extract::{Request, State};
use berth_domain::agent::runtime::{Archive, Entry, Exists, Extracted, Listing, Mkdir, Move, Remove};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::create::create;
use super::forward::{Reply, Size, forward};
use super::inside::{Viewing, Working};
use super::refused::Refused;
use super::state::Runtime;
use crate::http::idempotency::{IdempotencyKey, KeyParam};

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
        .routes(routes!(pack_files))
        .routes(routes!(unpack_files))
}

/// The content of a file, or the part that `Range` names.
#[utoipa::path(get, path = "/sandbox/{sandbox_id}/files/content", operation_id = "readSandboxFile", tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path), ("path" = String, Query), ("Range" = Option<String>, Header)),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>),
        (status = 206, content_type = "application/octet-stream", body = Vec<u8>), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn read_file(Viewing(inside): Viewing, request: Request) -> Reply {
    forward(inside, "files/content", request, Size::Usual).await
}

/// Writes a file, whole or not at all, and makes missing parents. The body is its content.
#[utoipa::path(put, path = "/sandbox/{sandbox_id}/files/content", operation_id = "writeSandboxFile", tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path), ("path" = String, Query),
        ("mode" = Option<String>, Query, description = "octal, default 0644")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = Entry), (status = 201, body = Entry), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn write_file(Working(inside): Working, request: Request) -> Reply {
    forward(inside, "files/content", request, Size::Unlimited).await
}

/// What a directory holds, to a depth.
#[utoipa::path(get, path = "/sandbox/{sandbox_id}/files/list", operation_id = "listSandboxFiles", tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path), ("path" = Option<String>, Query, description = "default the workspace"),
        ("depth" = Option<i64>, Query, description = "default 1", minimum = 1),
        ("limit" = Option<i64>, Query, description = "default 10000", minimum = 1, maximum = 100_000)),
    responses((status = 200, body = Listing), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn list_files(Viewing(inside): Viewing, request: Request) -> Reply {
    forward(inside, "files/list", request, Size::Usual).await
}

/// What a path is. A link is not followed.
#[utoipa::path(get, path = "/sandbox/{sandbox_id}/files/stat", operation_id = "statSandboxFile", tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path), ("path" = String, Query)),
    responses((status = 200, body = Entry), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn stat_file(Viewing(inside): Viewing, request: Request) -> Reply {
    forward(inside, "files/stat", request, Size::Usual).await
}

/// Whether a path is there.
#[utoipa::path(get, path = "/sandbox/{sandbox_id}/files/exists", operation_id = "sandboxFileExists", tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path), ("path" = String, Query)),
    responses((status = 200, body = Exists), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn file_exists(Viewing(inside): Viewing, request: Request) -> Reply {
    forward(inside, "files/exists", request, Size::Usual).await
}

/// Makes a directory.
#[utoipa::path(post, path = "/sandbox/{sandbox_id}/files/mkdir", operation_id = "makeSandboxDirectory",
    tag = "runtime", params(("sandbox_id" = uuid::Uuid, Path), KeyParam), request_body = Mkdir,
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
    params(("sandbox_id" = uuid::Uuid, Path)), request_body = Remove,
    responses((status = 204, description = "removed"), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn remove_file(Working(inside): Working, request: Request) -> Reply {
    forward(inside, "files/remove", request, Size::Usual).await
}

/// Moves a file or a directory.
#[utoipa::path(post, path = "/sandbox/{sandbox_id}/files/move", operation_id = "moveSandboxFile", tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path)), request_body = Move,
    responses((status = 200, body = Entry), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn move_file(Working(inside): Working, request: Request) -> Reply {
    forward(inside, "files/move", request, Size::Usual).await
}

/// What happens to files, as server-sent events: `change {kind: created|modified|removed|renamed, path, to?}`.
/// `Last-Event-ID` goes on after a dropped connection.
#[utoipa::path(get, path = "/sandbox/{sandbox_id}/files/watch", operation_id = "watchSandboxFiles", tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path), ("path" = Option<String>, Query, description = "default the workspace"),
        ("recursive" = Option<bool>, Query, description = "default false"),
        ("Last-Event-ID" = Option<String>, Header)),
    responses((status = 200, content_type = "text/event-stream", body = String), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn watch_files(Viewing(inside): Viewing, request: Request) -> Reply {
    forward(inside, "files/watch", request, Size::Usual).await
}

/// Packs a file or a directory as tar.
#[utoipa::path(post, path = "/sandbox/{sandbox_id}/files/archive", operation_id = "packSandboxFiles", tag = "runtime",
    params(("sandbox_id" = uuid::Uuid, Path)), request_body = Archive,
    responses((status = 200, content_type = "application/x-tar", body = Vec<u8>), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn pack_files(Viewing(inside): Viewing, request: Request) -> Reply {
    forward(inside, "files/archive", request, Size::Usual).await
}

/// Unpacks a tar into a directory. No entry leaves the workspace.
#[utoipa::path(post, path = "/sandbox/{sandbox_id}/files/extract", operation_id = "unpackSandboxFiles",
    tag = "runtime", params(("sandbox_id" = uuid::Uuid, Path), ("path" = Option<String>, Query)),
    request_body(content = Vec<u8>, content_type = "application/octet-stream", description = "a tar archive"),
    responses((status = 200, body = Extracted), Refused),
    security(("bearer" = []), ("api_key" = [])))]
async fn unpack_files(Working(inside): Working, request: Request) -> Reply {
    forward(inside, "files/extract", request, Size::Unlimited).await
}
