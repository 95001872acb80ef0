//! The bytes of files: `/files`.

use std::collections::BTreeMap;
use std::io;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use berth_domain::agent::runtime::Entry;
use berth_domain::e2b::connect::USUAL;
use berth_domain::e2b::entry::{ATTRIBUTE, METADATA};
use berth_domain::e2b::signature::{Operation, Signed};
use berth_domain::query::Params;
use berth_domain::{Code, Error};
use futures::TryStreamExt;
use serde_json::{Value, json};
use tokio_util::io::{ReaderStream, StreamReader};

use super::form::Allowance;
use super::room::{Failure, Room};
use super::state::E2b;
use crate::facade::api::{escaped, said};

/// The part of a form that has a file.
const PART: &str = "file";
/// Most files of a form.
const MOST: usize = 1000;
/// Headers of a request for a part of a file.
const ASKED: [HeaderName; 2] = [header::RANGE, header::IF_RANGE];
/// Headers of a file's answer.
const TOLD: [HeaderName; 8] = [
    header::CACHE_CONTROL,
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::ACCEPT_RANGES,
    header::LAST_MODIFIED,
    header::X_CONTENT_TYPE_OPTIONS,
    header::CONTENT_SECURITY_POLICY,
];

/// The path that a request is about, and the sandbox as the account that it names.
fn about(room: &Room, parts: &Parts) -> (Option<String>, Room) {
    let params = Params::parse(parts.uri.query().unwrap_or_default());
    let text = |name: &str| params.get(name).filter(|text| !text.is_empty()).map(str::to_owned);
    let mut room = room.clone();
    room.user = text("username").unwrap_or(room.user);
    (text("path"), room)
}

/// Sends a file, or a range of it.
pub async fn read(room: &Room, parts: &Parts) -> Result<Response, Failure> {
    let (path, room) = about(room, parts);
    let path = path.ok_or_else(|| Error::field("path", "is required"))?;
    let asked = ASKED.into_iter().filter_map(|name| Some((name.clone(), parts.headers.get(name)?.clone())));
    let asked: Vec<_> = asked.collect();
    let route = format!("files/content?{}", room.about(&path));
    let answer = room.open(Method::GET, &route, &asked, Body::empty()).await?;
    let (answered, body) = answer.into_parts();
    let mut headers = HeaderMap::new();
    for name in TOLD {
        if let Some(value) = answered.headers.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    // SDKs ask for this by itself; what browsers ask for by default costs more than it saves here.
    let packs = parts.headers.get(header::ACCEPT_ENCODING).is_some_and(|value| value == "gzip") && asked.is_empty();
    if !packs {
        return Ok((answered.status, headers, body).into_response());
    }
    headers.remove(header::CONTENT_LENGTH);
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    let bytes = StreamReader::new(body.into_data_stream().map_err(io::Error::other));
    let packed = async_compression::tokio::bufread::GzipEncoder::with_quality(bytes, async_compression::Level::Fastest);
    Ok((answered.status, headers, Body::from_stream(ReaderStream::new(packed))).into_response())
}

/// Takes one file as it is, or several as a form.
pub async fn write(room: &Room, parts: &Parts, body: Body) -> Result<Response, Failure> {
    let (path, room) = about(room, parts);
    let is_packed = parts.headers.get(header::CONTENT_ENCODING).is_some_and(|value| value == "gzip");
    let body = if is_packed { unpacked(body) } else { body };
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let attributes = attributes(&parts.headers);
    let written = if let Ok(boundary) = multer::parse_boundary(kind) {
        let (pieces, allowance) = Allowance::over(body);
        let form = multer::Multipart::new(pieces, boundary);
        written(&room, path.as_deref(), &attributes, (form, allowance)).await?
    } else {
        let path = path.ok_or_else(|| Error::field("path", "is required"))?;
        let length = parts.headers.get(header::CONTENT_LENGTH).filter(|_| !is_packed).cloned();
        vec![put(&room, &path, &attributes, length, body).await?]
    };
    let metadata = metadata(&parts.headers);
    let written: Vec<Value> = written.iter().map(|entry| told(entry, &metadata)).collect();
    Ok(Json(written).into_response())
}

fn unpacked(body: Body) -> Body {
    let packed = StreamReader::new(body.into_data_stream().map_err(io::Error::other));
    let mut plain = async_compression::tokio::bufread::GzipDecoder::new(packed);
    plain.multiple_members(true);
    Body::from_stream(ReaderStream::new(plain))
}

/// What headers say of a file.
fn metadata(headers: &HeaderMap) -> BTreeMap<String, String> {
    let pairs = headers.iter().filter_map(|(name, value)| {
        Some((name.as_str().strip_prefix(METADATA)?.to_owned(), value.to_str().ok()?.to_owned()))
    });
    pairs.collect()
}

/// The attributes that headers set, as a query.
fn attributes(headers: &HeaderMap) -> String {
    let pairs = metadata(headers);
    pairs.iter().map(|(name, value)| format!("&attribute.{ATTRIBUTE}{}={}", escaped(name), escaped(value))).collect()
}

/// Writes every file of a form. Where the address has a path, that is the one file's.
async fn written(
    room: &Room,
    path: Option<&str>,
    attributes: &str,
    (mut form, allowance): (multer::Multipart<'static>, Allowance),
) -> Result<Vec<Entry>, Failure> {
    let wrong = |error: multer::Error| Error::new(Code::InvalidRequest, format!("The form cannot be read: {error}."));
    let mut written = Vec::new();
    while let Some(part) = form.next_field().await.map_err(wrong)? {
        if part.name() != Some(PART) {
            continue;
        }
        if written.len() == MOST {
            return Err(Error::new(Code::InvalidRequest, format!("A form has at most {MOST} files.")).into());
        }
        let named = path.map(str::to_owned).or_else(|| part.file_name().map(str::to_owned));
        let named = named.ok_or_else(|| Error::field("path", "is required, or a file name of each part"))?;
        allowance.lift();
        written.push(put(room, &named, attributes, None, Body::from_stream(part)).await?);
        allowance.set();
        if path.is_some() {
            break;
        }
    }
    if written.is_empty() {
        return Err(Error::new(Code::InvalidRequest, format!("The form has no part '{PART}'.")).into());
    }
    Ok(written)
}

/// Writes a file.
async fn put(
    room: &Room,
    path: &str,
    attributes: &str,
    length: Option<HeaderValue>,
    body: Body,
) -> Result<Entry, Failure> {
    let route = format!("files/content?{}{attributes}", room.about(path));
    let length: Vec<_> = length.map(|length| (header::CONTENT_LENGTH, length)).into_iter().collect();
    let answer = room.open(Method::PUT, &route, &length, body).await?;
    Ok(said(answer, USUAL).await?)
}

/// A file that was written, as SDKs read it.
fn told(entry: &Entry, metadata: &BTreeMap<String, String>) -> Value {
    let mut told = json!({"name": entry.name, "type": "file", "path": entry.path});
    if !metadata.is_empty() {
        told["metadata"] = json!(metadata);
    }
    told
}

/// Sends a file to who has an address that was signed for it.
pub async fn signed_read(State(e2b): State<E2b>, request: Request) -> Result<Response, Failure> {
    let (parts, _) = request.into_parts();
    read(&signed(&e2b, &parts, Operation::Read).await?, &parts).await
}

/// Takes a file of who has an address that was signed for it.
pub async fn signed_write(State(e2b): State<E2b>, request: Request) -> Result<Response, Failure> {
    let (parts, body) = request.into_parts();
    write(&signed(&e2b, &parts, Operation::Write).await?, &parts, body).await
}

async fn signed(e2b: &E2b, parts: &Parts, operation: Operation) -> Result<Room, Failure> {
    let missing = || Error::new(Code::NotFound, "There is no such route. Sign the address of a file as the SDK does.");
    let signed = Signed::read(parts.uri.query().unwrap_or_default()).ok_or_else(missing)?;
    let whose = e2b.access.signer(None, operation, &signed).await?;
    Ok(Room::signed(e2b, parts, whose, &signed.user))
}
