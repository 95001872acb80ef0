//! Upstreams and clients at their worst: what is never followed, never shown, never kept, never leaked.

use berth_testkit::upstream::delta;
use berth_testkit::{Script, Step, Upstream};
use serde_json::json;

use super::{CHAT, Gateway, ask, ask_stream, broke_off, tiny};

/// A gigabyte in pieces without a line break.
fn gigabyte() -> Step {
    Step::Flood(vec![b'a'; 64 * 1024], 16_384)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_not_followed() {
    let (upstream, elsewhere) = (Upstream::start().await, Upstream::start().await);
    let gateway = Gateway::over(&upstream).await;
    for status in [301, 302, 303, 307, 308] {
        let to = format!("{}/chat/completions", elsewhere.url());
        upstream.always(Script::new(status).header("location", &to).body(""));
        let reply = gateway.chat(&ask("hi")).await;
        reply.refused(502, "upstream_error");
        reply.hides(&[&elsewhere.address()]);
    }
    assert_eq!((elsewhere.count(), elsewhere.accepted()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_http_is_no_answer() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    for bytes in [
        b"nonsense\r\n\r\n".to_vec(),
        b"SSH-2.0-OpenSSH_9.9\r\n".to_vec(),
        b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n{}".to_vec(),
        [b"HTTP/1.1 200 OK\r\nx: ".to_vec(), vec![b'a'; 4 << 20], b"\r\n\r\n".to_vec()].concat(),
    ] {
        upstream.always(Script::default().step(Step::Raw(bytes)).close());
        gateway.chat(&ask("hi")).await.refused(502, "upstream_error");
        gateway.chat(&ask_stream("hi")).await.refused(502, "upstream_error");
    }
    gateway.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gigabyte_of_one_line_is_not_kept() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    upstream.always(Script::new(200).header("content-type", "application/json").step(gigabyte()));
    gateway.chat(&ask("hi")).await.refused(502, "upstream_error");
    upstream.always(Script::sse().step(gigabyte()));
    gateway.chat(&ask_stream("hi")).await.refused(502, "upstream_error");
    upstream.always(Script::sse().delta("a").chunk("data: ").step(gigabyte()));
    let reply = gateway.chat(&ask_stream("hi")).await;
    assert_eq!(reply.status, 200);
    assert_eq!(broke_off(&reply.text())["code"], "upstream_error");
    // A refusal is read by people: nobody reads a gigabyte.
    upstream.always(Script::new(400).header("content-type", "application/json").step(gigabyte()));
    let reply = gateway.chat(&ask("hi")).await;
    assert_eq!(reply.status, 400);
    reply.is_refusal();
    assert!(reply.body.len() < 1 << 20);
    upstream.until(|u| u.open() == 0).await;
    // Connections were closed with most of it still to come.
    assert!(upstream.sent() < 1 << 30, "{} bytes were taken", upstream.sent());
    gateway.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_read_is_not_read_for() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    let flood = Step::Flood(delta(&"a".repeat(64 * 1024)).into_bytes(), 16_384);
    upstream.then(Script::sse().step(flood));
    let live = gateway.open(&ask_stream("hi")).await;
    upstream.until(|u| u.sent() > 1 << 20).await;
    // While others are served, nothing piles up.
    for _ in 0..50 {
        assert_eq!(gateway.chat(&ask("hi")).await.status, 200);
    }
    assert!(upstream.sent() < 64 << 20, "{} bytes were taken", upstream.sent());
    assert_eq!(upstream.open(), 1);
    drop(live);
    upstream.until(|u| u.cancelled() == 1 && u.open() == 0).await;
    gateway.idle().await;
    assert!(gateway.books(51).await.estimated);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_read_has_no_more_time_than_others() {
    let upstream = Upstream::start().await;
    let place = json!({"upstreams": [{"url": upstream.url(), "max_concurrency": 1}], "total_timeout_seconds": 20});
    let gateway = Gateway::with(vec![tiny(&[], place)]).await;
    let flood = Step::Flood(delta(&"a".repeat(64 * 1024)).into_bytes(), 16_384);
    upstream.then(Script::sse().step(flood));
    let live = gateway.open(&ask_stream("hi")).await;
    assert_eq!(live.status, 200);
    upstream.until(|u| u.cancelled() == 1 && u.open() == 0).await;
    // Its place is free, and whoever reads on is told that this is not all.
    assert_eq!(gateway.chat(&ask("hi")).await.status, 200);
    let text = live.rest().await;
    assert_eq!(broke_off(&text)["code"], "upstream_timeout");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_the_upstreams_work() {
    let upstream = Upstream::start().await;
    let one = json!({"upstreams": [{"url": upstream.url(), "max_concurrency": 1}]});
    let gateway = Gateway::with(vec![tiny(&[], one)]).await;
    let mut left = 0;
    for streams in [false, true] {
        let body = if streams { ask_stream("hi") } else { ask("hi") };
        // Before the first byte; after headers; in the middle of a body.
        let begun =
            if streams { Script::sse().step(Step::Head) } else { Script::chat("").header("content-length", "9999") };
        for script in [Script::default().hang(), begun.hang()] {
            upstream.then(script);
            let waiting = gateway.spawn(&body);
            upstream.until(|u| u.open() == 1).await;
            waiting.abort();
            left += 1;
            upstream.until(|u| u.cancelled() == left && u.open() == 0).await;
        }
    }
    for _ in 0..3 {
        upstream.then(Script::sse().delta("a").hang());
        let mut live = gateway.open(&ask_stream("hi")).await;
        live.until("\"a\"").await;
        drop(live);
        left += 1;
        upstream.until(|u| u.cancelled() == left && u.open() == 0).await;
    }
    // The only place is free again.
    gateway.idle().await;
    assert_eq!(gateway.chat(&ask("hi")).await.status, 200);
    let booked = gateway.books(8).await;
    assert_eq!(booked.requests, 8, "each stands in the books once");
    assert!(booked.estimated && booked.prompt > 7 && booked.completion >= 5 + 3, "{booked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_comments_come_ends_the_upstreams_work() {
    let upstream = Upstream::start().await;
    upstream.then(Script::default().hang());
    let models = vec![tiny(&[upstream.url()], json!({}))];
    let gateway = Gateway::configured(models, |config| config.gateway.keep_alive_millis = 50).await;
    let mut live = gateway.open(&ask_stream("hi")).await;
    live.until(": keep-alive").await;
    upstream.until(|u| u.open() == 1).await;
    drop(live);
    upstream.until(|u| u.cancelled() == 1 && u.open() == 0).await;
    gateway.idle().await;
    assert_eq!(gateway.books(1).await.requests, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_an_upstream_is_shown() {
    let upstream = Upstream::start().await;
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("key");
    std::fs::write(&file, "sk-very-secret").expect("a file");
    let keyed = json!({"upstreams": [{"url": upstream.url(), "api_key_file": file}]});
    let gateway = Gateway::with(vec![tiny(&[], keyed)]).await;
    let address = upstream.address();
    let secrets = [address.as_str(), "sk-very-secret", "Bad day", "<h1", "<html", "inner-host-7"];
    let leaky = |script: Script| {
        let script = script.header("server", "inner-host-7").header("via", &format!("1.1 {address}"));
        script.header("set-cookie", "at=inner-host-7").header("x-served-by", &format!("http://{address}/v1"))
    };
    let told = format!("POST http://{address}/v1/chat/completions with Bearer sk-very-secret failed");
    let event = format!("data: {}\n\n", json!({"error": {"message": told, "code": "x"}}));
    for script in [
        Script::chat("Hello"),
        Script::error(400, &told),
        Script::json(422, json!({"detail": told}).to_string()),
        Script::html(404),
        Script::html(500),
        Script::error(500, &told),
        Script::error(401, &told),
        Script::error(429, &told),
        Script::html(200),
        Script::json(400, json!({"error": {"message": "no", "param": address, "code": "sk-very-secret"}}).to_string()),
    ] {
        upstream.always(leaky(script));
        for body in [ask("hi"), ask_stream("hi")] {
            let reply = gateway.chat(&body).await;
            reply.hides(&secrets);
            if reply.status != 200 {
                reply.is_refusal();
            }
        }
    }
    for script in [
        Script::stream(&["Hello"]),
        Script::sse().delta("a").chunk(event),
        Script::sse().delta("a").chunk("data: <html>Bad day</html>\n\n"),
        Script::sse().delta("a").cut(),
    ] {
        upstream.always(leaky(script));
        let reply = gateway.post(CHAT, ask_stream("hi").to_string()).await;
        assert!(reply.status == 200 || reply.status == 502, "{}", reply.text());
        reply.hides(&secrets);
    }
}
