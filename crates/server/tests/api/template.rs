//! Templates that are built: mistakes, uploads, what builds wait for and tell.

use berth_server::services::sandbox::engine::EngineError;
use berth_testkit::{Answer, Caller, Platform, eventually};
use reqwest::Method;
use serde_json::{Value, json};

fn wish(name: &str, dockerfile: &str) -> Value {
    json!({"name": name, "dockerfile": dockerfile, "vcpu": 1, "memory_mb": 128, "disk_gb": 1})
}

async fn upload(caller: &Caller, body: Vec<u8>) -> Answer {
    caller.send(caller.request(Method::POST, "/sandbox_uploads").body(body)).await
}

async fn reaches(caller: &Caller, name: &str, status: &str) -> Value {
    let path = format!("/sandbox_templates/{name}");
    caller
        .until(status, |c| {
            let path = path.clone();
            async move { c.get(&path).await.body["status"] == status }
        })
        .await;
    caller.get(&path).await.body
}

async fn log(caller: &Caller, name: &str, query: &str) -> String {
    let answer = caller.get(&format!("/sandbox_templates/{name}/logs?{query}")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body.as_str().expect("a stream").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dockerfile_is_read_at_once() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    for (dockerfile, what) in [
        ("", "line 1: a Dockerfile needs a FROM"),
        ("FROM base\nRUNN x", "line 2:"),
        ("FROM base\nRUN x\nCOPY a b\n", "line 3: there are no files"),
        ("FROM base\nCOPY --from=9 a b", "line 2:"),
    ] {
        let answer = caller.post("/sandbox_templates", wish("x", dockerfile)).await;
        answer.refused(400, "invalid_request");
        assert!(answer.names("dockerfile") && answer.body.to_string().contains(what), "{answer:?}");
    }
    let mut body = wish("x", "FROM base\nCOPY a b");
    body["context_id"] = json!("01900000-0000-7000-8000-000000000000");
    caller.post("/sandbox_templates", body).await.refused(404, "not_found");
    let image = |image: &str| json!({"name": "i", "image": image, "vcpu": 1, "memory_mb": 128, "disk_gb": 1});
    for bad in ["", "a b", "a\nRUN b", "$a", "-a", &"a".repeat(513)] {
        caller.post("/sandbox_templates", image(bad)).await.refused(400, "invalid_request");
    }
    let mut body = image("base");
    body["context_id"] = json!("01900000-0000-7000-8000-000000000000");
    let answer = caller.post("/sandbox_templates", body).await;
    assert!(answer.status == 400 && answer.names("context_id"), "{answer:?}");
    assert_eq!(caller.post("/sandbox_templates", image(&"a".repeat(512))).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_are_bounded_and_go() {
    let platform = Platform::start_with(|config| config.sandbox.upload_mb = 1).await;
    let (caller, most) = (&platform.admin, 1 << 20);
    assert_eq!(upload(caller, vec![0; most]).await.status, 201);
    upload(caller, vec![0; most + 1]).await.refused(413, "payload_too_large");
    upload(caller, Vec::new()).await.refused(400, "invalid_request");
    eventually("the end of what was refused", 30, || (platform.sandboxes.uploads() == 1).then_some(()));
    for _ in 1..16 {
        assert_eq!(upload(caller, vec![1]).await.status, 201);
    }
    upload(caller, vec![1]).await.refused(403, "quota_exceeded");
    let list = caller.get("/sandbox_uploads?limit=2").await;
    assert_eq!(list.body["pagination"]["total_items"], 16);
    let sent = list.body["data"][0].clone();
    assert_eq!(sent["image"], format!("upload:{}", sent["id"].as_str().expect("an id")));
    let path = format!("/sandbox_uploads/{}", sent["id"].as_str().expect("an id"));
    let stranger = platform.sign_up("stranger@example.com").await;
    stranger.delete(&path).await.refused(404, "not_found");
    assert_eq!(caller.delete(&path).await.status, 204);
    caller.delete(&path).await.refused(404, "not_found");
    // What is refused or removed goes; the rest stays.
    eventually("one upload's end", 30, || (platform.sandboxes.uploads() == 15).then_some(()));
    // A template is built of what its own project sent, and of nothing else.
    let mine = caller.get("/sandbox_uploads").await.body["data"][0]["image"].clone();
    let body = json!({"name": "stolen", "image": mine, "vcpu": 1, "memory_mb": 128, "disk_gb": 1});
    assert_eq!(stranger.post("/sandbox_templates", body.clone()).await.status, 201);
    let failed = reaches(&stranger, "stolen", "failed").await;
    assert!(failed["message"].as_str().is_some_and(|m| m.contains("there is no upload")), "{failed}");
    assert_eq!(caller.post("/sandbox_templates", body).await.status, 201);
    reaches(caller, "stolen", "ready").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_is_kept_for_a_day() {
    let platform = Platform::start().await;
    let made = platform.admin.post("/api_keys", json!({"name": "k", "scopes": ["sandbox"]})).await;
    let caller = &platform.admin.with_token(made.body["key"].as_str().expect("a key"));
    let id = upload(caller, vec![1]).await.id();
    platform.advance(86_000);
    // Whatever is done meanwhile, it is there.
    assert_eq!(upload(caller, vec![1]).await.status, 201);
    assert_eq!(caller.get("/sandbox_uploads").await.body["pagination"]["total_items"], 2);
    platform.advance(400);
    caller
        .until("its end", |c| async move { c.get("/sandbox_uploads").await.body["pagination"]["total_items"] == 1 })
        .await;
    caller.delete(&format!("/sandbox_uploads/{id}")).await.refused(404, "not_found");
    eventually("the files' end", 30, || (platform.sandboxes.uploads() == 1).then_some(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_breaks_off_goes() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Vec<u8>, std::io::Error>>(1);
    let body = futures::stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)));
    let request = caller.request(Method::POST, "/sandbox_uploads").body(reqwest::Body::wrap_stream(body));
    let sent = tokio::spawn(request.send());
    sender.send(Ok(vec![1; 1000])).await.expect("it is sent");
    eventually("its beginning", 30, || (platform.sandboxes.uploads() == 1).then_some(()));
    sender.send(Err(std::io::Error::other("broken"))).await.expect("it is sent");
    assert!(sent.await.expect("an end").is_err());
    eventually("its end", 30, || (platform.sandboxes.uploads() == 0).then_some(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_context_serves_one_build() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let sent = upload(caller, vec![1]).await.id();
    let mut body = wish("app", "FROM base\nCOPY . .");
    body["context_id"] = json!(sent);
    assert_eq!(caller.post("/sandbox_templates", body).await.status, 201);
    reaches(caller, "app", "ready").await;
    eventually("the context's end", 30, || (platform.sandboxes.uploads() == 0).then_some(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_tells_what_it_does() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    assert_eq!(caller.post("/sandbox_templates", wish("app", "FROM base")).await.status, 201);
    // From its beginning to its end, whenever one asks.
    let told = log(caller, "app", "follow=true").await;
    assert!(told.contains("event: log\ndata: {\"offset\":10,\"text\":\"simulated\\n\"}\n\n"), "{told}");
    assert!(told.contains("event: end\ndata: {"), "{told}");
    reaches(caller, "app", "ready").await;
    let rest = log(caller, "app", "offset=3").await;
    assert!(rest.starts_with("event: log\ndata: {\"offset\":10,\"text\":\"ulated\\n\"}"), "{rest}");
    assert!(rest.ends_with("\"status\":\"ready\"}\n\n"), "{rest}");
    assert!(log(caller, "app", "offset=99").await.starts_with("event: end\n"));
    assert!(log(caller, "base", "").await.starts_with("event: end\n"));
    for query in ["offset=-1", "offset=x", "follow=maybe"] {
        caller.get(&format!("/sandbox_templates/app/logs?{query}")).await.refused(400, "invalid_request");
    }
    caller.get("/sandbox_templates/none/logs").await.refused(404, "template_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_waits_for_what_it_begins_with() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    platform.sandboxes.set_builds_last(true);
    assert_eq!(caller.post("/sandbox_templates", wish("first", "FROM base")).await.status, 201);
    assert_eq!(caller.post("/sandbox_templates", wish("second", "FROM first")).await.status, 201);
    caller
        .until("it waits", |c| async move {
            let second = c.get("/sandbox_templates/second").await.body;
            second["message"] == "waiting for the template 'first'"
        })
        .await;
    eventually("the first build", 30, || (platform.sandboxes.builds() == 1).then_some(()));
    // Who is deleted is built no further; a name that is nobody's then is a registry's.
    platform.sandboxes.set_builds_last(false);
    assert_eq!(caller.delete("/sandbox_templates/first").await.status, 204);
    platform.advance(3);
    reaches(caller, "second", "ready").await;
    // What it begins with goes only when it goes.
    assert_eq!(caller.post("/sandbox_templates", wish("third", "FROM second")).await.status, 201);
    reaches(caller, "third", "ready").await;
    assert_eq!(caller.delete("/sandbox_templates/second").await.status, 204);
    let id = caller.create_sandbox(json!({"template_id": "third"})).await;
    caller.sandbox_reaches(&id, "Ready").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_is_tried_again_a_few_times() {
    let platform = Platform::start_with(|config| config.identity.access_token_seconds = 86_400).await;
    let caller = &platform.admin;
    let gone = EngineError::Transient("the registry does not answer".into());
    platform.sandboxes.refuse("build_template", gone);
    assert_eq!(caller.post("/sandbox_templates", wish("app", "FROM x")).await.status, 201);
    let path = "/sandbox_templates/app";
    caller
        .until("its failure", |c| {
            platform.advance(1);
            async move { c.get(path).await.body["status"] == "failed" }
        })
        .await;
    assert_eq!(caller.get(path).await.body["message"], "the registry does not answer");
    assert_eq!(log(caller, "app", "").await.matches("trying again").count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_so_many_are_built_at_a_time() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    platform.sandboxes.set_builds_last(true);
    for name in ["a", "b", "c"] {
        assert_eq!(caller.post("/sandbox_templates", wish(name, "FROM base")).await.status, 201);
    }
    let waits = |body: &Value| body["message"] == "waiting until other builds are done";
    caller
        .until("one waits", |c| async move {
            let all = c.get("/sandbox_templates").await.body;
            all["data"].as_array().is_some_and(|all| all.iter().filter(|t| waits(t)).count() == 1)
        })
        .await;
    eventually("two builds", 30, || (platform.sandboxes.builds() == 2).then_some(()));
    // One that waits can be deleted as those can that are built.
    for name in ["a", "b", "c"] {
        assert_eq!(caller.delete(&format!("/sandbox_templates/{name}")).await.status, 204);
    }
    caller.until("nothing left", |c| async move { c.delete("").await.status == 204 }).await;
}
