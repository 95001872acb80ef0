//! Terminals.

use std::time::Duration;

use berth_domain::agent::terminal::{FromClient, FromServer};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use http::{Method, header};
use reqwest::Upgraded;
use serde::Serialize;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::Runtime;
use crate::transport::query_text;
use crate::{Error, Result};

/// The largest message, in bytes; the agent's are a quarter of it.
const LARGEST: usize = 1 << 20;
/// A live terminal answers a ping; one that is silent for this long is gone.
const SILENCE: Duration = Duration::from_secs(45);

/// A terminal to open, or with `id` to attach to again.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OpenTerminal {
    /// Columns.
    pub cols: u16,
    /// Rows.
    pub rows: u16,
    /// Id of an existing terminal.
    pub id: Option<String>,
    /// Command line for a shell in it, instead of a login shell.
    pub cmd: Option<String>,
    /// Working directory, from the workspace's root.
    pub cwd: Option<String>,
    /// `user` or `root`; with [`Runtime::at_root`] any account.
    pub user: Option<String>,
}

/// What a terminal sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TerminalEvent {
    /// A message in JSON.
    Says(FromServer),
    /// Bytes to show.
    Shows(Vec<u8>),
    /// The connection ended, and the terminal may still be there.
    Gone(String),
}

/// The reading side of a terminal.
pub struct TerminalReader(SplitStream<WebSocketStream<Upgraded>>);

/// The writing side of a terminal.
pub struct TerminalWriter(SplitSink<WebSocketStream<Upgraded>, Message>);

impl Runtime {
    /// Opens a terminal. It survives its connection.
    pub async fn terminal(&self, open: &OpenTerminal) -> Result<(TerminalWriter, TerminalReader)> {
        let url = self.program_url("terminal", &query_text(open)?);
        let key = generate_key();
        let build = || {
            let request = self.client.request(Method::GET, &url);
            request
                .header(header::CONNECTION, "Upgrade")
                .header(header::UPGRADE, "websocket")
                .header(header::SEC_WEBSOCKET_VERSION, "13")
                .header(header::SEC_WEBSOCKET_KEY, &key)
        };
        let response = self.client.send_again(build).await?;
        let accept = response.headers().get(header::SEC_WEBSOCKET_ACCEPT).map(http::HeaderValue::as_bytes);
        if accept != Some(derive_accept_key(key.as_bytes()).as_bytes()) {
            return Err(Error::Protocol("the answer is not a terminal's; does a proxy block WebSockets?".into()));
        }
        let stream = response.upgrade().await.map_err(|error| self.client.unreachable(&error))?;
        let config = WebSocketConfig::default().max_message_size(Some(LARGEST)).max_frame_size(Some(LARGEST));
        let socket = WebSocketStream::from_raw_socket(stream, Role::Client, Some(config)).await;
        let (sink, stream) = socket.split();
        Ok((TerminalWriter(sink), TerminalReader(stream)))
    }
}

impl TerminalReader {
    /// The next event; nothing follows [`TerminalEvent::Gone`] and an exit.
    pub async fn next(&mut self) -> TerminalEvent {
        loop {
            let Ok(message) = timeout(SILENCE, self.0.next()).await else {
                return TerminalEvent::Gone(format!("silent for {} s", SILENCE.as_secs()));
            };
            match message {
                Some(Ok(Message::Binary(bytes))) => return TerminalEvent::Shows(bytes.into()),
                Some(Ok(Message::Text(text))) => {
                    // Ignores messages that a later version added.
                    if let Ok(said) = serde_json::from_str(&text) {
                        return TerminalEvent::Says(said);
                    }
                }
                Some(Ok(Message::Close(frame))) => {
                    let reason = frame.map(|frame| frame.reason.to_string()).unwrap_or_default();
                    return TerminalEvent::Gone(reason);
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return TerminalEvent::Gone(error.to_string()),
                None => return TerminalEvent::Gone("the connection ended".into()),
            }
        }
    }
}

impl TerminalWriter {
    /// Types bytes.
    pub async fn write(&mut self, bytes: Vec<u8>) -> Result<()> {
        self.send(Message::Binary(bytes.into())).await
    }

    /// Sets the size of the window.
    pub async fn resize(&mut self, cols: u16, rows: u16) -> Result<()> {
        self.say(&FromClient::Resize { cols, rows }).await
    }

    /// Sends a signal, such as `SIGINT`, to the process in the foreground.
    pub async fn signal(&mut self, signal: &str) -> Result<()> {
        self.say(&FromClient::Signal { signal: signal.into() }).await
    }

    /// Asks for a sign of life. A reader needs one about every 15 s.
    pub async fn ping(&mut self) -> Result<()> {
        self.send(Message::Ping(Vec::new().into())).await
    }

    async fn say(&mut self, text: &FromClient) -> Result<()> {
        let text = serde_json::to_string(text).map_err(|e| Error::Protocol(e.to_string()))?;
        self.send(Message::Text(text.into())).await
    }

    async fn send(&mut self, message: Message) -> Result<()> {
        self.0.send(message).await.map_err(|error| Error::Protocol(format!("the terminal broke off: {error}")))
    }
}
