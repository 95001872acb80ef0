//! Admission: how many requests there are together, and how much of their bodies.

use std::time::Duration;

use berth_testkit::{Script, Upstream};
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::{CHAT, Gateway, ask, many, next, of_sibling, retry_after, sibling, stranger, tiny, within};

#[tokio::test(flavor = "multi_thread")]
async fn all_requests_together_are_bounded() {
    let upstream = Upstream::start().await;
    let gate = upstream.gate();
    upstream.then(Script::default().hold(&gate).and(Script::chat("Hello")));
    let models = vec![tiny(&[upstream.url()], json!({}))];
    let gateway = Gateway::configured(models, |config| config.gateway.max_requests = 1).await;
    let first = tokio::spawn(gateway.posting(CHAT, ask("first").to_string()).send());
    upstream.until(|u| u.open() == 1).await;
    let refused = gateway.chat(&ask("second")).await;
    refused.refused(429, "too_many");
    assert!(refused.headers.contains_key("retry-after"));
    gate.open();
    assert_eq!(first.await.expect("an end").expect("an answer").status(), 200);
    assert_eq!(gateway.chat(&ask("third")).await.status, 200);
    assert_eq!(gateway.books(2).await.requests, 2, "what found no room is in no book");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_hold_no_more_than_a_part_of_the_connections() {
    let upstream = Upstream::start().await;
    let gate = upstream.gate();
    upstream.always(Script::default().hold(&gate).and(Script::chat("Hello")));
    let models = vec![tiny(&[upstream.url()], json!({}))];
    let gateway = Gateway::configured(models, |config| {
        (config.http.max_connections, config.http.max_connections_per_client) = (Some(8), Some(8));
    })
    .await;
    let other = stranger(&gateway, "ada@example.com").await;
    // Of eight connections six may be requests', three of which one organization's.
    let mut under_way = many(&gateway, 3, &ask("hi"));
    upstream.until(|u| u.open() == 3).await;
    gateway.chat(&ask("hi")).await.refused(429, "too_many");
    let other = tokio::spawn(other(&ask("hi")).send());
    upstream.until(|u| u.open() == 4).await;
    assert_eq!(gateway.send(gateway.bare(Method::GET, "/healthz")).await.status, 200);
    gate.open();
    while let Some(answer) = within(under_way.join_next()).await {
        assert_eq!(answer.expect("an answer").status, 200);
    }
    assert_eq!(other.await.expect("an end").expect("an answer").status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_projects_requests_together_are_bounded() {
    let upstream = Upstream::start().await;
    let gate = upstream.gate();
    upstream.always(Script::default().hold(&gate).and(Script::chat("Hello")));
    let models = vec![tiny(&[upstream.url()], json!({}))];
    let gateway = Gateway::configured(models, |config| config.gateway.max_requests_per_project = 2).await;
    let mut first = many(&gateway, 2, &ask("hi"));
    upstream.until(|u| u.open() == 2).await;
    let refused = gateway.chat(&ask("hi")).await;
    refused.refused(429, "too_many");
    assert!(retry_after(&refused) >= 1);
    let other = stranger(&gateway, "ada@example.com").await;
    let other = tokio::spawn(other(&ask("hi")).send());
    upstream.until(|u| u.open() == 3).await;
    gate.open();
    for _ in 0..2 {
        assert_eq!(next(&mut first).await.status, 200);
    }
    assert_eq!(other.await.expect("an end").expect("an answer").status(), 200);
    assert_eq!(gateway.chat(&ask("hi")).await.status, 200);
}

/// Sends the head of a request of a project with a body of so many bytes, and with one more header or none.
async fn head(gateway: &Gateway, project: &str, length: usize, header: &str) -> TcpStream {
    let address = gateway.platform.admin.base.strip_prefix("http://").expect("an address");
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: berth\r\nauthorization: Bearer {}\r\nx-project-id: {project}\r\n{header}\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n",
        gateway.platform.admin.token
    );
    stream.write_all(head.as_bytes()).await.expect("a head");
    stream
}

/// Whether a request whose body has so many bytes is let in. None of them is sent.
async fn is_let_in(gateway: &Gateway, project: &str, length: usize) -> bool {
    let mut stream = head(gateway, project, length, "expect: 100-continue\r\n").await;
    let mut status = [0; b"HTTP/1.1 100".len()];
    stream.read_exact(&mut status).await.expect("an answer");
    match &status[status.len() - 3..] {
        b"100" => true,
        b"429" => false,
        other => panic!("{}", String::from_utf8_lossy(other)),
    }
}

/// Begins a request of a project with a body of so many bytes, of which a part is sent at once and the rest so slowly
/// that it is just waited for.
async fn stall(stalled: &mut JoinSet<()>, gateway: &Gateway, project: &str, length: usize, bytes: usize) {
    let mut stream = head(gateway, project, length, "").await;
    stream.write_all(&vec![b' '; bytes]).await.expect("a part of the body");
    stalled.spawn(async move {
        while stream.write_all(&[b' '; 2 << 10]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_holds_what_came_of_it_and_an_organization_leaves_as_much_as_it_holds() {
    let upstream = Upstream::start().await;
    let models = vec![tiny(&[upstream.url()], json!({}))];
    let change = |config: &mut berth_server::config::Config| {
        (config.gateway.body_mb, config.gateway.body_mb_per_project) = (64, 32);
    };
    let gateway = Gateway::configured(models, change).await;
    let other = stranger(&gateway, "ada@example.com").await;
    let (second, third) = (sibling(&gateway, "second").await, sibling(&gateway, "third").await);
    let large = ask(&"a".repeat(2 << 20));
    // However much is declared, in however many projects, next to nothing of it came.
    let mut held = JoinSet::new();
    for project in [gateway.project(), &second, &third].repeat(2) {
        stall(&mut held, &gateway, project, 32 << 20, 0).await;
    }
    assert_eq!(gateway.send(other(&large)).await.status, 200);
    assert_eq!(gateway.chat(&large).await.status, 200);
    held.shutdown().await;
    // What does come counts for the organization: of 64 MiB it holds 32 at most. So far below that these stay, however
    // long what trickles in behind them is waited for.
    let half = 61 << 18;
    stall(&mut held, &gateway, gateway.project(), 16 << 20, half).await;
    stall(&mut held, &gateway, &second, 16 << 20, half).await;
    // What is sent in full before they came would take their room.
    within(async { while is_let_in(&gateway, &third, 2 << 20).await {} }).await;
    let refused = gateway.send(of_sibling(&gateway, &third, &large)).await;
    refused.refused(429, "too_many");
    assert!(retry_after(&refused) >= 1);
    assert_eq!(gateway.chat(&ask("hi")).await.status, 200, "small ones go on");
    assert_eq!(gateway.send(other(&large)).await.status, 200, "and other organizations");
    drop(held);
    within(async { while gateway.send(of_sibling(&gateway, &third, &large)).await.status != 200 {} }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_organization_holds_as_many_requests_as_it_leaves_however_many_projects_it_has() {
    let upstream = Upstream::start().await;
    let gate = upstream.gate();
    upstream.always(Script::default().hold(&gate).and(Script::chat("Hello")));
    let models = vec![tiny(&[upstream.url()], json!({}))];
    let gateway = Gateway::configured(models, |config| config.gateway.max_requests = 4).await;
    let other = stranger(&gateway, "ada@example.com").await;
    let (second, third) = (sibling(&gateway, "second").await, sibling(&gateway, "third").await);
    let mut under_way = JoinSet::new();
    for (open, project) in (1..).zip([gateway.project(), &second]) {
        under_way.spawn(of_sibling(&gateway, project, &ask("mine")).send());
        upstream.until(|u| u.open() == open).await;
    }
    gateway.send(of_sibling(&gateway, &third, &ask("mine"))).await.refused(429, "too_many");
    under_way.spawn(other(&ask("other")).send());
    upstream.until(|u| u.open() == 3).await;
    gate.open();
    for answer in within(under_way.join_all()).await {
        assert_eq!(answer.expect("an answer").status(), 200);
    }
    assert_eq!(gateway.send(of_sibling(&gateway, &third, &ask("mine"))).await.status, 200);
}
