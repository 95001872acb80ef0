//! Disks that are made of a file which is sent.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use berth_domain::vm::disk_import::{CONTENT_DIGEST, ImportDisk, bounded};

use crate::http::auth::Editor;
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::list::Params;
use crate::http::paced::FILE;
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
        (status = 413, body = ErrorBody), (status = 415, body = ErrorBody, description = "the body is something else than bytes"),
        (status = 422, body = ErrorBody), (status = 429, body = ErrorBody),
        (status = 503, body = ErrorBody), (status = 507, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn import_disk(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    key: IdempotencyKey,
    Params(params): Params,
    request: Request,
) -> Reply<Outcome<DiskView>> {
    let (headers, most) = (request.headers(), vms.config().import_bytes());
    body::require_octets(headers)?;
    let length: Option<u64> = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    bounded(length.unwrap_or_default(), most)?;
    let asked = ImportDisk::read(params, digests(headers).as_deref())?;
    asked.admit(length.unwrap_or_default(), most)?;
    let key = key.begin(&scope.caller).await?;
    Ok(ops::disk_import::create(&vms, &scope, (asked, length), body::stream_within(request, FILE), key).await?)
}

/// All that is said of what the body hashes to, with a character in place of whatever is no text.
fn digests(headers: &HeaderMap) -> Option<String> {
    let text = |line: &HeaderValue| String::from_utf8_lossy(line.as_bytes()).into_owned();
    let lines: Vec<String> = headers.get_all(CONTENT_DIGEST).iter().map(text).collect();
    (!lines.is_empty()).then(|| lines.join(", "))
}
