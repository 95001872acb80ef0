//! What envd answers on its port: calls of the Connect protocol, files, and whether it is there.

use axum::body::{Body, to_bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use berth_domain::e2b::connect::{Code, LARGEST, Messages, Refused, SINGLE, STREAM, USUAL};
use berth_domain::e2b::sandbox::{State, state};
use berth_domain::e2b::signature::{Operation, Signed};
use berth_domain::e2b::token::Purpose;
use berth_domain::ids::{KeyId, SandboxId};
use berth_domain::{Code as Known, Error};
use serde::de::DeserializeOwned;

use super::room::{Failure, Room};
use super::state::E2b;
use super::{file, filesystem, process, stream, watch};
use crate::http::envelope::unknown_route;
use crate::http::from_within::OnBehalf;
use crate::http::own_key::{NEEDS_KEY, key_at_home};

/// The header with a sandbox's token.
pub const TOKEN: HeaderName = HeaderName::from_static("x-access-token");
/// The header with the time that a call may take, in milliseconds.
const LIMIT: &str = "connect-timeout-ms";

/// The key that the token of a request was given to.
pub fn bearer(e2b: &E2b, headers: &HeaderMap, sandbox: SandboxId) -> Option<KeyId> {
    e2b.access.key(sandbox, headers.get(TOKEN)?.to_str().ok()?, Purpose::Inside)
}

/// Answers a request to the port of envd.
pub async fn answer(e2b: &E2b, sandbox: SandboxId, path: &str, mut parts: Parts, body: Body) -> Response {
    let room = match bearer(e2b, &parts.headers, sandbox) {
        Some(key) => {
            parts.extensions.insert(OnBehalf(key));
            Room::of(e2b, &parts, sandbox, Some(key))
        }
        None => match signed(e2b, sandbox, path, &parts).await {
            Ok(room) => room,
            Err(error) => return Failure::Refused(error).into_response(),
        },
    };
    match (&parts.method, path) {
        (&Method::GET, "health") => health(&room, &parts).await.unwrap_or_else(IntoResponse::into_response),
        (&Method::GET, "files") => file::read(&room, &parts).await.unwrap_or_else(IntoResponse::into_response),
        (&Method::POST, "files") => file::write(&room, &parts, body).await.unwrap_or_else(IntoResponse::into_response),
        (&Method::POST, call) if call.contains('/') => called(&room, call, &parts, body).await,
        _ => unknown_route().await.into_response(),
    }
}

/// The sandbox for who shows an address that was signed with a token of it.
async fn signed(e2b: &E2b, sandbox: SandboxId, path: &str, parts: &Parts) -> Result<Room, Error> {
    let signed = Signed::read(parts.uri.query().unwrap_or_default()).filter(|_| path == "files");
    let Some(signed) = signed else {
        let message =
            "Send the sandbox's token in 'X-Access-Token', as the SDK does that created it or connected to it.";
        return Err(Error::new(Known::Unauthorized, message));
    };
    let operation = if parts.method == Method::GET { Operation::Read } else { Operation::Write };
    let whose = e2b.access.signer(Some(sandbox), operation, &signed).await?;
    Ok(Room::signed(e2b, parts, whose, &signed.user))
}

/// Whether the sandbox runs, without waking it.
async fn health(room: &Room, parts: &Parts) -> Result<Response, Failure> {
    let (_, scope) = key_at_home(parts, NEEDS_KEY).await?;
    let phase = room.phase(&format!("/api/v1/orgs/{}/projects/{}", scope.org, scope.project)).await?;
    // One that comes up is waited for by whoever works in it.
    match state(&phase) {
        Some(State::Running) => Ok(StatusCode::NO_CONTENT.into_response()),
        _ => Err(Failure::Gone(room.id(), format!("It is {phase}."))),
    }
}

/// Answers a call of the Connect protocol.
async fn called(room: &Room, call: &str, parts: &Parts, body: Body) -> Response {
    let is_stream = parts.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == STREAM);
    if !is_stream {
        return single(room, call, body).await.unwrap_or_else(Failure::of_call);
    }
    match streamed(room, call, limit(&parts.headers), body).await {
        Ok(response) => response,
        Err(Failure::Refused(error)) => stream::failed(&Refused::from(&error)),
        Err(Failure::Wrong(refused)) => stream::failed(&refused),
        Err(gone) => gone.into_response(),
    }
}

/// Answers a call that is a stream, of the client's messages or of answers.
async fn streamed(room: &Room, call: &str, limit: Option<u64>, body: Body) -> Result<Response, Failure> {
    match call {
        "process.Process/StreamInput" => process::stream_input(room, body).await,
        "process.Process/Start" => process::start(room, only(body).await?, limit).await,
        "process.Process/Connect" => process::connect(room, &only(body).await?, limit).await,
        "filesystem.Filesystem/WatchDir" => watch::watch(room, &only(body).await?, limit).await,
        _ => Err(unknown(call)),
    }
}

fn unknown(call: &str) -> Failure {
    Failure::Refused(Error::new(Known::NotFound, format!("There is no call {call} here.")))
}

async fn single(room: &Room, call: &str, body: Body) -> Result<Response, Failure> {
    let most = if call == "process.Process/SendInput" { LARGEST } else { USUAL };
    let asked = to_bytes(body, most).await.map_err(|_| too_large(most))?;
    let told = match call.split_once('/') {
        Some(("process.Process", verb)) => process::single(room, verb, &asked).await?,
        Some(("filesystem.Filesystem", verb)) => filesystem::single(room, verb, &asked).await?,
        _ => return Err(unknown(call)),
    };
    Ok(([(header::CONTENT_TYPE, SINGLE)], told.to_string()).into_response())
}

fn too_large(most: usize) -> Error {
    Error::new(Known::PayloadTooLarge, format!("A request like this has at most {most} bytes, and comes whole."))
}

/// The only message of a stream that a client sends.
async fn only<T: DeserializeOwned>(body: Body) -> Result<T, Failure> {
    let bytes = to_bytes(body, USUAL).await.map_err(|_| too_large(USUAL))?;
    let mut messages = Messages::default();
    messages.feed(&bytes);
    Ok(messages.pop()?.ok_or_else(|| Refused::new(Code::InvalidArgument, "The request has no message."))?)
}

fn limit(headers: &HeaderMap) -> Option<u64> {
    headers.get(LIMIT)?.to_str().ok()?.parse().ok().filter(|limit| *limit > 0)
}
