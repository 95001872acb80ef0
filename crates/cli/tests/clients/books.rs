//! The books over the service's end: every request whose answer came stands in them once, and one that was cut as
//! estimated.

use berth_testkit::{Caller, Script, Service, Upstream};
use futures::StreamExt;
use serde_json::{Value, json};

use crate::{BERTH, key};

/// Requests that are answered before the service dies.
const ANSWERED: i64 = 7;

/// A service over an upstream, started with this fault.
fn service(upstream: &Upstream, fault: &str) -> Service {
    let mut service = Service::new(BERTH, &[]);
    service.set("BERTH_FAULT", fault);
    service.configure(&format!("[[models]]\nid = \"tiny\"\nupstreams = [{{ url = \"{}\" }}]\n", upstream.url()));
    service.start();
    service
}

fn ask(service: &Service, key: &str, streams: bool) -> reqwest::RequestBuilder {
    let body = json!({"model": "tiny", "stream": streams, "messages": [{"role": "user", "content": "hi"}]});
    let url = format!("{}/v1/chat/completions", service.base);
    reqwest::Client::new().post(url).bearer_auth(key).json(&body)
}

async fn books(caller: &Caller) -> Vec<Value> {
    let usage = caller.get("/usage?window=24h&resolution=1h").await;
    usage.body["data"].as_array().cloned().unwrap_or_default()
}

fn sum(rows: &[Value], field: &str) -> i64 {
    rows.iter().filter_map(|row| row[field].as_i64()).sum()
}

/// Requests in the books, and whether any is estimated.
async fn booked(caller: &Caller) -> (i64, bool) {
    let rows = books(caller).await;
    (sum(&rows, "requests"), rows.iter().any(|row| row["estimated"] == true))
}

async fn answered(service: &Service, key: &str) {
    for n in 0..ANSWERED {
        let answer = ask(service, key, n % 2 == 0).send().await.expect("an answer");
        assert_eq!(answer.status(), 200);
        answer.bytes().await.expect("all of it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_is_in_the_books_whenever_the_service_dies() {
    for point in ["before", "written", "done"].map(|step| format!("usage.move.{step}")) {
        let upstream = Upstream::start().await;
        // Nothing is moved before it dies.
        let mut service = service(&upstream, "usage.move.before=wait");
        let key = key(&service.admin().await).await;
        answered(&service, &key).await;
        service.kill();
        // What the dead one left is moved at the start, and this one dies of it.
        service.start_and_die_at(&point);
        service.start();
        assert_eq!(booked(&service.admin().await).await, (ANSWERED, false), "{point}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_dies_with_the_service_is_estimated() {
    let upstream = Upstream::start().await;
    let mut service = service(&upstream, "");
    let key = key(&service.admin().await).await;
    answered(&service, &key).await;
    let gate = upstream.gate();
    upstream.then(Script::sse().delta("one").hold(&gate).done());
    let mut stream = ask(&service, &key, true).send().await.expect("an answer").bytes_stream();
    stream.next().await.expect("a piece").expect("bytes");
    service.kill();
    assert!(stream.next().await.is_none_or(|piece| piece.is_err()));
    service.start();
    assert_eq!(booked(&service.admin().await).await, (ANSWERED + 1, true));
    gate.open();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_outlasts_the_service_pays_for_what_came() {
    let upstream = Upstream::start().await;
    let mut service = service(&upstream, "");
    let key = key(&service.admin().await).await;
    let gate = upstream.gate();
    upstream.then(Script::sse().delta("one").hold(&gate).delta(&"more ".repeat(200)).hang());
    let mut stream = ask(&service, &key, true).send().await.expect("an answer").bytes_stream();
    let mut text = String::new();
    while !text.contains("more") {
        text.push_str(&String::from_utf8_lossy(&stream.next().await.expect("a piece").expect("bytes")));
        gate.open();
    }
    // It drains for a while, cuts what has no end, and writes that down.
    assert_eq!(service.stop(), Some(0));
    service.start();
    let rows = books(&service.admin().await).await;
    assert_eq!(sum(&rows, "requests"), 1, "{rows:?}");
    assert!(sum(&rows, "completion_tokens") > 200 && rows[0]["estimated"] == true, "{rows:?}");
}
