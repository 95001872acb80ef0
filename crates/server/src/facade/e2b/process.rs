//! Programs: `process.Process`.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use berth_domain::agent::output;
use berth_domain::agent::runtime::{Process, ProcessState, Processes};
use berth_domain::e2b::connect::{self, Code, Messages, Refused, STREAM, USUAL, read};
use berth_domain::e2b::process::{
    self, Output, Selected, Selector, SendInput, SendSignal, Start, StartRequest, Typed, Update,
};
use berth_domain::{Code as Known, Error};
use futures::StreamExt;
use serde_json::{Value, json};

use super::room::{Failure, Room};
use super::stream::{self, Reading};
use crate::facade::api::escaped;

/// The largest list of programs, in bytes: each has at most what a request may have.
const LIST: usize = 4 << 20;

/// Answers a single call.
pub async fn single(room: &Room, verb: &str, asked: &[u8]) -> Result<Value, Failure> {
    match verb {
        "List" => {
            let all: Processes = room.read(Method::GET, "processes?env=true", None, LIST).await?;
            return Ok(process::list(all.data));
        }
        "Update" => {
            let update: Update = read(asked)?;
            tell(room, &update.process, "resize", &json!(update.size())).await?;
        }
        "SendSignal" => {
            let sent: SendSignal = read(asked)?;
            tell(room, &sent.process, "signal", &json!({"signal": sent.name()?})).await?;
        }
        "SendInput" => {
            let sent: SendInput = read(asked)?;
            type_in(room, &sent.process, sent.input.bytes()?, false).await?;
        }
        "CloseStdin" => type_in(room, &read::<Selected>(asked)?.process, Vec::new(), true).await?,
        _ => return Err(Error::new(Known::NotFound, format!("There is no call {verb} of programs.")).into()),
    }
    Ok(json!({}))
}

/// The path of a program.
fn at(which: &Selector) -> String {
    format!("processes/{}", escaped(&which.name()))
}

async fn tell(room: &Room, which: &Selector, verb: &str, body: &Value) -> Result<(), Failure> {
    room.act(Method::POST, &format!("{}/{verb}", at(which)), Some(body)).await
}

async fn type_in(room: &Room, which: &Selector, bytes: Vec<u8>, eof: bool) -> Result<(), Failure> {
    let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    room.open(Method::POST, &format!("{}/stdin?eof={eof}", at(which)), &[kind], bytes.into()).await.map(drop)
}

/// `Start`: starts a program, and relays its output until its end. A client that leaves does not end it, a time limit does.
pub async fn start(room: &Room, asked: StartRequest, limit: Option<u64>) -> Result<Response, Failure> {
    let Start { request, keeps_input } = asked.start(&room.user, limit);
    let output = if request.pty.is_some() { Output::Terminal } else { Output::Stdout };
    let request = serde_json::to_value(request).map_err(Error::internal)?;
    // What nobody types into is started and followed in one go.
    if !keeps_input {
        let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let body = request.to_string().into();
        let answer = room.open(Method::POST, "commands?root=true", &[kind, frames()], body).await?;
        return Ok(stream::followed(room, answer, Reading { output, pid: None, limit, ends_program: true }));
    }
    let made: Process = room.read(Method::POST, "processes?root=true", Some(&request), USUAL).await?;
    let answer = follow(room, &made, 0, true).await?;
    Ok(stream::followed(room, answer, Reading { output, pid: Some(made.pid), limit, ends_program: true }))
}

/// `Connect`: relays the output of a program from now on. It does not wait for this reader, since it may have another one.
pub async fn connect(room: &Room, asked: &Selected, limit: Option<u64>) -> Result<Response, Failure> {
    let found: Process = room.read(Method::GET, &at(&asked.process), None, USUAL).await?;
    if found.state != ProcessState::Running {
        return Err(Refused::new(Code::NotFound, "The process has ended.").into());
    }
    let answer = follow(room, &found, found.output_bytes, false).await?;
    let output = if found.pty { Output::Terminal } else { Output::Stdout };
    Ok(stream::followed(room, answer, Reading { output, pid: Some(found.pid), limit, ends_program: false }))
}

fn frames() -> (HeaderName, HeaderValue) {
    (header::ACCEPT, HeaderValue::from_static(output::CONTENT_TYPE))
}

/// The output of a program from an offset on; whether the program waits for this reader.
async fn follow(room: &Room, process: &Process, offset: u64, hold: bool) -> Result<Response, Failure> {
    let route = format!("processes/{}/logs?follow=true&hold={hold}&offset={offset}", process.pid);
    room.open(Method::GET, &route, &[frames()], Body::empty()).await
}

/// `StreamInput`: types into a program what comes, as it comes.
pub async fn stream_input(room: &Room, body: Body) -> Result<Response, Failure> {
    let mut pieces = body.into_data_stream();
    let (mut messages, mut into) = (Messages::default(), None);
    while let Some(piece) = pieces.next().await {
        let broken = |error| Error::new(Known::InvalidRequest, format!("The stream broke off: {error}."));
        messages.feed(&piece.map_err(broken)?);
        while let Some(Typed { start, data }) = messages.pop()? {
            into = start.map(|start| start.process).or(into);
            let Some(data) = data else { continue };
            let unsaid = || Refused::new(Code::InvalidArgument, "Say first into which process to type.");
            type_in(room, into.as_ref().ok_or_else(unsaid)?, data.input.bytes()?, false).await?;
        }
    }
    let told = [connect::message(&json!({})), connect::end(None)].concat();
    Ok(([(header::CONTENT_TYPE, STREAM)], told).into_response())
}
