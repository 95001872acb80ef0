//! One try at one upstream: sends the request, and judges the answer before anything of it goes to the client.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode};
use berth_domain::gateway::body::Operation;
use berth_domain::gateway::chunk::{self, Chunk};
use berth_domain::gateway::refusal;
use berth_domain::sse;
use bytes::{Bytes, BytesMut};
use tokio::time::{Instant, timeout_at};

use crate::http::event_loop::compute;
use crate::services::gateway::upstream::address::Address;
use crate::services::gateway::upstream::client::{Body, Client, ClientError, Request};

/// Most bytes of an answer that is read whole.
pub const WHOLE: usize = 64 << 20;
/// Most bytes of a refusal.
const REFUSAL: usize = 256 << 10;
/// Most bytes of one event of a stream.
pub const EVENT: usize = 8 << 20;

/// What the gateway asks an upstream.
pub struct Question<'a> {
    /// What for.
    pub operation: Operation,
    /// Whether the answer is to be a stream of events.
    pub streams: bool,
    /// The body for this upstream.
    pub body: Bytes,
    /// The request's id, passed on.
    pub request_id: &'a str,
    /// How to follow the request.
    pub track: Track,
}

/// Follows what an upstream does with a request.
#[derive(Default)]
pub struct Track {
    /// The request's span, passed on where it has one.
    pub traceparent: Option<String>,
    /// Becomes true once the upstream has the whole request.
    pub sent: Arc<AtomicBool>,
}

/// How long the gateway waits for an upstream.
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

/// A good answer, of which the client has nothing yet.
pub enum Answer {
    /// A whole body, and what it says.
    Whole(Bytes, Chunk),
    /// A stream of events.
    Events(Begun),
    /// Any other body as it comes: its type, the rest, and its first piece.
    Bytes(HeaderValue, Body, Bytes),
    /// The upstream says that the request is wrong.
    Refused(StatusCode, Bytes),
}

/// A stream of events that began well.
pub struct Begun {
    /// The rest of it.
    pub body: Body,
    /// The bytes so far: at least one event with content.
    pub held: BytesMut,
    /// What the first such event says.
    pub first: Chunk,
}

/// Why the upstream gave no good answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection, or one that broke.
    Unreachable,
    /// Not in time.
    Timeout,
    /// Not in time, though the upstream had the whole request: it worked, and has to be paid.
    Late,
    /// A status that means failure, and the seconds after which to try again.
    Status(u16, Option<u64>),
    /// A body in the wrong form.
    Body,
}

impl Failure {
    /// Whether the same upstream may succeed a moment later.
    pub const fn may_pass(self) -> bool {
        matches!(self, Self::Unreachable | Self::Body | Self::Status(408 | 500 | 502 | 503 | 504, _))
    }
}

/// Asks an upstream.
pub async fn ask(
    http: &Client,
    address: &Address,
    question: &Question<'_>,
    patience: Patience,
) -> Result<Answer, Failure> {
    let request = request(address, question);
    let sending = http.send(&address.origin, &request);
    let late = |failure| if failure == Failure::Timeout && request.is_sent() { Failure::Late } else { failure };
    let response = timeout_at(patience.first(), sending).await.map_err(|_| late(Failure::Timeout))??;
    let (status, body) = (response.status, response.body);
    match status.as_u16() {
        200..=299 => {}
        401 | 403 | 408 | 429 => return Err(Failure::Status(status.as_u16(), response.retry_after)),
        400..=499 => return refused(address, status, body, patience).await,
        other => return Err(Failure::Status(other, None)),
    }
    let kind = response.content_type;
    let essence = kind.as_ref().and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_ascii_lowercase();
    match question.operation {
        Operation::Speech if essence.starts_with("application/json") || essence.starts_with("text/html") => {
            Err(Failure::Body)
        }
        Operation::Speech => first_piece(kind, body, patience).await.map_err(late),
        _ if question.streams && essence.starts_with("text/event-stream") => {
            first_event(body, patience).await.map_err(late)
        }
        _ if question.streams => Err(Failure::Body),
        operation => whole(operation, body, patience).await.map_err(late),
    }
}

fn request(address: &Address, question: &Question<'_>) -> Request {
    let Question { operation, streams, body, request_id, track: Track { traceparent, sent } } = question;
    let trace = traceparent.as_ref().map(|parent| format!("traceparent: {parent}\r\n")).unwrap_or_default();
    let length = body.len().to_string();
    let accept = if *streams { "text/event-stream" } else { "*/*" };
    let head = [
        address.head(*operation),
        b"content-type: application/json\r\naccept: ",
        accept.as_bytes(),
        b"\r\nx-request-id: ",
        request_id.as_bytes(),
        b"\r\n",
        trace.as_bytes(),
        b"content-length: ",
        length.as_bytes(),
        b"\r\n\r\n",
    ];
    Request::telling(head.concat(), body.clone(), sent.clone())
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        tracing::debug!(%error, "the connection to an upstream failed");
        Self::Unreachable
    }
}

/// Appends the next piece of a body; false at its end.
pub async fn read(body: &mut Body, into: &mut BytesMut, until: Instant) -> Result<bool, Failure> {
    Ok(timeout_at(until, body.read(into)).await.map_err(|_| Failure::Timeout)??)
}

/// The next piece of a body; `None` at its end.
pub async fn piece(body: &mut Body, until: Instant) -> Result<Option<Bytes>, Failure> {
    let mut piece = BytesMut::new();
    Ok(read(body, &mut piece, until).await?.then(|| piece.freeze()))
}

/// Reads a body to its end.
async fn read_whole(mut body: Body, most: usize, patience: Patience) -> Result<Bytes, Failure> {
    let mut all = BytesMut::new();
    let mut goes_on = read(&mut body, &mut all, patience.first()).await?;
    while goes_on {
        if all.len() > most {
            return Err(Failure::Body);
        }
        goes_on = read(&mut body, &mut all, patience.next()).await?;
    }
    Ok(all.freeze())
}

/// A refusal that the caller may read: unchanged if it has OpenAI's form and holds no secret of the upstream.
async fn refused(address: &Address, status: StatusCode, body: Body, patience: Patience) -> Result<Answer, Failure> {
    let body = read_whole(body, REFUSAL, patience).await.unwrap_or_default();
    let secrets = address.secrets();
    if refusal::passes(&body, &secrets) {
        return Ok(Answer::Refused(status, body));
    }
    let told = refusal::read(status.as_u16(), &body, &secrets);
    Ok(Answer::Refused(status, refusal::envelope(&told).into()))
}

async fn whole(operation: Operation, body: Body, patience: Patience) -> Result<Answer, Failure> {
    let body = read_whole(body, WHOLE, patience).await?;
    let text = body.clone();
    let chunk = compute(body.len(), move || chunk::read(&text)).await;
    let chunk = chunk.filter(|chunk| !chunk.failed).ok_or(Failure::Body)?;
    let has_choices = matches!(operation, Operation::Chat | Operation::Completions);
    if has_choices && chunk.choices == 0 {
        return Err(Failure::Body);
    }
    Ok(Answer::Whole(body, chunk))
}

async fn first_piece(kind: Option<HeaderValue>, mut body: Body, patience: Patience) -> Result<Answer, Failure> {
    let first = piece(&mut body, patience.first()).await?.ok_or(Failure::Body)?;
    let kind = kind.unwrap_or(HeaderValue::from_static("application/octet-stream"));
    Ok(Answer::Bytes(kind, body, first))
}

/// Reads a stream up to its first event with content.
async fn first_event(mut body: Body, patience: Patience) -> Result<Answer, Failure> {
    let until = patience.first();
    let (mut held, mut judged, mut searched) = (BytesMut::new(), 0, 0);
    loop {
        while let Some(end) = sse::end_of_event(&held[judged..], searched) {
            if let Some(data) = sse::data(&held[judged..judged + end]) {
                let first = chunk::read(&data).filter(|chunk| !chunk.failed).ok_or(Failure::Body)?;
                return Ok(Answer::Events(Begun { body, held, first }));
            }
            (judged, searched) = (judged + end, 0);
        }
        // The bytes of a blank line may be split between two pieces.
        searched = (held.len() - judged).saturating_sub(3);
        if !read(&mut body, &mut held, until).await? || held.len() > EVENT {
            return Err(Failure::Body);
        }
    }
}
