//! Chat, completions and embeddings: from the request's bytes to the answer's.

use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use berth_domain::gateway::body::{Head, LONG, Operation};
use berth_domain::gateway::money::estimate;
use berth_domain::gateway::{Model, Nano, Price, Usage, refusal, route};
use berth_domain::sse::KEEP_ALIVE;
use berth_domain::{Code, Error, Result};
use bytes::Bytes;
use futures::StreamExt;
use tokio::time::Instant;

use super::Refused;
use super::inference::Inference;
use crate::http::auth::{Limits, Scope, Who};
use crate::http::body::require_json;
use crate::http::envelope::keep_shape;
use crate::http::event_loop::compute;
use crate::http::openai;
use crate::http::reply::Reply;
use crate::services::gateway::Gateway;
use crate::services::gateway::books::bill::Bill;
use crate::services::gateway::books::record::Record;
use crate::services::gateway::books::totals::Counts;
use crate::services::gateway::path::admission::{Place, Received};
use crate::services::gateway::path::attempt::Answer;
use crate::services::gateway::path::dispatch::{Found, Job, denied, find};
use crate::services::gateway::path::relay::{Out, Relay, broke_off};
use crate::services::gateway::upstream::queue::{Priority, Share, Shares};
use crate::services::gateway::upstream::table::Entry;

/// Largest body of a request to a model, in bytes (contract, section 4).
pub const BODY_LIMIT: usize = 32 << 20;
/// The header that says how urgent a request is.
const PRIORITY: &str = "x-priority";
/// Tokens of the minute that a request sets aside for its answer where neither the request nor the model limits the
/// answer. If the answer takes more, the next requests have that much less.
const ANSWER: u64 = 256;

/// Asks a model to go on with a conversation (OpenAI's chat completions). Whatever is in the body goes on to the
/// model's server, byte for byte where nothing has to change.
#[utoipa::path(post, path = "/v1/chat/completions", operation_id = "createChatCompletion", tag = "models",
    request_body(content = serde_json::Value, description = "as OpenAI's; `model` and `messages` are required"),
    params(("X-Project-Id" = Option<String>, Header, description = "the project, with an access token"),
        ("X-Priority" = Option<String>, Header, description = "high, normal or low, where requests have to wait")),
    responses((status = 200, body = serde_json::Value, description = "the answer; with `stream` server-sent events"),
        Refused),
    security(("bearer" = [])))]
pub(super) async fn create_chat_completion(
    State(gateway): State<Gateway>,
    Inference(scope): Inference<true>,
    request: Request,
) -> Reply<Response> {
    answer(gateway, scope, request, Operation::Chat).await
}

/// Asks a model to go on with a text (OpenAI's completions).
#[utoipa::path(post, path = "/v1/completions", operation_id = "createCompletion", tag = "models",
    request_body(content = serde_json::Value, description = "as OpenAI's; `model` and `prompt` are required"),
    params(("X-Project-Id" = Option<String>, Header, description = "the project, with an access token"),
        ("X-Priority" = Option<String>, Header, description = "high, normal or low, where requests have to wait")),
    responses((status = 200, body = serde_json::Value, description = "the answer; with `stream` server-sent events"),
        Refused),
    security(("bearer" = [])))]
pub(super) async fn create_completion(
    State(gateway): State<Gateway>,
    Inference(scope): Inference<true>,
    request: Request,
) -> Reply<Response> {
    answer(gateway, scope, request, Operation::Completions).await
}

/// Turns texts into vectors (OpenAI's embeddings).
#[utoipa::path(post, path = "/v1/embeddings", operation_id = "createEmbedding", tag = "models",
    request_body(content = serde_json::Value, description = "as OpenAI's; `model` and `input` are required"),
    params(("X-Project-Id" = Option<String>, Header, description = "the project, with an access token"),
        ("X-Priority" = Option<String>, Header, description = "high, normal or low, where requests have to wait")),
    responses((status = 200, body = serde_json::Value, description = "the vectors"), Refused),
    security(("bearer" = [])))]
pub(super) async fn create_embedding(
    State(gateway): State<Gateway>,
    Inference(scope): Inference<true>,
    request: Request,
) -> Reply<Response> {
    answer(gateway, scope, request, Operation::Embeddings).await
}

async fn answer(gateway: Gateway, scope: Scope, request: Request, operation: Operation) -> Reply<Response> {
    require_json(request.headers())?;
    let (priority, request_id) = told(&request);
    let origin = gateway.traces().origin(scope.project, &request);
    let Received { body, place, weight } = gateway.admission().receive(scope.owner(), request, BODY_LIMIT).await?;
    let text = body.clone();
    let head = compute(body.len(), move || Head::read(operation, &text)).await?;
    let entry = gateway.model(&head.model, scope.project)?;
    takes_fields(&entry, &body).await?;
    let aside = Aside::of(&gateway, &scope, &entry, &head);
    let mut bill = open(&gateway, &scope, entry.name.clone(), entry.model.price, aside).await?;
    let streams = head.stream;
    bill.trace(gateway.traces().begin(operation, &origin, &head.model, head.max_tokens, streams));
    let job = Job {
        operation,
        conversation: scoped(head.conversation, &scope),
        head,
        body,
        weight,
        owner: scope.owner(),
        shares: shares(&scope),
        priority,
        request_id,
        deadline: Instant::now() + entry.model.timeouts.total,
    };
    if streams {
        return Ok(stream(gateway, job, entry, bill, place).await?);
    }
    Ok(whole(gateway, job, entry, bill, place).await?)
}

/// Refuses with 400 a request with a field that the model does not take.
pub(super) async fn takes_fields(entry: &Entry, body: &Bytes) -> Result<()> {
    match denied(&entry.model, body).await {
        Some(field) => Err(Error::field(&field, "is not taken by this model; leave it out")),
        None => Ok(()),
    }
}

/// What a request sets aside before admission.
pub(super) struct Aside {
    /// Tokens of the minute.
    pub tokens: u64,
    /// Money of the month: what its longest answer costs at the dearest of the models that may give it.
    pub cost: Nano,
    /// What the bill books where the upstream counts no tokens.
    pub estimate: Usage,
}

impl Aside {
    fn of(gateway: &Gateway, scope: &Scope, entry: &Entry, head: &Head) -> Self {
        // The answer is as long as the request allows, but no longer than the answering model makes it.
        let each = |model: &Model| head.max_tokens.into_iter().chain(model.max_output_tokens).min();
        let usage = |bytes, each: u64| Usage { prompt: estimate(bytes), completion: head.answers.saturating_mul(each) };
        // The upstream may read all the client sent, and the project then pays for it.
        let aside = |each: u64| usage(head.sent_bytes, each);
        let cost = |model: &Model| model.price.of(aside(each(model).unwrap_or(LONG)));
        let own = each(&entry.model);
        let others = fallbacks(gateway, scope, entry);
        // Spent money does not come back, so for money an answer without a limit counts as a long one. The bill books no
        // more than that for an answer that nobody saw.
        Self {
            tokens: aside(own.unwrap_or(ANSWER)).total(),
            cost: others.iter().map(|other| cost(&other.model)).fold(cost(&entry.model), Nano::max),
            estimate: usage(head.prompt_bytes, own.unwrap_or(LONG).min(LONG)),
        }
    }
}

/// The models that may answer in place of another for a project.
fn fallbacks(gateway: &Gateway, scope: &Scope, entry: &Entry) -> Vec<Arc<Entry>> {
    if entry.model.fallbacks.is_empty() {
        return Vec::new();
    }
    let table = gateway.table();
    let found = entry.model.fallbacks.iter().filter_map(|id| table.find(id.as_str()));
    found.filter(|other| other.admits(scope.project)).cloned().collect()
}

/// The priority and the id that the request's headers tell.
pub(super) fn told(request: &Request) -> (Priority, String) {
    let priority = request.headers().get(PRIORITY).and_then(|word| word.to_str().ok());
    let id = request.extensions().get::<crate::http::envelope::RequestId>();
    (Priority::of(priority), id.map(|request| request.id.clone()).unwrap_or_default())
}

/// Ties a conversation to its project: two projects that use the same words do not share one.
pub(super) fn scoped(conversation: u64, scope: &Scope) -> u64 {
    let project = scope.project.0.as_u64_pair();
    route::mix(conversation ^ project.0.rotate_left(32) ^ project.1)
}

/// The shares of a model's places that the caller's organization and project have, in proportion to their limits.
pub(super) fn shares(scope: &Scope) -> Shares {
    let of = |limits: &Limits| Share::of(limits.tokens_per_minute, limits.requests_per_minute);
    Shares { group: of(&scope.org_limits), owner: of(&scope.limits) }
}

/// Opens the bill of a request, setting aside what it may take.
pub(super) async fn open(
    gateway: &Gateway,
    scope: &Scope,
    model: Arc<str>,
    price: Price,
    aside: Aside,
) -> Result<Bill> {
    let reservation = gateway.allowances().reserve(scope, aside.tokens, aside.cost).await?;
    let record = record(gateway, scope, model);
    Ok(Bill::open(gateway.meter(), record, price, reservation, aside.estimate))
}

/// What is known of a request from its beginning.
fn record(gateway: &Gateway, scope: &Scope, model: Arc<str>) -> Record {
    let key = match scope.caller.who {
        Who::Key { id, .. } => Some(id),
        Who::Person { .. } => None,
    };
    Record {
        at: gateway.clock().now(),
        org: scope.org,
        project: scope.project,
        key,
        model,
        usage: Usage::default(),
        cost: Nano::default(),
        estimated: false,
        written: Counts::default(),
    }
}

/// An answer that is sent when it is whole.
async fn whole(gateway: Gateway, job: Job, entry: Arc<Entry>, mut bill: Bill, _place: Place) -> Result<Response> {
    let found = found(&gateway, &job, &entry, &mut bill).await?;
    let Answer::Whole(body, chunk) = found.answer else {
        let (status, body) = refused(found.answer, bill)?;
        return Ok(refusal_of(status, body));
    };
    bill.note(&chunk);
    found.slot.told(bill.completion());
    bill.close(200);
    Ok(json(StatusCode::OK, body))
}

/// Finds a good answer. The bill notes what the client gets where there is none.
pub(super) async fn found(gateway: &Gateway, job: &Job, entry: &Arc<Entry>, bill: &mut Bill) -> Result<Found> {
    let found = find(gateway.fleet(), job, entry, bill).await;
    if let Err(error) = &found {
        bill.refuse(error.code.status());
    }
    found
}

/// Closes the bill of a request that an upstream refused as wrong, and returns the upstream's words.
pub(super) fn refused(answer: Answer, mut bill: Bill) -> Result<(StatusCode, Bytes)> {
    match answer {
        Answer::Refused(status, body) => {
            bill.refuse(status.as_u16());
            Ok((status, body))
        }
        _ => Err(Error::internal("an answer of another kind than was asked for")),
    }
}

/// The refusal as a response.
pub(super) fn refusal_of(status: StatusCode, body: Bytes) -> Response {
    keep_shape(json(status, body))
}

fn json(status: StatusCode, body: Bytes) -> Response {
    let kind = HeaderValue::from_static("application/json");
    (status, [(header::CONTENT_TYPE, kind)], Body::from(body)).into_response()
}

/// Streams an answer. Until the first keep-alive goes out, a failure still has a status of its own.
async fn stream(gateway: Gateway, job: Job, entry: Arc<Entry>, mut bill: Bill, place: Place) -> Result<Response> {
    let silence = gateway.config().keep_alive();
    let hides_usage = !job.head.asks_usage;
    let of = gateway.clone();
    let mut looking = Box::pin(async move {
        let found = found(&of, &job, &entry, &mut bill).await?;
        Ok((found, bill))
    });
    let opened = if let Ok(found) = tokio::time::timeout(silence, &mut looking).await {
        Opened::of(found?, hides_usage)?
    } else {
        let late = late(gateway, looking, hides_usage);
        return Ok(events(Body::from_stream(hold(late, place))));
    };
    Ok(match opened {
        Opened::Relay(relay) => events(Body::from_stream(hold(relayed(&gateway, relay), place))),
        Opened::Refused(status, body) => refusal_of(status, body),
    })
}

/// How the opening of a stream ended.
enum Opened {
    Relay(Box<Relay>),
    Refused(StatusCode, Bytes),
}

impl Opened {
    fn of((found, bill): (Found, Bill), hides_usage: bool) -> Result<Self> {
        Ok(match found {
            Found { answer: Answer::Events(begun), slot, patience } => {
                Self::Relay(Box::new(Relay::new(begun, hides_usage, patience, slot, bill)))
            }
            found => {
                let (status, body) = refused(found.answer, bill)?;
                Self::Refused(status, body)
            }
        })
    }
}

type Pieces = futures::stream::BoxStream<'static, Result<Bytes, std::convert::Infallible>>;

/// A stream that holds its place until it ends.
fn hold(pieces: Pieces, place: Place) -> Pieces {
    pieces
        .map(move |piece| {
            let _held = &place;
            piece
        })
        .boxed()
}

/// The pieces of a stream, with a comment for every silence. Between two pieces the stream is parked, in case the
/// client does not read.
fn relayed(gateway: &Gateway, relay: Box<Relay>) -> Pieces {
    let silence = gateway.config().keep_alive();
    let deadline = relay.deadline();
    let parked = gateway.parking().park(relay, deadline);
    async_stream::stream! {
        while let Some(mut relay) = parked.take() {
            let piece = match relay.next(Instant::now() + silence).await {
                None => Bytes::from_static(KEEP_ALIVE),
                Some(Out::Bytes(bytes)) => bytes,
                Some(Out::Last(bytes)) => {
                    // Frees the place before the client reads the last bytes.
                    drop(relay);
                    yield Ok(bytes);
                    return;
                }
            };
            parked.put(relay);
            yield Ok(piece);
        }
        yield Ok(openai::event(&openai::refusal(&broke_off(Code::UpstreamTimeout))));
    }
    .boxed()
}

/// A stream whose status went out before an upstream answered: a failure becomes an event.
fn late(
    gateway: Gateway,
    mut looking: Pin<Box<impl Future<Output = Result<(Found, Bill)>> + Send + 'static>>,
    hides_usage: bool,
) -> Pieces {
    let silence = gateway.config().keep_alive();
    async_stream::stream! {
        yield Ok(Bytes::from_static(KEEP_ALIVE));
        let found = loop {
            match tokio::time::timeout(silence, &mut looking).await {
                Ok(found) => break found,
                Err(_) => yield Ok(Bytes::from_static(KEEP_ALIVE)),
            }
        };
        drop(looking);
        match found.and_then(|found| Opened::of(found, hides_usage)) {
            Ok(Opened::Relay(relay)) => {
                let mut rest = relayed(&gateway, relay);
                while let Some(piece) = rest.next().await {
                    yield piece;
                }
            }
            Ok(Opened::Refused(status, body)) => {
                yield Ok(openai::event(&refusal::read(status.as_u16(), &body, &[])));
            }
            Err(error) => yield Ok(openai::event(&openai::refusal(&error))),
        }
    }
    .boxed()
}

fn events(body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, body).into_response()
}

#[cfg(test)]
mod tests {
    use berth_domain::ids::{OrgId, ProjectId, SessionId, UserId};
    use uuid::Uuid;

    use super::*;
    use crate::http::auth::Caller;

    #[test]
    fn a_share_follows_the_limits_of_the_organization_and_of_the_project_each_its_own() {
        let limits = |tokens: i64, requests: i64| Limits {
            tokens_per_minute: Some(tokens),
            requests_per_minute: Some(requests),
            ..Limits::default()
        };
        let who = Who::Person { user: UserId(Uuid::nil()), session: SessionId(Uuid::nil()), is_admin: false };
        let scope = Scope {
            caller: Caller { who, request_id: String::new(), from: None, granted: None },
            org: OrgId(Uuid::nil()),
            project: ProjectId(Uuid::nil()),
            org_role: None,
            project_role: None,
            limits: limits(2_000, 7),
            org_limits: limits(9_000, 5),
        };
        // The smaller limit is that of requests for the organization, and that of tokens for the project.
        let expected = Shares { group: Share::of(None, Some(5)), owner: Share::of(Some(2_000), None) };
        assert_eq!(shares(&scope), expected);
        assert_ne!(expected.group, expected.owner);
    }
}
