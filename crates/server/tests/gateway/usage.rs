//! What stands in the books after a request of any fate.

use berth_testkit::upstream::{TOKENS, delta, stop};
use berth_testkit::{Script, Upstream};
use serde_json::json;

use super::{Booked, CHAT, Gateway, ask, ask_stream, tiny};

const PROMPT: u64 = TOKENS.0;
const COMPLETION: u64 = TOKENS.1;

/// A unit for each token of a prompt, two for each of an answer.
async fn priced(upstream: &Upstream) -> Gateway {
    let price = json!({"price": {"input": 500_000, "output": 1_000_000}});
    Gateway::with(vec![tiny(&[upstream.url()], price)]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn told_usage_is_exact() {
    let upstream = Upstream::start().await;
    let gateway = priced(&upstream).await;
    let mut asking = ask_stream("hi");
    asking["stream_options"] = json!({"include_usage": true});
    for (count, (body, cost)) in (1..).zip([(ask("hi"), 8.5), (ask_stream("hi"), 17.0), (asking, 25.5)]) {
        assert_eq!(gateway.post(CHAT, body.to_string()).await.status, 200);
        let booked = gateway.books(count).await;
        let (prompt, completion) = (count * PROMPT, count * COMPLETION);
        assert_eq!(booked, Booked { requests: count, prompt, completion, cost, estimated: false }, "{body}");
    }
    assert_eq!(gateway.booked(Some("tiny")).await, gateway.booked(None).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_counted_is_estimated() {
    let upstream = Upstream::start().await;
    let gateway = priced(&upstream).await;
    let silent =
        r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"Hello there"},"finish_reason":"stop"}]}"#;
    upstream.then(Script::json(200, silent));
    assert_eq!(gateway.chat(&ask("How are you today?")).await.status, 200);
    let plain = gateway.books(1).await;
    assert!(plain.estimated && plain.prompt > 0 && plain.completion > 0 && plain.cost > 0.0, "{plain:?}");
    upstream.then(Script::sse().chunk(delta("Hello there")).chunk(stop()).chunk("data: [DONE]\n\n"));
    assert_eq!(gateway.post(CHAT, ask_stream("How are you today?").to_string()).await.status, 200);
    let both = gateway.books(2).await;
    assert!(both.estimated && both.prompt > plain.prompt && both.completion > plain.completion, "{both:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_left_pays_for_what_came() {
    let upstream = Upstream::start().await;
    let gateway = priced(&upstream).await;
    upstream.then(Script::sse().delta(&"word ".repeat(40)).hang());
    let mut live = gateway.open(&ask_stream("hi")).await;
    live.until("word").await;
    // Already while it streams it stands in the books, should the service die.
    let during = gateway.books(1).await;
    assert!(during.estimated && during.prompt > 0, "{during:?}");
    drop(live);
    upstream.until(|u| u.cancelled() == 1).await;
    gateway.idle().await;
    upstream.then(Script::default().hang());
    let waiting = gateway.spawn(&ask("hi"));
    upstream.until(|u| u.open() == 1).await;
    waiting.abort();
    upstream.until(|u| u.cancelled() == 2).await;
    let booked = gateway.books(2).await;
    assert_eq!(booked.requests, 2, "each stands there once");
    assert!(booked.estimated && booked.completion >= 40, "{booked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_told_before_the_client_left_counts() {
    let upstream = Upstream::start().await;
    let gateway = priced(&upstream).await;
    // Some tell the counts so far with each event.
    let event = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}],\
                 \"usage\":{\"prompt_tokens\":30,\"completion_tokens\":9}}\n\n";
    upstream.then(Script::sse().chunk(event).cut());
    let text = gateway.open(&ask_stream("hi")).await.rest().await;
    super::broke_off(&text);
    let booked = gateway.books(1).await;
    assert_eq!((booked.requests, booked.prompt, booked.completion), (1, 30, 9));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_refused_costs_nothing() {
    let upstream = Upstream::start().await;
    let gateway = priced(&upstream).await;
    upstream.then(Script::error(400, "no")).then(Script::error(422, "no"));
    assert_eq!(gateway.chat(&ask("hi")).await.status, 400);
    assert_eq!(gateway.chat(&ask_stream("hi")).await.status, 422);
    upstream.always(Script::html(500));
    assert_eq!(gateway.chat(&ask("hi")).await.status, 502);
    let booked = gateway.books(3).await;
    assert_eq!(booked, Booked { requests: 3, prompt: 0, completion: 0, cost: 0.0, estimated: false });
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_have_their_form_and_groups() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    assert_eq!(gateway.chat(&ask("hi")).await.status, 200);
    gateway.books(1).await;
    let admin = &gateway.platform.admin;
    let key = admin.get("/api_keys").await.body["data"][0]["id"].as_str().expect("an id").to_owned();
    for (group, name) in [("model", "tiny"), ("key", key.as_str())] {
        let answer = admin.get(&format!("/usage?window=24h&resolution=1h&group_by={group}")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!((&answer.body["window"], &answer.body["resolution"]), (&json!("24h"), &json!("1h")));
        let rows = answer.body["data"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["requests"] == 1).expect("a row");
        assert_eq!(row["group"], name, "{row}");
        assert_eq!((&row["prompt_tokens"], &row["completion_tokens"]), (&json!(PROMPT), &json!(COMPLETION)));
        assert!(row["time"].as_str().is_some_and(|time| time.contains('T') && time.contains(":00:00")), "{row}");
        assert!(row["cost"].is_number() && row.get("estimated").is_some(), "{row}");
    }
    for bad in ["window=x", "window=24h&resolution=0s", "group_by=colour", "window=1h&resolution=24h"] {
        admin.get(&format!("/usage?{bad}")).await.refused(400, "invalid_request");
    }
    assert_eq!(admin.get("/usage").await.status, 200, "everything has a default");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_books_are_the_projects_own() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    assert_eq!(gateway.chat(&ask("hi")).await.status, 200);
    gateway.books(1).await;
    let admin = &gateway.platform.admin;
    // An API key of any scope reads them.
    assert_eq!(admin.with_token(&gateway.key).get("/usage").await.status, 200);
    let made = admin.post("/api_keys", json!({"name": "vm", "scopes": ["vm"]})).await;
    assert_eq!(admin.with_token(made.body["key"].as_str().expect("a key")).get("/usage").await.status, 200);
    admin.anonymous().get("/usage").await.refused(401, "unauthorized");
    let ada = gateway.platform.sign_up("ada@example.com").await;
    ada.get(&format!("{}/usage", admin.project)).await.refused(404, "project_not_found");
    let rows = ada.get("/usage?window=24h&resolution=1h&group_by=model").await.body;
    let all = rows["data"].as_array().expect("rows");
    assert!(all.iter().all(|row| row["requests"] == 0), "{rows}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_books_outlive_the_service() {
    let upstream = Upstream::start().await;
    let gateway = priced(&upstream).await;
    for _ in 0..20 {
        assert_eq!(gateway.chat(&ask("hi")).await.status, 200);
        assert_eq!(gateway.chat(&ask_stream("hi")).await.status, 200);
    }
    // Nothing waits for the books to be read before the end.
    let gateway = Gateway::of(gateway.platform.restart().await).await;
    let booked = gateway.books(40).await;
    assert_eq!((booked.requests, booked.prompt, booked.completion), (40, 40 * PROMPT, 40 * COMPLETION));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_worked_and_was_not_waited_for_is_booked() {
    let upstream = Upstream::start().await;
    let change = json!({"first_byte_timeout_seconds": 10, "price": {"input": 500_000, "output": 1_000_000}});
    let gateway = Gateway::over_twice(&upstream, change).await;
    upstream.then(Script::default().hang());
    let mut body = ask("hi");
    body["max_tokens"] = json!(20);
    assert_eq!(gateway.chat(&body).await.status, 200);
    let booked = gateway.books(1).await;
    assert_eq!((booked.requests, booked.estimated), (1, true), "{booked:?}");
    assert_eq!(booked.completion, 20 + COMPLETION, "what the first may have made, and what the second made");
    assert!(booked.prompt > PROMPT, "{booked:?}");
    // Nobody answers: the client has nothing, and the upstreams have worked.
    upstream.always(Script::default().hang());
    gateway.chat(&body).await.refused(504, "upstream_timeout");
    let both = gateway.books(2).await;
    assert_eq!((both.requests, both.completion), (2, booked.completion + 2 * 20));
    // Who never had the request has not worked.
    let gone = Gateway::with(vec![tiny(&[Upstream::refused_url()], json!({}))]).await;
    gone.chat(&body).await.refused(502, "upstream_error");
    assert_eq!(gone.books(1).await.completion, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_began_no_stream_in_time_is_booked_by_the_prompt() {
    let upstream = Upstream::start().await;
    let change = json!({"first_byte_timeout_seconds": 10, "price": {"input": 500_000, "output": 1_000_000}});
    let gateway = Gateway::over_twice(&upstream, change).await;
    // The first says nothing at all, the second begins an answer and no event.
    for silent in [Script::default().hang(), Script::sse().hang()] {
        upstream.then(silent);
    }
    let mut body = ask_stream("hi");
    body["max_tokens"] = json!(20);
    gateway.chat(&body).await.refused(504, "upstream_timeout");
    let booked = gateway.books(1).await;
    assert_eq!((booked.requests, booked.completion, booked.estimated), (1, 0, true), "{booked:?}");
    // By the estimate eight tokens.
    assert_eq!(booked.prompt, 2 * 8, "both have read it: {booked:?}");
}
