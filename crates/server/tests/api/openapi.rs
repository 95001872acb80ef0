//! The document is true: real answers have the shape that it promises, and it stands checked in.

use std::path::Path;

use berth_testkit::{Caller, Platform, key, vm};
use reqwest::Method;
use serde_json::{Value, json};

/// `BERTH_UPDATE_OPENAPI=1 cargo test -p berth-server openapi` writes it anew.
#[tokio::test(flavor = "multi_thread")]
async fn the_document_is_checked_in() {
    let platform = Platform::start().await;
    let made = text(&platform).await;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../openapi/openapi.json");
    if std::env::var_os("BERTH_UPDATE_OPENAPI").is_some() {
        std::fs::write(&file, format!("{made}\n")).expect("the file is written");
    }
    let kept = std::fs::read_to_string(&file).expect("openapi/openapi.json");
    assert!(
        kept.trim_end() == made,
        "openapi/openapi.json is not what the code says; type: BERTH_UPDATE_OPENAPI=1 cargo test -p berth-server openapi"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_schema_that_is_named_is_there() {
    fn names(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                found.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
                members.values().for_each(|member| names(member, found));
            }
            Value::Array(items) => items.iter().for_each(|item| names(item, found)),
            _ => {}
        }
    }
    let platform = Platform::start().await;
    let document: Value = serde_json::from_str(&text(&platform).await).expect("JSON");
    let mut found = Vec::new();
    names(&document, &mut found);
    assert!(found.len() > 100);
    for name in found {
        let pointer = name.strip_prefix('#').expect("a place in the document");
        assert!(document.pointer(pointer).is_some(), "{name} is named and not there");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_says_that_it_may_fail() {
    let platform = Platform::start().await;
    let document: Value = serde_json::from_str(&text(&platform).await).expect("JSON");
    let mut looked_at = 0;
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations").iter().filter(|_| path.starts_with("/api/")) {
            looked_at += 1;
            let answers = operation["responses"].as_object().expect("responses");
            assert!(answers.contains_key("500") && answers.contains_key("503"), "{method} {path}");
        }
    }
    assert!(looked_at > 100, "{looked_at}");
    assert!(document["paths"]["/sandbox/{sandbox_id}/ports/{port}/{path}"]["get"].is_object());
    assert!(document["tags"].as_array().is_some_and(|tags| tags[0]["name"] == "identity"));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_export_names_its_headers() {
    let platform = Platform::start().await;
    let document: Value = serde_json::from_str(&text(&platform).await).expect("JSON");
    let paths = document["paths"].as_object().expect("paths");
    let exports: Vec<_> = paths.iter().filter(|(path, _)| path.ends_with("/export")).collect();
    assert_eq!(exports.len(), 4);
    for (path, item) in exports {
        for (status, names) in
            [("200", ["Content-Digest", "ETag", "Repr-Digest"]), ("206", ["Content-Range", "ETag", "Repr-Digest"])]
        {
            let told = item["get"]["responses"][status]["headers"].as_object().expect("headers");
            assert!(names.iter().all(|name| told.contains_key(*name)), "{path} {status} {told:?}");
        }
    }
}

async fn text(platform: &Platform) -> String {
    let answer = reqwest::get(format!("{}/openapi.json", platform.admin.base)).await.expect("an answer");
    answer.text().await.expect("a body")
}

/// Finds the operation of a real path.
fn operation<'a>(document: &'a Value, method: &str, path: &str) -> &'a Value {
    let path = path.split('?').next().expect("a path");
    let fits = |template: &str| {
        let (a, b): (Vec<_>, Vec<_>) = (template.split('/').collect(), path.split('/').collect());
        a.len() == b.len() && a.iter().zip(&b).all(|(t, p)| t.starts_with('{') || t == p)
    };
    let paths = document["paths"].as_object().expect("paths");
    let best = paths.iter().filter(|(t, _)| fits(t)).min_by_key(|(t, _)| t.matches('{').count());
    &best.unwrap_or_else(|| panic!("{path} is not in the document")).1[method]
}

async fn check(document: &Value, caller: &Caller, method: &str, path: &str, body: Option<Value>) -> Value {
    let full = if path.starts_with("/api") || path.starts_with("/v1/") {
        path.to_owned()
    } else {
        format!("{}{path}", caller.project)
    };
    let request = caller.request(method.to_uppercase().parse().expect("a method"), path);
    let answer = caller
        .send(match body {
            Some(body) => request.json(&body),
            None => request,
        })
        .await;
    let operation = operation(document, method, &full);
    let response = &operation["responses"][answer.status.to_string()];
    assert!(
        response.is_object(),
        "{method} {path} answered {}, which the document does not know: {}",
        answer.status,
        answer.body
    );
    if let Some(schema) = response.pointer("/content/application~1json/schema") {
        let mut schema = schema.clone();
        schema["components"] = document["components"].clone();
        let validator = jsonschema::draft202012::new(&schema).expect("a schema");
        let wrong: Vec<_> =
            validator.iter_errors(&answer.body).map(|e| format!("{}: {e}", e.instance_path())).collect();
        assert!(wrong.is_empty(), "{method} {path} {}: {wrong:?}\n{}", answer.status, answer.body);
    } else {
        assert_eq!(answer.body, Value::Null, "{method} {path} has a body that the document does not know");
    }
    answer.body
}

/// A platform with a VM that runs, its document, and the VM's id.
async fn set_up() -> (Platform, Value, String) {
    let platform = Platform::start().await;
    let document: Value = serde_json::from_str(&text(&platform).await).expect("JSON");
    assert_eq!(document["openapi"], "3.1.0");
    let mut body = vm("web");
    body["data_disks"] = json!({"create_disks": [{"name": "d", "type": "filesystem", "size_gb": 10}]});
    body["exposed_ports"] = json!([{"port": 80, "protocol": "tcp"}]);
    let made = check(&document, &platform.admin, "post", "/vms", Some(body)).await;
    let id = made["id"].as_str().expect("an id").to_owned();
    platform.admin.reaches(&id, "running").await;
    (platform, document, id)
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_to_readers_have_the_promised_shape() {
    let (platform, document, id) = set_up().await;
    let (caller, nobody) = (&platform.admin, platform.admin.anonymous());
    let org = "/api/v1/orgs/administrator";
    let mut paths: Vec<String> = ["/vms", "/root_disks", "/disks", "/networks", "/quota"].map(str::to_owned).into();
    paths.extend(
        ["regions", "vm_configs", "plans", "images", "images/micro", "users/me", "orgs"]
            .map(|p| format!("/api/v1/{p}")),
    );
    paths.extend([org.to_owned(), format!("{org}/projects"), format!("{org}/projects/default")]);
    for path in paths {
        check(&document, caller, "get", &path, None).await;
        check(&document, &nobody, "get", &path, None).await;
        check(&document, caller, "get", &format!("{path}?page=0"), None).await;
    }
    for path in ["", "/wait", "/operations", "/metrics?window=1m"] {
        check(&document, caller, "get", &format!("/vms/{id}{path}"), None).await;
    }
    check(&document, caller, "get", "/vms/x", None).await;
    check(&document, caller, "get", &format!("/vms/{}", uuid::Uuid::now_v7()), None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_to_changes_have_the_promised_shape() {
    let (platform, document, id) = set_up().await;
    let caller = &platform.admin;
    check(&document, caller, "patch", &format!("/vms/{id}"), Some(json!({"labels": {"a": "b"}}))).await;
    check(&document, caller, "patch", &format!("/vms/{id}"), Some(json!({"name": 1}))).await;
    for body in [json!({"ssh_keys": [key(1)]}), json!({})] {
        check(&document, caller, "put", &format!("/vms/{id}/ssh_keys"), Some(body)).await;
    }
    check(&document, caller, "post", "/vms", Some(json!({}))).await;
    let mut several = vm("several");
    several["count"] = json!(2);
    check(&document, caller, "post", "/vms", Some(several)).await;
    let disk = json!({"name": "e", "type": "block", "size_gb": 10, "region_id": "local"});
    check(&document, caller, "post", "/disks", Some(disk)).await;
    for body in [json!({"name": "lan"}), json!({"name": "lan"}), json!({"name": 1})] {
        check(&document, caller, "post", "/networks", Some(body)).await;
    }
    let lan = caller.get("/networks").await.body["data"][0]["id"].as_str().expect("an id").to_owned();
    check(&document, caller, "patch", &format!("/networks/{lan}"), Some(json!({"name": "dmz"}))).await;
    check(&document, caller, "post", "/sandboxes", Some(json!({"network_ids": [lan]}))).await;
    check(&document, caller, "get", &format!("/networks/{lan}"), None).await;
    check(&document, caller, "delete", &format!("/networks/{lan}"), None).await;
    for place in ["/api/v1/users/me/ssh_keys", "/ssh_keys"] {
        for body in [json!({"name": "k", "public_key": key(1)}), json!({"name": "k", "public_key": key(2)}), json!({})]
        {
            check(&document, caller, "post", place, Some(body)).await;
        }
        let listed = check(&document, caller, "get", place, None).await;
        let one = format!("{place}/{}", listed["data"][0]["id"].as_str().expect("an id"));
        check(&document, caller, "get", &one, None).await;
        check(&document, caller, "delete", &one, None).await;
        check(&document, caller, "delete", &one, None).await;
    }
    let root = caller.get("/root_disks").await.body["data"][0]["id"].as_str().expect("an id").to_owned();
    check(&document, caller, "get", &format!("/root_disks/{root}"), None).await;
    check(&document, caller, "delete", &format!("/root_disks/{root}"), None).await;
    for verb in ["stop", "start", "restart"] {
        check(&document, caller, "post", &format!("/vms/{id}/{verb}"), None).await;
    }
    check(&document, caller, "delete", &format!("/vms/{id}"), None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_about_sandboxes_have_the_promised_shape() {
    let (platform, document, _) = set_up().await;
    let caller = &platform.admin;
    let ask = async |method: &str, path: &str, body: Option<Value>| check(&document, caller, method, path, body).await;
    let body = json!({"timeout_seconds": 60, "network": {"egress": "deny", "allow": ["example.org", "10.0.0.0/8"]}});
    let made = ask("post", "/sandboxes", Some(body)).await;
    let id = made["id"].as_str().expect("an id").to_owned();
    caller.sandbox_reaches(&id, "Ready").await;
    let taken = ask("post", &format!("/sandboxes/{id}/snapshots"), Some(json!({"include_memory": true}))).await;
    let taken = taken["id"].as_str().expect("an id").to_owned();
    let sent = caller.send(caller.request(Method::POST, "/sandbox_uploads").body("archive")).await;
    let (sent, other) = (sent.id(), uuid::Uuid::now_v7());
    for path in [
        "/sandboxes",
        "/sandbox_templates",
        "/sandbox_templates/base",
        "/sandbox_templates/x",
        "/sandbox_uploads",
        "/snapshots",
    ] {
        ask("get", path, None).await;
        ask("get", &format!("{path}?page=0"), None).await;
    }
    for path in ["", "/wait", "/snapshots", "/metrics?window=1m", "/metrics?window=x"] {
        ask("get", &format!("/sandboxes/{id}{path}"), None).await;
    }
    ask("get", &format!("/snapshots/{taken}"), None).await;
    ask("get", "/sandbox_templates/base/logs?offset=x", None).await;
    ask("get", "/sandbox_templates/x/logs", None).await;
    let dockerfile = |context: &str| {
        let sizes = json!({"name": "d", "vcpu": 1, "memory_mb": 128, "disk_gb": 1, "context_id": context});
        with(sizes, "dockerfile", "FROM base\nCOPY . .")
    };
    ask("post", "/sandbox_templates", Some(dockerfile(&other.to_string()))).await;
    ask("post", "/sandbox_templates", Some(dockerfile("x"))).await;
    ask("post", "/sandbox_templates", Some(dockerfile(&sent))).await;
    ask("delete", &format!("/sandbox_uploads/{other}"), None).await;
    ask("delete", &format!("/sandbox_uploads/{sent}"), None).await;
    ask("patch", &format!("/sandboxes/{id}"), Some(json!({"metadata": {"a": "b"}}))).await;
    ask("post", &format!("/sandboxes/{id}/fork"), Some(json!({"count": 2}))).await;
    ask("post", &format!("/sandboxes/{id}/restore"), Some(json!({"snapshot_id": uuid::Uuid::now_v7()}))).await;
    ask("post", &format!("/sandboxes/{id}/resume"), None).await;
    ask("post", &format!("/sandboxes/{id}/pause"), None).await;
    caller.sandbox_reaches(&id, "Paused").await;
    ask("post", "/sandbox_templates", Some(json!({"name": "x", "from_snapshot": taken}))).await;
    ask("post", "/sandbox_templates", Some(json!({"name": "x"}))).await;
    ask("delete", "/sandbox_templates/base", None).await;
    ask("delete", "/sandbox_templates/x", None).await;
    ask("delete", &format!("/snapshots/{taken}"), None).await;
    ask("delete", &format!("/sandboxes/{id}"), None).await;
    ask("post", "/sandboxes", Some(json!({"template_id": 1}))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_about_models_have_the_promised_shape() {
    let (platform, document, _) = set_up().await;
    let admin = &platform.admin;
    let made = admin.post("/api_keys", json!({"name": "k", "scopes": ["inference"]})).await;
    let key = admin.with_token(made.body["key"].as_str().expect("a key"));
    let ask = async |caller: &Caller, method: &str, path: &str, body: Option<Value>| {
        check(&document, caller, method, path, body).await
    };
    let model = |id: &str| json!({"id": id, "upstreams": [{"url": "http://127.0.0.1:9/v1"}]});
    for body in [model("tiny"), model("tiny"), model(""), json!({})] {
        ask(admin, "post", "/api/v1/admin/models", Some(body)).await;
    }
    ask(admin, "get", "/api/v1/admin/models", None).await;
    for id in ["tiny", "none"] {
        ask(admin, "get", &format!("/api/v1/admin/models/{id}"), None).await;
        ask(admin, "put", &format!("/api/v1/admin/models/{id}"), Some(model(id))).await;
        ask(&key, "get", &format!("/v1/models/{id}"), None).await;
        let chat = json!({"model": id, "messages": [{"role": "user", "content": "hi"}]});
        ask(&key, "post", "/v1/chat/completions", Some(chat)).await;
    }
    ask(&key, "get", "/v1/models", None).await;
    ask(&key.anonymous(), "get", "/v1/models", None).await;
    for path in ["chat/completions", "completions", "embeddings", "audio/speech"] {
        ask(&key, "post", &format!("/v1/{path}"), Some(json!({}))).await;
    }
    for query in ["", "?window=1h&resolution=1m&group_by=model", "?group_by=x"] {
        ask(admin, "get", &format!("/usage{query}"), None).await;
    }
    ask(admin, "delete", "/api/v1/admin/models/tiny", None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_identity_have_the_promised_shape() {
    let (platform, document, _) = set_up().await;
    let (caller, nobody) = (&platform.admin, platform.admin.anonymous());
    check(&document, caller, "post", "/api/v1/orgs", Some(json!({"name": "x"}))).await;
    check(&document, caller, "post", "/api/v1/orgs/administrator/projects", Some(json!({"name": "x"}))).await;
    let login = |password: &str| json!({"email": "a@example.com", "password": password});
    let good = "a quiet harbour at night";
    check(&document, &nobody, "post", "/api/v1/auth/signup", Some(login(good))).await;
    let tokens = check(&document, &nobody, "post", "/api/v1/auth/login", Some(login(good))).await;
    check(&document, &nobody, "post", "/api/v1/auth/login", Some(login("wrong"))).await;
    let token = json!({"refresh_token": tokens["refresh_token"]});
    check(&document, &nobody, "post", "/api/v1/auth/refresh", Some(token)).await;
    check(&document, caller, "post", "/api/v1/auth/logout", Some(json!({}))).await;
}

/// An object with one more field.
fn with(mut object: Value, field: &str, value: &str) -> Value {
    object[field] = value.into();
    object
}
