//! The control calls of E2B's SDKs, and who gets in by the tokens that they give: on simulated machines. What happens inside
//! a real one, the SDKs themselves show.

use berth_domain::e2b;
use berth_testkit::{Answer, Caller, Platform, agent};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A platform with an agent in every machine, which says back what it is sent.
async fn with_agent() -> (Platform, TempDir) {
    let (platform, folder) = (Platform::start().await, tempfile::tempdir().expect("a folder"));
    platform.sandboxes.set_agent(&agent::play(folder.path()));
    (platform, folder)
}

/// A key of the project for these scopes: its id, and its text.
async fn key(caller: &Caller, scopes: Value) -> (String, String) {
    let made = caller.post("/api_keys", json!({"name": "sdk", "scopes": scopes})).await;
    assert_eq!(made.status, 201, "{made:?}");
    (made.id(), made.body["key"].as_str().expect("a key").to_owned())
}

/// An SDK: a key in E2B's form, and where the platform is.
struct Sdk {
    caller: Caller,
    key: String,
}

impl Sdk {
    async fn of(caller: &Caller) -> Self {
        let (_, key) = key(caller, json!(["sandbox"])).await;
        Self { caller: caller.anonymous(), key: e2b::key::written(&key) }
    }

    async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> Answer {
        let request = self.caller.request(method, &format!("/e2b{path}")).header("X-API-KEY", &self.key);
        let request = if let Some(body) = body { request.json(&body) } else { request };
        self.caller.send(request).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path, None).await
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        self.ask(Method::POST, path, Some(body)).await
    }

    /// A sandbox that runs, as it was told: its id and its token.
    async fn create(&self, body: Value) -> (String, String) {
        let made = self.post("/v2/sandboxes", body).await;
        assert_eq!(made.status, 201, "{made:?}");
        let text = |name: &str| made.body[name].as_str().expect("a text").to_owned();
        (text("sandboxID"), text("envdAccessToken"))
    }

    /// A request to envd's port of a sandbox.
    fn inside(&self, method: Method, path: &str, sandbox: &str, token: &str) -> reqwest::RequestBuilder {
        let request = self.caller.request(method, path);
        request.header("E2b-Sandbox-Id", sandbox).header("E2b-Sandbox-Port", "49983").header("X-Access-Token", token)
    }

    async fn health(&self, sandbox: &str, token: &str) -> Answer {
        self.caller.send(self.inside(Method::GET, "/health", sandbox, token)).await
    }
}

/// What is told of a refusal.
fn refused(answer: &Answer, status: u16) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.body["code"], status, "{answer:?}");
    assert!(answer.body["message"].is_string(), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_lives_by_the_calls_of_either_generation() {
    let platform = Platform::start().await;
    let sdk = Sdk::of(&platform.admin).await;
    for create in ["/sandboxes", "/v2/sandboxes"] {
        let body = json!({"templateID": "base", "timeout": 60, "metadata": {"a": create.len().to_string()}, "envVars": {"A": "b"},
            "autoPause": false, "secure": true});
        let made = sdk.post(create, body).await;
        assert_eq!(made.status, 201, "{made:?}");
        let id = made.body["sandboxID"].as_str().expect("an id").to_owned();
        assert_eq!((&made.body["alias"], &made.body["envdVersion"]), (&json!("base"), &json!(e2b::sandbox::ENVD)));
        let info = sdk.get(&format!("/sandboxes/{id}")).await;
        assert_eq!(
            (info.status, &info.body["state"], &info.body["cpuCount"]),
            (200, &json!("running"), &json!(1)),
            "{info:?}"
        );
        assert_eq!(info.body["envdAccessToken"], made.body["envdAccessToken"]);
        assert_eq!(sdk.post(&format!("/sandboxes/{id}/timeout"), json!({"timeout": 600})).await.status, 204);
        let later = sdk.get(&format!("/sandboxes/{id}")).await.body["endAt"].clone();
        assert!(later.as_str() > info.body["endAt"].as_str(), "{later} {info:?}");
        // Nothing shortens it again but the call that says so.
        assert_eq!(sdk.post(&format!("/sandboxes/{id}/connect"), json!({"timeout": 10})).await.status, 200);
        assert_eq!(sdk.get(&format!("/sandboxes/{id}")).await.body["endAt"], later);
        assert_eq!(sdk.ask(Method::DELETE, &format!("/sandboxes/{id}"), None).await.status, 204);
        refused(&sdk.ask(Method::DELETE, &format!("/sandboxes/{id}"), None).await, 404);
        refused(&sdk.get(&format!("/sandboxes/{id}")).await, 404);
        refused(&sdk.post(&format!("/sandboxes/{id}/connect"), json!({})).await, 404);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_paused_resumed_forked_and_kept() {
    let platform = Platform::start().await;
    let sdk = Sdk::of(&platform.admin).await;
    let (id, token) = sdk.create(json!({"templateID": "base", "timeout": 600})).await;
    assert_eq!(sdk.health(&id, &token).await.status, 204);
    let at = |verb: &str| format!("/sandboxes/{id}/{verb}");
    assert_eq!(sdk.post(&at("pause"), json!({})).await.status, 204);
    refused(&sdk.post(&at("pause"), json!({})).await, 409);
    assert_eq!(sdk.get(&format!("/sandboxes/{id}")).await.body["state"], "paused");
    let gone = sdk.health(&id, &token).await;
    assert!(
        gone.body["message"].as_str().is_some_and(|text| text.starts_with("The sandbox was not found")),
        "{gone:?}"
    );
    assert_eq!(gone.status, 502);
    assert_eq!(gone.body["sandboxId"], json!(id));
    let again = sdk.post(&at("connect"), json!({"timeout": 60})).await;
    assert_eq!((again.status, &again.body["envdAccessToken"]), (201, &json!(token)), "{again:?}");
    refused(&sdk.post(&at("resume"), json!({})).await, 409);
    let snapshot = sdk.post(&at("snapshots"), json!({"name": "point"})).await;
    assert_eq!((snapshot.status, &snapshot.body["names"]), (201, &json!(["point"])), "{snapshot:?}");
    for named in [snapshot.body["snapshotID"].as_str().expect("an id"), "point", "point:default"] {
        sdk.create(json!({"templateID": named})).await;
    }
    let listed = sdk.get(&format!("/snapshots?sandboxID={id}&limit=1")).await;
    assert_eq!(listed.body[0]["snapshotID"], snapshot.body["snapshotID"], "{listed:?}");
    let name = snapshot.body["snapshotID"].as_str().expect("an id");
    assert_eq!(sdk.ask(Method::DELETE, &format!("/templates/{name}"), None).await.status, 204);
    refused(&sdk.ask(Method::DELETE, &format!("/templates/{name}"), None).await, 404);
    let forks = sdk.post(&at("fork"), json!({"count": 2, "timeout": 60})).await;
    let forks = forks.body.as_array().expect("a list").clone();
    assert!(forks.len() == 2 && forks.iter().all(|fork| fork["sandbox"]["sandboxID"].is_string()), "{forks:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_narrowed_and_go_on() {
    let platform = Platform::start().await;
    let sdk = Sdk::of(&platform.admin).await;
    let mut ids = Vec::new();
    for number in 0..5 {
        ids.push(sdk.create(json!({"templateID": "base", "metadata": {"a.b": "c", "n": number.to_string()}})).await.0);
    }
    assert_eq!(sdk.post(&format!("/sandboxes/{}/pause", ids[1]), json!({})).await.status, 204);
    assert_eq!(sdk.ask(Method::DELETE, &format!("/sandboxes/{}", ids[2]), None).await.status, 204);
    let listed = async |query: &str| {
        let answer = sdk.get(&format!("/v2/sandboxes?{query}")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let list = answer.body.as_array().expect("a list");
        let number = |one: &Value| one["metadata"]["n"].as_str().expect("a number").parse::<u32>().expect("a number");
        (list.iter().map(number).collect::<Vec<_>>(), answer.header("x-next-token").map(str::to_owned))
    };
    assert_eq!(listed("").await, (vec![4, 3, 1, 0], None));
    assert_eq!(listed("state=running&order=asc").await.0, [0, 3, 4]);
    assert_eq!(listed("state=paused").await.0, [1]);
    assert_eq!(listed("metadata=n%3D3").await.0, [3]);
    assert_eq!(listed("metadata=n%3D3&state=paused&template=base").await.0, Vec::<u32>::new());
    assert_eq!(listed("template=unknown").await.0, Vec::<u32>::new());
    let (first, next) = listed("limit=2").await;
    let (second, end) = listed(&format!("limit=2&nextToken={}", next.expect("a token"))).await;
    assert_eq!((first, second, end), (vec![4, 3], vec![1, 0], None));
    refused(&sdk.get("/v2/sandboxes?limit=0").await, 400);
    for list in ["/v2/sandboxes", "/snapshots"] {
        refused(&sdk.get(&format!("{list}?limit=1&nextToken=o18446744073709551615")).await, 400);
    }
    let earlier = sdk.get("/sandboxes").await.body;
    assert_eq!(earlier.as_array().map(Vec::len), Some(3), "those that run");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_the_project_gets_in_and_no_other() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let sdk = Sdk::of(admin).await;
    let (id, token) = sdk.create(json!({"templateID": "base"})).await;
    let other = Sdk::of(&admin.another_project("other").await).await;
    refused(&other.get(&format!("/sandboxes/{id}")).await, 404);
    refused(&other.ask(Method::DELETE, &format!("/sandboxes/{id}"), None).await, 404);
    let (_, plain) = key(admin, json!(["sandbox"])).await;
    let as_it_is = Sdk { caller: admin.anonymous(), key: plain };
    assert_eq!(as_it_is.get(&format!("/sandboxes/{id}")).await.status, 200);
    let (_, models) = key(admin, json!(["inference"])).await;
    for (wrong, status) in [(e2b::key::written(&models), 403), (format!("{}0", sdk.key), 401), (String::new(), 401)] {
        let sdk = Sdk { caller: admin.anonymous(), key: wrong };
        refused(&sdk.get(&format!("/sandboxes/{id}")).await, status);
    }
    refused(&admin.get("/e2b/v2/sandboxes").await, 403);
    refused(&sdk.get("/nothing").await, 404);
    refused(&sdk.get("/templates/:x").await, 404);
    refused(&sdk.ask(Method::DELETE, "/sandboxes/an-id-of-another-platform", None).await, 404);
    refused(&sdk.ask(Method::DELETE, "/templates/tags", None).await, 409);
    let another = sdk.create(json!({"templateID": "base"})).await.1;
    for wrong in ["", "x", &another, &token.replace(&token[40..41], if &token[40..41] == "0" { "1" } else { "0" })] {
        refused(&sdk.health(&id, wrong).await, 401);
    }
    assert_eq!(sdk.health(&id, &token).await.status, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_ends_with_its_key_and_with_its_sandbox() {
    let (platform, _folder) = with_agent().await;
    let admin = &platform.admin;
    let (key_id, text) = key(admin, json!(["sandbox"])).await;
    let sdk = Sdk { caller: admin.anonymous(), key: e2b::key::written(&text) };
    let (id, token) = sdk.create(json!({"templateID": "base"})).await;
    let stat = sdk.inside(Method::POST, "/filesystem.Filesystem/Remove", &id, &token).json(&json!({"path": "/tmp/x"}));
    assert_eq!(admin.send(stat).await.status, 200);
    let second = Sdk::of(admin).await;
    let own = second.post(&format!("/sandboxes/{id}/connect"), json!({})).await.body["envdAccessToken"].clone();
    assert_ne!(own, token.as_str(), "each key has a token of its own");
    assert_eq!(admin.delete(&format!("/api_keys/{key_id}")).await.status, 204);
    refused(&sdk.health(&id, &token).await, 401);
    let own = own.as_str().expect("a token");
    assert_eq!(second.health(&id, own).await.status, 204);
    assert_eq!(second.ask(Method::DELETE, &format!("/sandboxes/{id}"), None).await.status, 204);
    refused(&second.health(&id, own).await, 502);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_had_is_refused_and_leaves_nothing() {
    let platform = Platform::start().await;
    let sdk = Sdk::of(&platform.admin).await;
    for (body, status) in [
        (json!({}), 400),
        (json!({"templateID": "no-such"}), 404),
        (json!({"templateID": "base", "timeout": 2_592_001}), 400),
        (json!({"templateID": "base", "mcp": {"a": {}}}), 400),
        (json!({"templateID": "base", "network": {"allowOut": ["nonsense/"]}}), 400),
    ] {
        refused(&sdk.post("/v2/sandboxes", body).await, status);
    }
    assert_eq!(platform.admin.get("/sandboxes").await.body["pagination"]["total_items"], 0);
    let (id, _) = sdk.create(json!({"templateID": "base", "timeout": 5})).await;
    refused(&sdk.post(&format!("/sandboxes/{id}/timeout"), json!({})).await, 400);
    let rules = json!({"denyOut": ["0.0.0.0/0"], "allowOut": ["example.org"]});
    assert_eq!(sdk.ask(Method::PUT, &format!("/sandboxes/{id}/network"), Some(rules)).await.status, 204);
    let shown = platform.admin.get(&format!("/sandboxes/{id}")).await.body;
    assert_eq!(shown["network"], json!({"egress": "deny", "allow": ["example.org"], "deny": []}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_that_is_sent_again_is_one() {
    let platform = Platform::start().await;
    let sdk = Sdk::of(&platform.admin).await;
    let send = async |key: &str, template: &str| {
        let request = sdk.caller.request(Method::POST, "/e2b/v2/sandboxes").header("X-API-KEY", &sdk.key);
        sdk.caller.send(request.header("Idempotency-Key", key).json(&json!({"templateID": template}))).await
    };
    let (first, again) = tokio::join!(send("one", "base"), send("one", "base"));
    assert_eq!((first.status, again.status), (201, 201), "{first:?} {again:?}");
    assert_eq!(first.body["sandboxID"], again.body["sandboxID"]);
    // One that was paused meanwhile is its owner's, and stays.
    let id = first.body["sandboxID"].as_str().expect("an id");
    assert_eq!(sdk.post(&format!("/sandboxes/{id}/snapshots"), json!({"name": "point"})).await.status, 201);
    assert_eq!(sdk.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 204);
    refused(&send("one", "base").await, 409);
    assert_eq!(sdk.get(&format!("/sandboxes/{id}")).await.body["state"], "paused");
    let (first, again) = (send("two", "point").await, send("two", "point").await);
    assert_eq!((first.status, again.status), (201, 201), "{first:?} {again:?}");
    assert_eq!(first.body["sandboxID"], again.body["sandboxID"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_sent_to_a_sandbox_s_name_is_none_of_the_platform_s() {
    let platform = Platform::start().await;
    let sdk = Sdk::of(&platform.admin).await;
    let (id, token) = sdk.create(json!({"templateID": "base"})).await;
    let host = format!("3000-{id}.box.example.org");
    let asked = |path: &str, headers: &[(&str, &str)]| {
        let request = sdk.caller.request(Method::GET, &format!("/.{path}"));
        let url = format!("{}{path}", sdk.caller.base());
        let (client, built) = request.build_split();
        let mut built = built.expect("a request");
        *built.url_mut() = url.parse().expect("an address");
        let request = reqwest::RequestBuilder::from_parts(client, built);
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))
    };
    for path in ["/metrics", "/healthz", "/docs", "/api/v1/users/me"] {
        let answer = sdk.caller.send(asked(path, &[("host", &host)])).await;
        assert_eq!(answer.status, 401, "{path}: {answer:?}");
        let answer = sdk.caller.send(asked(path, &[("host", &host), ("E2b-Sandbox-Id", "x")])).await;
        assert_eq!(answer.status, 404, "{path}: {answer:?}");
    }
    // The token for servers inside opens nothing else.
    let made = sdk.post(&format!("/sandboxes/{id}/connect"), json!({})).await.body;
    let ports = made["trafficAccessToken"].as_str().expect("a token");
    assert_ne!(ports, token);
    refused(&sdk.health(&id, ports).await, 401);
}
