//! Whole answers: what goes to the upstream, and what comes back.

use berth_testkit::{Script, Upstream};
use reqwest::Method;
use serde_json::json;

use super::{CHAT, Gateway, ask, tiny};

/// A body with odd white space, unknown fields in no order, and numbers that other writers would write otherwise.
const ODD: &str = concat!(
    "\n{ \"temperature\" : 0.70,\t\"model\" :  \"tiny\" ,",
    "\"zeta\":{\"b\":1.0,\"a\":1e2,\"big\":12345678901234567890123},\n ",
    "\"messages\":[ {\"role\":\"user\",\"content\":\"h\\u00e9 é \\/ \\ud83d\\ude00\"} ],",
    "\"alpha\":null , \"n\":1 }\n",
);

#[tokio::test(flavor = "multi_thread")]
async fn bytes_go_on_as_they_are_but_for_the_model() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    assert_eq!(gateway.post(CHAT, ODD).await.status, 200);
    let received = upstream.last();
    assert_eq!((received.method.as_str(), received.path.as_str()), ("POST", "/v1/chat/completions"));
    assert_eq!(received.text(), ODD.replace("\"tiny\"", "\"upstream-tiny\""));
    assert_eq!(received.header("content-type"), Some("application/json"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_need_not_change_does_not() {
    let upstream = Upstream::start().await;
    let same = tiny(&[], json!({"upstreams": [{"url": upstream.url()}]}));
    let gateway = Gateway::with(vec![same]).await;
    for body in [ODD.to_owned(), ODD.replace("\"n\":1", "\"stream\":false"), ask("hi").to_string()] {
        assert_eq!(gateway.post(CHAT, body.clone()).await.status, 200);
        assert_eq!(upstream.last().text(), body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_come_back_as_they_are() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    for text in ["Hello", "é \" \u{1f600}\n"] {
        upstream.then(Script::chat(text));
        let reply = gateway.chat(&ask("hi")).await;
        assert_eq!((reply.status, reply.text()), (200, Script::completion(text)));
        assert!(reply.header("content-type").is_some_and(|kind| kind.starts_with("application/json")));
        assert!(reply.header("x-request-id").is_some());
    }
    // In pieces it is the same.
    let whole = Script::completion("Hello");
    let (begin, end) = whole.split_at(70);
    upstream.then(Script::new(200).header("content-type", "application/json").chunk(begin).chunk(end));
    assert_eq!(gateway.chat(&ask("hi")).await.text(), whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alias_is_the_model() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::with(vec![tiny(&[upstream.url()], json!({"aliases": ["gpt-4o", "acme/other"]}))]).await;
    for name in ["tiny", "gpt-4o", "acme/other"] {
        let mut body = ask("hi");
        body["model"] = json!(name);
        assert_eq!(gateway.chat(&body).await.status, 200, "{name}");
        assert_eq!(upstream.last().json()["model"], "upstream-tiny");
    }
    let booked = gateway.books(3).await;
    assert_eq!(booked.requests, 3);
    assert_eq!(gateway.booked(Some("tiny")).await, booked, "the books know the model by its id");
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_and_embeddings_take_the_same_path() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    let completion =
        r#"{"id":"c","object":"text_completion","choices":[{"index":0,"text":"x","finish_reason":"stop"}] }"#;
    let embedding = r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.10,-2e-3]}],
        "model":"m","usage":{"prompt_tokens":2,"total_tokens":2}}"#;
    for (path, body, answer) in [
        ("/v1/completions", json!({"model": "tiny", "prompt": "once"}), completion),
        ("/v1/embeddings", json!({"model": "tiny", "input": ["a", "b"]}), embedding),
    ] {
        upstream.then(Script::json(200, answer));
        let reply = gateway.post(path, body.to_string()).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, answer), "{path}");
        assert_eq!(upstream.last().path, path);
        assert_eq!(upstream.last().json()["model"], "upstream-tiny");
    }
    gateway.post("/v1/completions", json!({"model": "tiny"}).to_string()).await.refused(400, "invalid_request");
    gateway.post("/v1/embeddings", json!({"model": "tiny"}).to_string()).await.refused(400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_upstream_gets_its_own_key_and_nothing_of_the_clients() {
    let upstream = Upstream::start().await;
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("key");
    std::fs::write(&file, "sk-of-the-upstream\n").expect("a file");
    let keyed = json!({"upstreams": [{"url": upstream.url(), "api_key_file": file}]});
    let open = json!({"id": "open", "upstreams": [{"url": upstream.url()}]});
    let gateway = Gateway::with(vec![tiny(&[], keyed), tiny(&[], open)]).await;
    for (model, credential) in [("tiny", Some("Bearer sk-of-the-upstream")), ("open", None)] {
        let mut body = ask("hi");
        body["model"] = json!(model);
        let request = gateway.posting(CHAT, body.to_string()).header("cookie", "a=b").header("x-app", "mine");
        let request = request.header("x-project-id", gateway.project()).header("openai-organization", "org-mine");
        let request = request.header("accept-encoding", "gzip, br").header("user-agent", "an-app/1.0");
        let reply = gateway.send(request).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.hides(&["sk-of-the-upstream"]);
        let received = upstream.last();
        assert_eq!(received.header("authorization"), credential);
        let all = format!("{:?}", received.headers);
        for own in [gateway.key.as_str(), gateway.project(), "a=b", "org-mine", "an-app"] {
            assert!(!all.contains(own), "{own} stands in {all}");
        }
        // What comes is read as it is: nobody may pack it.
        assert!(received.header("accept-encoding").is_none_or(|how| how == "identity"), "{all}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_asks_for_a_project() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    let token = gateway.platform.admin.token.clone();
    let request = |method, path| gateway.bare(method, path).bearer_auth(&token);
    let named = |project: &str| request(Method::POST, CHAT).json(&ask("hi")).header("x-project-id", project);
    assert_eq!(gateway.send(named(gateway.project())).await.status, 200);
    let booked = gateway.books(1).await;
    assert_eq!((booked.prompt, booked.completion), (7, 5));
    gateway.send(named(&uuid::Uuid::now_v7().to_string())).await.refused(404, "project_not_found");
    let stranger = gateway.platform.sign_up("stranger@example.com").await;
    let theirs = stranger.project_id();
    gateway.send(named(theirs)).await.refused(404, "project_not_found");
    let nowhere = gateway.send(request(Method::POST, CHAT).json(&ask("hi"))).await;
    assert_eq!((nowhere.status, nowhere.json()["error"]["type"].as_str()), (400, Some("invalid_request_error")));
    nowhere.is_refusal();
    assert!(nowhere.text().contains("X-Project-Id"), "{}", nowhere.text());
    let list = gateway.send(request(Method::GET, "/v1/models")).await;
    assert_eq!(list.status, 400);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_may_be_named_by_a_slug_that_only_one_has() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    let admin = &gateway.platform.admin;
    let token = admin.token.clone();
    let named = || {
        let request = gateway.bare(Method::POST, CHAT).bearer_auth(&token).json(&ask("hi"));
        gateway.send(request.header("x-project-id", "default"))
    };
    assert_eq!(named().await.status, 200);
    let org = admin.post("/api/v1/orgs", json!({"name": "Second"})).await;
    assert_eq!(org.status, 201, "{org:?}");
    let projects = format!("/api/v1/orgs/{}/projects", org.body["id"].as_str().expect("an id"));
    let made = admin.post(&projects, json!({"name": "Default", "slug": "default"})).await;
    assert_eq!(made.status, 201, "{made:?}");
    let refused = named().await;
    refused.refused(400, "invalid_request");
    assert!(refused.text().contains("several organizations"), "{}", refused.text());
    assert_eq!(upstream.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_may_have_32_mib() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    let frame = ask("").to_string();
    for size in [(32 << 20) - 1, 32 << 20] {
        let body = ask(&"a".repeat(size - frame.len())).to_string();
        assert_eq!(body.len(), size);
        let reply = gateway.post(CHAT, body.clone()).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert!(upstream.last().text() == body.replace("\"tiny\"", "\"upstream-tiny\""), "{size} bytes go on");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_ids_are_the_callers_where_they_can_be() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    let request = gateway.posting(CHAT, ask("hi").to_string()).header("x-request-id", "mine-1");
    assert_eq!(gateway.send(request).await.header("x-request-id"), Some("mine-1"));
    let request = gateway.posting(CHAT, ask("hi").to_string()).header("x-request-id", "x".repeat(129));
    assert!(gateway.send(request).await.header("x-request-id").is_some_and(|id| id.len() == 36));
}
