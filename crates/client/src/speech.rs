//! Speech, streamed as the service makes it.

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use http::Method;
use serde::Serialize;

use crate::{Error, Inference, Result};

/// A text to speak, and how.
#[derive(Clone, Debug, Serialize)]
pub struct Speech {
    /// The model that speaks.
    pub model: String,
    /// The text, of 4,096 characters at most.
    pub input: String,
    /// The voice.
    pub voice: String,
    /// `mp3`, `opus`, `aac`, `flac`, `wav` or `pcm`.
    pub response_format: String,
    /// 0.25 to 4.
    pub speed: f64,
}

impl Inference {
    /// Speaks a text; the sound comes as it is made. A stream that ends without an error is complete.
    pub async fn speak(&self, speech: &Speech) -> Result<BoxStream<'static, Result<Bytes>>> {
        let body = serde_json::to_value(speech).map_err(|e| Error::Protocol(e.to_string()))?;
        let response = self.send(Method::POST, "/v1/audio/speech", Some(&body)).await?;
        let broken = |e: reqwest::Error| Error::Protocol(format!("the sound broke off and is not whole: {e}"));
        Ok(response.bytes_stream().map(move |piece| piece.map_err(broken)).boxed())
    }
}
