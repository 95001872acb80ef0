//! Disks that are made of a file which is sent.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use berth_domain::vm::disk_import::{CONTENT_DIGEST, ImportDisk};

use crate::http::auth::Editor;
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::list::Params;
use crate::http::reply::Reply;
use crate::services::vm::wire::disk::DiskView;
use crate::services::vm::wire::vm::DiskTypeWord;
use crate::services::vm::{Vms, ops};

/// Creates a data disk with what a file has: a qcow2 that builds on no other file, or a raw disk. The file is received before
/// the answer; `status` tells when it is checked and converted.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/disks/import", operation_id = "importDisk",
    tag = "disks",
    params(("org_id" = String, Path), ("project_id" = String, Path),
        ("name" = String, Query, pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 20),
        ("size_gb" = i64, Query, description = "at least what the file has for a guest", minimum = 10, maximum = 2048),
        ("region_id" = String, Query, min_length = 1, max_length = 255),
        ("type" = Option<DiskTypeWord>, Query, description = "`block` by default; `filesystem` where all of it is one that \
            the guest can mount, as an export of such a disk is"),
        ("Content-Digest" = Option<String>, Header, description = "what the file has to hash to: its SHA-256 (RFC 9530)",
            pattern = "sha-256=:[A-Za-z0-9+/]{43}=:"),
        KeyParam),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = DiskView, description = "received; `status` tells when it is ready"),
        (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 413, body = ErrorBody), (status = 422, body = ErrorBody), (status = 429, body = ErrorBody),
        (status = 503, body = ErrorBody), (status = 507, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn import_disk(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    key: IdempotencyKey,
    Params(params): Params,
    request: Request,
) -> Reply<Outcome<DiskView>> {
    let text =
        |headers: &HeaderMap, name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let digest = text(request.headers(), CONTENT_DIGEST);
    let length = text(request.headers(), header::CONTENT_LENGTH.as_str()).and_then(|length| length.parse().ok());
    let asked = ImportDisk::read(params, digest.as_deref())?;
    asked.admit(length.unwrap_or_default(), vms.config().import_bytes())?;
    let key = key.begin(&scope.caller).await?;
    Ok(ops::disk_import::create(&vms, &scope, (asked, length), body::stream(request), key).await?)
}
