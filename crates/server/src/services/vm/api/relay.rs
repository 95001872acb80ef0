//! A WebSocket that carries the bytes of a machine's console or screen.

use axum::extract::FromRequestParts;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::http::request::Parts;
use axum::response::Response;
use berth_domain::{Code, Error};
use berth_host::vm::Console;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::http::envelope::ApiError;
use crate::http::websocket;

/// Bytes of a machine in one message.
const PIECE: usize = 32 << 10;
/// Most bytes of a client's message; what is pasted has no more in VNC either.
const MESSAGE: usize = 1 << 20;

/// The upgrade, if the request asks for one: so that authentication is decided first.
pub(super) struct MaybeUpgrade(Option<WebSocketUpgrade>);

impl<S: Send + Sync> FromRequestParts<S> for MaybeUpgrade {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        Ok(Self(WebSocketUpgrade::from_request_parts(parts, state).await.ok()))
    }
}

impl MaybeUpgrade {
    /// The upgrade, which the route is for.
    pub(super) fn required(self) -> Result<WebSocketUpgrade, Error> {
        self.0.ok_or_else(|| Error::new(Code::InvalidRequest, "Connect to this route with a WebSocket."))
    }
}

/// Carries bytes both ways, in binary messages, until one side ends, or the caller may not any more.
pub(super) fn carry(
    upgrade: WebSocketUpgrade,
    machine: Box<dyn Console>,
    over: impl Future<Output = ()> + Send + 'static,
) -> Response {
    upgrade.max_message_size(MESSAGE).on_upgrade(async move |mut socket| {
        // A client that takes nothing holds the one back, and must not hold the other.
        tokio::select! {
            () = over => {}
            () = relay(&mut socket, machine) => {}
        }
        websocket::close(socket, None).await;
    })
}

async fn relay(socket: &mut WebSocket, mut machine: Box<dyn Console>) {
    let mut buffer = vec![0; PIECE];
    loop {
        tokio::select! {
            read = machine.read(&mut buffer) => match read {
                Ok(0) | Err(_) => break,
                Ok(n) => {
                    if socket.send(Message::Binary(buffer[..n].to_vec().into())).await.is_err() {
                        break;
                    }
                }
            },
            message = socket.recv() => {
                let bytes = match message {
                    Some(Ok(Message::Binary(bytes))) => bytes,
                    Some(Ok(Message::Text(text))) => text.into(),
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                    Some(Ok(Message::Close(_)) | Err(_)) | None => break,
                };
                if machine.write_all(&bytes).await.is_err() {
                    break;
                }
            }
        }
    }
}
