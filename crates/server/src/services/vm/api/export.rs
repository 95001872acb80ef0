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

use std::collections::BTreeMap;
use std::pin::pin;

use async_stream::stream;
use axum::body::Body;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
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
use utoipa::openapi::{ContentBuilder, HeaderBuilder, Ref, RefOr, ResponseBuilder};
use utoipa::{IntoParams, PartialSchema};

use crate::http::auth::{Editor, Scope, Watch};
use crate::http::envelope::{ApiError, ErrorBody};
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::vm::Vms;
use crate::services::vm::carrying::Place;
use crate::services::vm::ops::export::{self as ops, Subject};

/// Bytes that are sent at a time.
const PIECE: usize = 128 << 10;
/// What QEMU's disks are called.
const QCOW2: &str = "application/x-qemu-disk";
const CONTENT_DIGEST: HeaderName = HeaderName::from_static("content-digest");
const REPR_DIGEST: HeaderName = HeaderName::from_static("repr-digest");

/// What a request wants of a file, and who looks whether its caller may have it still.
pub(super) struct Wanted {
    method: Method,
    range: Option<Range>,
    if_range: Option<String>,
    watch: Watch,
}

impl<S: Send + Sync> FromRequestParts<S> for Wanted {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let text = |name| parts.headers.get(name).and_then(|value| value.to_str().ok());
        Ok(Self {
            method: parts.method.clone(),
            range: text(header::RANGE).and_then(Range::parse),
            if_range: text(header::IF_RANGE).map(str::to_owned),
            watch: Watch::from_request_parts(parts, state).await?,
        })
    }
}

/// What [`Wanted`] reads, for the document.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "describes")]
struct PartParams {
    #[param(rename = "Range")]
    range: Option<String>,
    #[param(rename = "If-Range")]
    if_range: Option<String>,
}

/// What an export answers, for the document.
struct FileAnswers;

impl utoipa::IntoResponses for FileAnswers {
    fn responses() -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
        let refusals = ["400", "401", "403", "404", "409", "416", "429", "503", "507"];
        let refusals = refusals.map(|status| (status.to_owned(), refusal()));
        let whole = [("Content-Digest", OF_FILE), ("Repr-Digest", OF_FILE), ("ETag", TAG)];
        let part = [("Repr-Digest", "SHA-256 of the whole file (RFC 9530)"), ("ETag", TAG), ("Content-Range", PART)];
        [("200".to_owned(), file(whole)), ("206".to_owned(), file(part))].into_iter().chain(refusals).collect()
    }
}

const OF_FILE: &str = "SHA-256 of the file (RFC 9530)";
const TAG: &str = "names the file in If-Range";
const PART: &str = "which part of the file follows, and how long it is";

fn file(headers: [(&str, &str); 3]) -> RefOr<utoipa::openapi::Response> {
    let content = ContentBuilder::new().schema(Some(<Vec<u8> as PartialSchema>::schema())).build();
    let described = |text: &str| HeaderBuilder::new().description(Some(text)).build();
    let answer = ResponseBuilder::new().content(QCOW2, content);
    headers.iter().fold(answer, |answer, (name, text)| answer.header(*name, described(text))).build().into()
}

fn refusal() -> RefOr<utoipa::openapi::Response> {
    let schema = Ref::from_schema_name(<ErrorBody<'_> as utoipa::ToSchema>::name());
    let content = ContentBuilder::new().schema(Some(schema)).build();
    ResponseBuilder::new().content("application/json", content).build().into()
}

impl Wanted {
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
        PartParams),
    responses(FileAnswers),
    security(("bearer" = [])))]
pub(super) async fn export_disk(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
    wanted: Wanted,
) -> Reply<Response> {
    let subject = ops::disk(&vms, &scope, DiskKind::Data, path.id("disk_id")?).await?;
    Ok(send(&vms, scope, subject, wanted).await?)
}

/// A root disk volume as a stand-alone qcow2 file, while no running machine has it: make a snapshot of the disk of a VM that
/// runs, and export that. The answer begins once the file is made, which takes as long as copying the disk.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/root_disks/{root_disk_id}/export",
    operation_id = "exportRootDiskVolume", tag = "disks",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("root_disk_id" = uuid::Uuid, Path),
        PartParams),
    responses(FileAnswers),
    security(("bearer" = [])))]
pub(super) async fn export_root_disk_volume(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
    wanted: Wanted,
) -> Reply<Response> {
    let subject = ops::disk(&vms, &scope, DiskKind::Root, path.id("root_disk_id")?).await?;
    Ok(send(&vms, scope, subject, wanted).await?)
}

/// A snapshot of a disk as a stand-alone qcow2 file. The answer begins once the file is made, which takes as long as copying the
/// disk.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/disk_snapshots/{disk_snapshot_id}/export",
    operation_id = "exportDiskSnapshot", tag = "disks",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("disk_snapshot_id" = uuid::Uuid, Path),
        PartParams),
    responses(FileAnswers),
    security(("bearer" = [])))]
pub(super) async fn export_disk_snapshot(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
    wanted: Wanted,
) -> Reply<Response> {
    let subject = ops::snapshot(&vms, &scope, path.id("disk_snapshot_id")?).await?;
    Ok(send(&vms, scope, subject, wanted).await?)
}

/// An image of the project as a stand-alone qcow2 file.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/images/{project_image_id}/export",
    operation_id = "exportProjectImage", tag = "images",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("project_image_id" = uuid::Uuid, Path),
        PartParams),
    responses(FileAnswers),
    security(("bearer" = [])))]
pub(super) async fn export_project_image(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
    wanted: Wanted,
) -> Reply<Response> {
    let subject = ops::image(&vms, &scope, path.id("project_image_id")?).await?;
    Ok(send(&vms, scope, subject, wanted).await?)
}

/// Has the host make the file, and sends what is wanted of it.
async fn send(vms: &Vms, scope: Scope, subject: Subject, wanted: Wanted) -> Result<Response> {
    let place = vms.exporting().enter((scope.org, scope.project))?;
    let engine = vms.engine_of(subject.host).map_err(ops::refused)?;
    let about = engine.export(&subject.of).await.map_err(ops::refused)?;
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
    let content = engine.exported(&subject.of, &about.sha256, sent).await.map_err(ops::refused)?;
    Ok((status, head, pass_on(content, place, scope, wanted.watch)).into_response())
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
        (header::CONTENT_TYPE, HeaderValue::from_static(QCOW2)),
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
    let mut response = ApiError::from(error).into_response();
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
