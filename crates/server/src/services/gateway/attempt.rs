//! One try at one upstream: the request is sent, and its answer judged before anything of it goes to the client.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use berth_domain::gateway::body::Operation;
use berth_domain::gateway::chunk::{self, Chunk};
use berth_domain::gateway::{refusal, sse};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use super::http::Http;
use super::upstream::Address;
use crate::http::envelope::REQUEST_ID;

/// Most bytes of an answer that is read whole.
pub const WHOLE: usize = 64 << 20;
/// Most bytes of a refusal.
const REFUSAL: usize = 256 << 10;
/// Most bytes of one event of a stream.
pub const EVENT: usize = 8 << 20;

/// What is asked.
pub struct Question<'a> {
    /// What for.
    pub operation: Operation,
    /// Whether the answer is to be a stream of events.
    pub streams: bool,
    /// The body for this upstream.
    pub body: Bytes,
    /// The request's id, passed on.
    pub request_id: &'a str,
}

/// How long an upstream has.
#[derive(Clone, Copy)]
pub struct Patience {
    /// Until the first byte.
    pub first_byte: Duration,
    /// Between two pieces.
    pub idle: Duration,
    /// Until the whole request ends.
    pub deadline: Instant,
}

impl Patience {
    /// When the next piece must be there.
    pub fn next(&self) -> Instant {
        self.deadline.min(Instant::now() + self.idle)
    }

    fn first(&self) -> Instant {
        self.deadline.min(Instant::now() + self.first_byte)
    }
}

/// A good answer, of which nothing has gone to the client.
pub enum Answer {
    /// A whole body, and what it says.
    Whole(Bytes, Chunk),
    /// A stream of events, and what of it came so far: at least one event.
    Events(Incoming, BytesMut),
    /// Anything else as it comes: its type, and its first piece.
    Bytes(HeaderValue, Incoming, Bytes),
    /// The upstream says that the request is wrong.
    Refused(StatusCode, Bytes),
}

/// Why an upstream's answer is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection, or one that broke.
    Unreachable,
    /// Not in time.
    Timeout,
    /// A status that says so; with the seconds after which to try again.
    Status(u16, Option<u64>),
    /// A body that is not what was asked for.
    Body,
}

impl Failure {
    /// Whether the same upstream may do better a moment later.
    pub const fn may_pass(self) -> bool {
        matches!(self, Self::Unreachable | Self::Body | Self::Status(408 | 500 | 502 | 503 | 504, _))
    }
}

/// Asks an upstream.
pub async fn ask(
    http: &Http,
    address: &Address,
    question: &Question<'_>,
    patience: Patience,
) -> Result<Answer, Failure> {
    let request = request(address, question).ok_or(Failure::Body)?;
    let sent = timeout_at(patience.first(), http.send(request)).await.map_err(|_| Failure::Timeout)?;
    let response = sent.map_err(|error| {
        tracing::debug!(%error, "an upstream cannot be reached");
        Failure::Unreachable
    })?;
    let status = response.status();
    match status.as_u16() {
        200..=299 => {}
        401 | 403 | 408 | 429 => return Err(Failure::Status(status.as_u16(), retry_after(response.headers()))),
        400..=499 => return refused(address, status, response.into_body(), patience).await,
        other => return Err(Failure::Status(other, None)),
    }
    let kind = response.headers().get(header::CONTENT_TYPE).cloned();
    let essence = kind.as_ref().and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_ascii_lowercase();
    let body = response.into_body();
    match question.operation {
        Operation::Speech if essence.starts_with("application/json") || essence.starts_with("text/html") => {
            Err(Failure::Body)
        }
        Operation::Speech => first_piece(kind, body, patience).await,
        _ if question.streams && essence.starts_with("text/event-stream") => first_event(body, patience).await,
        _ if question.streams => Err(Failure::Body),
        operation => whole(operation, body, patience).await,
    }
}

fn request(address: &Address, question: &Question<'_>) -> Option<Request<Full<Bytes>>> {
    let accept = if question.streams { "text/event-stream" } else { "*/*" };
    let mut request = Request::new(Full::new(question.body.clone()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = address.uri(question.operation).clone();
    let headers = request.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
    headers.insert(header::USER_AGENT, HeaderValue::from_static(concat!("berth/", env!("CARGO_PKG_VERSION"))));
    headers.insert(REQUEST_ID, HeaderValue::from_str(question.request_id).ok()?);
    if let Some(credential) = &address.credential {
        headers.insert(header::AUTHORIZATION, credential.clone());
    }
    Some(request)
}

fn retry_after(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()
}

/// The next piece of a body; `None` at its end.
pub async fn piece(body: &mut Incoming, until: Instant) -> Result<Option<Bytes>, Failure> {
    loop {
        match timeout_at(until, body.frame()).await {
            Err(_) => return Err(Failure::Timeout),
            Ok(None) => return Ok(None),
            Ok(Some(Err(_))) => return Err(Failure::Unreachable),
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => return Ok(Some(data)),
                // Trailers tell nothing that a client would read.
                Err(_) => {}
            },
        }
    }
}

/// Reads a body to its end.
async fn read(mut body: Incoming, most: usize, patience: Patience) -> Result<Bytes, Failure> {
    let Some(first) = piece(&mut body, patience.first()).await? else { return Ok(Bytes::new()) };
    let Some(second) = piece(&mut body, patience.next()).await? else { return Ok(first) };
    let mut all = BytesMut::from(first);
    let mut next = Some(second);
    while let Some(piece_of_it) = next {
        if all.len() + piece_of_it.len() > most {
            return Err(Failure::Body);
        }
        all.extend_from_slice(&piece_of_it);
        next = piece(&mut body, patience.next()).await?;
    }
    Ok(all.freeze())
}

/// A refusal that is the caller's to read: as it is where it is one of OpenAI's and tells nothing of the upstream.
async fn refused(address: &Address, status: StatusCode, body: Incoming, patience: Patience) -> Result<Answer, Failure> {
    let body = read(body, REFUSAL, patience).await.unwrap_or_default();
    let secrets = address.secrets();
    if refusal::passes(&body, &secrets) {
        return Ok(Answer::Refused(status, body));
    }
    let told = refusal::read(status.as_u16(), &body, &secrets);
    Ok(Answer::Refused(status, refusal::envelope(&told).into()))
}

async fn whole(operation: Operation, body: Incoming, patience: Patience) -> Result<Answer, Failure> {
    let body = read(body, WHOLE, patience).await?;
    let chunk = chunk::read(&body).filter(|chunk| !chunk.failed).ok_or(Failure::Body)?;
    let has_choices = matches!(operation, Operation::Chat | Operation::Completions);
    if has_choices && chunk.choices == 0 {
        return Err(Failure::Body);
    }
    Ok(Answer::Whole(body, chunk))
}

async fn first_piece(kind: Option<HeaderValue>, mut body: Incoming, patience: Patience) -> Result<Answer, Failure> {
    let first = piece(&mut body, patience.first()).await?.ok_or(Failure::Body)?;
    let kind = kind.unwrap_or(HeaderValue::from_static("application/octet-stream"));
    Ok(Answer::Bytes(kind, body, first))
}

/// Reads a stream until its first event that says something.
async fn first_event(mut body: Incoming, patience: Patience) -> Result<Answer, Failure> {
    let until = patience.first();
    let (mut held, mut judged, mut searched) = (BytesMut::new(), 0, 0);
    loop {
        while let Some(end) = sse::end_of_event(&held[judged..], searched) {
            if let Some(data) = sse::data(&held[judged..judged + end]) {
                let good = chunk::read(&data).is_some_and(|chunk| !chunk.failed);
                return if good { Ok(Answer::Events(body, held)) } else { Err(Failure::Body) };
            }
            (judged, searched) = (judged + end, 0);
        }
        // A blank line may stand across two pieces.
        searched = (held.len() - judged).saturating_sub(3);
        let next = piece(&mut body, until).await?.ok_or(Failure::Body)?;
        if held.len() + next.len() > EVENT {
            return Err(Failure::Body);
        }
        held.extend_from_slice(&next);
    }
}
