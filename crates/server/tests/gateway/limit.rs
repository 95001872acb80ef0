//! Limits: places at upstreams, requests and tokens a minute, money a month.

use berth_domain::Month;
use berth_domain::gateway::Nano;
use berth_server::config::Amount;
use berth_testkit::{Script, Upstream, vm};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{CHAT, Gateway, ask, ask_stream, many, next, of_sibling, retry_after, sibling, stranger, tiny, within};

/// Tokens that are set aside for what is sent: one for four bytes.
fn sent(body: &Value) -> u64 {
    (body.to_string().len() as u64).div_ceil(4)
}

/// A request whose answer may have so many tokens.
fn at_most(tokens: u64) -> Value {
    let mut body = ask("hi");
    body["max_tokens"] = json!(tokens);
    body
}

/// One place at an upstream, and so many who may wait.
async fn one_place(upstream: &Upstream, waiting: u32) -> Gateway {
    let place = json!({"upstreams": [{"url": upstream.url(), "max_concurrency": 1}], "max_queue": waiting});
    Gateway::with(vec![tiny(&[], place)]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn who_finds_no_place_waits_and_is_served() {
    let upstream = Upstream::start().await;
    let gates: Vec<_> = (0..6).map(|_| upstream.gate()).collect();
    for gate in &gates {
        upstream.then(Script::default().hold(gate).and(Script::chat("Hello")));
    }
    let gateway = one_place(&upstream, 5).await;
    let mut tasks = many(&gateway, 6, &ask("hi"));
    gateway.waiting(5).await;
    for (before, gate) in gates.iter().enumerate() {
        upstream.until(|u| u.count() > before).await;
        assert_eq!((upstream.count(), upstream.open()), (before + 1, 1), "never two at once");
        gate.open();
        assert_eq!(next(&mut tasks).await.status, 200);
    }
    assert_eq!(upstream.most(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_the_queue_leaves_a_place_in_it() {
    let upstream = Upstream::start().await;
    let gate = upstream.gate();
    upstream.then(Script::default().hold(&gate).and(Script::chat("Hello")));
    let gateway = one_place(&upstream, 1).await;
    let mut first = many(&gateway, 1, &ask("hi"));
    upstream.until(|u| u.open() == 1).await;
    for body in [ask("hi"), ask_stream("hi")] {
        let waiting = gateway.spawn(&body);
        gateway.waiting(1).await;
        gateway.chat(&ask("hi")).await.refused(429, "rate_limited");
        waiting.abort();
        gateway.waiting(0).await;
    }
    let last = gateway.spawn(&ask("hi"));
    gateway.waiting(1).await;
    gate.open();
    assert_eq!((next(&mut first).await.status, last.await.expect("an answer")), (200, 200));
    assert_eq!(upstream.count(), 2, "who left was not asked for");
    assert_eq!(gateway.books(2).await.completion, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_says_so() {
    let upstream = Upstream::start().await;
    let gate = upstream.gate();
    upstream.then(Script::default().hold(&gate).and(Script::chat("Hello")));
    let gateway = one_place(&upstream, 2).await;
    let mut first = many(&gateway, 1, &ask("hi"));
    upstream.until(|u| u.open() == 1).await;
    // Of these two may wait.
    let mut tasks = many(&gateway, 6, &ask("hi"));
    for _ in 0..4 {
        let reply = next(&mut tasks).await;
        reply.refused(429, "rate_limited");
        assert_eq!(reply.json()["error"]["type"], "rate_limit_error");
        assert!(retry_after(&reply) >= 1);
    }
    gate.open();
    assert_eq!(next(&mut first).await.status, 200);
    for _ in 0..2 {
        assert_eq!(next(&mut tasks).await.status, 200);
    }
    assert_eq!(upstream.most(), 1);
    gateway.idle().await;
    assert_eq!(gateway.chat(&ask("hi")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_where_nobody_may() {
    let upstream = Upstream::start().await;
    let gate = upstream.gate();
    upstream.then(Script::default().hold(&gate).and(Script::chat("Hello")));
    let gateway = one_place(&upstream, 0).await;
    let mut first = many(&gateway, 1, &ask("hi"));
    upstream.until(|u| u.open() == 1).await;
    gateway.chat(&ask("hi")).await.refused(429, "rate_limited");
    gateway.chat(&ask_stream("hi")).await.refused(429, "rate_limited");
    gate.open();
    assert_eq!(next(&mut first).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_longer_than_its_time_ends() {
    let upstream = Upstream::start().await;
    upstream.always(Script::default().hang());
    let place = json!({"upstreams": [{"url": upstream.url(), "max_concurrency": 1}], "total_timeout_seconds": 1});
    let gateway = Gateway::with(vec![tiny(&[], place)]).await;
    let mut tasks = many(&gateway, 3, &ask("hi"));
    for _ in 0..3 {
        next(&mut tasks).await.refused(504, "upstream_timeout");
    }
    upstream.until(|u| u.open() == 0).await;
    gateway.waiting(0).await;
    gateway.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_a_minute_hold_for_many_at_once() {
    let upstream = Upstream::start().await;
    let gate = upstream.gate();
    upstream.always(Script::default().hold(&gate).and(Script::chat("Hello")));
    let gateway = Gateway::over(&upstream).await;
    let each = 1000 + sent(&at_most(1000));
    gateway.limit(json!({"tokens_per_minute": 3 * each + 10})).await;
    let mut tasks = many(&gateway, 50, &at_most(1000));
    for _ in 0..47 {
        let reply = next(&mut tasks).await;
        reply.refused(429, "rate_limited");
        assert_eq!(reply.json()["error"]["type"], "rate_limit_error");
        assert!((1..=60).contains(&retry_after(&reply)), "{reply:?}");
    }
    upstream.until(|u| u.open() == 3).await;
    gate.open();
    for _ in 0..3 {
        assert_eq!(next(&mut tasks).await.status, 200);
    }
    // What was set aside and not used is there again: each took 12.
    assert_eq!(gateway.chat(&at_most(3 * each - 40 - sent(&at_most(1000)))).await.status, 200);
    assert_eq!(upstream.count(), 4);
    assert_eq!(gateway.books(4).await.prompt, 28);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_come_back_with_time() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    gateway.limit(json!({"tokens_per_minute": 14})).await;
    for body in [at_most(5), ask_stream("hi")] {
        assert_eq!(gateway.chat(&body).await.status, 200, "alone, even more than the whole is let in");
        let refused = gateway.chat(&at_most(5)).await;
        refused.refused(429, "rate_limited");
        gateway.platform.advance(i64::try_from(retry_after(&refused)).expect("seconds"));
        assert_eq!(gateway.chat(&at_most(5)).await.status, 200);
        gateway.platform.advance(120);
    }
    gateway.limit(json!({})).await;
    for _ in 0..5 {
        assert_eq!(gateway.chat(&at_most(1_000_000)).await.status, 200);
    }
}

/// A unit of money for each token of an answer.
async fn dear(upstream: &Upstream) -> Gateway {
    Gateway::with(vec![tiny(&[upstream.url()], json!({"price": {"output": 1_000_000}}))]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn money_a_month_holds_for_many_at_once() {
    let upstream = Upstream::start().await;
    let gate = upstream.gate();
    upstream.always(Script::default().hold(&gate).and(Script::chat("Hello")));
    let gateway = dear(&upstream).await;
    gateway.limit(json!({"spend_per_month": 25})).await;
    let mut tasks = many(&gateway, 50, &at_most(5));
    for _ in 0..45 {
        let reply = next(&mut tasks).await;
        reply.refused(403, "quota_exceeded");
        assert_eq!(reply.json()["error"]["type"], "permission_error");
    }
    upstream.until(|u| u.open() == 5).await;
    gate.open();
    for _ in 0..5 {
        assert_eq!(next(&mut tasks).await.status, 200);
    }
    let booked = gateway.books(5).await;
    assert_eq!((booked.requests, booked.completion), (5, 25));
    assert!((booked.cost - 25.0).abs() < 1e-9, "{booked:?}");
    // All of it is spent, also for who comes after a restart.
    gateway.chat(&at_most(1)).await.refused(403, "quota_exceeded");
    let gateway = Gateway::of(gateway.platform.restart().await).await;
    gateway.chat(&at_most(1)).await.refused(403, "quota_exceeded");
    gateway.limit(json!({"spend_per_month": 26})).await;
    gateway.chat(&at_most(2)).await.refused(403, "quota_exceeded");
    assert_eq!(gateway.chat(&at_most(1)).await.status, 200);
    assert_eq!(upstream.count(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn money_is_set_aside_for_all_that_is_sent() {
    let upstream = Upstream::start().await;
    // A unit of money for each token of a prompt.
    let gateway = Gateway::with(vec![tiny(&[upstream.url()], json!({"price": {"input": 1_000_000}}))]).await;
    for (before, field) in (0..).zip(["tools", "functions", "response_format", "documents"]) {
        let gate = upstream.gate();
        upstream.always(Script::default().hold(&gate).and(Script::chat("Hello")));
        let mut body = ask("hi");
        body[field] = json!([{"description": "word ".repeat(800)}]);
        // Five of each field were let in before, and took 7 tokens each.
        gateway.limit(json!({"spend_per_month": 5 * sent(&body) + 5 * 7 * before})).await;
        let mut tasks = many(&gateway, 50, &body);
        for _ in 0..45 {
            next(&mut tasks).await.refused(403, "quota_exceeded");
        }
        gate.open();
        for _ in 0..5 {
            assert_eq!(next(&mut tasks).await.status, 200, "{field}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn models_and_machines_are_paid_from_the_same_money() {
    let upstream = Upstream::start().await;
    let price = json!({"price": {"output": 1_000_000}});
    let gateway = Gateway::configured(vec![tiny(&[upstream.url()], price)], |config| {
        config.catalog.plans[0].price.vcpu_hour = Amount(Nano::whole(1));
    })
    .await;
    let (platform, admin) = (&gateway.platform, &gateway.platform.admin);
    // What is asked within hours lies in one month.
    let now = platform.app().clock.now();
    if now.plus_seconds(40_000) >= Month::of(now).end {
        platform.advance(40_000);
    }
    gateway.limit(json!({"spend_per_month": 12})).await;
    admin.running_vm("web").await;
    assert_eq!(gateway.chat(&at_most(5)).await.status, 200);
    platform.advance(10 * 3600);
    // Ten hours of a virtual CPU and the answer are more than twelve.
    gateway.chat(&at_most(1)).await.refused(403, "quota_exceeded");
    gateway.books(1).await;
    admin.post("/vms", vm("more")).await.refused(403, "quota_exceeded");
    gateway.limit(json!({"spend_per_month": 30})).await;
    assert_eq!(gateway.chat(&at_most(5)).await.status, 200);
    assert_eq!(admin.post("/vms", vm("more")).await.status, 201);
    // Neither alone is above eleven.
    gateway.limit(json!({"spend_per_month": 11})).await;
    gateway.books(2).await;
    admin.post("/vms", vm("third")).await.refused(403, "quota_exceeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_project_has_its_own_limits() {
    let upstream = Upstream::start().await;
    let gateway = dear(&upstream).await;
    gateway.limit(json!({"spend_per_month": 0})).await;
    gateway.chat(&at_most(1)).await.refused(403, "quota_exceeded");
    let ada = gateway.platform.sign_up("ada@example.com").await;
    let project = ada.project_id();
    let request = gateway.bare(reqwest::Method::POST, CHAT).bearer_auth(&ada.token).header("x-project-id", project);
    assert_eq!(gateway.send(request.json(&at_most(1))).await.status, 200);
    gateway.limit(json!({"tokens_per_minute": 0})).await;
    gateway.chat(&at_most(1)).await.refused(429, "rate_limited");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_failed_or_was_left_gives_back_what_was_set_aside() {
    let upstream = Upstream::start().await;
    let gateway = dear(&upstream).await;
    gateway.limit(json!({"spend_per_month": 5})).await;
    upstream.then(Script::error(400, "no"));
    assert_eq!(gateway.chat(&at_most(5)).await.status, 400);
    upstream.then(Script::default().hang());
    let mut streamed = at_most(5);
    streamed["stream"] = json!(true);
    let waiting = gateway.spawn(&streamed);
    upstream.until(|u| u.open() == 1).await;
    gateway.chat(&at_most(5)).await.refused(403, "quota_exceeded");
    waiting.abort();
    upstream.until(|u| u.cancelled() == 1).await;
    within(async {
        loop {
            let reply = gateway.chat(&at_most(5)).await;
            if reply.status == 200 {
                return;
            }
            // Its end is noted a moment after the upstream saw it.
            reply.refused(403, "quota_exceeded");
        }
    })
    .await;
    gateway.chat(&at_most(5)).await.refused(403, "quota_exceeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_before_a_whole_answer_pays_what_it_may_have_taken() {
    let upstream = Upstream::start().await;
    let gateway = dear(&upstream).await;
    gateway.limit(json!({"spend_per_month": 25})).await;
    // The first has said nothing, the second is in the middle of its body.
    let begun = Script::chat("").header("content-length", "9999");
    for (left, script) in (1..).zip([Script::default().hang(), begun.hang()]) {
        upstream.then(script);
        let waiting = gateway.spawn(&at_most(10));
        upstream.until(|u| u.open() == 1).await;
        waiting.abort();
        upstream.until(|u| u.cancelled() == left).await;
        gateway.idle().await;
        let booked = gateway.books(left as u64).await;
        assert_eq!((booked.completion, booked.estimated), (left as u64 * 10, true), "{booked:?}");
    }
    gateway.chat(&at_most(6)).await.refused(403, "quota_exceeded");
    assert_eq!(gateway.chat(&at_most(5)).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn money_is_set_aside_for_what_the_server_reads() {
    let upstream = Upstream::start().await;
    let gateway = dear(&upstream).await;
    gateway.limit(json!({"spend_per_month": 25})).await;
    for other in ["max_completion_tokens", "n_predict"] {
        let gate = upstream.gate();
        upstream.then(Script::default().hold(&gate).and(Script::error(400, "no")));
        let body = json!({"model": "tiny", "prompt": "hi", "max_tokens": 25, other: 1});
        let sent = tokio::spawn(gateway.posting("/v1/completions", body.to_string()).send());
        upstream.until(|u| u.open() == 1).await;
        gateway.chat(&at_most(1)).await.refused(403, "quota_exceeded");
        gate.open();
        assert_eq!(sent.await.expect("an end").expect("an answer").status(), 400);
        gateway.idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_a_minute_are_counted_here_too() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    gateway.limit(json!({"requests_per_minute": 1})).await;
    let reply = gateway.chat(&ask("hi")).await;
    assert_eq!(reply.status, 200);
    assert!(reply.header("ratelimit").is_some_and(|text| text.contains("r=0;")), "{reply:?}");
    let reply = gateway.chat(&ask("hi")).await;
    reply.refused(429, "rate_limited");
    assert!(retry_after(&reply) >= 1);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_shown() {
    let gateway = Gateway::with(Vec::new()).await;
    gateway.limit(json!({"tokens_per_minute": 1000, "spend_per_month": 50})).await;
    let quota = gateway.platform.admin.get("/quota").await;
    assert_eq!(quota.status, 200);
    let text = quota.body.to_string();
    assert!(text.contains("tokens_per_minute") && text.contains("spend_per_month"), "{text}");
    let path = format!("/api/v1/admin/projects/{}/quota", gateway.project());
    let set = gateway.platform.admin.get(&path).await;
    assert_eq!((&set.body["tokens_per_minute"], &set.body["spend_per_month"]), (&json!(1000), &json!(50)));
}

#[tokio::test(flavor = "multi_thread")]
async fn places_are_shared_between_organizations_however_many_projects_one_has() {
    let upstream = Upstream::start().await;
    let gate = upstream.gate();
    upstream.then(Script::default().hold(&gate).and(Script::chat("Hello")));
    let gateway = one_place(&upstream, 4).await;
    let other = stranger(&gateway, "ada@example.com").await;
    let mut first = many(&gateway, 1, &ask("first"));
    upstream.until(|u| u.open() == 1).await;
    let mut waiting = JoinSet::new();
    for turn in 0..4 {
        let project = sibling(&gateway, &format!("project {turn}")).await;
        waiting.spawn(of_sibling(&gateway, &project, &ask("mine")).send());
        gateway.waiting(turn + 1).await;
    }
    // Each project of the one organization waits once; another organization gets in all the same, and is next.
    waiting.spawn(other(&ask("other")).send());
    let out = within(waiting.join_next()).await.expect("a task").expect("an end").expect("an answer");
    assert_eq!((out.status().as_u16(), out.headers().contains_key("retry-after")), (429, true));
    gate.open();
    assert_eq!(next(&mut first).await.status, 200);
    for answer in within(waiting.join_all()).await {
        assert_eq!(answer.expect("an answer").status(), 200);
    }
    let order: Vec<_> = upstream.requests().iter().map(|r| r.json()["messages"][0]["content"].clone()).collect();
    let place = order.iter().position(|text| text == "other").expect("it was asked");
    assert!(place <= 2, "it comes next or after one more, not behind them all: {order:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn places_are_shared_between_projects() {
    let upstream = Upstream::start().await;
    let gate = upstream.gate();
    upstream.then(Script::default().hold(&gate).and(Script::chat("Hello")));
    let gateway = one_place(&upstream, 4).await;
    let mut first = many(&gateway, 1, &ask("first"));
    upstream.until(|u| u.open() == 1).await;
    let mut waiting = JoinSet::new();
    for turn in 0..4 {
        let request = gateway.posting(CHAT, ask("mine").to_string()).header("x-priority", "high");
        waiting.spawn(request.send());
        gateway.waiting(turn + 1).await;
    }
    // The queue is full of one project's; another's gets in, and one of those makes room.
    let other = stranger(&gateway, "ada@example.com").await;
    waiting.spawn(other(&ask("other")).header("x-priority", "low").send());
    let out = within(waiting.join_next()).await.expect("a task").expect("an end").expect("an answer");
    assert_eq!((out.status().as_u16(), out.headers().contains_key("retry-after")), (429, true));
    gate.open();
    assert_eq!(next(&mut first).await.status, 200);
    for answer in waiting.join_all().await {
        assert_eq!(answer.expect("an answer").status(), 200);
    }
    let order: Vec<_> = upstream.requests().iter().map(|r| r.json()["messages"][0]["content"].clone()).collect();
    assert_eq!(order[0], "first");
    let place = order.iter().position(|text| text == "other").expect("it was asked");
    assert!(place <= 2, "it comes next or after one more, not behind them all: {order:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_set_aside_covers_the_answers_of_those_that_answer_instead() {
    let upstream = Upstream::start().await;
    let gate = upstream.gate();
    upstream.then(Script::default().hold(&gate).and(Script::chat("Hello")));
    let dear = json!({"id": "dear", "price": {"output": 1_000_000}});
    let models = vec![
        tiny(&[upstream.url()], json!({"max_output_tokens": 10, "fallbacks": ["dear"]})),
        tiny(&[upstream.url()], dear),
    ];
    let gateway = Gateway::with(models).await;
    gateway.limit(json!({"spend_per_month": 100})).await;
    let mut first = many(&gateway, 1, &at_most(50));
    upstream.until(|u| u.open() == 1).await;
    // Nobody bounds the other's answer but the request.
    gateway.chat(&ask("hi")).await.refused(403, "quota_exceeded");
    gateway.chat(&at_most(51)).await.refused(403, "quota_exceeded");
    assert_eq!(gateway.chat(&at_most(50)).await.status, 200);
    gate.open();
    assert_eq!(next(&mut first).await.status, 200);
    // What a project may not use answers nothing for it.
    let models = vec![
        tiny(&[upstream.url()], json!({"fallbacks": ["dear"]})),
        tiny(&[upstream.url()], json!({"id": "dear", "price": {"output": 1_000_000}, "projects": [uuid::Uuid::nil()]})),
    ];
    let gate = upstream.gate();
    upstream.then(Script::default().hold(&gate).and(Script::chat("Hello")));
    let gateway = Gateway::with(models).await;
    gateway.limit(json!({"spend_per_month": 100})).await;
    let mut first = many(&gateway, 1, &ask("hi"));
    upstream.until(|u| u.open() == 1).await;
    assert_eq!(gateway.chat(&ask("hi")).await.status, 200);
    gate.open();
    assert_eq!(next(&mut first).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_set_aside_covers_every_answer_and_the_models_most() {
    let upstream = Upstream::start().await;
    let gate = upstream.gate();
    upstream.always(Script::default().hold(&gate).and(Script::chat("Hello")));
    let models = vec![tiny(&[upstream.url()], json!({"price": {"output": 1_000_000}, "max_output_tokens": 10}))];
    let gateway = Gateway::with(models).await;
    gateway.limit(json!({"spend_per_month": 100})).await;
    let answers = |count: u64| {
        let mut body = ask("hi");
        body["n"] = json!(count);
        body
    };
    // 60 for six answers of ten each, then 40 are left.
    let mut first = many(&gateway, 1, &answers(6));
    upstream.until(|u| u.open() == 1).await;
    gateway.chat(&answers(5)).await.refused(403, "quota_exceeded");
    let mut long = answers(5);
    long["max_tokens"] = json!(1000);
    gateway.chat(&long).await.refused(403, "quota_exceeded");
    let mut second = many(&gateway, 1, &answers(4));
    upstream.until(|u| u.open() == 2).await;
    gateway.chat(&at_most(1)).await.refused(403, "quota_exceeded");
    gate.open();
    assert_eq!((next(&mut first).await.status, next(&mut second).await.status), (200, 200));
}
