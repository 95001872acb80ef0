//! Which upstream of several is asked, and how they change while streams run.

use std::time::Duration;

use berth_testkit::{Caller, Script, Upstream};
use reqwest::Method;
use serde_json::{Value, json};

use super::{CHAT, Gateway, ask, ask_stream, tiny, within};

async fn pair(change: Value) -> (Upstream, Upstream, Gateway) {
    let (a, b) = (Upstream::start().await, Upstream::start().await);
    let gateway = Gateway::with(vec![tiny(&[a.url(), b.url()], change)]).await;
    (a, b, gateway)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_least_busy_is_asked() {
    let (a, b, gateway) = pair(json!({"strategy": "least_busy"})).await;
    let gate = a.gate();
    for upstream in [&a, &b] {
        upstream.always(Script::default().hold(&gate).and(Script::chat("Hello")));
    }
    let mut all = Vec::new();
    for count in 1..=6 {
        all.push(gateway.spawn(&ask("hi")));
        a.until(|a| a.open() + b.open() == count).await;
        assert!(a.open().abs_diff(b.open()) <= 1, "{} and {}", a.open(), b.open());
    }
    gate.open();
    for one in all {
        assert_eq!(one.await.expect("an answer"), 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_upstream_is_passed_by() {
    let (a, b) = (Upstream::start().await, Upstream::start().await);
    let gate = a.gate();
    for upstream in [&a, &b] {
        upstream.always(Script::default().hold(&gate).and(Script::chat("Hello")));
    }
    let places = json!([{"url": a.url(), "max_concurrency": 2}, {"url": b.url(), "max_concurrency": 3}]);
    let gateway = Gateway::with(vec![tiny(&[], json!({"upstreams": places}))]).await;
    let all: Vec<_> = (0..12).map(|_| gateway.spawn(&ask("hi"))).collect();
    a.until(|u| u.open() == 2).await;
    b.until(|u| u.open() == 3).await;
    gate.open();
    for one in all {
        assert_eq!(one.await.expect("an answer"), 200);
    }
    assert_eq!((a.most(), b.most(), a.count() + b.count()), (2, 3, 12));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_stays_where_it_is() {
    let (a, b, gateway) = pair(json!({"strategy": "affinity"})).await;
    let mut seen = [0, 0];
    // All of them at one upstream: once in 2^47 runs.
    for conversation in 0..48 {
        let mut body = ask(&format!("conversation {conversation}"));
        let before = [a.count(), b.count()];
        for turn in 0..3 {
            assert_eq!(gateway.chat(&body).await.status, 200);
            let messages = body["messages"].as_array_mut().expect("messages");
            messages.push(json!({"role": "assistant", "content": "Hello"}));
            messages.push(json!({"role": "user", "content": format!("turn {turn}")}));
        }
        let asked = [a.count() - before[0], b.count() - before[1]];
        assert!(asked == [3, 0] || asked == [0, 3], "{asked:?}");
        seen = [seen[0] + asked[0], seen[1] + asked[1]];
    }
    let standing = gateway.platform.admin.get("/api/v1/admin/models/tiny").await.body;
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}, {standing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn shares_follow_weights() {
    let (a, b) = (Upstream::start().await, Upstream::start().await);
    let shares = json!([{"url": a.url(), "weight": 9}, {"url": b.url(), "weight": 1}]);
    let gateway = Gateway::with(vec![tiny(&[], json!({"upstreams": shares}))]).await;
    for _ in 0..200 {
        assert_eq!(gateway.chat(&ask("hi")).await.status, 200);
    }
    // 180 to 20; outside of this once in a thousand million runs.
    assert!(a.count() >= 140 && b.count() >= 1, "{} to {}", a.count(), b.count());
    assert_eq!(a.count() + b.count(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_fails_and_fails_is_left_alone() {
    let (bad, good) = (Upstream::start().await, Upstream::start().await);
    bad.always(Script::html(500)).healthy(false);
    let models =
        vec![tiny(&[bad.url()], json!({"fallbacks": ["backup"]})), tiny(&[good.url()], json!({"id": "backup"}))];
    let gateway = Gateway::with(models).await;
    for _ in 0..40 {
        assert_eq!(gateway.chat(&ask("hi")).await.status, 200);
    }
    assert_eq!(good.count(), 40);
    assert!(bad.count() < 40, "{} tries", bad.count());
    let breaker = |admin: Caller, state: &'static str| async move {
        admin.get("/api/v1/admin/models/tiny").await.body["upstreams"][0]["breaker"] == state
    };
    let admin = &gateway.platform.admin;
    admin.until("an open breaker", |admin| breaker(admin, "open")).await;
    // It is looked at, and asked again when it is well.
    bad.until(|bad| !bad.probes().is_empty()).await;
    bad.always(Script::chat("Hello")).healthy(true);
    admin.until("another chance", |admin| async move { !breaker(admin, "open").await }).await;
    let admin = gateway.platform.admin.clone();
    let served = |_| async {
        assert_eq!(gateway.chat(&ask("hi")).await.status, 200);
        breaker(gateway.platform.admin.clone(), "closed").await
    };
    admin.until("a closed breaker", served).await;
    assert!(bad.probes().iter().all(|probe| probe.path == "/v1/models"), "{:?}", bad.probes());
}

/// Sends an administrator's request that changes a model.
async fn change(gateway: &Gateway, method: Method, path: &str, body: Value) -> u16 {
    let admin = &gateway.platform.admin;
    let request = admin.request(method, &format!("/api/v1/admin/models{path}"));
    let answer = admin.send(if body.is_null() { request } else { request.json(&body) }).await;
    assert!(answer.status < 300, "{answer:?}");
    answer.status
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_goes_without_cutting_a_stream() {
    let (a, b) = (Upstream::start().await, Upstream::start().await);
    let gateway = Gateway::with(Vec::new()).await;
    let model = |url: String| json!({"id": "acme/new", "upstreams": [{"url": url}]});
    assert_eq!(change(&gateway, Method::POST, "", model(a.url())).await, 201);
    let of = |mut body: Value| {
        body["model"] = json!("acme/new");
        body
    };
    let gate = a.gate();
    a.then(Script::sse().delta("one").hold(&gate).done());
    b.then(Script::sse().delta("two").hold(&gate).done());
    let mut first = gateway.open(&of(ask_stream("hi"))).await;
    first.until("\"one\"").await;
    change(&gateway, Method::PUT, "/acme/new", model(b.url())).await;
    // From now on the other one is asked, and the stream goes on.
    let mut second = gateway.open(&of(ask_stream("hi"))).await;
    second.until("\"two\"").await;
    change(&gateway, Method::DELETE, "/acme/new", Value::Null).await;
    gateway.post(CHAT, of(ask("hi")).to_string()).await.refused(404, "model_not_found");
    assert_eq!((a.count(), b.count(), a.cancelled(), b.cancelled()), (1, 1, 0, 0));
    gate.open();
    for stream in [first, second] {
        assert!(stream.rest().await.ends_with("data: [DONE]\n\n"));
    }
    let booked = gateway.books(2).await;
    assert_eq!((booked.prompt, booked.estimated), (14, false), "both stand in the books as told");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_urgent_goes_first() {
    let upstream = Upstream::start().await;
    let gate = upstream.gate();
    upstream.then(Script::default().hold(&gate).and(Script::chat("Hello")));
    let place = json!({"upstreams": [{"url": upstream.url(), "max_concurrency": 1}], "max_queue": 5});
    let gateway = Gateway::with(vec![tiny(&[], place)]).await;
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(gateway.posting(CHAT, ask("first").to_string()).send());
    upstream.until(|u| u.open() == 1).await;
    for (waiting, (word, text)) in
        [("low", "fifth"), ("normal", "third"), ("high", "second"), ("?", "fourth")].into_iter().enumerate()
    {
        tasks.spawn(gateway.posting(CHAT, ask(text).to_string()).header("x-priority", word).send());
        gateway.waiting(waiting + 1).await;
    }
    gate.open();
    for answer in tasks.join_all().await {
        assert_eq!(answer.expect("an answer").status(), 200);
    }
    let order: Vec<_> = upstream.requests().iter().map(|r| r.json()["messages"][0]["content"].clone()).collect();
    assert_eq!(order, ["first", "second", "third", "fourth", "fifth"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_one_upstream_holds_nobody_up_at_another() {
    let upstreams = [Upstream::start().await, Upstream::start().await];
    let gate = upstreams[0].gate();
    for upstream in &upstreams {
        let gate = gate.clone();
        upstream.answers(move |request| match request.json()["messages"][0]["content"].as_str() {
            Some("first") => Script::default().hold(&gate).and(Script::chat("Hello")),
            _ => Script::chat("Hello"),
        });
    }
    let places = upstreams.each_ref().map(|upstream| json!({"url": upstream.url(), "max_concurrency": 1}));
    let gateway = Gateway::with(vec![tiny(&[], json!({"upstreams": places}))]).await;
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(gateway.posting(CHAT, ask("first").to_string()).send());
    within(async {
        while upstreams.iter().all(|upstream| upstream.open() == 0) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let [a, b] = &upstreams;
    let (busy, free) = if a.open() == 1 { (a, b) } else { (b, a) };
    // It fails at the one that is free, and waits for the other.
    free.then(Script::html(500));
    tasks.spawn(gateway.posting(CHAT, ask("second").to_string()).send());
    gateway.waiting(1).await;
    for _ in 0..3 {
        assert_eq!(gateway.chat(&ask("hi")).await.status, 200);
    }
    assert_eq!((free.count(), busy.count()), (4, 1));
    gate.open();
    for answer in tasks.join_all().await {
        assert_eq!(answer.expect("an answer").status(), 200);
    }
    assert_eq!((free.count(), busy.count()), (4, 2));
}
