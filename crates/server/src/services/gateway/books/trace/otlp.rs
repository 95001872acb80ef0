//! Spans that are made and sent.

mod export;

use std::borrow::Cow;
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName};
use berth_domain::gateway::body::Operation;
use berth_domain::ids::ProjectId;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span as _, SpanBuilder, SpanKind, Status, TraceFlags, Tracer, TracerProvider};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span};
use tokio_util::sync::CancellationToken;

use crate::http::envelope::RequestId;
use crate::services::gateway::books::bill::CLIENT_LEFT;
use crate::services::gateway::books::record::Record;

/// How long the service waits at its end until the last spans are sent.
const PATIENCE: Duration = Duration::from_secs(5);
/// The provider that spans name: every upstream speaks OpenAI's protocol, whoever runs it.
const PROVIDER: &str = "openai";
/// The error of a request whose client left.
const LEFT: &str = "cancelled";

/// What makes and sends spans, where a collector is configured; its copies are the same one.
#[derive(Clone)]
pub struct Traces(Option<Sending>);

#[derive(Clone)]
struct Sending {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// The origin of a request: its project, the span its client names, and the request's id.
pub struct Origin {
    project: ProjectId,
    parent: Context,
    request_id: String,
}

impl Traces {
    /// Starts to send spans, if a collector is configured.
    pub fn start(config: &crate::config::Traces) -> anyhow::Result<Self> {
        if config.endpoint.is_empty() {
            return Ok(Self(None));
        }
        Ok(Self::over(export::provider(&config.endpoint)?))
    }

    fn over(provider: SdkTracerProvider) -> Self {
        let scope = InstrumentationScope::builder("berth").with_version(export::VERSION).build();
        let tracer = provider.tracer_with_scope(scope);
        Self(Some(Sending { provider, tracer }))
    }

    /// Sends the remaining spans once the service ends.
    pub async fn flush(self, stop: CancellationToken) {
        stop.cancelled().await;
        let Some(Sending { provider, .. }) = self.0 else { return };
        let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(PATIENCE)).await;
        if !matches!(ended, Ok(Ok(()))) {
            tracing::warn!("the last traces did not reach their collector in time");
        }
    }

    /// Reads the origin of a request. A malformed `traceparent` counts as absent (W3C Trace Context, section 3.2).
    pub fn origin(&self, project: ProjectId, request: &Request) -> Origin {
        if self.0.is_none() {
            return Origin { project, parent: Context::default(), request_id: String::new() };
        }
        let headers = Headers(request.headers());
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &headers);
        let request_id = request.extensions().get::<RequestId>().map(|request| request.id.clone()).unwrap_or_default();
        Origin { project, parent, request_id }
    }

    /// Begins the span of a request to a model, under the name that the client used. `streams`: the answer comes in
    /// pieces.
    pub fn begin(
        &self,
        operation: Operation,
        origin: &Origin,
        model: &str,
        max_tokens: Option<u64>,
        streams: bool,
    ) -> Trace {
        let Some(Sending { tracer, .. }) = &self.0 else { return Trace::default() };
        let name = name(operation);
        let mut attributes = vec![
            KeyValue::new("gen_ai.operation.name", name),
            KeyValue::new("gen_ai.provider.name", PROVIDER),
            KeyValue::new("gen_ai.request.model", model.to_owned()),
            KeyValue::new("berth.project", origin.project.to_string()),
            KeyValue::new("berth.request_id", origin.request_id.clone()),
        ];
        attributes.extend(max_tokens.map(|most| KeyValue::new("gen_ai.request.max_tokens", number(most))));
        attributes.extend(streams.then(|| KeyValue::new("gen_ai.request.stream", true)));
        let span =
            SpanBuilder::from_name(format!("{name} {model}")).with_kind(SpanKind::Client).with_attributes(attributes);
        let span = tracer.build_with_context(span, &origin.parent);
        Trace(Some(Box::new(Open { span, operation, streams, began: Instant::now(), first: None })))
    }
}

/// The headers of a request, as propagators read them.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let text = self.0.get(key)?.to_str().ok()?;
        (key != "traceparent" || well_formed(text)).then_some(text)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

/// Whether a `traceparent` is well formed. The library also accepts shorter ids. Versions after 00 may have more
/// fields.
fn well_formed(text: &str) -> bool {
    let fields: Vec<_> = text.splitn(5, '-').collect();
    let is_hex = |field: &str| field.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let fits = |(field, length): (&&str, usize)| field.len() == length && is_hex(field);
    let ends = fields.len() == 4 || (fields.len() == 5 && fields[0] != "00");
    ends && std::iter::zip(&fields, [2, 32, 16, 2]).all(fits)
}

/// The span of a request; nothing where none is made.
#[derive(Default)]
pub struct Trace(Option<Box<Open>>);

struct Open {
    span: Span,
    operation: Operation,
    streams: bool,
    began: Instant,
    first: Option<Duration>,
}

impl Trace {
    /// Notes the first piece of the answer.
    pub fn first(&mut self) {
        if let Some(open) = &mut self.0
            && open.first.is_none()
        {
            open.first = Some(open.began.elapsed());
        }
    }

    /// Ends the span with this status and what the record says.
    pub fn end(&mut self, status: u16, record: &Record) {
        let Some(open) = &mut self.0 else { return };
        if !open.span.is_recording() {
            return;
        }
        let waited = open.first.filter(|_| open.streams).map(|waited| waited.as_secs_f64());
        open.span.set_attributes(outcome(open.operation, status, record, open.first.is_some()));
        open.span.set_attributes(waited.map(|seconds| KeyValue::new("gen_ai.response.time_to_first_chunk", seconds)));
        if failed(status) {
            open.span.set_status(Status::error(""));
        }
        open.span.end();
    }

    /// The `traceparent` (version 00) that makes upstreams' spans children of this one, where there is a span. A span
    /// that is not sampled has one, too, which says so.
    pub fn traceparent(&self) -> Option<String> {
        let span = self.0.as_ref()?.span.span_context();
        let flags = span.trace_flags() & TraceFlags::SAMPLED;
        span.is_valid().then(|| format!("00-{}-{}-{flags:02x}", span.trace_id(), span.span_id()))
    }
}

/// The operation in the words of the conventions. They have no word for speech yet; this one is under discussion there.
const fn name(operation: Operation) -> &'static str {
    match operation {
        Operation::Completions => "text_completion",
        Operation::Speech => "text_to_speech",
        same => same.as_str(),
    }
}

const fn failed(status: u16) -> bool {
    status >= 400
}

/// The attributes that a request's end adds: its status and usage, and who answered.
fn outcome(operation: Operation, status: u16, record: &Record, answered: bool) -> Vec<KeyValue> {
    let mut attributes = vec![KeyValue::new("http.response.status_code", i64::from(status))];
    if failed(status) {
        let error = match status {
            CLIENT_LEFT => Cow::Borrowed(LEFT),
            status => Cow::Owned(status.to_string()),
        };
        attributes.push(KeyValue::new("error.type", error));
    }
    if answered {
        attributes.push(KeyValue::new("gen_ai.response.model", record.model.clone()));
    }
    if answered || record.usage.total() > 0 {
        attributes.push(KeyValue::new("gen_ai.usage.input_tokens", number(record.usage.prompt)));
        if matches!(operation, Operation::Chat | Operation::Completions) {
            attributes.push(KeyValue::new("gen_ai.usage.output_tokens", number(record.usage.completion)));
        }
        attributes.push(KeyValue::new("berth.estimated", record.estimated));
    }
    attributes
}

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http;
    use berth_domain::gateway::Usage;

    use super::*;

    fn record() -> Record {
        Record::sample("tiny".into(), Usage::default())
    }

    /// The `traceparent` that upstreams get for a request with this one.
    fn passed_on(traceparent: &str) -> String {
        let traces = Traces::over(SdkTracerProvider::builder().build());
        let request = http::Request::builder().header("traceparent", traceparent).body(Body::empty()).unwrap();
        let trace = traces.begin(Operation::Chat, &traces.origin(record().project, &request), "tiny", None, false);
        trace.traceparent().unwrap()
    }

    #[test]
    fn upstreams_are_told_of_the_span_in_the_trace_of_the_client() {
        let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        for flags in ["00", "01"] {
            let passed = passed_on(&format!("00-{trace}-{parent}-{flags}"));
            let fields: Vec<_> = passed.split('-').collect();
            assert_eq!((fields.len(), fields[0], fields[1], fields[3]), (4, "00", trace, flags), "{passed}");
            assert!(fields[2].len() == 16 && fields[2] != parent, "{passed}");
        }
        assert!(passed_on(&format!("01-{trace}-{parent}-00-more")).starts_with(&format!("00-{trace}-")));
        for bad in [
            String::new(),
            "hello".into(),
            format!("00-{trace}-{parent}"),
            format!("00-{trace}-{parent}-01-more"),
            format!("ff-{trace}-{parent}-01"),
            format!("00-{}-{parent}-01", trace.to_uppercase()),
            format!("00-{trace}-1-01"),
            format!("00-{trace}-{}-01", "0".repeat(16)),
        ] {
            let passed = passed_on(&bad);
            assert!(passed.len() == 55 && passed.ends_with("-01") && !passed.contains(trace), "{bad}: {passed}");
        }
    }

    #[test]
    fn without_a_collector_there_is_no_span() {
        let traces = Traces::start(&crate::config::Traces::default()).unwrap();
        let request = http::Request::new(Body::empty());
        let mut trace = traces.begin(Operation::Chat, &traces.origin(record().project, &request), "tiny", None, false);
        assert_eq!(trace.traceparent(), None);
        trace.first();
        trace.end(200, &record());
    }

    #[test]
    fn a_span_tells_what_the_record_says_and_no_more() {
        let told = |operation, status, record: &Record, answered| {
            let attributes = outcome(operation, status, record, answered);
            attributes.iter().map(|told| format!("{}={}", told.key, told.value)).collect::<Vec<_>>().join(" ")
        };
        let refused = told(Operation::Chat, 429, &record(), false);
        assert_eq!(refused, "http.response.status_code=429 error.type=429");
        let usage = Usage { prompt: u64::MAX, completion: 3 };
        let left = Record { usage, estimated: true, ..record() };
        assert_eq!(
            told(Operation::Chat, CLIENT_LEFT, &left, true),
            "http.response.status_code=499 error.type=cancelled gen_ai.response.model=tiny \
             gen_ai.usage.input_tokens=9223372036854775807 gen_ai.usage.output_tokens=3 berth.estimated=true"
        );
        let usage = Usage { prompt: 12, completion: 0 };
        let spoken = Record { usage, ..record() };
        assert_eq!(
            told(Operation::Speech, 200, &spoken, true),
            "http.response.status_code=200 gen_ai.response.model=tiny gen_ai.usage.input_tokens=12 \
             berth.estimated=false"
        );
    }
}
