//! Speech: a text becomes sound, by this machine's own voices, a voice's server, or a model's upstreams.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use berth_domain::gateway::body::{Head, Operation};
use berth_domain::gateway::speech::Speech;
use berth_domain::gateway::{Price, Source, Timeouts, Usage};
use berth_domain::{Code, Error, Result, json};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use serde_json::Value;
use tokio::time::Instant;

use super::Refused;
use super::completion::{Aside, found, open, refusal_of, refused, scoped, shares, takes_fields, told};
use super::inference::Inference;
use crate::http::auth::Scope;
use crate::http::body::require_json;
use crate::http::event_loop::compute;
use crate::http::reply::Reply;
use crate::services::gateway::books::bill::Bill;
use crate::services::gateway::books::trace::Origin;
use crate::services::gateway::path::admission::Received;
use crate::services::gateway::path::attempt::{Answer, Failure, Patience, Question, Track, ask, piece};
use crate::services::gateway::path::dispatch::{Found, Job};
use crate::services::gateway::speech::{Asker, HELD, SpeechStream, as_events};
use crate::services::gateway::upstream::client;
use crate::services::gateway::upstream::queue::Priority;
use crate::services::gateway::upstream::table::{Entry, Speaks};
use crate::services::gateway::{Gateway, LOCAL_SPEECH};

/// Largest body of a request to speak, in bytes: 4,096 characters are 48 KiB in escapes, and the rest is room for other
/// fields that a server may want.
const BODY_LIMIT: usize = 256 << 10;
/// A body that the service builds takes at worst this many times as long as one that it only scans.
const BUILT: usize = 8;

/// Speaks a text (OpenAI's speech). The sound comes as it is made.
#[utoipa::path(post, path = "/v1/audio/speech", operation_id = "createSpeech", tag = "models",
    request_body(content = serde_json::Value,
        description = "`model`, `input` of 1 to 4,096 characters, `voice`; `response_format` mp3 (default), opus, aac, \
                       flac, wav or pcm; `speed` from 0.25 to 4; `stream_format` audio or sse"),
    params(("X-Project-Id" = Option<String>, Header, description = "the project, with an access token")),
    responses((status = 200, body = Vec<u8>, content_type = "audio/mpeg", description = "the sound"), Refused),
    security(("bearer" = [])))]
pub(super) async fn create_speech(
    State(gateway): State<Gateway>,
    Inference(scope): Inference<true>,
    request: Request,
) -> Reply<Response> {
    require_json(request.headers())?;
    let (priority, request_id) = told(&request);
    let origin = gateway.traces().origin(scope.project, &request);
    let received = gateway.admission().receive(scope.owner(), request, BODY_LIMIT).await?;
    let text = received.body.clone();
    let read = move || {
        let value = json::parse(&text)?;
        Speech::read(&value).map(|speech| (value, speech))
    };
    let (value, speech) = compute(received.body.len() * BUILT, read).await?;
    let asked = Asked { speech, value, received, request_id, origin };
    match gateway.model(&asked.speech.model, scope.project) {
        Ok(entry) => of_model(gateway, scope, entry, asked, priority).await,
        Err(_) if asked.speech.model == LOCAL_SPEECH => of_voice(gateway, scope, asked).await,
        Err(error) => Err(error.into()),
    }
}

/// A request to speak.
struct Asked {
    speech: Speech,
    value: Value,
    received: Received,
    request_id: String,
    origin: Origin,
}

/// The usage of a text: speech counts characters where other models count tokens.
fn characters(speech: &Speech) -> Usage {
    Usage { prompt: speech.input.chars().count() as u64, completion: 0 }
}

/// What a text to be spoken sets aside; its usage is known beforehand.
fn aside(usage: Usage, price: Price) -> Aside {
    Aside { tokens: usage.total(), cost: price.of(usage), estimate: usage }
}

async fn of_model(
    gateway: Gateway,
    scope: Scope,
    entry: Arc<Entry>,
    asked: Asked,
    priority: Priority,
) -> Reply<Response> {
    let Received { body, place, weight } = asked.received;
    let mut head = Head::read(Operation::Speech, &body)?;
    head.stream = false;
    takes_fields(&entry, &body).await?;
    let usage = characters(&asked.speech);
    let (name, price) = (entry.name.clone(), entry.model.price);
    let mut bill = open(&gateway, &scope, name, price, aside(usage, price)).await?;
    bill.trace(gateway.traces().begin(Operation::Speech, &asked.origin, &asked.speech.model, None, true));
    let job = Job {
        operation: Operation::Speech,
        conversation: scoped(head.conversation, &scope),
        head,
        body,
        weight,
        owner: scope.owner(),
        shares: shares(&scope),
        priority,
        request_id: asked.request_id,
        deadline: Instant::now() + entry.model.timeouts.total,
    };
    match found(&gateway, &job, &entry, &mut bill).await? {
        Found { answer: Answer::Bytes(kind, body, first), slot, patience } => {
            bill.know(usage);
            Ok(sound(kind, relayed(&gateway, body, first, patience, bill, (slot, place))))
        }
        found => {
            let (status, body) = refused(found.answer, bill)?;
            Ok(refusal_of(status, body))
        }
    }
}

async fn of_voice(gateway: Gateway, scope: Scope, asked: Asked) -> Reply<Response> {
    let speaks = gateway.voice(&asked.speech.voice).ok_or_else(|| {
        let known = gateway.voice_names().join(", ");
        Error::field("voice", format!("is none of the voices there are: {known}"))
    })?;
    let usage = characters(&asked.speech);
    let (name, price) = (LOCAL_SPEECH.into(), Price::default());
    let mut bill = open(&gateway, &scope, name, price, aside(usage, price)).await?;
    bill.trace(gateway.traces().begin(Operation::Speech, &asked.origin, &asked.speech.model, None, true));
    match &speaks.voice.source {
        Source::Espeak(voice) => {
            let whose = Asker { owner: scope.owner(), shares: shares(&scope) };
            let made = gateway.speaker().speak(whose, &asked.speech, voice).await;
            let made = made.inspect_err(|error| bill.refuse(error.code.status()))?;
            bill.know(usage);
            Ok(local(&gateway, &asked.speech, made, bill, asked.received.place))
        }
        Source::Url { model, voice, .. } => {
            let asking = of_server(&gateway, &speaks, (model, voice), &asked, bill.traceparent()).await;
            match asking.inspect_err(|error| bill.refuse(error.code.status()))? {
                (Answer::Bytes(kind, body, first), patience) => {
                    bill.know(usage);
                    let place = asked.received.place;
                    Ok(sound(kind, relayed(&gateway, body, first, patience, bill, place)))
                }
                (answer, _) => {
                    let (status, body) = refused(answer, bill)?;
                    Ok(refusal_of(status, body))
                }
            }
        }
    }
}

/// Asks a voice's own server, in its own names.
async fn of_server(
    gateway: &Gateway,
    speaks: &Speaks,
    (model, voice): (&str, &str),
    asked: &Asked,
    traceparent: Option<String>,
) -> Result<(Answer, Patience)> {
    let address = speaks.address.as_ref().ok_or_else(|| Error::internal("a voice without an address"))?;
    let mut value = asked.value.clone();
    (value["model"], value["voice"]) = (model.into(), voice.into());
    let question = Question {
        operation: Operation::Speech,
        streams: false,
        body: value.to_string().into(),
        request_id: &asked.request_id,
        track: Track { traceparent, ..Track::default() },
    };
    let Timeouts { first_byte, idle, total } = Timeouts::default();
    let patience = Patience { first_byte, idle, deadline: Instant::now() + total };
    match ask(&gateway.fleet().client, address, &question, patience).await {
        Ok(answer) => Ok((answer, patience)),
        Err(Failure::Timeout | Failure::Late) => {
            Err(Error::new(Code::UpstreamTimeout, "The voice's server did not answer in time. Try again."))
        }
        Err(Failure::Status(429, after)) => {
            Err(Error::new(Code::RateLimited, "The voice's server asks for fewer requests. Try again later.")
                .retry_after(after.unwrap_or(1)))
        }
        Err(_) => Err(Error::new(
            Code::UpstreamError,
            "The voice's server gave no sound. Try again; if it stays, tell the operator.",
        )),
    }
}

/// Sound as the server makes it, or the status of the failure.
type Making = BoxStream<'static, Result<Bytes, u16>>;
type Pieces = BoxStream<'static, Result<Bytes, std::io::Error>>;

/// Sound that this machine makes.
fn local(gateway: &Gateway, speech: &Speech, made: SpeechStream, bill: Bill, held: impl Send + 'static) -> Response {
    let kind = if speech.sse { "text/event-stream; charset=utf-8" } else { speech.format.content_type() };
    let made = if speech.sse { as_events(made, speech.input.chars().count()) } else { made };
    let making = made.map_err(|error| error.code.status()).boxed();
    sound(HeaderValue::from_static(kind), parked(gateway, making, Instant::now() + HELD, bill, held))
}

/// Sound that a server makes, as it comes.
fn relayed(
    gateway: &Gateway,
    mut body: client::Body,
    first: Bytes,
    patience: Patience,
    bill: Bill,
    held: impl Send + 'static,
) -> Pieces {
    let making = async_stream::try_stream! {
        yield first;
        let status = |failure| if failure == Failure::Timeout { 504_u16 } else { 502 };
        while let Some(bytes) = piece(&mut body, patience.next()).await.map_err(status)? {
            yield bytes;
        }
    };
    parked(gateway, making.boxed(), patience.deadline, bill, held)
}

/// Sound on its way, and what the service holds for it.
struct Sound<H> {
    making: Making,
    // The bill closes before the place is free.
    bill: Bill,
    _held: H,
}

/// The pieces of a sound. Between two of them the sound is parked, in case the client does not read. An error in the
/// middle cuts the answer off, so that it does not look whole.
fn parked(gateway: &Gateway, making: Making, deadline: Instant, bill: Bill, held: impl Send + 'static) -> Pieces {
    let parked = gateway.parking().park(Sound { making, bill, _held: held }, deadline);
    async_stream::stream! {
        while let Some(mut sound) = parked.take() {
            match sound.making.next().await {
                Some(Ok(bytes)) => {
                    parked.put(sound);
                    yield Ok(bytes);
                }
                Some(Err(status)) => {
                    sound.bill.close(status);
                    break;
                }
                None => {
                    sound.bill.close(200);
                    return;
                }
            }
        }
        yield Err(std::io::Error::other("the speech broke off"));
    }
    .boxed()
}

fn sound(kind: HeaderValue, pieces: Pieces) -> Response {
    ([(header::CONTENT_TYPE, kind)], Body::from_stream(pieces)).into_response()
}
