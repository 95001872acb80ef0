//! The Model Context Protocol: messages to a service, and what it answers.
//!
//! A client of the protocol has its own words for everything; here they are carried, with the headers that a service wants to
//! see of each message. An answer whose connection breaks off is taken up where it broke off.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_stream::try_stream;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::StreamExt;
use futures::stream::BoxStream;
use http::{HeaderValue, Method, StatusCode, header};
use reqwest::{RequestBuilder, Response};
use serde_json::Value;
use tokio::time::sleep;

use crate::runtime::events::{Broken, events_within};
use crate::transport::Refused;
use crate::{Client, Error, Result};

const PATH: &str = "/mcp";
const SESSION: &str = "mcp-session-id";
/// What answers may be.
const ACCEPTED: &str = "application/json, text/event-stream";
/// The longest event, in bytes: an answer with a picture in base64, and room.
const LONGEST: usize = 16 << 20;
/// How often an answer is taken up again that breaks off without a word.
const AGAIN: u32 = 5;
/// The first wait before that; each is twice as long as the one before.
const PAUSE: Duration = Duration::from_millis(250);

/// The protocol at a service, in a project.
#[derive(Clone)]
pub struct Mcp {
    client: Client,
    project: Option<String>,
    /// What the answer to a handshake brought.
    session: Arc<OnceLock<HeaderValue>>,
}

impl Client {
    /// The Model Context Protocol in a project, by its id or slug. An API key implies its project.
    pub fn mcp(&self, project: Option<&str>) -> Mcp {
        Mcp { client: self.clone(), project: project.map(str::to_owned), session: Arc::default() }
    }
}

impl Mcp {
    /// Sends a message, in this version of the protocol where one was agreed on, and returns what is answered: for a request
    /// notes and at last its response, for everything else nothing.
    ///
    /// # Errors
    /// The service is not reached, or does not let the caller in.
    pub async fn send(&self, message: &Value, version: Option<&str>) -> Result<BoxStream<'static, Result<Value>>> {
        let response = self.answered(|| self.post(message, version)).await?;
        if let Some(session) = response.headers().get(SESSION) {
            self.session.get_or_init(|| session.clone());
        }
        let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or_default().to_owned();
        if kind.starts_with("text/event-stream") {
            return Ok(self.clone().followed(response, version.map(str::to_owned)));
        }
        if response.status() == StatusCode::ACCEPTED {
            return Ok(futures::stream::empty().boxed());
        }
        let refused = Refused::of(&response);
        let bytes = response.bytes().await.map_err(|error| self.client.unreachable(&error))?;
        // A refusal in the protocol's own words is an answer like any other.
        match serde_json::from_slice::<Value>(&bytes) {
            Ok(answer) if answer["jsonrpc"].is_string() => Ok(futures::stream::iter([Ok(answer)]).boxed()),
            _ => Err(refused.with(&bytes)),
        }
    }

    fn request(&self, method: Method, version: Option<&str>) -> RequestBuilder {
        let request = self.client.request(method, PATH).header(header::ACCEPT, ACCEPTED);
        let request = match &self.project {
            Some(project) => request.header("x-project-id", project),
            None => request,
        };
        let request = match self.session.get() {
            Some(session) => request.header(SESSION, session),
            None => request,
        };
        match version {
            Some(version) => request.header("mcp-protocol-version", version),
            None => request,
        }
    }

    fn post(&self, message: &Value, version: Option<&str>) -> RequestBuilder {
        let mut request = self.request(Method::POST, version_of(message).or(version)).json(message);
        if let Some(method) = message["method"].as_str() {
            request = request.header("mcp-method", method);
        }
        match name_of(message) {
            Some(name) => request.header("mcp-name", name),
            None => request,
        }
    }

    /// An answer of whatever status, once an expired access token was renewed.
    async fn answered(&self, build: impl Fn() -> RequestBuilder) -> Result<Response> {
        let used = self.client.tokens().map(|tokens| tokens.access_token);
        let send = async || build().send().await.map_err(|error| self.client.unreachable(&error));
        let response = send().await?;
        if response.status() == StatusCode::UNAUTHORIZED && self.client.renew(used).await? {
            return send().await;
        }
        Ok(response)
    }

    /// The messages of a stream to the response, over as many connections as that takes.
    fn followed(self, response: Response, version: Option<String>) -> BoxStream<'static, Result<Value>> {
        try_stream! {
            let (mut events, mut last, mut tries) = (events_within(response, LONGEST), String::new(), 0);
            loop {
                while let Some(event) = events.next().await {
                    let event = match event {
                        Ok(event) => event,
                        Err(Broken::Connection(_)) => break,
                        // It would come again.
                        Err(error) => Err(Error::Protocol(error.to_string()))?,
                    };
                    last.clone_from(&event.id);
                    if event.data.is_empty() {
                        continue;
                    }
                    let message: Value = serde_json::from_str(&event.data)
                        .map_err(|error| Error::Protocol(format!("an answer cannot be read: {error}")))?;
                    let is_response = message.get("method").is_none();
                    tries = 0;
                    yield message;
                    if is_response {
                        return;
                    }
                }
                if last.is_empty() || tries == AGAIN {
                    Err(Error::Protocol("the answer broke off and is not whole".to_owned()))?;
                }
                sleep(PAUSE * 2_u32.pow(tries)).await;
                tries += 1;
                let again = || self.request(Method::GET, version.as_deref()).header("last-event-id", &last);
                // A service that starts again is not there for a moment.
                if let Ok(response) = self.answered(again).await && response.status().is_success() {
                    events = events_within(response, LONGEST);
                }
            }
        }
        .boxed()
    }
}

/// The version that a message names itself, as it does in versions without a handshake.
fn version_of(message: &Value) -> Option<&str> {
    message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"].as_str()
}

/// What a message asks for by name, in a form that a header takes.
fn name_of(message: &Value) -> Option<String> {
    let named = match message["method"].as_str()? {
        "tools/call" | "prompts/get" => &message["params"]["name"],
        "resources/read" => &message["params"]["uri"],
        _ => return None,
    };
    let name = named.as_str()?;
    let is_plain = name.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && name.trim() == name;
    Some(if is_plain { name.to_owned() } else { format!("=?base64?{}?=", STANDARD.encode(name)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn headers_say_what_a_message_says() {
        let call = json!({"method": "tools/call", "params": {"name": "sandbox_list", "_meta":
            {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}});
        assert_eq!((name_of(&call).as_deref(), version_of(&call)), (Some("sandbox_list"), Some("2026-07-28")));
        let read = json!({"method": "resources/read", "params": {"uri": "berth://vms/a/console"}});
        assert_eq!((name_of(&read).as_deref(), version_of(&read)), (Some("berth://vms/a/console"), None));
        let strange = json!({"method": "tools/call", "params": {"name": "a\nb"}});
        assert_eq!(name_of(&strange).as_deref(), Some("=?base64?YQpi?="));
        for nameless in [json!({"method": "ping"}), json!({}), json!({"method": "tools/call", "params": {}})] {
            assert_eq!(name_of(&nameless), None);
        }
    }
}
