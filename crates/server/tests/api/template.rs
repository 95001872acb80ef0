//! Templates that are built: mistakes, uploads, what builds wait for and tell.

use berth_host::EngineError;
use berth_server::db::sql;
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
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
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
async fn a_template_whose_boot_hangs_is_deleted_and_holds_up_nobody() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.sandboxes);
    let other = platform.sign_up("other@example.com").await;
    reaches(caller, "base", "ready").await;
    engine.set_templates_hang(true);
    for number in 0..12 {
        let made = caller.post("/sandbox_templates", wish(&format!("t{number}"), "FROM base\nRUN x")).await;
        assert_eq!(made.status, 201, "{made:?}");
    }
    // Half of what works on templates is left to other organizations, and one of the rest to other projects.
    eventually("as many as it may", 60, || (engine.warming() == 3).then_some(()));
    engine.set_templates_hang(false);
    assert_eq!(other.post("/sandbox_templates", wish("theirs", "FROM base\nRUN x")).await.status, 201);
    reaches(&other, "theirs", "ready").await;
    assert_eq!(engine.warming(), 3);
    for number in 0..12 {
        assert_eq!(caller.delete(&format!("/sandbox_templates/t{number}")).await.status, 204);
    }
    eventually("the end of what hung", 60, || (engine.warming() == 0).then_some(()));
    caller
        .until("no template", |c| async move { c.get("/sandbox_templates?name=t1").await.body["data"] == json!([]) })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_stops_while_a_template_hangs() {
    let mut platform = Platform::start().await;
    reaches(&platform.admin, "base", "ready").await;
    platform.sandboxes.set_templates_hang(true);
    assert_eq!(platform.admin.post("/sandbox_templates", wish("t", "FROM base\nRUN x")).await.status, 201);
    let engine = platform.sandboxes.clone();
    eventually("its boot", 60, || (engine.warming() == 1).then_some(()));
    let stopped = tokio::time::timeout(std::time::Duration::from_mins(1), platform.stop()).await;
    assert!(stopped.is_ok(), "it waits for what hangs");
    assert_eq!(engine.warming(), 0, "its machine is ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_failed_is_made_anew_under_its_name() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.sandboxes);
    engine.refuse("build_template", EngineError::Permanent("line 2: no".into()));
    let first = caller.post("/sandbox_templates", wish("mine", "FROM base\nRUN x")).await.id();
    reaches(caller, "mine", "failed").await;
    engine.allow("build_template");
    let second = caller.post("/sandbox_templates", wish("mine", "FROM base\nRUN y")).await;
    assert_eq!(second.status, 201, "{second:?}");
    assert_ne!(second.id(), first);
    let ready = reaches(caller, "mine", "ready").await;
    assert_eq!(ready["id"], second.body["id"]);
    let path = format!("/sandbox_templates/{first}");
    caller.get(&path).await.refused(404, "template_not_found");
    caller.post("/sandbox_templates", wish("mine", "FROM base")).await.refused(409, "template_exists");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_the_platform_that_failed_is_made_anew() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.sandboxes);
    reaches(caller, "base", "ready").await;
    engine.refuse("warm_template", EngineError::Permanent("nobody listens".into()));
    engine.bring_template("serves");
    let failed = reaches(caller, "serves", "failed").await;
    let refused = caller.post("/sandboxes", json!({"template_id": "serves"})).await;
    refused.refused(409, "conflict");
    assert!(refused.body["message"].as_str().expect("a message").contains("makes it anew"), "{refused:?}");
    engine.allow("warm_template");
    platform.advance(300);
    assert_eq!(reaches(caller, "serves", "ready").await["id"], failed["id"]);
    let id = caller.create_sandbox(json!({"template_id": "serves"})).await;
    caller.sandbox_reaches(&id, "Ready").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_takes_the_place_of_another_where_that_is_asked_for() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let first = caller.post("/sandbox_templates", wish("mine", "FROM base\nRUN x")).await.id();
    reaches(caller, "mine", "ready").await;
    let made = caller.post("/sandboxes", json!({"template_id": "mine"})).await;
    assert_eq!(made.status, 201, "{made:?}");
    caller.sandbox_reaches(&made.id(), "Ready").await;
    let replacing = |mut wish: Value| {
        wish["replace"] = json!(true);
        wish
    };
    let second = caller.post("/sandbox_templates", replacing(wish("mine", "FROM base\nRUN y"))).await;
    assert_eq!(second.status, 201, "{second:?}");
    let ready = reaches(caller, "mine", "ready").await;
    assert_eq!(ready["id"], second.body["id"]);
    caller.get(&format!("/sandbox_templates/{first}")).await.refused(404, "template_not_found");
    let ended = "SELECT COUNT(*) FROM sandbox_templates WHERE id = $1 AND deleted_at IS NOT NULL";
    let count =
        async || -> i64 { sql(ended).bind(first.as_str()).fetch_one(&platform.app().db).await.expect("a count") };
    caller.until("the former's end", |_| async { count().await == 1 }).await;
    let sandbox = caller.get(&format!("/sandboxes/{}", made.id())).await;
    assert_eq!((sandbox.status, &sandbox.body["phase"]), (200, &json!("Ready")), "it stays");
    // Where there is none it is as any other.
    let other = caller.post("/sandbox_templates", replacing(wish("other", "FROM base"))).await;
    assert_eq!(other.status, 201, "{other:?}");
    reaches(caller, "other", "ready").await;
    // The place of one that is being deleted is free at once, too.
    assert_eq!(caller.delete("/sandbox_templates/other").await.status, 204);
    let again = caller.post("/sandbox_templates", replacing(wish("other", "FROM base"))).await;
    assert_eq!(again.status, 201, "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_new_is_begun_on_a_full_disk() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.sandboxes);
    let id = caller.ready_sandbox().await;
    // Room for the memory of a sandbox of 512 MiB, and a byte less than it takes.
    for (bytes, status) in [((512 << 20) + 1, "Ready"), (512 << 20, "Failed")] {
        engine.set_capacity(|capacity| capacity.disk_bytes = bytes);
        let made = caller.post(&format!("/sandboxes/{id}/snapshots"), json!({"include_memory": true})).await.id();
        let path = format!("/snapshots/{made}");
        caller
            .until(status, |c| {
                let path = path.clone();
                async move { c.get(&path).await.body["status"] == status }
            })
            .await;
        let view = caller.get(&path).await.body;
        assert_eq!(view["message"].to_string().contains("almost full"), status == "Failed", "{view}");
    }
    engine.set_capacity(|capacity| capacity.disk_bytes = 0);
    upload(caller, vec![1]).await.refused(507, "no_space");
    assert_eq!(caller.post("/sandbox_templates", wish("t", "FROM base\nRUN x")).await.status, 201);
    let failed = reaches(caller, "t", "failed").await;
    assert!(failed["message"].as_str().is_some_and(|m| m.contains("almost full")), "{failed}");
    let made = caller.create_sandbox(json!({})).await;
    let failed = caller.sandbox_reaches(&made, "Failed").await;
    assert!(failed["message"].as_str().is_some_and(|m| m.contains("almost full")), "{failed}");
    // What is there can always be put away, if need be without its memory.
    assert_eq!(caller.act(&format!("/sandboxes/{id}/pause")).await.status, 202);
    let paused = caller.sandbox_reaches(&id, "Paused").await;
    assert!(paused["message"].as_str().is_some_and(|m| m.contains("memory could not be kept")), "{paused}");
    // And goes on.
    assert_eq!(caller.act(&format!("/sandboxes/{id}/resume")).await.status, 202);
    caller.sandbox_reaches(&id, "Ready").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_built_takes_memory_from_what_sandboxes_are_offered() {
    let platform = Platform::start_with(|config| config.sandbox.memory_overcommit = 1.0).await;
    let (caller, engine) = (&platform.admin, &platform.sandboxes);
    caller.ready_sandbox().await;
    let held = caller.get("/sandboxes").await.body["data"][0]["memory_mb"].as_i64().expect("a size");
    // Room for one more sandbox beside the build's two machines.
    engine.set_capacity(|capacity| capacity.memory_mb = 2 * held + 2 * 128);
    engine.set_builds_last(true);
    let stages = "FROM base AS a\nRUN x\nFROM base\nRUN y";
    assert_eq!(caller.post("/sandbox_templates", wish("t", stages)).await.status, 201);
    caller.until("the build", |_| async { engine.builds() == 1 }).await;
    caller.ready_sandbox().await;
    let refused = caller.create_sandbox(json!({})).await;
    let failed = caller.sandbox_reaches(&refused, "Failed").await;
    assert!(failed["message"].as_str().is_some_and(|m| m.contains("MiB would be needed")), "{failed}");
    // Where there is none for one machine, nothing is built.
    let other = platform.sign_up("other@example.com").await;
    assert_eq!(other.post("/sandbox_templates", wish("u", "FROM base\nRUN x")).await.status, 201);
    let failed = reaches(&other, "u", "failed").await;
    assert!(failed["message"].as_str().is_some_and(|m| m.starts_with("insufficient_capacity: ")), "{failed}");
    engine.set_builds_last(false);
    assert_eq!(caller.delete("/sandbox_templates/t").await.status, 204);
    let machines = "SELECT COUNT(*) FROM machines WHERE owner_kind = 'template'";
    let left = async || sql(machines).fetch_one::<i64>(&platform.app().db).await.expect("a count");
    caller.until("its end", |_| async { left().await == 0 }).await;
    assert_eq!(other.post("/sandbox_templates", wish("u", "FROM base\nRUN x")).await.status, 201);
    reaches(&other, "u", "ready").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_is_sent_again_needs_no_room() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    // Longer than what comes between two looks at whether there is room.
    let send = async || {
        let request = caller.request(Method::POST, "/sandbox_uploads").header("idempotency-key", "k");
        caller.send(request.body(vec![1; (16 << 20) + 1])).await
    };
    let first = send().await;
    assert_eq!(first.status, 201, "{first:?}");
    platform.sandboxes.set_capacity(|capacity| capacity.disk_bytes = 0);
    let again = send().await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (201, Some("true")), "{again:?}");
    assert_eq!(again.body, first.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_keeps_as_much_as_it_may() {
    let platform = Platform::start_with(|config| config.sandbox.project_stored_gb = 11).await;
    let (caller, engine) = (&platform.admin, &platform.sandboxes);
    let id = caller.ready_sandbox().await;
    let snapshots = format!("/sandboxes/{id}/snapshots");
    engine.refuse("checkpoint", EngineError::Transient("slow".into()));
    // Its disk has 10 GiB, which is what a snapshot may become.
    for _ in 0..2 {
        assert_eq!(caller.post(&snapshots, json!({})).await.status, 201);
    }
    caller.post(&snapshots, json!({})).await.refused(403, "quota_exceeded");
    caller.act(&format!("/sandboxes/{id}/fork")).await.refused(403, "quota_exceeded");
    caller.post("/sandbox_templates", wish("t", "FROM base\nRUN x")).await.refused(403, "quota_exceeded");
    upload(caller, vec![1]).await.refused(403, "quota_exceeded");
    let stranger = platform.sign_up("stranger@example.com").await;
    assert_eq!(upload(&stranger, vec![1]).await.status, 201);
    engine.allow("checkpoint");
    caller
        .until("what they take", |c| async move { c.get("/snapshots").await.body["data"][1]["status"] == "Ready" })
        .await;
    assert_eq!(caller.post(&snapshots, json!({})).await.status, 201, "they became small");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_organization_keeps_as_much_as_it_may_however_many_projects_it_has() {
    let platform = Platform::start_with(|config| config.sandbox.organization_stored_gb = 11).await;
    let (caller, engine) = (&platform.admin, &platform.sandboxes);
    let sibling = caller.another_project("second").await;
    let snapshots = format!("/sandboxes/{}/snapshots", caller.ready_sandbox().await);
    engine.refuse("checkpoint", EngineError::Transient("slow".into()));
    // Its disk has 10 GiB, which is what a snapshot may become.
    assert_eq!(caller.post(&snapshots, json!({})).await.status, 201);
    assert_eq!(upload(&sibling, vec![1]).await.status, 201);
    assert_eq!(caller.post(&snapshots, json!({})).await.status, 201);
    for project in [caller, &sibling] {
        let refused = upload(project, vec![1]).await;
        refused.refused(403, "quota_exceeded");
        let told = refused.body["message"].as_str().expect("a message");
        assert!(told.starts_with("The organization keeps 20 GiB"), "{told}");
    }
    let stranger = platform.sign_up("stranger@example.com").await;
    assert_eq!(upload(&stranger, vec![1]).await.status, 201);
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
    let platform = Platform::start().await;
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
    let other = platform.sign_up("other@example.com").await;
    platform.sandboxes.set_builds_last(true);
    for name in ["a", "b", "c"] {
        assert_eq!(caller.post("/sandbox_templates", wish(name, "FROM base")).await.status, 201);
    }
    let waits = |body: &Value| body["message"] == "waiting until other builds are done";
    caller
        .until("two wait", |c| async move {
            let all = c.get("/sandbox_templates").await.body;
            all["data"].as_array().is_some_and(|all| all.iter().filter(|t| waits(t)).count() == 2)
        })
        .await;
    eventually("one build", 30, || (platform.sandboxes.builds() == 1).then_some(()));
    // The other place is for another project, however long the first one waits already.
    assert_eq!(other.post("/sandbox_templates", wish("theirs", "FROM base")).await.status, 201);
    eventually("two builds", 30, || (platform.sandboxes.builds() == 2).then_some(()));
    // Waiting is no part of the hour that a build may take.
    for _ in 0..2 {
        let before = platform.app().clock.now();
        platform.advance(platform.config.sandbox.template_seconds / 2 + 1);
        let wait_since = async || {
            let query = "SELECT MIN(status_since) FROM sandbox_templates WHERE message LIKE 'waiting until%'";
            sql(query).fetch_one::<i64>(&platform.app().db).await.expect("a time")
        };
        caller.until("another look", |_| async { wait_since().await > before.0 }).await;
    }
    // One that waits can be deleted as those can that are built.
    for name in ["a", "b", "c"] {
        assert_eq!(caller.delete(&format!("/sandbox_templates/{name}")).await.status, 204);
    }
    caller.until("nothing left", |c| async move { c.delete("").await.status == 204 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn time_in_which_no_service_runs_is_none_of_a_build_s() {
    let platform = Platform::start().await;
    platform.sandboxes.set_builds_last(true);
    assert_eq!(platform.admin.post("/sandbox_templates", wish("t", "FROM base")).await.status, 201);
    eventually("its build", 30, || (platform.sandboxes.builds() == 1).then_some(()));
    let away = platform.config.sandbox.template_seconds + 1;
    platform.sandboxes.set_builds_last(false);
    let platform = platform.crash_for(away).await;
    let built = reaches(&platform.admin, "t", "ready").await;
    assert_eq!(built["message"], Value::Null, "{built}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_costs_a_template_its_memory_for_as_long_as_it_is_full() {
    let platform = Platform::start().await;
    let (caller, engine) = (&platform.admin, &platform.sandboxes);
    let from_memory = |id: &str| engine.spec(id).is_some_and(|(_, from_memory)| from_memory);
    assert!(from_memory(&caller.ready_sandbox().await));
    engine.set_loads_memory(false);
    engine.set_capacity(|capacity| capacity.disk_bytes = 1 << 20);
    assert!(!from_memory(&caller.ready_sandbox().await));
    eventually("the end of the memory", 60, || (engine.counts().2 == 0).then_some(()));
    engine.set_loads_memory(true);
    engine.set_capacity(|capacity| capacity.disk_bytes = 1 << 40);
    caller
        .until("another memory", |_| {
            platform.advance(5);
            async { engine.counts().2 > 0 }
        })
        .await;
    assert!(from_memory(&caller.ready_sandbox().await));
}
