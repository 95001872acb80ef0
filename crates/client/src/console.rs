//! The serial console and the screen of a VM.

use futures::{SinkExt, StreamExt};
use http::header::{AUTHORIZATION, HeaderValue};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::transport::segment;
use crate::{Error, ProjectClient, Result};

/// A connection to a serial console or a screen: bytes in both directions.
pub struct Console(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl ProjectClient {
    /// Connects to the serial console of a running VM.
    pub async fn console(&self, vm: &str) -> Result<Console> {
        self.bytes_of(vm, "console").await
    }

    /// Connects to the screen of a running VM: VNC's bytes (RFC 6143), without a password.
    pub async fn screen(&self, vm: &str) -> Result<Console> {
        self.bytes_of(vm, "screen").await
    }

    async fn bytes_of(&self, vm: &str, part: &str) -> Result<Console> {
        // This request reports errors in the API's own words, and renews an expired token.
        self.vm(vm).await?;
        let base = self.client.base().replacen("http", "ws", 1);
        let url = format!("{base}{}/vms/{}/{part}/ws", self.path, segment(vm));
        let mut request = url.into_client_request().map_err(|e| Error::Protocol(e.to_string()))?;
        let token = self.client.tokens().map(|t| t.access_token).unwrap_or_default();
        let bearer = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|e| Error::Protocol(e.to_string()))?;
        request.headers_mut().insert(AUTHORIZATION, bearer);
        connect_async(request).await.map(|(socket, _)| Console(socket)).map_err(refusal)
    }
}

fn refusal(error: tungstenite::Error) -> Error {
    let tungstenite::Error::Http(response) = &error else {
        return Error::Protocol(format!("the machine cannot be reached: {error}"));
    };
    let body: serde_json::Value =
        response.body().as_deref().and_then(|b| serde_json::from_slice(b).ok()).unwrap_or_default();
    let text = |key: &str| body[key].as_str().unwrap_or_default().to_owned();
    Error::Api {
        status: response.status().as_u16(),
        code: text("code"),
        message: text("message"),
        details: Vec::new(),
        retry_after: None,
        request_id: String::new(),
    }
}

impl Console {
    /// The next bytes; `None` when the connection is closed.
    pub async fn read(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            match self.0.next().await {
                Some(Ok(Message::Binary(bytes))) => return Ok(Some(bytes.into())),
                Some(Ok(Message::Text(text))) => return Ok(Some(text.as_bytes().to_vec())),
                Some(Ok(Message::Close(_))) | None => return Ok(None),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(Error::Protocol(format!("the connection broke off: {error}"))),
            }
        }
    }

    /// Types bytes.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let message = Message::Binary(bytes.to_vec().into());
        self.0.send(message).await.map_err(|error| Error::Protocol(format!("the connection broke off: {error}")))
    }
}
