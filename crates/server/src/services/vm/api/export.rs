//! Disks, snapshots and images as files.
//!
//! Who may change what a project has may take it out: a disk holds all that its guest ever wrote, keys and passwords among
//! it, which a viewer of the project's resources is not shown elsewhere either.
//!
//! The answer begins once the host has the file: its length and what it hashes to stand before its first byte. So a request
//! waits for a copy of a file, never for a machine, and whoever leaves before ends that. `Content-Digest` is of what an answer
//! has, `Repr-Digest` of the whole file (RFC 9530), which is the same where no part was asked for. `ETag` is what the whole
//! hashes to, so that a download which broke off goes on by `Range` and `If-Range`, or begins anew where the disk is another one
//! by now.

use std::pin::pin;

use async_stream::stream;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_domain::identity::Action;
use berth_domain::vm::DiskKind;
use berth_domain::vm::export::Range;
use berth_domain::{Code, Error, Result, hex};
use berth_host::vm::{Content, Exported, Part};
use futures::StreamExt;
use tokio_util::io::ReaderStream;

use crate::http::auth::{Editor, Scope, Watch};
use crate::http::envelope::ErrorBody;
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::vm::Vms;
use crate::services::vm::carrying::Place;
use crate::services::vm::ops::export::{self as ops, Subject};

/// Bytes that are sent at a time.
const PIECE: usize = 128 << 10;
/// What QEMU's disks are called.
const QCOW2: HeaderValue = HeaderValue::from_static("application/x-qemu-disk");
const CONTENT_DIGEST: HeaderName = HeaderName::from_static("content-digest");
const REPR_DIGEST: HeaderName = HeaderName::from_static("repr-digest");

/// What a request says of the part that it wants.
struct Wanted {
    method: Method,
    range: Option<Range>,
    if_range: Option<String>,
}

impl Wanted {
    fn of(method: Method, headers: &HeaderMap) -> Self {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        Self {
            method,
            range: text(header::RANGE).and_then(Range::parse),
            if_range: text(header::IF_RANGE).map(str::to_owned),
        }
    }

    /// The part of a file; none where all of it is wanted.
    fn part(&self, about: &Exported) -> Result<Option<Part>> {
        let is_same = self.if_range.as_ref().is_none_or(|tag| *tag == tag_of(about));
        let Some(range) = self.range.filter(|_| is_same && self.method == Method::GET) else { return Ok(None) };
        range.of(about.bytes).map(Some).ok_or_else(|| {
            let message = format!("The file has {} bytes, and nothing of that range.", about.bytes);
            Error::new(Code::RangeNotSatisfiable, message)
        })
    }
}

/// A data disk as a stand-alone qcow2 file, while no running machine has it: make a snapshot of the disk of a VM that runs, and
/// export that. The answer begins once the file is made, which takes as long as copying the disk.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/disks/{disk_id}/export",
    operation_id = "exportDisk", tag = "disks",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("disk_id" = uuid::Uuid, Path),
        ("Range" = Option<String>, Header), ("If-Range" = Option<String>, Header)),
    responses((status = 200, content_type = "application/x-qemu-disk", body = Vec<u8>,
            headers(("Content-Digest" = String, description = "SHA-256 of the file (RFC 9530)"),
                ("Repr-Digest" = String, description = "SHA-256 of the file (RFC 9530)"),
                ("ETag" = String, description = "names the file in If-Range"))),
        (status = 206, content_type = "application/x-qemu-disk", body = Vec<u8>,
            headers(("Repr-Digest" = String, description = "SHA-256 of the whole file (RFC 9530)"),
                ("ETag" = String, description = "names the file in If-Range"),
                ("Content-Range" = String, description = "which part of the file follows, and how long it is"))),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 416, body = ErrorBody), (status = 429, body = ErrorBody),
        (status = 503, body = ErrorBody), (status = 507, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn export_disk(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
    watch: Watch,
    method: Method,
    headers: HeaderMap,
) -> Reply<Response> {
    let subject = ops::disk(&vms, &scope, DiskKind::Data, path.id("disk_id")?).await?;
    Ok(send(&vms, scope, subject, watch, Wanted::of(method, &headers)).await?)
}

/// A root disk volume as a stand-alone qcow2 file, while no running machine has it: make a snapshot of the disk of a VM that
/// runs, and export that. The answer begins once the file is made, which takes as long as copying the disk.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/root_disks/{root_disk_id}/export",
    operation_id = "exportRootDiskVolume", tag = "disks",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("root_disk_id" = uuid::Uuid, Path),
        ("Range" = Option<String>, Header), ("If-Range" = Option<String>, Header)),
    responses((status = 200, content_type = "application/x-qemu-disk", body = Vec<u8>,
            headers(("Content-Digest" = String, description = "SHA-256 of the file (RFC 9530)"),
                ("Repr-Digest" = String, description = "SHA-256 of the file (RFC 9530)"),
                ("ETag" = String, description = "names the file in If-Range"))),
        (status = 206, content_type = "application/x-qemu-disk", body = Vec<u8>,
            headers(("Repr-Digest" = String, description = "SHA-256 of the whole file (RFC 9530)"),
                ("ETag" = String, description = "names the file in If-Range"),
                ("Content-Range" = String, description = "which part of the file follows, and how long it is"))),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 416, body = ErrorBody), (status = 429, body = ErrorBody),
        (status = 503, body = ErrorBody), (status = 507, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn export_root_disk_volume(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
    watch: Watch,
    method: Method,
    headers: HeaderMap,
) -> Reply<Response> {
    let subject = ops::disk(&vms, &scope, DiskKind::Root, path.id("root_disk_id")?).await?;
    Ok(send(&vms, scope, subject, watch, Wanted::of(method, &headers)).await?)
}

/// A snapshot of a disk as a stand-alone qcow2 file. The answer begins once the file is made, which takes as long as copying the
/// disk.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/disk_snapshots/{disk_snapshot_id}/export",
    operation_id = "exportDiskSnapshot", tag = "disks",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("disk_snapshot_id" = uuid::Uuid, Path),
        ("Range" = Option<String>, Header), ("If-Range" = Option<String>, Header)),
    responses((status = 200, content_type = "application/x-qemu-disk", body = Vec<u8>,
            headers(("Content-Digest" = String, description = "SHA-256 of the file (RFC 9530)"),
                ("Repr-Digest" = String, description = "SHA-256 of the file (RFC 9530)"),
                ("ETag" = String, description = "names the file in If-Range"))),
        (status = 206, content_type = "application/x-qemu-disk", body = Vec<u8>,
            headers(("Repr-Digest" = String, description = "SHA-256 of the whole file (RFC 9530)"),
                ("ETag" = String, description = "names the file in If-Range"),
                ("Content-Range" = String, description = "which part of the file follows, and how long it is"))),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 416, body = ErrorBody), (status = 429, body = ErrorBody),
        (status = 503, body = ErrorBody), (status = 507, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn export_disk_snapshot(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
    watch: Watch,
    method: Method,
    headers: HeaderMap,
) -> Reply<Response> {
    let subject = ops::snapshot(&vms, &scope, path.id("disk_snapshot_id")?).await?;
    Ok(send(&vms, scope, subject, watch, Wanted::of(method, &headers)).await?)
}

/// An image of the project as a stand-alone qcow2 file.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/images/{project_image_id}/export",
    operation_id = "exportProjectImage", tag = "images",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("project_image_id" = uuid::Uuid, Path),
        ("Range" = Option<String>, Header), ("If-Range" = Option<String>, Header)),
    responses((status = 200, content_type = "application/x-qemu-disk", body = Vec<u8>,
            headers(("Content-Digest" = String, description = "SHA-256 of the file (RFC 9530)"),
                ("Repr-Digest" = String, description = "SHA-256 of the file (RFC 9530)"),
                ("ETag" = String, description = "names the file in If-Range"))),
        (status = 206, content_type = "application/x-qemu-disk", body = Vec<u8>,
            headers(("Repr-Digest" = String, description = "SHA-256 of the whole file (RFC 9530)"),
                ("ETag" = String, description = "names the file in If-Range"),
                ("Content-Range" = String, description = "which part of the file follows, and how long it is"))),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 416, body = ErrorBody), (status = 429, body = ErrorBody),
        (status = 503, body = ErrorBody), (status = 507, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn export_project_image(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
    watch: Watch,
    method: Method,
    headers: HeaderMap,
) -> Reply<Response> {
    let subject = ops::image(&vms, &scope, path.id("project_image_id")?).await?;
    Ok(send(&vms, scope, subject, watch, Wanted::of(method, &headers)).await?)
}

/// Has the host make the file, and sends what is wanted of it.
async fn send(vms: &Vms, scope: Scope, subject: Subject, watch: Watch, wanted: Wanted) -> Result<Response> {
    let place = vms.exporting().enter((scope.org, scope.project))?;
    let about = vms.engine().export(&subject.of).await.map_err(ops::refused)?;
    let part = match wanted.part(&about) {
        Err(error) => return Ok(beyond(error, &about)),
        Ok(part) => part,
    };
    let (head, sent) = (head(&about, &subject.name, part)?, part.unwrap_or(about.whole()));
    let status = if part.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    if wanted.method == Method::HEAD {
        return Ok((status, head).into_response());
    }
    ops::record(vms, &scope, &subject, &about).await?;
    let content = vms.engine().exported(&subject.of, &about.sha256, sent).await.map_err(ops::refused)?;
    Ok((status, head, pass_on(content, place, scope, watch)).into_response())
}

/// The bytes, as long as the caller may have them.
fn pass_on(content: Box<dyn Content>, place: Place, scope: Scope, watch: Watch) -> Body {
    let ended = || std::io::Error::new(std::io::ErrorKind::PermissionDenied, "the caller may not have it any more");
    Body::from_stream(stream! {
        let _place = place;
        let mut over = pin!(watch.over(&scope, Action::ChangeResources));
        let mut pieces = ReaderStream::with_capacity(content, PIECE);
        loop {
            let piece = tokio::select! {
                biased;
                () = &mut over => Some(Err(ended())),
                piece = pieces.next() => piece,
            };
            let Some(piece) = piece else { return };
            let is_broken = piece.is_err();
            yield piece;
            if is_broken {
                return;
            }
        }
    })
}

/// What is told of a file, and of the part of it that follows.
fn head(about: &Exported, name: &str, part: Option<Part>) -> Result<HeaderMap> {
    let value = |text: String| HeaderValue::try_from(text).map_err(Error::internal);
    let sha256: [u8; 32] = hex::decode(&about.sha256).ok_or_else(|| Error::internal("a host tells no SHA-256"))?;
    let digest = value(format!("sha-256=:{}:", STANDARD.encode(sha256)))?;
    let mut head = HeaderMap::from_iter([
        (header::CONTENT_TYPE, QCOW2),
        (header::CONTENT_LENGTH, HeaderValue::from(part.map_or(about.bytes, |part| part.bytes))),
        (header::ACCEPT_RANGES, HeaderValue::from_static("bytes")),
        (header::CACHE_CONTROL, HeaderValue::from_static("private, no-store")),
        (header::ETAG, value(tag_of(about))?),
        (header::CONTENT_DISPOSITION, value(format!("attachment; filename=\"{}.qcow2\"", plain(name)))?),
        (REPR_DIGEST, digest.clone()),
    ]);
    match part {
        None => head.insert(CONTENT_DIGEST, digest),
        Some(Part { from, bytes }) => {
            let range = format!("bytes {from}-{}/{}", (from + bytes).saturating_sub(1), about.bytes);
            head.insert(header::CONTENT_RANGE, value(range)?)
        }
    };
    Ok(head)
}

/// The answer to a range that the file has nothing of, which tells how long it is.
fn beyond(error: Error, about: &Exported) -> Response {
    let mut response = crate::http::envelope::ApiError::from(error).into_response();
    if let Ok(range) = HeaderValue::try_from(format!("bytes */{}", about.bytes)) {
        response.headers_mut().insert(header::CONTENT_RANGE, range);
    }
    response
}

fn tag_of(about: &Exported) -> String {
    format!("\"{}\"", about.sha256)
}

/// A name as a file's: of ASCII's letters and digits, `-`, `_` and `.`; what is none of these becomes a hyphen.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_described_with_what_it_hashes_to() {
        // Of no bytes at all: RFC 9530 gives this digest of them.
        let sha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855".to_owned();
        let about = Exported { bytes: 10, sha256 };
        let whole = head(&about, "my \"disk\"", None).unwrap();
        assert_eq!(whole["content-digest"], "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:");
        assert_eq!(whole["content-disposition"], "attachment; filename=\"my--disk-.qcow2\"");
        let part = head(&about, "disk", Some(Part { from: 4, bytes: 6 })).unwrap();
        assert_eq!(
            (&part["content-range"], &part["content-length"]),
            (&"bytes 4-9/10".parse().unwrap(), &"6".parse().unwrap())
        );
        assert!(!part.contains_key("content-digest") && part["repr-digest"] == whole["content-digest"]);
    }
}
