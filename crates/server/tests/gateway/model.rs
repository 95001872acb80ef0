//! What is on offer: the list and one model.

use berth_testkit::Upstream;
use serde_json::{Value, json};

use super::{Gateway, tiny};

async fn gateway(upstream: &Upstream) -> Gateway {
    let named = |id: &str| tiny(&[upstream.url()], json!({"id": id}));
    Gateway::with(vec![named("tiny"), named("acme/tiny-1.5b"), named("deep/er/name:latest")]).await
}

fn is_model(model: &Value, id: &str) {
    assert_eq!(model["id"], id, "{model}");
    assert_eq!(model["object"], "model", "{model}");
    assert!(model["created"].as_u64().is_some_and(|at| at > 1_600_000_000), "{model}");
    assert!(model["owned_by"].is_string(), "{model}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_is_openais() {
    let upstream = Upstream::start().await;
    let gateway = gateway(&upstream).await;
    let reply = gateway.get("/v1/models").await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let body = reply.json();
    assert_eq!(body["object"], "list");
    let all = body["data"].as_array().expect("models");
    for id in ["tiny", "acme/tiny-1.5b", "deep/er/name:latest", "tts-1"] {
        let found: Vec<_> = all.iter().filter(|model| model["id"] == id).collect();
        assert_eq!(found.len(), 1, "{id}: {body}");
        is_model(found[0], id);
    }
    reply.hides(&[&upstream.address(), "upstream-tiny"]);
    assert_eq!((upstream.count(), upstream.probes().len()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_model_by_its_name_with_slashes() {
    let upstream = Upstream::start().await;
    let gateway = gateway(&upstream).await;
    for (path, id) in [
        ("tiny", "tiny"),
        ("acme/tiny-1.5b", "acme/tiny-1.5b"),
        ("acme%2Ftiny-1.5b", "acme/tiny-1.5b"),
        ("deep/er/name:latest", "deep/er/name:latest"),
        ("deep%2Fer/name%3Alatest", "deep/er/name:latest"),
        ("tts-1", "tts-1"),
    ] {
        let reply = gateway.get(&format!("/v1/models/{path}")).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        is_model(&reply.json(), id);
        reply.hides(&[&upstream.address()]);
    }
    for missing in ["other", "acme", "acme/tiny", "tiny/x", "acme%252Ftiny-1.5b"] {
        gateway.get(&format!("/v1/models/{missing}")).await.refused(404, "model_not_found");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_platform_can_speak() {
    let gateway = Gateway::with(Vec::new()).await;
    let body = gateway.get("/v1/models").await.json();
    let ids: Vec<_> = body["data"].as_array().expect("models").iter().map(|model| model["id"].clone()).collect();
    assert_eq!(ids, ["tts-1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_of_other_projects_is_not_there() {
    let upstream = Upstream::start().await;
    let mut gateway = Gateway::over(&upstream).await;
    let ada = gateway.platform.sign_up("ada@example.com").await;
    let theirs = ada.project_id().to_owned();
    let own = gateway.project().to_owned();
    let of = |id: &str, projects: Value| tiny(&[upstream.url()], json!({"id": id, "projects": projects}));
    let models = vec![of("mine", json!([own])), of("theirs", json!([theirs])), of("both", json!([own, theirs]))];
    gateway.platform.config.models = models;
    let gateway = Gateway::of(gateway.platform.restart().await).await;
    let ask = async |id: &str| {
        let mut body = super::ask("hi");
        body["model"] = json!(id);
        gateway.chat(&body).await
    };
    assert_eq!((ask("mine").await.status, ask("both").await.status), (200, 200));
    // As one that does not exist.
    let (hidden, missing) = (ask("theirs").await, ask("nowhr").await);
    hidden.refused(404, "model_not_found");
    assert_eq!(hidden.text().replace("theirs", "nowhr"), missing.text());
    gateway.get("/v1/models/theirs").await.refused(404, "model_not_found");
    assert_eq!(gateway.get("/v1/models/mine").await.status, 200);
    let list = gateway.get("/v1/models").await.text();
    assert!(list.contains("\"mine\"") && list.contains("\"both\"") && !list.contains("\"theirs\""), "{list}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_s_model_names_no_other_secret_of_the_service() {
    let keys = tempfile::tempdir().expect("a folder");
    let folder = keys.path().to_owned();
    std::fs::write(folder.join("acme"), "sk-acme").expect("a file");
    let outside = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(outside.path(), "sk-of-somebody").expect("a file");
    let change = |config: &mut berth_server::config::Config| {
        config.gateway.key_folder.clone_from(&folder);
        config.gateway.key_env = vec!["PATH*".into()];
    };
    let gateway = Gateway::configured(Vec::new(), change).await;
    let admin = &gateway.platform.admin;
    let model = |key: Value| {
        let mut upstream = json!({"url": "http://127.0.0.1:9/v1"});
        upstream.as_object_mut().expect("an object").extend(key.as_object().expect("an object").clone());
        json!({"id": "mine", "upstreams": [upstream]})
    };
    for (field, key) in [
        ("api_key_env", json!({"api_key_env": "HOME"})),
        ("api_key_env", json!({"api_key_env": "BERTH_ADMIN_PASSWORD"})),
        ("api_key_file", json!({"api_key_file": outside.path()})),
        ("api_key_file", json!({"api_key_file": folder.join("../acme")})),
    ] {
        let refused = admin.post("/api/v1/admin/models", model(key.clone())).await;
        refused.refused(400, "invalid_request");
        assert!(refused.names(&format!("upstreams[0].{field}")), "{key}: {refused:?}");
    }
    let named = admin.post("/api/v1/admin/models", model(json!({"api_key_env": "HOME"}))).await;
    assert!(named.body["details"][0]["message"].as_str().is_some_and(|text| text.contains("PATH*")), "{named:?}");
    for key in [json!({"api_key_file": folder.join("acme")}), json!({"api_key_env": "PATH"})] {
        let put = admin.post("/api/v1/admin/models", model(key.clone())).await;
        assert_eq!(put.status, 201, "{key}: {put:?}");
        assert_eq!(admin.delete("/api/v1/admin/models/mine").await.status, 204);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_name_no_model_that_is_not_open_to_everybody() {
    let upstream = Upstream::start().await;
    let named =
        |id: &str, projects: Value| tiny(&[upstream.url()], json!({"id": id, "aliases": [], "projects": projects}));
    let theirs = json!([uuid::Uuid::now_v7().to_string()]);
    let gateway = Gateway::with(vec![named("open", json!([])), named("secret-project", theirs)]).await;
    let metrics = gateway.send(gateway.bare(reqwest::Method::GET, "/metrics")).await.text();
    assert!(!metrics.contains("secret-project"), "{metrics}");
    for model in ["open", "restricted-1"] {
        assert!(metrics.contains(&format!("berth_model_queue{{model=\"{model}\"}} 0")), "{metrics}");
        assert!(
            metrics.contains(&format!("berth_upstream_in_flight{{model=\"{model}\",upstream=\"0\"}} 0")),
            "{metrics}"
        );
    }
}
