//! Bodies of requests and answers.

use std::pin::Pin;
use std::task::{Context, Poll};

use berth_domain::agent::error::code;
use berth_domain::agent::runtime::Entry;
use bytes::Bytes;
use futures_core::Stream;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use serde::Serialize;
use serde_json::Value;

use crate::error::{Refusal, Result};

/// The most bytes of a body of JSON.
const LIMIT: usize = 256 * 1024;

/// Chunks as they come.
pub type Chunks = Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send>>;

/// The body of an answer.
pub enum Body {
    /// Complete from the start.
    Whole(Bytes),
    /// Sent as it comes.
    Chunks(Chunks),
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        match &mut *self {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Chunks(chunks) => chunks.as_mut().poll_next(context).map(|next| next.map(|r| r.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Chunks(_) => SizeHint::default(),
        }
    }
}

/// An answer.
pub type Answer = Response<Body>;

/// The answer after a file was made or replaced: 201 with its path, or 200. `suffix` ends the query of that path.
pub fn placed(made: bool, route: &str, entry: &Entry, suffix: &str) -> Answer {
    let mut answer = reply(if made { StatusCode::CREATED } else { StatusCode::OK }, entry);
    let path: String = form_urlencoded::byte_serialize(entry.path.as_bytes()).collect();
    if made && let Ok(location) = HeaderValue::try_from(format!("{route}?path={path}{suffix}")) {
        answer.headers_mut().insert(header::LOCATION, location);
    }
    answer
}

/// An answer with JSON.
pub fn reply(status: StatusCode, value: &impl Serialize) -> Answer {
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    typed(status, "application/json", Body::Whole(bytes.into()))
}

/// An answer of 204.
pub fn nothing() -> Answer {
    let mut answer = Response::new(Body::Whole(Bytes::new()));
    *answer.status_mut() = StatusCode::NO_CONTENT;
    answer
}

/// An answer of server-sent events.
pub fn events(chunks: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static) -> Answer {
    stream("text/event-stream", chunks)
}

/// An answer that is sent as things happen.
pub fn stream(kind: &'static str, chunks: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static) -> Answer {
    let mut answer = typed(StatusCode::OK, kind, Body::Chunks(Box::pin(chunks)));
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// An answer with a body of a type.
pub fn typed(status: StatusCode, kind: &'static str, body: Body) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// A refusal as an answer.
pub fn refuse(refusal: Refusal) -> Answer {
    let mut answer = reply(refusal.status, &refusal.body());
    answer.headers_mut().extend(refusal.header.map(|header| *header));
    answer
}

/// Reads a body of JSON.
pub async fn read_json(headers: &HeaderMap, body: Incoming) -> Result<Value> {
    read_json_up_to(LIMIT, headers, body).await
}

/// Reads a body of JSON of at most so many bytes.
pub async fn read_json_up_to(most: usize, headers: &HeaderMap, body: Incoming) -> Result<Value> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        let message = "Send the body as JSON, with 'Content-Type: application/json'.";
        return Err(Refusal::new(code::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let bytes = match Limited::new(body, most).collect().await {
        Ok(body) => body.to_bytes(),
        Err(e) if e.is::<http_body_util::LengthLimitError>() => {
            return Err(Refusal::new(code::PAYLOAD_TOO_LARGE, format!("The body may have at most {most} bytes.")));
        }
        Err(e) => return Err(Refusal::new(code::INVALID_REQUEST, format!("The body could not be read: {e}."))),
    };
    Ok(berth_domain::json::parse(&bytes)?)
}
