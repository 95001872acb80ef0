//! Lists: pages, bounds, order, filters.

use std::collections::BTreeSet;

use berth_testkit::{Caller, Platform, vm};
use serde_json::{Value, json};

const LISTS: [&str; 10] = [
    "/vms",
    "/root_disks",
    "/disks",
    "/networks",
    "/api/v1/orgs",
    "/api/v1/images",
    "/api/v1/regions",
    "/api/v1/vm_configs",
    "/api/v1/plans",
    "/api/v1/orgs/administrator/projects",
];

#[tokio::test(flavor = "multi_thread")]
async fn pages_and_limits_have_bounds_on_every_list() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    for list in LISTS {
        for good in ["", "page=1", "limit=1", "limit=100", "page=2147483647", "page=1&limit=100"] {
            assert_eq!(caller.get(&format!("{list}?{good}")).await.status, 200, "{list}?{good}");
        }
        for bad in [
            "page=0",
            "page=-1",
            "page=2147483648",
            "page=",
            "page=x",
            "page=1.5",
            "limit=0",
            "limit=101",
            "limit=",
            "limit=+1",
            "limit=1e1",
            "page=99999999999999999999",
        ] {
            caller.get(&format!("{list}?{bad}")).await.refused(400, "invalid_request");
        }
    }
    let both = caller.get("/vms?page=0&limit=0").await;
    assert!(both.names("page") && both.names("limit"), "{both:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_list_and_a_page_beyond_the_end() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let empty = caller.get("/vms").await.body;
    assert_eq!(
        empty,
        json!({"data": [], "pagination": {"total_items": 0, "total_pages": 0, "current_page": 1, "items_per_page": 20}})
    );
    caller.create_vm(vm("web")).await;
    let beyond = caller.get("/vms?page=7&limit=5").await.body;
    assert_eq!(
        beyond,
        json!({"data": [], "pagination": {"total_items": 1, "total_pages": 1, "current_page": 7, "items_per_page": 5}})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn newest_first_and_every_item_once() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let mut made = Vec::new();
    for number in 0..7 {
        made.push(caller.create_vm(vm(&format!("vm{number}"))).await);
    }
    made.reverse();
    let mut seen = Vec::new();
    for page in 1..=3 {
        let answer = caller.get(&format!("/vms?limit=3&page={page}")).await.body;
        assert_eq!(
            (&answer["pagination"]["total_items"], &answer["pagination"]["total_pages"]),
            (&json!(7), &json!(3))
        );
        seen.extend(
            answer["data"].as_array().expect("a list").iter().map(|v| v["id"].as_str().expect("an id").to_owned()),
        );
    }
    assert_eq!(seen, made);
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_and_order() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    for (name, label) in [("b", "test"), ("a", "live"), ("c", "test")] {
        let mut body = vm(name);
        body["labels"] = json!({"env": label});
        let id = caller.create_vm(body).await;
        caller.reaches(&id, "running").await;
    }
    let names = async |query: &str| -> Vec<Value> {
        let answer = caller.get(&format!("/vms?{query}")).await;
        assert_eq!(answer.status, 200, "{query} {answer:?}");
        answer.body["data"].as_array().expect("a list").iter().map(|v| v["name"].clone()).collect()
    };
    assert_eq!(names("sort=name").await, ["a", "b", "c"]);
    assert_eq!(names("sort=-name").await, ["c", "b", "a"]);
    assert_eq!(names("sort=created_at").await, ["b", "a", "c"]);
    assert_eq!(names("label=env=test&sort=name").await, ["b", "c"]);
    assert_eq!(names("label=env&sort=name").await, ["a", "b", "c"]);
    assert_eq!(names("label=nothing").await.len(), 0);
    assert_eq!(names("name=a").await, ["a"]);
    assert_eq!(names("status=running").await.len(), 3);
    assert_eq!(names("status=stopped").await.len(), 0);
    for bad in ["status=asleep", "sort=size", "include_deleted=maybe"] {
        caller.get(&format!("/vms?{bad}")).await.refused(400, "invalid_request");
    }
    let id = caller.get("/vms?name=a").await.body["data"][0]["id"].as_str().expect("an id").to_owned();
    caller.delete(&format!("/vms/{id}")).await;
    caller.gone(&id).await;
    assert_eq!(names("sort=name").await, ["b", "c"]);
    assert_eq!(names("sort=name&include_deleted=true").await, ["a", "b", "c"]);
}

/// Of every list that can be narrowed or ordered: its path in the document, the parameter that tells where rows stand,
/// and whether rows have a name. What is not here takes a page and, at most, filters of its own.
const NARROWED: [(&str, Option<&str>, bool); 30] = [
    ("/api/v1/admin/hosts", Some("state"), true),
    ("/api/v1/admin/orgs", None, true),
    ("/api/v1/admin/projects", None, true),
    ("/api/v1/admin/referrals", Some("status"), false),
    ("/api/v1/admin/sandboxes", Some("phase"), true),
    ("/api/v1/admin/users", None, true),
    ("/api/v1/admin/vms", Some("status"), true),
    ("/api/v1/images", Some("status"), true),
    ("/api/v1/orgs", None, true),
    ("/api/v1/orgs/{org_id}/invitations", Some("status"), false),
    ("/api/v1/orgs/{org_id}/members", None, true),
    ("/api/v1/orgs/{org_id}/projects", None, true),
    ("/api/v1/orgs/{org_id}/projects/{project_id}/api_keys", Some("status"), true),
    ("/api/v1/orgs/{org_id}/projects/{project_id}/backup_schedules", None, true),
    ("/api/v1/orgs/{org_id}/projects/{project_id}/backups", Some("status"), true),
    ("/api/v1/orgs/{org_id}/projects/{project_id}/disk_snapshots", Some("status"), true),
    ("/api/v1/orgs/{org_id}/projects/{project_id}/disks", Some("status"), true),
    ("/api/v1/orgs/{org_id}/projects/{project_id}/images", Some("status"), true),
    ("/api/v1/orgs/{org_id}/projects/{project_id}/members", None, true),
    ("/api/v1/orgs/{org_id}/projects/{project_id}/networks", None, true),
    ("/api/v1/orgs/{org_id}/projects/{project_id}/root_disks", Some("status"), true),
    ("/api/v1/orgs/{org_id}/projects/{project_id}/sandbox_templates", Some("status"), true),
    ("/api/v1/orgs/{org_id}/projects/{project_id}/sandbox_uploads", None, false),
    ("/api/v1/orgs/{org_id}/projects/{project_id}/sandboxes", Some("phase"), true),
    ("/api/v1/orgs/{org_id}/projects/{project_id}/snapshots", Some("status"), true),
    ("/api/v1/orgs/{org_id}/projects/{project_id}/ssh_keys", None, true),
    ("/api/v1/orgs/{org_id}/projects/{project_id}/vms", Some("status"), true),
    ("/api/v1/referrals", Some("status"), false),
    ("/api/v1/users/me/sessions", None, false),
    ("/api/v1/users/me/ssh_keys", None, true),
];

/// Lists without a `sort`: their order is part of what they are, or they are part of the configuration.
const AS_THEY_ARE: [&str; 8] = [
    "/api/v1/admin/audit",
    "/api/v1/admin/models",
    "/api/v1/admin/usage",
    "/api/v1/admin/voices",
    "/api/v1/orgs/{org_id}/audit_log",
    "/api/v1/plans",
    "/api/v1/regions",
    "/api/v1/vm_configs",
];

/// The parameters of a list in the document, by name.
fn parameters(document: &Value, path: &str) -> serde_json::Map<String, Value> {
    let all = document["paths"][path]["get"]["parameters"].as_array().cloned().unwrap_or_default();
    all.into_iter().map(|one| (one["name"].as_str().unwrap_or_default().to_owned(), one)).collect()
}

/// The words that the document knows for a parameter: an enumeration, or a pattern that lists them.
fn words(document: &Value, parameter: &Value) -> Vec<String> {
    let schema = &parameter["schema"];
    let named = schema.pointer("/oneOf/1/$ref").or_else(|| schema.get("$ref")).and_then(Value::as_str);
    let enumeration = named.map(|name| document.pointer(&format!("{}/enum", name.trim_start_matches('#'))));
    if let Some(Some(Value::Array(all))) = enumeration {
        return all.iter().filter_map(|word| word.as_str().map(str::to_owned)).collect();
    }
    let pattern = schema["pattern"].as_str().unwrap_or_else(|| panic!("{parameter} lists no words"));
    pattern.trim_start_matches("^(").trim_end_matches(")$").split('|').map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_list_is_narrowed_and_ordered_by_what_its_rows_have() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let document = reqwest::get(format!("{}/openapi.json", caller.base)).await.expect("an answer");
    let document: Value = document.json().await.expect("JSON");
    let paged = document["paths"].as_object().expect("paths").keys();
    let paged = paged.filter(|path| parameters(&document, path).contains_key("page")).filter(|path| !deeper(path));
    let decided: BTreeSet<&str> = NARROWED.iter().map(|list| list.0).chain(AS_THEY_ARE).collect();
    assert_eq!(paged.map(String::as_str).collect::<BTreeSet<_>>(), decided);
    for (path, status, named) in NARROWED {
        let told = parameters(&document, path);
        let at = path.replace("/api/v1/orgs/{org_id}/projects/{project_id}", &caller.project);
        let at = at.replace("/api/v1/orgs/{org_id}", caller.org());
        let ask = async |query: &str| caller.get(&format!("{at}?{query}")).await;
        assert_eq!(told.contains_key("name"), named, "{path}");
        for sort in ["created_at", "-created_at"] {
            assert_eq!(ask(&format!("sort={sort}")).await.status, 200, "{path}");
        }
        let expected = if named { 200 } else { 400 };
        for query in ["sort=name", "sort=-name", "name=nobody"] {
            assert_eq!(ask(query).await.status, expected, "{path}?{query}");
        }
        for bad in ["size", "", "Name", "--name", "created_at,name"] {
            let refused = ask(&format!("sort={bad}")).await;
            refused.refused(400, "invalid_request");
            assert!(refused.body["message"].as_str().is_some_and(|m| m.contains("-created_at")), "{refused:?}");
        }
        let Some(status) = status else {
            ask("status=ready").await.refused(400, "invalid_request");
            continue;
        };
        let refused = ask(&format!("{status}=asleep")).await;
        refused.refused(400, "invalid_request");
        for word in words(&document, &told[status]) {
            assert_eq!(ask(&format!("{status}={word}")).await.status, 200, "{path} {word}");
            assert!(refused.body["message"].as_str().is_some_and(|m| m.contains(&word)), "{word} {refused:?}");
        }
    }
}

/// Lists of what one thing has; they share their rule with those above.
fn deeper(path: &str) -> bool {
    path.ends_with("/operations") || path.ends_with("/{sandbox_id}/snapshots")
}

/// Asserts the orders of a list that has `b`, `a` and `c`, made in this order, beside others perhaps.
async fn has_orders(caller: &Caller, path: &str) {
    let names = async |query: &str| -> Vec<String> {
        let answer = caller.get(&format!("{path}?limit=100&{query}")).await;
        assert_eq!(answer.status, 200, "{path}?{query} {answer:?}");
        let all = answer.body["data"].as_array().expect("a list").iter();
        let ours = all.filter_map(|row| row["name"].as_str()).filter(|name| ["a", "b", "c"].contains(name));
        ours.map(str::to_owned).collect()
    };
    assert_eq!(names("sort=name").await, ["a", "b", "c"], "{path}");
    assert_eq!(names("sort=-name").await, ["c", "b", "a"], "{path}");
    assert_eq!(names("sort=created_at").await, ["b", "a", "c"], "{path}");
    assert_eq!(names("sort=-created_at").await, names("").await, "{path}");
    let one = caller.get(&format!("{path}?name=a")).await.body;
    assert_eq!((&one["pagination"]["total_items"], &one["data"][0]["name"]), (&json!(1), &json!("a")), "{path}");
    assert_eq!(caller.get(&format!("{path}?name=A")).await.body["data"], json!([]), "{path}");
}

#[tokio::test(flavor = "multi_thread")]
async fn named_things_are_found_and_ordered_by_name() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let projects = format!("{}/projects", caller.org());
    for name in ["b", "a", "c"] {
        let disk = json!({"name": name, "type": "block", "size_gb": 10, "region_id": "local"});
        let image = json!({"id": name, "name": name, "url": "http://127.0.0.1:1/image.qcow2"});
        let key = json!({"name": name, "scopes": ["vm"]});
        for (path, body) in [
            ("/disks", disk),
            ("/api_keys", key),
            ("/sandboxes", json!({"name": name})),
            ("/api/v1/images", image),
            ("/api/v1/orgs", json!({"name": name})),
            (&projects, json!({"name": name})),
        ] {
            let made = caller.post(path, body).await;
            assert_eq!(made.status, 201, "{path} {made:?}");
        }
    }
    for path in ["/disks", "/api_keys", "/sandboxes", "/api/v1/images", "/api/v1/orgs", &projects] {
        has_orders(caller, path).await;
    }
    for path in ["/api/v1/admin/orgs", "/api/v1/admin/projects", "/api/v1/admin/sandboxes"] {
        has_orders(caller, path).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn things_of_one_name_stand_on_one_page_each() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let mut made = BTreeSet::new();
    for _ in 0..4 {
        let disk = json!({"name": "same", "type": "block", "size_gb": 10, "region_id": "local"});
        made.insert(caller.post("/disks", disk).await.id());
    }
    for sort in ["name", "-name"] {
        let mut seen = BTreeSet::new();
        for page in 1..=4 {
            let answer = caller.get(&format!("/disks?sort={sort}&limit=1&page={page}")).await.body;
            seen.insert(answer["data"][0]["id"].as_str().expect("an id").to_owned());
        }
        assert_eq!(seen, made, "{sort}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_invitations_are_found_by_where_they_stand_now() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let invitations = format!("{}/invitations", caller.org());
    let day = platform.app().clock.now().plus_seconds(86_400).to_string();
    let mut keys = Vec::new();
    for (name, end) in [("lasting", None), ("ended", None), ("short", Some(&day))] {
        let mut body = json!({"name": name, "scopes": ["vm"]});
        if let Some(end) = end {
            body["expires_at"] = json!(end);
        }
        keys.push(caller.post("/api_keys", body).await.id());
    }
    assert_eq!(caller.delete(&format!("/api_keys/{}", keys[1])).await.status, 204);
    let mut invited = Vec::new();
    for address in ["one@example.com", "two@example.com"] {
        invited.push(caller.post(&invitations, json!({"email": address, "role": "member"})).await.id());
    }
    assert_eq!(caller.delete(&format!("{invitations}/{}", invited[1])).await.status, 204);
    let found = async |caller: &Caller, list: &str, status: &str| -> Vec<String> {
        let answer = caller.get(&format!("{list}?status={status}&sort=created_at")).await;
        let all = answer.body["data"].as_array().unwrap_or_else(|| panic!("{answer:?}")).iter();
        all.map(|row| row["id"].as_str().expect("an id").to_owned()).collect()
    };
    assert_eq!(found(caller, "/api_keys", "active").await, [keys[0].as_str(), &keys[2]]);
    assert_eq!(found(caller, "/api_keys", "revoked").await, [keys[1].as_str()]);
    assert_eq!(found(caller, &invitations, "pending").await, [invited[0].as_str()]);
    assert_eq!(found(caller, &invitations, "revoked").await, [invited[1].as_str()]);
    platform.advance(8 * 86_400);
    let caller = &Caller::login(&caller.base, "admin@example.com", "a quiet harbour at night").await;
    assert_eq!(found(caller, "/api_keys", "active").await, [keys[0].as_str()]);
    assert_eq!(found(caller, "/api_keys", "expired").await, [keys[2].as_str()]);
    assert_eq!(found(caller, &invitations, "expired").await, [invited[0].as_str()]);
    assert_eq!(found(caller, &invitations, "pending").await, Vec::<String>::new());
}
