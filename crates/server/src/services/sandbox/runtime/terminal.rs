//! A terminal: a WebSocket on the user's side, frames in the two bodies of one request on the agent's.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::http::{Request, Uri, header};
use axum::response::Response;
use berth_domain::agent::terminal::{Decoder, Frame, FromServer, MAX_PAYLOAD, encode};
use berth_domain::{Code, Error};
use bytes::Bytes;
use futures::StreamExt;
use http_body_util::{BodyDataStream, BodyExt};
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;

use super::forward::{Reply, open, refusal, room};
use super::inside::Inside;
use crate::http::websocket;

/// How long what a client typed before it left may take to be read, and to be on its way.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Frames under way to the agent: who types faster waits.
const UNDER_WAY: usize = 64;

/// Opens or takes up a terminal. Without an upgrade, what is wrong with the request is told all the same.
pub(super) async fn connect(inside: Inside, query: Option<&str>, upgrade: Option<WebSocketUpgrade>) -> Reply {
    let upgrade = upgrade.ok_or_else(|| Error::new(Code::InvalidRequest, "Connect to this route with a WebSocket."))?;
    let (typed, body) = mpsc::channel(UNDER_WAY);
    let room = room(query);
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    let uri: Uri = format!("http://agent/{room}/terminal{query}")
        .parse()
        .map_err(|_| Error::new(Code::InvalidRequest, "The query is not valid."))?;
    let mut request = Request::post(uri)
        .body(Body::from_stream(ReceiverStream::new(body)))
        .map_err(|error| Error::internal(error.to_string()))?;
    request.headers_mut().insert(header::AUTHORIZATION, inside.authorization()?);
    let (parts, shown) = open(&inside, request).await?.into_parts();
    if !parts.status.is_success() {
        return Err(refusal(parts.status, shown).await);
    }
    let upgrade = upgrade.protocols(["berth"]).max_message_size(MAX_PAYLOAD);
    let response: Response = upgrade.on_upgrade(async move |socket| relay(socket, inside, typed, shown).await);
    Ok(response)
}

/// What a client types, on its way to the agent.
type Typed = mpsc::Sender<Result<Bytes, Infallible>>;

/// Carries both ways until one side ends, or the caller may not any more.
async fn relay(mut socket: WebSocket, inside: Inside, typed: Typed, shown: Incoming) {
    let mut shown = shown.into_data_stream();
    let mut decoder = Decoder::default();
    let mut over = std::pin::pin!(inside.over());
    let close = loop {
        tokio::select! {
            () = &mut over => break Some((close_code::POLICY, "the credential or the role of this terminal ended")),
            chunk = shown.next() => {
                let Some(Ok(bytes)) = chunk else {
                    break Some((close_code::AWAY, "the sandbox was interrupted"));
                };
                match show(&mut socket, &mut decoder, &bytes).await {
                    Shown::More => {}
                    Shown::Ended => break Some((close_code::NORMAL, "the terminal's program ended")),
                    Shown::Broken => break Some((close_code::ERROR, "the sandbox sent what is no terminal")),
                    Shown::Left => {
                        // What was typed before may still lie in its socket. One that can be read for longer was not dropped.
                        let _ = timeout(LAST_WORDS, take_the_rest(&mut socket, &typed)).await;
                        break None;
                    }
                }
            }
            message = socket.recv() => match said(message) {
                Said::Frame(frame) => pass(&frame, &typed).await,
                Said::Nothing => {}
                Said::End => break None,
            }
        }
    };
    match close {
        Some((code, reason)) => websocket::close(socket, Some(CloseFrame { code, reason: reason.into() })).await,
        None => leave(typed, shown).await,
    }
}

/// Ends what was typed, and lets it get there: what a connection still has to send of a stream goes with it when nobody
/// reads that stream any more.
async fn leave(typed: Typed, mut shown: BodyDataStream<Incoming>) {
    drop(typed);
    let _ = timeout(LAST_WORDS, async { while let Some(Ok(_)) = shown.next().await {} }).await;
}

/// What a client's message is to the agent.
enum Said {
    Frame(Frame),
    Nothing,
    End,
}

fn said(message: Option<Result<Message, axum::Error>>) -> Said {
    match message {
        Some(Ok(Message::Binary(bytes))) => Said::Frame(Frame::Bytes(bytes.into())),
        Some(Ok(Message::Text(text))) => Said::Frame(Frame::Text(text.as_str().to_owned())),
        Some(Ok(Message::Ping(_) | Message::Pong(_))) => Said::Nothing,
        Some(Ok(Message::Close(_)) | Err(_)) | None => Said::End,
    }
}

/// Passes on what a client typed before it left.
async fn take_the_rest(socket: &mut WebSocket, typed: &Typed) {
    loop {
        match said(socket.recv().await) {
            Said::Nothing => {}
            Said::End => return,
            Said::Frame(frame) => pass(&frame, typed).await,
        }
    }
}

/// Passes a frame on. A terminal that takes none has ended, and what it showed last and how it ended are still to come.
async fn pass(frame: &Frame, typed: &Typed) {
    let _ = typed.send(Ok(encode(frame).into())).await;
}

enum Shown {
    More,
    Ended,
    Broken,
    Left,
}

async fn show(socket: &mut WebSocket, decoder: &mut Decoder, bytes: &[u8]) -> Shown {
    decoder.feed(bytes);
    loop {
        let message = match decoder.next() {
            Err(_) => return Shown::Broken,
            Ok(None) => return Shown::More,
            Ok(Some(Frame::Bytes(bytes))) => Message::Binary(bytes.into()),
            Ok(Some(Frame::Text(text))) => {
                let last = matches!(serde_json::from_str(&text), Ok(FromServer::Exit { .. }));
                if socket.send(Message::Text(text.into())).await.is_err() {
                    return Shown::Left;
                }
                if last {
                    return Shown::Ended;
                }
                continue;
            }
        };
        if socket.send(message).await.is_err() {
            return Shown::Left;
        }
    }
}
