//! Streams: events as they come, and an end that never lies.

use std::time::Duration;

use berth_testkit::upstream::{delta, stop};
use berth_testkit::{Script, Step, Upstream};
use serde_json::{Value, json};

use super::{CHAT, Gateway, Live, ask_stream, broke_off, events, tiny};

/// One word of a stream: what stands before its failures.
const BEGUN: &str = "Once";

/// A stream that began well, and goes on like this once that was read.
async fn begun(gateway: &Gateway, upstream: &Upstream, rest: Script) -> Live {
    let gate = upstream.gate();
    upstream.then(Script::sse().delta(BEGUN).hold(&gate).and(rest));
    let mut live = gateway.open(&ask_stream("hi")).await;
    live.until(BEGUN).await;
    gate.open();
    live
}

#[tokio::test(flavor = "multi_thread")]
async fn events_come_one_by_one() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    let gates: Vec<_> = (0..4).map(|_| upstream.gate()).collect();
    let words = ["one", "two", "three", "four"];
    let script =
        std::iter::zip(&gates, words).fold(Script::sse(), |script, (gate, word)| script.delta(word).hold(gate));
    upstream.then(script.done());
    let mut live = gateway.open(&ask_stream("hi")).await;
    assert_eq!(live.status, 200);
    for (gate, word) in std::iter::zip(&gates, words) {
        live.until(word).await;
        assert_eq!(events(&live.so_far()).last().map(|data| data.contains(word)), Some(true));
        gate.open();
    }
    assert!(live.rest().await.ends_with("data: [DONE]\n\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_told_as_one() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    let live = gateway.open(&ask_stream("hi")).await;
    assert_eq!(live.status, 200);
    assert_eq!(live.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert_ne!(live.header("connection"), Some("close"));
    assert_eq!(live.header("content-length"), None);
    assert!(live.header("x-request-id").is_some());
    assert!(live.header("cache-control").is_some_and(|how| how.contains("no-cache") || how.contains("no-store")));
    live.rest().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_of_events_stay_as_they_are() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    let odd = concat!(
        "data: { \"id\":\"1\",\"object\":\"chat.completion.chunk\", \"choices\":[{\"index\":0,\"delta\":{",
        "\"content\":\"a\",\"reasoning_content\":\"why\"},\"x_n\":1e2}] ,\"zeta\":1.0}\r\n\r\n",
        ": a comment\r\n\r\n",
        "id: 7\nevent: message\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"é \u{1f600}\"}}]}\n\n",
        "data:{\"choices\":[{\"index\":0,\"delta\":{}, \"finish_reason\":\"length\"}]}\r\r",
        "data: [DONE]\r\n\r\n",
    );
    // In every way of cutting it into pieces: between CR and LF, and within a character.
    for size in [1, 2, 3, 7, 64, 10_000] {
        let script = odd.as_bytes().chunks(size).fold(Script::sse(), berth_testkit::Script::chunk);
        upstream.then(script);
        assert_eq!(gateway.open(&ask_stream("hi")).await.rest().await, odd, "in pieces of {size}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_comes_only_to_those_who_ask() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    let good = Script::stream(&["Hel", "lo"]);
    for (options, wanted) in [
        (None, false),
        (Some(Value::Null), false),
        (Some(json!({})), false),
        (Some(json!({"include_usage": false, "x": 1})), false),
        (Some(json!({"include_usage": true, "x": 1})), true),
    ] {
        let mut body = ask_stream("hi");
        if let Some(options) = &options {
            body["stream_options"] = options.clone();
        }
        let text = gateway.open(&body).await.rest().await;
        assert_eq!(text.as_bytes(), good.bytes(wanted), "{options:?}");
        // The upstream is always asked, and everything else goes on as it was.
        let mut received = upstream.last().json();
        assert_eq!(received["stream_options"]["include_usage"], true, "{options:?}");
        if let Some(unknown) = options.as_ref().and_then(|options| options.get("x")) {
            assert_eq!(received["stream_options"]["x"], *unknown);
        }
        let own = received.as_object_mut().expect("an object");
        own.remove("stream_options");
        body.as_object_mut().expect("an object").remove("stream_options");
        body["model"] = json!("upstream-tiny");
        assert_eq!(received, body);
    }
    let booked = gateway.books(5).await;
    assert_eq!((booked.prompt, booked.completion, booked.estimated), (35, 25, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_beside_content_is_not_removed() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    let last = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}],\
                \"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}\n\n";
    let script = Script::sse().delta("a").chunk(last).chunk("data: [DONE]\n\n");
    upstream.then(script.clone());
    assert_eq!(gateway.open(&ask_stream("hi")).await.rest().await.as_bytes(), script.bytes(false));
    let booked = gateway.books(1).await;
    assert_eq!((booked.prompt, booked.completion, booked.estimated), (3, 1, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_body_ends_with_done() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    // The upstream keeps its answer open, or says more than there is to say.
    for tail in [Script::default().hang(), Script::default().delta("more").chunk("data: [DONE]\n\n")] {
        let good = Script::stream(&["Hello"]);
        let expected = good.bytes(false);
        upstream.then(good.and(tail));
        assert_eq!(gateway.open(&ask_stream("hi")).await.rest().await.as_bytes(), expected);
    }
    upstream.until(|u| u.open() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_answer_gets_the_done_that_its_upstream_forgot() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    for end in ["", "data: [DONE]", "data: [DONE]\n"] {
        let script = Script::sse().delta("a").chunk(stop());
        upstream.then(if end.is_empty() { script } else { script.chunk(end) });
        let text = gateway.open(&ask_stream("hi")).await.rest().await;
        assert_eq!(text, format!("{}{}data: [DONE]\n\n", delta("a"), stop()), "{end:?}");
    }
}

/// A piece of a second choice.
fn two_begun() -> String {
    format!("data: {}\n\n", json!({"choices": [{"index": 1, "delta": {"content": "x"}, "finish_reason": null}]}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_was_cut_never_looks_complete() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over_twice(&upstream, json!({})).await;
    let half = "data: {\"choices\":[{\"index\":0,\"del";
    for (how, rest) in [
        ("a clean end without finish_reason", Script::default().step(Step::End)),
        ("one of two choices", Script::default().chunk(two_begun()).chunk(stop()).done()),
        ("[DONE] without finish_reason", Script::default().chunk("data: [DONE]\n\n")),
        ("a reset", Script::default().cut()),
        ("an end in the middle of a body", Script::default().close()),
        ("half a chunk", Script::default().step(Step::Half(b"data: {".into())).close()),
        ("half an event and a clean end", Script::default().chunk(half)),
        ("half an event and a reset", Script::default().chunk(half).cut()),
        ("an event that is no JSON", Script::default().chunk("data: {\"choices\": nonsense}\n\n").done()),
        ("an event of HTML", Script::default().chunk("data: <html>Bad day</html>\n\n").done()),
    ] {
        let asked = upstream.count();
        let text = begun(&gateway, &upstream, rest).await.rest().await;
        let error = broke_off(&text);
        assert_eq!(error["code"], "upstream_error", "{how}: {text}");
        assert!(text.starts_with(&delta(BEGUN)), "{how}: what came before stays: {text}");
        assert!(!text.contains("html"), "{how}: {text}");
        assert_eq!(upstream.count(), asked + 1, "{how}: nobody else is asked after the first byte");
        gateway.idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_the_upstream_ends_the_stream() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over_twice(&upstream, json!({})).await;
    for told in [
        json!({"error": {"message": "out of memory", "type": "server_error", "param": null, "code": "oom"}}),
        json!({"error": {"message": "out of memory", "code": 500}}),
        json!({"error": "out of memory"}),
    ] {
        let rest = Script::default().chunk(format!("data: {told}\n\n")).done();
        let text = begun(&gateway, &upstream, rest).await.rest().await;
        let error = broke_off(&text);
        assert!(error["message"].as_str().is_some_and(|message| message.contains("out of memory")), "{told}: {text}");
        upstream.until(|u| u.open() == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_in_the_middle_ends_the_stream() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over_twice(&upstream, json!({"idle_timeout_seconds": 1})).await;
    let live = begun(&gateway, &upstream, Script::default().hang()).await;
    let error = broke_off(&live.rest().await);
    assert_eq!(error["code"], "upstream_timeout");
    upstream.until(|u| u.cancelled() == 1 && u.open() == 0).await;
    assert_eq!(upstream.count(), 1);
    gateway.idle().await;
    assert!(gateway.books(1).await.estimated);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_hears_that_the_line_is_alive() {
    let upstream = Upstream::start().await;
    let gate = upstream.gate();
    upstream.then(Script::default().hold(&gate).close());
    let urls = [upstream.url(), upstream.another_url().await];
    let models = vec![tiny(&urls, json!({}))];
    let gateway = Gateway::configured(models, |config| config.gateway.keep_alive_millis = 50).await;
    let mut live = gateway.open(&ask_stream("hi")).await;
    assert_eq!(live.status, 200, "from the first comment on");
    live.until(": keep-alive\n\n: keep-alive\n\n").await;
    assert!(events(&live.so_far()).is_empty());
    // Others are asked as long as no content was sent.
    gate.open();
    let text = live.rest().await;
    let (comments, rest) = text.split_at(text.find("data:").expect("an event"));
    assert_eq!(comments.replace(": keep-alive\n\n", ""), "");
    // Comments may come between events, too.
    assert_eq!(rest.replace(": keep-alive\n\n", "").as_bytes(), Script::stream(&["Hel", "lo"]).bytes(false));
    assert_eq!(upstream.count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_after_comments_is_told_by_an_event() {
    let upstream = Upstream::start().await;
    let gate = upstream.gate();
    upstream.always(Script::default().hold(&gate).step(Step::Status(500)));
    let models = vec![tiny(&[upstream.url()], json!({}))];
    let gateway = Gateway::configured(models, |config| config.gateway.keep_alive_millis = 50).await;
    let mut live = gateway.open(&ask_stream("hi")).await;
    assert_eq!(live.status, 200);
    live.until(": keep-alive\n\n").await;
    gate.open();
    let text = live.rest().await;
    assert_eq!(broke_off(&text)["code"], "upstream_error");
    assert_eq!(events(&text).len(), 1, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn comments_come_in_the_middle_of_a_stream_too() {
    let upstream = Upstream::start().await;
    let gate = upstream.gate();
    upstream.then(Script::sse().delta(BEGUN).hold(&gate).done());
    let models = vec![tiny(&[upstream.url()], json!({}))];
    let gateway = Gateway::configured(models, |config| config.gateway.keep_alive_millis = 50).await;
    let mut live = gateway.open(&ask_stream("hi")).await;
    live.until(BEGUN).await;
    live.until("\n\n: keep-alive\n\n").await;
    gate.open();
    assert!(live.rest().await.ends_with("data: [DONE]\n\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_stream_too() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    let body = json!({"model": "tiny", "prompt": "once", "stream": true});
    let choice = "{\"index\":0,\"text\":\"x\",\"finish_reason\":\"stop\"}";
    let event = format!("data: {{\"object\":\"text_completion\",\"choices\":[{choice}]}}\n\n");
    upstream.then(Script::sse().chunk(event.as_str()).chunk("data: [DONE]\n\n"));
    let reply = gateway.post("/v1/completions", body.to_string()).await;
    assert_eq!((reply.status, reply.text()), (200, format!("{event}data: [DONE]\n\n")));
    assert_eq!(upstream.last().json()["stream_options"]["include_usage"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_stream_comes_to_an_end() {
    let upstream = Upstream::start().await;
    let endless = Step::Drip(delta("and then ").into_bytes(), Duration::from_millis(5));
    upstream.then(Script::sse().step(endless));
    let gateway = Gateway::with(vec![tiny(&[upstream.url()], json!({"total_timeout_seconds": 20}))]).await;
    let reply = gateway.post(CHAT, ask_stream("hi").to_string()).await;
    assert_eq!(reply.status, 200);
    assert_eq!(broke_off(&reply.text())["code"], "upstream_timeout");
    upstream.until(|u| u.cancelled() == 1 && u.open() == 0).await;
    let booked = gateway.books(1).await;
    assert!(booked.estimated && booked.completion > 1, "{booked:?}");
}
