//! Conversations with a model; the answer comes as a stream.

use std::time::Duration;

use async_stream::try_stream;
use berth_domain::sse::Event;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use http::Method;
use serde_json::Value;

use crate::runtime::events::{Broken, patient_events};
use crate::transport::{Enveloped, request_id};
use crate::{Error, Inference, Result};

/// The longest line of an event, in bytes.
const LONGEST: usize = 32 << 20;
/// Longest silence. The service itself ends an answer when its model is silent for the model's time-out, which is a day
/// at most. This bound is for a service that is gone.
const SILENCE: Duration = Duration::from_hours(25);
/// The data of the last event.
const DONE: &str = "[DONE]";

/// A piece of an answer, as the service sent it.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatChunk(pub Value);

impl ChatChunk {
    /// What the model says: text, or the words with which it declines.
    pub fn text(&self) -> &str {
        let said = self.delta("content");
        if said.is_empty() { self.delta("refusal") } else { said }
    }

    /// The model's reasoning before its answer.
    pub fn reasoning(&self) -> &str {
        let thought = self.delta("reasoning_content");
        if thought.is_empty() { self.delta("reasoning") } else { thought }
    }

    /// Why the answer ends here: `stop`, `length`, ….
    pub fn finish_reason(&self) -> Option<&str> {
        self.0["choices"][0]["finish_reason"].as_str()
    }

    fn delta(&self, field: &str) -> &str {
        self.0["choices"][0]["delta"][field].as_str().unwrap_or_default()
    }
}

impl Inference {
    /// Asks a model, and returns its answer as it comes. A stream that ends without an error is complete.
    pub async fn chat_stream(&self, request: &Value) -> Result<BoxStream<'static, Result<ChatChunk>>> {
        let mut request = request.clone();
        if let Some(fields) = request.as_object_mut() {
            fields.insert("stream".into(), true.into());
        }
        let response = self.send(Method::POST, "/v1/chat/completions", Some(&request)).await?;
        let id = request_id(&response);
        Ok(chunks(patient_events(response, LONGEST, SILENCE), id).boxed())
    }
}

fn chunks(
    mut events: impl Stream<Item = std::result::Result<Event, Broken>> + Send + Unpin,
    request_id: String,
) -> impl Stream<Item = Result<ChatChunk>> + Send {
    try_stream! {
        loop {
            let broken = |reason: &str| Error::Protocol(format!("the answer broke off and is not whole{reason}"));
            let event = match events.next().await {
                None => Err(broken(""))?,
                Some(Err(error)) => Err(broken(&format!(": {error}")))?,
                Some(Ok(event)) => event,
            };
            if event.data.trim() == DONE {
                return;
            }
            yield read(&event.data, &request_id)?;
        }
    }
}

/// A piece of an answer, or the error in its place.
fn read(data: &str, request_id: &str) -> Result<ChatChunk> {
    let nonsense = |e| Error::Protocol(format!("the answer cannot be read: {e}"));
    let value: Value = serde_json::from_str(data).map_err(nonsense)?;
    if value["error"].is_null() {
        return Ok(ChatChunk(value));
    }
    let told: Enveloped = serde_json::from_value(value).map_err(nonsense)?;
    Err(told.within(request_id.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_tell_what_they_hold() {
        let piece = read(r#"{"choices":[{"delta":{"content":"hé","reasoning_content":"hm"}}]}"#, "").unwrap();
        assert_eq!((piece.text(), piece.reasoning(), piece.finish_reason()), ("hé", "hm", None));
        let declined = read(r#"{"choices":[{"delta":{"content":null,"refusal":"no"}}]}"#, "").unwrap();
        assert_eq!(declined.text(), "no");
        let last = read(r#"{"choices":[{"delta":{},"finish_reason":"length"}],"error":null}"#, "").unwrap();
        assert_eq!((last.text(), last.finish_reason()), ("", Some("length")));
        let usage = read(r#"{"choices":[],"usage":{}}"#, "").unwrap();
        assert_eq!((usage.text(), usage.reasoning(), usage.finish_reason()), ("", "", None));
    }

    #[test]
    fn an_error_is_one() {
        let error =
            read(r#"{"error":{"message":"gone","type":"api_error","code":"upstream_error"}}"#, "7").unwrap_err();
        assert!(matches!(error, Error::Api { status: 502, request_id, .. } if request_id == "7"));
        assert!(read("{", "").unwrap_err().to_string().contains("cannot be read"));
        assert!(read(r#"{"error":"gone"}"#, "").is_err());
    }
}
