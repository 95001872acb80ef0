//! Other upstreams before the first byte, and what is told when nobody is left.

use berth_testkit::{Script, Step, Upstream};
use serde_json::{Value, json};

use super::{Gateway, Reply, ask, ask_stream, tiny};

/// Everything that is no answer to a plain request, none of which takes time.
fn no_answers() -> Vec<(&'static str, Script)> {
    let json = |body: &str| Script::json(200, body);
    vec![
        ("a connection that closes", Script::default().close()),
        ("a reset", Script::default().cut()),
        ("HTML", Script::html(200)),
        ("broken JSON", json("{\"choices\":[")),
        ("no JSON", json("hello")),
        ("nothing", json("")),
        ("a list", json("[1]")),
        ("an error", json(r#"{"error":{"message":"no","type":"x","param":null,"code":null}}"#)),
        ("half a body", Script::new(200).header("content-length", "999").body("{\"choices\":[").close()),
    ]
}

/// The same for a stream.
fn no_streams() -> Vec<(&'static str, Script)> {
    vec![
        ("a connection that closes", Script::default().close()),
        ("JSON", Script::chat("Hello")),
        ("HTML", Script::html(200)),
        ("HTML that says it is a stream", Script::sse().chunk("<html>Bad day</html>\n\n")),
        ("an empty stream", Script::sse().step(Step::Head)),
        ("a comment and an end", Script::sse().chunk(": hello\n\n")),
        ("half a first event", Script::sse().chunk("data: {\"choi").close()),
        ("an error as the first event", Script::sse().chunk("data: {\"error\":{\"message\":\"no\"}}\n\n").done()),
        ("an error after a comment", Script::sse().chunk(": x\n\ndata: {\"error\":\"no\"}\n\n").done()),
    ]
}

async fn fails_over(gateway: &Gateway, upstream: &Upstream, how: &str, bad: Script, streams: bool) {
    let asked = upstream.count();
    upstream.then(bad);
    let reply = gateway.chat(&if streams { ask_stream("hi") } else { ask("hi") }).await;
    let good = if streams { Script::stream(&["Hel", "lo"]) } else { Script::chat("Hello") };
    assert_eq!((reply.status, reply.body.as_slice()), (200, good.bytes(false).as_slice()), "{how}: {}", reply.text());
    assert_eq!(upstream.count(), asked + 2, "{how}");
}

#[tokio::test(flavor = "multi_thread")]
async fn statuses() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over_twice(&upstream, json!({})).await;
    for status in [401, 403, 408, 429, 500, 502, 503, 504] {
        fails_over(&gateway, &upstream, &status.to_string(), Script::error(status, "no"), false).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn statuses_of_streams() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over_twice(&upstream, json!({})).await;
    for status in [401, 403, 408, 429, 500, 502, 503, 504] {
        fails_over(&gateway, &upstream, &status.to_string(), Script::html(status), true).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_none() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over_twice(&upstream, json!({})).await;
    for (how, bad) in no_answers() {
        fails_over(&gateway, &upstream, how, bad, false).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_are_none() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over_twice(&upstream, json!({})).await;
    for (how, bad) in no_streams() {
        fails_over(&gateway, &upstream, how, bad, true).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_before_the_first_byte() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over_twice(&upstream, json!({"first_byte_timeout_seconds": 20})).await;
    fails_over(&gateway, &upstream, "silence", Script::default().hang(), false).await;
    upstream.until(|u| u.cancelled() == 1).await;
    let headers = Script::sse().step(Step::Head).hang();
    fails_over(&gateway, &upstream, "headers and silence", headers, true).await;
    upstream.until(|u| u.cancelled() >= 2 && u.open() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_is_not_there() {
    let upstream = Upstream::start().await;
    let urls = [Upstream::refused_url(), upstream.url()];
    let gateway = Gateway::with(vec![tiny(&urls, json!({}))]).await;
    for _ in 0..20 {
        assert_eq!(gateway.chat(&ask("hi")).await.status, 200);
        assert_eq!(gateway.chat(&ask_stream("hi")).await.status, 200);
    }
    assert_eq!(upstream.count(), 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn fallback_models_answer_in_their_order() {
    let upstream = Upstream::start().await;
    let model = |id: &str, url: String, change: Value| {
        let mut body = json!({"id": id, "upstreams": [{"url": url, "model": format!("upstream-{id}")}]});
        body.as_object_mut().expect("an object").extend(change.as_object().cloned().unwrap_or_default());
        tiny(&[], body)
    };
    let models = vec![
        model("tiny", Upstream::refused_url(), json!({"fallbacks": ["gone", "small", "large"]})),
        model("small", upstream.url(), json!({"price": {"input": 1_000_000, "output": 1_000_000}})),
        model("large", upstream.url(), json!({})),
    ];
    let gateway = Gateway::with(models).await;
    assert_eq!(gateway.chat(&ask("hi")).await.status, 200);
    assert_eq!(upstream.last().json()["model"], "upstream-small");
    // Who answers is who is paid.
    let booked = gateway.books(1).await;
    assert!((booked.cost - 12.0).abs() < 1e-6, "{booked:?}");
    assert_eq!(gateway.booked(Some("small")).await.requests, 1);
    upstream.answers(
        |request| if request.json()["model"] == "upstream-small" { Script::html(503) } else { Script::chat("ok") },
    );
    let reply = gateway.chat(&ask("hi")).await;
    assert_eq!((reply.status, reply.text()), (200, Script::completion("ok")));
    assert_eq!(upstream.last().json()["model"], "upstream-large");
}

async fn fails(upstream: &Upstream, change: Value) -> [Reply; 2] {
    let gateway = Gateway::over_twice(upstream, change).await;
    [gateway.chat(&ask("hi")).await, gateway.chat(&ask_stream("hi")).await]
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_asks_for_fewer_requests() {
    let upstream = Upstream::start().await;
    upstream.always(Script::error(429, "slow down").header("retry-after", "7"));
    let late = Script::new(429).header("retry-after", "7").header("content-type", "text/html").body("<p>slow</p>");
    upstream.then(late);
    for reply in fails(&upstream, json!({})).await {
        reply.refused(429, "rate_limited");
        assert_eq!(reply.json()["error"]["type"], "rate_limit_error");
        let seconds = reply.header("retry-after").and_then(|text| text.parse::<u64>().ok());
        assert!(seconds.is_some_and(|seconds| (1..=7).contains(&seconds)), "{reply:?}");
    }
    // One that failed otherwise makes it another failure.
    upstream.then(Script::error(500, "no"));
    let [reply, _] = fails(&upstream, json!({})).await;
    reply.refused(502, "upstream_error");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_answers_in_time() {
    let upstream = Upstream::start().await;
    upstream.always(Script::default().hang()).then(Script::error(429, "slow down"));
    for reply in fails(&upstream, json!({"first_byte_timeout_seconds": 3})).await {
        reply.refused(504, "upstream_timeout");
        assert_eq!(reply.json()["error"]["type"], "api_error");
    }
    upstream.until(|u| u.open() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_total_time_bounds_every_try() {
    let upstream = Upstream::start().await;
    upstream.always(Script::default().hang());
    for reply in fails(&upstream, json!({"total_timeout_seconds": 5})).await {
        reply.refused(504, "upstream_timeout");
    }
    upstream.until(|u| u.cancelled() == 2 && u.open() == 0).await;
    assert_eq!(upstream.count(), 2, "there was time for one each");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_answers_well() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    for (how, bad) in no_answers() {
        upstream.always(bad);
        let reply = gateway.chat(&ask("hi")).await;
        assert_eq!(reply.json()["error"]["type"], "api_error", "{how}");
        reply.refused(502, "upstream_error");
    }
    for (how, bad) in no_streams() {
        upstream.always(bad);
        let reply = gateway.chat(&ask_stream("hi")).await;
        assert_eq!(reply.json()["error"]["type"], "api_error", "{how}: {}", reply.text());
        reply.refused(502, "upstream_error");
    }
    let gateway = Gateway::with(vec![tiny(&[Upstream::refused_url()], json!({}))]).await;
    gateway.chat(&ask("hi")).await.refused(502, "upstream_error");
    let reply = gateway.chat(&ask_stream("hi")).await;
    reply.refused(502, "upstream_error");
    assert!(reply.header("content-type").is_some_and(|kind| kind.starts_with("application/json")));
    let booked = gateway.books(2).await;
    assert_eq!((booked.prompt, booked.completion, booked.cost), (0, 0, 0.0), "what failed costs nothing");
}

/// So many requests to `tiny`, one after another; how many were answered well.
async fn served(gateway: &Gateway, count: usize) -> usize {
    let mut served = 0;
    for turn in 0..count {
        let body = if turn.is_multiple_of(2) { ask("hi") } else { ask_stream("hi") };
        served += usize::from(gateway.chat(&body).await.status == 200);
    }
    served
}

#[tokio::test(flavor = "multi_thread")]
async fn one_broken_model_takes_fail_over_from_no_other() {
    let (broken, bad, good) = (Upstream::start().await, Upstream::start().await, Upstream::start().await);
    broken.always(Script::html(500)).healthy(false);
    bad.always(Script::error(403, "no"));
    let models = vec![tiny(&[broken.url()], json!({"id": "broken"})), tiny(&[bad.url(), good.url()], json!({}))];
    let gateway = Gateway::with(models).await;
    let mut other = ask("hi");
    other["model"] = json!("broken");
    for _ in 0..30 {
        assert_eq!(gateway.chat(&other).await.status, 502);
    }
    // A breaker stays closed for one who is refused, so that every other request has to go over.
    assert_eq!(served(&gateway, 60).await, 60);
    assert!(bad.count() > 10, "{}", bad.count());
}

#[tokio::test(flavor = "multi_thread")]
async fn when_those_that_seem_well_fail_one_with_an_open_breaker_is_asked() {
    let (ill, other) = (Upstream::start().await, Upstream::start().await);
    ill.always(Script::html(500)).healthy(false);
    let gateway = Gateway::with(vec![tiny(&[ill.url(), other.url()], json!({}))]).await;
    let open = |admin: berth_testkit::Caller| async move {
        admin.get("/api/v1/admin/models/tiny").await.body["upstreams"][0]["breaker"] == "open"
    };
    let asks_until_open = |admin: berth_testkit::Caller| {
        let gateway = &gateway;
        async move {
            assert_eq!(gateway.chat(&ask("hi")).await.status, 200);
            open(admin).await
        }
    };
    gateway.platform.admin.until("an open breaker", asks_until_open).await;
    // Now it could answer, and the other one cannot.
    ill.always(Script::chat("Hello"));
    other.always(Script::html(500));
    let asked = other.count();
    let reply = gateway.chat(&ask("hi")).await;
    assert_eq!((reply.status, reply.text()), (200, Script::completion("Hello")));
    assert!(other.count() <= asked + 1, "nobody is asked twice while another was not asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_callers_refusals_open_no_breaker() {
    let upstream = Upstream::start().await;
    upstream.answers(|request| match request.json()["messages"][0]["content"].as_str() {
        Some("x") => Script::error(403, "moderated"),
        _ => Script::chat("Hello"),
    });
    let gateway = Gateway::over(&upstream).await;
    for _ in 0..30 {
        gateway.chat(&ask("x")).await.refused(502, "upstream_error");
    }
    let standing = gateway.platform.admin.get("/api/v1/admin/models/tiny").await.body;
    assert_eq!(standing["upstreams"][0]["breaker"], "closed", "{standing}");
    assert_eq!(gateway.chat(&ask("hi")).await.status, 200);
}
