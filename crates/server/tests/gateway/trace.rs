//! Spans of requests, as a collector gets them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use berth_domain::gateway::{Model, Voice};
use berth_testkit::upstream::TOKENS;
use berth_testkit::{Script, Upstream};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Told;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::{CHAT, Gateway, Reply, ask, ask_stream, broke_off, tiny, within};

const SPEECH: &str = "/v1/audio/speech";
/// The trace of a client, and its span in it.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A collector of traces, and all it was sent.
struct Collector {
    url: String,
    bodies: Arc<Mutex<Vec<Bytes>>>,
    server: JoinHandle<()>,
}

impl Collector {
    async fn start() -> Self {
        let bodies = Arc::<Mutex<Vec<Bytes>>>::default();
        let kept = bodies.clone();
        let keep = move |body: Bytes| {
            kept.lock().expect("the bodies").push(body);
            std::future::ready(())
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/v1/traces", listener.local_addr().expect("an address"));
        let router = Router::new().route("/v1/traces", post(keep));
        let server = tokio::spawn(async move { axum::serve(listener, router).await.expect("a server") });
        Self { url, bodies, server }
    }

    /// A gateway with these models that sends its spans here.
    async fn gateway(&self, models: Vec<Model>) -> Gateway {
        Gateway::configured(models, |config| config.traces.endpoint.clone_from(&self.url)).await
    }

    fn requests(&self) -> Vec<ExportTraceServiceRequest> {
        let bodies = self.bodies.lock().expect("the bodies");
        bodies.iter().map(|body| ExportTraceServiceRequest::decode(body.clone()).expect("spans")).collect()
    }

    /// Every span that came.
    fn spans(&self) -> Vec<Span> {
        let resources = self.requests().into_iter().flat_map(|request| request.resource_spans);
        resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect()
    }

    /// All spans, once so many came.
    async fn until(&self, count: usize) -> Vec<Span> {
        within(async {
            loop {
                let spans = self.spans();
                if spans.len() >= count {
                    return spans;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
    }

    /// All spans, once so many came and the service that sends them ended.
    async fn after(&self, gateway: &mut Gateway, count: usize) -> Vec<Span> {
        self.until(count).await;
        within(gateway.platform.stop()).await;
        self.spans()
    }

    /// Asserts that nothing of this stands in anything that came.
    #[track_caller]
    fn hides(&self, secrets: &[&str]) {
        let all: Vec<u8> = self.bodies.lock().expect("the bodies").iter().flatten().copied().collect();
        let all = String::from_utf8_lossy(&all);
        for secret in secrets {
            assert!(!all.contains(secret), "{secret} stands in {all}");
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Attributes by their names, each of which stands once.
#[track_caller]
fn named(attributes: &[KeyValue]) -> BTreeMap<&str, Value> {
    let value = |told: &KeyValue| match told.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Told::StringValue(text)) => json!(text),
        Some(Told::BoolValue(flag)) => json!(flag),
        Some(Told::IntValue(count)) => json!(count),
        Some(Told::DoubleValue(number)) => json!(number),
        other => panic!("{}: {other:?}", told.key),
    };
    let named: BTreeMap<_, _> = attributes.iter().map(|told| (told.key.as_str(), value(told))).collect();
    assert_eq!(named.len(), attributes.len(), "{attributes:?}");
    named
}

/// Asserts a span of this name, with these attributes and no others.
#[track_caller]
fn tells(span: &Span, name: &str, expected: &Value) {
    assert_eq!((span.name.as_str(), span.kind), (name, SpanKind::Client as i32), "{span:?}");
    assert_eq!(json!(named(&span.attributes)), *expected);
    let failed = expected["http.response.status_code"].as_u64().is_some_and(|status| status >= 400);
    let expected = if failed { StatusCode::Error } else { StatusCode::Unset };
    assert_eq!(span.status.as_ref().map(|status| status.code), Some(expected as i32), "{span:?}");
    assert!(span.events.is_empty() && span.end_time_unix_nano >= span.start_time_unix_nano, "{span:?}");
}

/// The attributes of every span, and these.
fn with(gateway: &Gateway, reply: &Reply, more: Value) -> Value {
    let mut all = json!({
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "tiny",
        "http.response.status_code": reply.status,
        "berth.project": gateway.project(),
        "berth.request_id": reply.header("x-request-id"),
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    all
}

/// The attributes of an answer whose tokens the upstream counted, and these.
fn counted(gateway: &Gateway, reply: &Reply, more: Value) -> Value {
    let mut all = json!({
        "gen_ai.response.model": "tiny",
        "gen_ai.usage.input_tokens": TOKENS.0,
        "gen_ai.usage.output_tokens": TOKENS.1,
        "berth.estimated": false,
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    with(gateway, reply, all)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Takes the time to the first piece out of a span: it differs each time.
#[track_caller]
fn take_wait(span: &mut Span) {
    let is_wait = |told: &KeyValue| told.key == "gen_ai.response.time_to_first_chunk";
    let at = span.attributes.iter().position(is_wait).expect("a time");
    let told = span.attributes.remove(at);
    assert!(named(&[told]).values().all(|seconds| seconds.as_f64().is_some_and(|seconds| seconds > 0.0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_a_span_that_says_nothing_of_its_content() {
    let (upstream, collector) = (Upstream::start().await, Collector::start().await);
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("key");
    std::fs::write(&file, "sk-of-the-upstream").expect("a file");
    let spec = json!({"url": upstream.url(), "model": "upstream-tiny", "api_key_file": file});
    let mut gateway = collector.gateway(vec![tiny(&[], json!({"aliases": ["small"], "upstreams": [spec]}))]).await;
    let mut body = ask("My name is Rumpelstiltskin.");
    body["model"] = json!("small");
    body["max_tokens"] = json!(9);
    let reply = gateway.chat(&body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    // What waits to be sent is sent at the end.
    let spans = collector.after(&mut gateway, 1).await;
    assert_eq!(spans.len(), 1, "{spans:?}");
    let asked = json!({"gen_ai.request.model": "small", "gen_ai.request.max_tokens": 9});
    tells(&spans[0], "chat small", &counted(&gateway, &reply, asked));
    assert!(spans[0].parent_span_id.is_empty() && spans[0].trace_state.is_empty(), "{:?}", spans[0]);
    let requests = collector.requests();
    let resource = requests[0].resource_spans[0].resource.as_ref().expect("a resource");
    assert_eq!(named(&resource.attributes)["service.name"], "berth");
    let place = upstream.address();
    collector.hides(&["Rumpelstiltskin", "Hello", "sk-of-the-upstream", "upstream-tiny", &place, &gateway.key]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_a_span_from_its_beginning_to_its_end() {
    let (upstream, collector) = (Upstream::start().await, Collector::start().await);
    let mut gateway = collector.gateway(vec![tiny(&[upstream.url()], json!({}))]).await;
    let reply = gateway.chat(&ask_stream("hi")).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    upstream.then(Script::sse().delta("some of it").cut());
    let broken = gateway.chat(&ask_stream("hi")).await;
    broke_off(&broken.text());
    let mut spans = collector.after(&mut gateway, 2).await;
    assert_eq!(spans.len(), 2, "{spans:?}");
    take_wait(&mut spans[0]);
    tells(&spans[0], "chat tiny", &counted(&gateway, &reply, json!({"gen_ai.request.stream": true})));
    // The head went out as that of a success; what became of it stands in the span.
    take_wait(&mut spans[1]);
    let told = named(&spans[1].attributes);
    let (status, error) = (&told["http.response.status_code"], &told["error.type"]);
    assert_eq!((status, error, &told["berth.estimated"]), (&json!(502), &json!("502"), &json!(true)), "{told:?}");
    assert_eq!(spans[1].status.as_ref().map(|status| status.code), Some(StatusCode::Error as i32));
    collector.hides(&["some of it", "Hel", &gateway.key]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_has_its_name() {
    let (upstream, collector) = (Upstream::start().await, Collector::start().await);
    let mut gateway = collector.gateway(vec![tiny(&[upstream.url()], json!({}))]).await;
    let completed = gateway.post("/v1/completions", json!({"model": "tiny", "prompt": "once"}).to_string()).await;
    upstream.then(Script::json(200, r#"{"object":"list","data":[],"usage":{"prompt_tokens":2,"total_tokens":2}}"#));
    let embedded = gateway.post("/v1/embeddings", json!({"model": "tiny", "input": "once"}).to_string()).await;
    assert_eq!((completed.status, embedded.status), (200, 200));
    let spans = collector.after(&mut gateway, 2).await;
    assert_eq!(spans.len(), 2, "{spans:?}");
    let operation = json!({"gen_ai.operation.name": "text_completion"});
    tells(&spans[0], "text_completion tiny", &counted(&gateway, &completed, operation));
    let embedding = json!({
        "gen_ai.operation.name": "embeddings",
        "gen_ai.response.model": "tiny",
        "gen_ai.usage.input_tokens": 2,
        "berth.estimated": false,
    });
    tells(&spans[1], "embeddings tiny", &with(&gateway, &embedded, embedding));
}

#[tokio::test(flavor = "multi_thread")]
async fn speech_is_a_span_whoever_speaks() {
    let (upstream, collector) = (Upstream::start().await, Collector::start().await);
    upstream.always(Script::new(200).header("content-type", "audio/mpeg").chunk("so").chunk("und"));
    let robin = json!({"id": "robin", "url": upstream.url(), "model": "kokoro", "voice": "af_robin"});
    let robin = Voice::try_from(&robin).expect("a voice");
    let models = vec![tiny(&[upstream.url()], json!({}))];
    let change = |config: &mut berth_server::config::Config| {
        config.traces.endpoint.clone_from(&collector.url);
        config.voices.push(robin);
    };
    let mut gateway = Gateway::configured(models, change).await;
    let mut replies = Vec::new();
    for model in ["tiny", "tts-1"] {
        let body = json!({"model": model, "voice": "robin", "input": "Rumpelstiltskin"});
        let reply = gateway.post(SPEECH, body.to_string()).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "sound"));
        replies.push((model, reply));
    }
    let mut spans = collector.after(&mut gateway, 2).await;
    assert_eq!(spans.len(), 2, "{spans:?}");
    for (span, (model, reply)) in std::iter::zip(&mut spans, &replies) {
        take_wait(span);
        let spoken = json!({
            "gen_ai.operation.name": "text_to_speech",
            "gen_ai.request.model": model,
            "gen_ai.request.stream": true,
            "gen_ai.response.model": model,
            "gen_ai.usage.input_tokens": "Rumpelstiltskin".len(),
            "berth.estimated": false,
        });
        tells(span, &format!("text_to_speech {model}"), &with(&gateway, reply, spoken));
    }
    collector.hides(&["Rumpelstiltskin", "sound", "kokoro", "robin"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_left_is_an_error_of_its_own() {
    let (upstream, collector) = (Upstream::start().await, Collector::start().await);
    let gateway = collector.gateway(vec![tiny(&[upstream.url()], json!({}))]).await;
    upstream.then(Script::sse().delta("half of it").hang());
    let mut live = gateway.open(&ask_stream("hi")).await;
    live.until("half").await;
    drop(live);
    collector.until(1).await;
    upstream.until(|u| u.cancelled() == 1).await;
    upstream.then(Script::default().hang());
    let waiting = gateway.spawn(&ask("hi"));
    upstream.until(|u| u.open() == 1).await;
    waiting.abort();
    let spans = collector.until(2).await;
    assert_eq!(spans.len(), 2, "{spans:?}");
    for (span, answered) in std::iter::zip(&spans, [true, false]) {
        let told = named(&span.attributes);
        assert_eq!((&told["http.response.status_code"], &told["error.type"]), (&json!(499), &json!("cancelled")));
        assert_eq!(told["berth.estimated"], true, "{told:?}");
        assert_eq!(told.contains_key("gen_ai.response.model"), answered, "{told:?}");
        assert_eq!(span.status.as_ref().map(|status| status.code), Some(StatusCode::Error as i32));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_errors_and_all_tries_are_one_span() {
    let (upstream, collector) = (Upstream::start().await, Collector::start().await);
    let first = tiny(&[Upstream::refused_url()], json!({"fallbacks": ["other"]}));
    let other = tiny(&[upstream.url()], json!({"id": "other"}));
    let mut gateway = collector.gateway(vec![first, other]).await;
    let helped = gateway.chat(&ask("hi")).await;
    let mut body = ask("hi");
    body["model"] = json!("other");
    upstream.then(Script::error(400, "Rumpelstiltskin"));
    let refused = gateway.chat(&body).await;
    upstream.always(Script::html(500));
    let failed = gateway.chat(&body).await;
    assert_eq!((helped.status, refused.status, failed.status), (200, 400, 502));
    let spans = collector.after(&mut gateway, 3).await;
    assert_eq!(spans.len(), 3, "{spans:?}");
    tells(&spans[0], "chat tiny", &counted(&gateway, &helped, json!({"gen_ai.response.model": "other"})));
    for (span, reply, error) in [(&spans[1], &refused, "400"), (&spans[2], &failed, "502")] {
        let told = json!({"gen_ai.request.model": "other", "error.type": error});
        tells(span, "chat other", &with(&gateway, reply, told));
    }
    collector.hides(&["Rumpelstiltskin", "Bad day", &upstream.address()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_span_stands_between_the_clients_and_the_upstreams() {
    let (upstream, collector) = (Upstream::start().await, Collector::start().await);
    let mut gateway = collector.gateway(vec![tiny(&[upstream.url()], json!({}))]).await;
    let mut passed = Vec::new();
    for told in [format!("00-{TRACE}-{PARENT}-01"), format!("00-{TRACE}-{PARENT}-00"), "00-nonsense".to_owned()] {
        let request = gateway.posting(CHAT, ask("hi").to_string()).header("traceparent", &told);
        assert_eq!(gateway.send(request).await.status, 200, "{told}");
        passed.push(upstream.last().header("traceparent").expect("a traceparent").to_owned());
    }
    let spans = collector.after(&mut gateway, 2).await;
    let [within_trace, alone] = spans.as_slice() else { panic!("one was not to be sampled: {spans:?}") };
    assert_eq!((hex(&within_trace.trace_id), hex(&within_trace.parent_span_id)), (TRACE.into(), PARENT.into()));
    assert_eq!(passed[0], format!("00-{TRACE}-{}-01", hex(&within_trace.span_id)));
    assert!(passed[1].starts_with(&format!("00-{TRACE}-")) && passed[1].ends_with("-00"), "{}", passed[1]);
    assert!(alone.parent_span_id.is_empty() && hex(&alone.trace_id) != TRACE, "{alone:?}");
    assert_eq!(passed[2], format!("00-{}-{}-01", hex(&alone.trace_id), hex(&alone.span_id)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_is_nobodys_trouble() {
    let (upstream, silent) = (Upstream::start().await, Upstream::start().await);
    silent.always(Script::default().hang());
    for url in [Upstream::refused_url(), silent.url()] {
        let models = vec![tiny(&[upstream.url()], json!({}))];
        let mut gateway = Gateway::configured(models, |config| config.traces.endpoint = url).await;
        for body in [ask("hi"), ask_stream("hi"), ask("hi")] {
            assert_eq!(gateway.chat(&body).await.status, 200, "{body}");
        }
        // Nor does the service's end wait for it forever.
        within(gateway.platform.stop()).await;
    }
    silent.until(|silent| silent.count() > 0).await;
}
