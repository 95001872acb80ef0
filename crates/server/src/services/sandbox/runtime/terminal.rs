//! A terminal: a WebSocket on the user's side, frames in the two bodies of one request on the agent's.

use std::time::Duration;

use axum::body::Body;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::http::{Request, Uri, header};
use axum::response::Response;
use berth_domain::agent::terminal::{Decoder, Frame, FromServer, MAX_PAYLOAD, encode};
use berth_domain::{Code, Error};
use bytes::Bytes;
use futures::StreamExt;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;

use super::forward::{Reply, lost, refusal};
use super::inside::Inside;
use crate::http::websocket;

/// How long what a client typed before it left may take to be read.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Frames under way to the agent: who types faster waits.
const UNDER_WAY: usize = 64;

/// Opens or takes up a terminal. Without an upgrade, what is wrong with the request is told all the same.
pub(super) async fn connect(inside: Inside, query: Option<&str>, upgrade: Option<WebSocketUpgrade>) -> Reply {
    let upgrade = upgrade.ok_or_else(|| Error::new(Code::InvalidRequest, "Connect to this route with a WebSocket."))?;
    let (typed, body) = mpsc::channel::<Result<Bytes, std::convert::Infallible>>(UNDER_WAY);
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    let uri: Uri = format!("http://agent/runtime/terminal{query}")
        .parse()
        .map_err(|_| Error::new(Code::InvalidRequest, "The query is not valid."))?;
    let mut request = Request::post(uri)
        .body(Body::from_stream(ReceiverStream::new(body)))
        .map_err(|error| Error::internal(error.to_string()))?;
    request.headers_mut().insert(header::AUTHORIZATION, inside.authorization()?);
    let answer = inside.connection.session.send(request).await.map_err(lost)?;
    let (parts, shown) = answer.into_parts();
    if !parts.status.is_success() {
        return Err(refusal(parts.status, shown).await);
    }
    let upgrade = upgrade.protocols(["berth"]).max_message_size(MAX_PAYLOAD);
    let response: Response = upgrade.on_upgrade(async move |socket| relay(socket, inside, typed, shown).await);
    Ok(response)
}

/// Carries both ways until one side ends, or the caller may not any more.
async fn relay(
    mut socket: WebSocket,
    inside: Inside,
    typed: mpsc::Sender<Result<Bytes, std::convert::Infallible>>,
    shown: Incoming,
) {
    let mut shown = shown.into_data_stream();
    let mut decoder = Decoder::default();
    let mut over = std::pin::pin!(inside.over());
    let close = loop {
        tokio::select! {
            () = &mut over => break (close_code::POLICY, "the credential or the role of this terminal ended"),
            chunk = shown.next() => {
                let Some(Ok(bytes)) = chunk else {
                    break (close_code::AWAY, "the sandbox was interrupted");
                };
                match show(&mut socket, &mut decoder, &bytes).await {
                    Shown::More => {}
                    Shown::Ended => break (close_code::NORMAL, "the terminal's program ended"),
                    Shown::Broken => break (close_code::ERROR, "the sandbox sent what is no terminal"),
                    // What was typed before may still lie in its socket.
                    Shown::Left => return take_the_rest(socket, typed).await,
                }
            }
            message = socket.recv() => {
                let Some(Ok(message)) = message else { return };
                let frame = match frame_of(message) {
                    Said::Frame(frame) => frame,
                    Said::Nothing => continue,
                    Said::End => return,
                };
                if typed.send(Ok(encode(&frame).into())).await.is_err() {
                    break (close_code::AWAY, "the sandbox was interrupted");
                }
            }
        }
    };
    let (code, reason) = close;
    websocket::close(socket, Some(CloseFrame { code, reason: reason.into() })).await;
}

/// What a client's message is to the agent.
enum Said {
    Frame(Frame),
    Nothing,
    End,
}

fn frame_of(message: Message) -> Said {
    match message {
        Message::Binary(bytes) => Said::Frame(Frame::Bytes(bytes.into())),
        Message::Text(text) => Said::Frame(Frame::Text(text.as_str().to_owned())),
        Message::Ping(_) | Message::Pong(_) => Said::Nothing,
        Message::Close(_) => Said::End,
    }
}

/// Passes on what a client typed before it left.
async fn take_the_rest(mut socket: WebSocket, typed: mpsc::Sender<Result<Bytes, std::convert::Infallible>>) {
    let rest = async {
        while let Some(Ok(message)) = socket.recv().await {
            match frame_of(message) {
                Said::Nothing => {}
                Said::End => return,
                Said::Frame(frame) => {
                    if typed.send(Ok(encode(&frame).into())).await.is_err() {
                        return;
                    }
                }
            }
        }
    };
    // A connection that can be read for longer was not dropped.
    let _ = timeout(LAST_WORDS, rest).await;
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
