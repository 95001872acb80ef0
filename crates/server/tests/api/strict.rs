//! What is not known is refused: a slip must not open what was to be closed.

use berth_testkit::{Answer, Caller, Platform, vm};
use reqwest::Method;
use serde_json::{Value, json};

const UNKNOWN: &str = "colour_of_the_sky";

/// What is said of a field.
fn told<'a>(answer: &'a Answer, field: &str) -> Option<&'a str> {
    let details = answer.body["details"].as_array()?;
    details.iter().find(|detail| detail["field"] == field)?["message"].as_str()
}

/// Everything that is there for an operation to be asked about.
struct World {
    platform: Platform,
    owner: Caller,
    key: Caller,
    sandbox: String,
    ids: Vec<(&'static str, String)>,
}

async fn world() -> World {
    let platform = Platform::start().await;
    let owner = platform.sign_up("owner@example.com").await;
    let sandbox = owner.ready_sandbox().await;
    let vm = owner.create_vm(vm("web")).await;
    let ids = vec![("{sandbox_id}", sandbox.clone()), ("{vm_id}", vm)];
    let key = owner.post("/api_keys", json!({"name": "ci", "scopes": ["vm"]})).await;
    let key = owner.with_token(key.body["key"].as_str().expect("a key"));
    World { platform, owner, key, sandbox, ids }
}

impl World {
    async fn document(&self) -> Value {
        let answer = reqwest::get(format!("{}/openapi.json", self.owner.base)).await.expect("an answer");
        answer.json().await.expect("JSON")
    }

    /// A real path of a route: of what is there, else of what is not.
    fn path(&self, template: &str) -> String {
        let parts: Vec<&str> = self.owner.project.split('/').collect();
        let mut path = template.to_owned();
        if !template.contains("/admin/") {
            path = path.replace("{org_id}", parts[4]).replace("{project_id}", parts[6]);
        }
        for (name, id) in &self.ids {
            path = path.replace(name, id);
        }
        while let (Some(a), Some(b)) = (path.find('{'), path.find('}')) {
            path.replace_range(a..=b, &uuid::Uuid::now_v7().to_string());
        }
        path
    }

    /// Who may ask: administrators have routes of their own, and only a key may ask what it is.
    fn caller(&self, template: &str) -> &Caller {
        if template == "/api/v1/key" {
            return &self.key;
        }
        let administers = template.contains("/admin/") || template.starts_with("/api/v1/images");
        if administers { &self.platform.admin } else { &self.owner }
    }

    async fn send(&self, method: &str, template: &str, query: &str, body: Option<&Value>) -> Answer {
        let caller = self.caller(template);
        let method: Method = method.to_uppercase().parse().expect("a method");
        let request = caller.request(method, &format!("{}{query}", self.path(template)));
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        let response = request.send().await.expect("an answer");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        // What is let in may have no end.
        let body = if status >= 400 { response.json().await.expect("JSON") } else { Value::Null };
        Answer { status, headers, body }
    }
}

/// Every operation of the document that is ours to judge: below `/v1` what is unknown passes, and what is open to
/// everybody and reads nothing takes whatever monitors and browsers put behind its address.
fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let mut all = Vec::new();
    for (template, item) in document["paths"].as_object().expect("paths") {
        if template.starts_with("/api/v1/") || template.starts_with("/sandbox/") {
            for (method, operation) in item.as_object().expect("operations") {
                all.push((method.clone(), template.clone(), operation.clone()));
            }
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_that_reads_json_refuses_a_field_that_is_not_known() {
    let world = world().await;
    let mut tried = 0;
    let mut wrong = Vec::new();
    for (method, template, operation) in operations(&world.document().await) {
        // What is inside a sandbox answers for itself; the simulated agent is none.
        if operation["requestBody"]["content"]["application/json"].is_null() || template.starts_with("/sandbox/") {
            continue;
        }
        tried += 1;
        let body = json!({UNKNOWN: 1});
        let answer = world.send(&method, &template, "", Some(&body)).await;
        let said = told(&answer, UNKNOWN).unwrap_or_default();
        if answer.status != 400 || !said.starts_with("no such field; ") {
            wrong.push(format!("{method} {template}: {answer:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried > 40, "{tried}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_refuses_a_parameter_that_is_not_known() {
    let world = world().await;
    let mut tried = 0;
    let mut wrong = Vec::new();
    for (method, template, operation) in operations(&world.document().await) {
        // A query to a port is for who listens there.
        if template.contains("/ports/") {
            continue;
        }
        tried += 1;
        let reads_json = !operation["requestBody"]["content"]["application/json"].is_null();
        let body = json!({});
        let body = (reads_json && !template.starts_with("/sandbox/")).then_some(&body);
        let answer = world.send(&method, &template, &format!("?{UNKNOWN}=1"), body).await;
        let said = told(&answer, UNKNOWN).unwrap_or_default();
        if answer.status != 400 || !said.starts_with("no such parameter; ") {
            wrong.push(format!("{method} {template}: {answer:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried > 110, "{tried}");
    // Nothing was done.
    assert_eq!(world.owner.get(&format!("/sandboxes/{}", world.sandbox)).await.body["phase"], "Ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_parameter_of_the_document_is_known() {
    let world = world().await;
    let mut wrong = Vec::new();
    for (method, template, operation) in operations(&world.document().await) {
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            if parameter["in"] != "query" || template.starts_with("/sandbox/") {
                continue;
            }
            // A wrong value is refused by its rule, or taken; it is never unknown.
            let name = parameter["name"].as_str().expect("a name").replace("{key}", "team");
            let answer = world.send(&method, &template, &format!("?{name}=%00&{UNKNOWN}=1"), None).await;
            if told(&answer, &name).is_some_and(|said| said.starts_with("no such")) || told(&answer, UNKNOWN).is_none()
            {
                wrong.push(format!("{method} {template}?{name}: {answer:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn slips_are_named_with_what_may_be_meant_and_nothing_is_made() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let answer = admin.post("/sandboxes", json!({"template": "node", "timeout": 60, "egress": "deny", "env": 1})).await;
    answer.refused(400, "invalid_request");
    for (field, meant) in [("template", "template_id"), ("timeout", "timeout_seconds"), ("egress", "network.egress")] {
        assert_eq!(told(&answer, field), Some(&*format!("no such field; {meant} may be meant")), "{answer:?}");
    }
    assert!(answer.names("env"), "{answer:?}");
    let answer = admin.post("/sandboxes", json!({"network": {"egres": "deny", "denny": []}})).await;
    assert_eq!(told(&answer, "network.egres"), Some("no such field; egress may be meant"));
    assert_eq!(told(&answer, "network.denny"), Some("no such field; deny may be meant"));
    let mut body = vm("web");
    body["exposed_port"] = json!([]);
    body["ssh_key"] = json!(["x"]);
    body["root_disk"]["create_disk_request"]["size"] = json!(9);
    body["size_gb"] = Value::Null;
    let answer = admin.post("/vms", body).await;
    for field in ["exposed_port", "ssh_key", "root_disk.create_disk_request.size", "size_gb"] {
        assert!(told(&answer, field).is_some_and(|said| said.starts_with("no such field")), "{field}: {answer:?}");
    }
    // Free maps stay free.
    let mut body = vm("web");
    body["labels"] = json!({UNKNOWN: "1"});
    assert_eq!(admin.post("/vms", body).await.status, 201);
    let free = json!({"metadata": {UNKNOWN: "1"}, "env": {"COLOUR": "1"}});
    assert_eq!(admin.post("/sandboxes", free).await.status, 201);
    assert_eq!(admin.get("/vms").await.body["pagination"]["total_items"], 1);
    assert_eq!(admin.get("/sandboxes").await.body["pagination"]["total_items"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_misspelt_limit_clears_none() {
    let platform = Platform::start().await;
    let path = format!("/api/v1/admin/projects/{}/quota", platform.admin.project_id());
    let put = async |body: Value| platform.admin.send(platform.admin.request(Method::PUT, &path).json(&body)).await;
    assert_eq!(put(json!({"vms": 0})).await.status, 200);
    let answer = put(json!({"wms": 3})).await;
    assert_eq!(told(&answer, "wms"), Some("no such field; vms may be meant"), "{answer:?}");
    assert_eq!(platform.admin.get(&path).await.body["vms"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_are_judged_after_who_asks() {
    let platform = Platform::start().await;
    let stranger = platform.sign_up("stranger@example.com").await;
    let query = format!("?{UNKNOWN}=1");
    let project = &platform.admin.project;
    platform.admin.anonymous().get(&format!("/vms{query}")).await.refused(401, "unauthorized");
    stranger.get(&format!("{project}/events{query}")).await.refused(404, "project_not_found");
    stranger.get(&format!("/api/v1/admin/usage{query}")).await.refused(403, "forbidden");
    let answer = platform.admin.get(&format!("/disks{query}&limit=0")).await;
    assert!(answer.names("limit") && answer.names(UNKNOWN), "{answer:?}");
    // HEAD is judged as GET.
    let head =
        platform.admin.request(Method::HEAD, &format!("{project}/quota{query}")).send().await.expect("an answer");
    assert_eq!(head.status().as_u16(), 400);
    // A misspelt parameter is told what may be meant.
    let answer = platform.admin.get("/vms?page=1&limt=1").await;
    assert_eq!(told(&answer, "limt"), Some("no such parameter; limit may be meant"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn below_v1_what_is_unknown_passes() {
    let platform = Platform::start().await;
    let project = platform.admin.project_id().to_owned();
    let request = platform.admin.request(Method::GET, "/v1/models?api-version=1").header("X-Project-Id", project);
    assert_eq!(platform.admin.send(request).await.status, 200);
}
