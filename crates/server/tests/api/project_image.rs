//! Images that a project makes of its root disks.

use berth_host::EngineError;
use berth_testkit::{Caller, Platform};
use futures::StreamExt;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::event::client;

/// The root disk of a VM.
pub fn root_of(vm: &Value) -> String {
    vm["root_disk"]["id"].as_str().expect("an id").to_owned()
}

/// The root disk of a VM that runs.
async fn root(caller: &Caller) -> String {
    let vm = caller.running_vm("web").await;
    root_of(&caller.get(&format!("/vms/{vm}")).await.body)
}

/// Asks for an image.
pub async fn asked(caller: &Caller, root: &str) -> String {
    let answer = caller.post("/images", json!({"from_root_disk": root, "name": "My image"})).await;
    assert_eq!((answer.status, &answer.body["status"]), (201, &json!("pending")), "{answer:?}");
    answer.id()
}

/// Waits until an image has a status; the image then.
pub async fn reaches(caller: &Caller, id: &str, status: &str) -> Value {
    let path = format!("/images/{id}");
    caller.until(status, async |caller: Caller| caller.get(&path).await.body["status"] == status).await;
    caller.get(&path).await.body
}

/// Waits until there is nothing at a path any more.
async fn gone(caller: &Caller, path: &str) {
    caller.until("its end", async |caller: Caller| caller.get(path).await.status == 404).await;
}

/// The body of a VM of an image.
fn vm_of(image: &str) -> Value {
    let mut body = berth_testkit::vm("again");
    body["root_disk"]["create_disk_request"]["image_id"] = json!(image);
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_made_of_a_disk_whose_vm_runs_and_cloned_in_its_project_alone() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let root = root(caller).await;
    platform.engine.set_copying(3);
    let answer = caller.post("/images", json!({"from_root_disk": root, "name": "My image"})).await;
    let path = format!("/images/{}", answer.id());
    assert!(answer.header("location").is_some_and(|location| location.ends_with(&path)));
    let id = answer.id();
    let image = reaches(caller, &id, "ready").await;
    for (field, value) in [
        ("name", json!("My image")),
        ("os", json!("linux")),
        ("version", json!("made")),
        ("login_user", json!("root")),
        ("virtual_size_gb", json!(20)),
        ("min_memory_mb", json!(96)),
        ("size_gb", json!(20)),
        ("root_disk_id", json!(root)),
        ("image_id", json!("micro")),
        ("region_id", json!("local")),
        ("message", Value::Null),
    ] {
        assert_eq!(image[field], value, "{field}");
    }
    caller.until("the end of its copy", async |_| platform.engine.snapshots() == (0, 0)).await;
    assert_eq!(caller.get("/disk_snapshots").await.body["data"], json!([]), "its copy is nobody's to see");
    seen_in_its_project(caller, &image).await;
    // VMs are made of it, and made anew.
    let vm = caller.create_vm(vm_of(&id)).await;
    let vm = caller.reaches(&vm, "running").await;
    assert_eq!((&vm["image_id"], platform.engine.clones(&root_of(&vm))), (&json!(id), vec![id.clone()]));
    let vm = vm["id"].as_str().expect("an id");
    caller.ask(reqwest::Method::POST, &format!("/vms/{vm}/reinstall"), json!({"image_id": id}), 202).await;
    caller.reaches(vm, "running").await;
    let mut small = vm_of(&id);
    small["root_disk"]["create_disk_request"]["size_gb"] = json!(19);
    caller.post("/vms", small).await.refused(400, "invalid_request");
    // What was cloned from it stays when it goes.
    assert_eq!(caller.delete(&path).await.status, 202);
    gone(caller, &path).await;
    assert_eq!(platform.engine.owned_images(), 0);
    assert_eq!(caller.get(&format!("/vms/{vm}")).await.body["status"], "running");
    caller.post("/vms", vm_of(&id)).await.refused(404, "image_not_found");
    told(caller, &id).await;
}

/// An image is the project's alone.
async fn seen_in_its_project(caller: &Caller, image: &Value) {
    let id = image["id"].as_str().expect("an id");
    let path = format!("/images/{id}");
    let all = caller.get("/api/v1/images").await.body;
    assert!(all["data"].as_array().expect("images").iter().all(|one| one["id"] != json!(id)), "{all}");
    caller.get(&format!("/api/v1/images/{id}")).await.refused(404, "image_not_found");
    caller.delete(&format!("/api/v1/images/{id}")).await.refused(404, "image_not_found");
    let elsewhere = caller.another_project("other").await;
    elsewhere.get(&path).await.refused(404, "image_not_found");
    elsewhere.delete(&path).await.refused(404, "image_not_found");
    elsewhere.post("/vms", vm_of(id)).await.refused(404, "image_not_found");
    assert_eq!(elsewhere.get("/images").await.body["data"], json!([]));
    let list = async |query: &str| caller.get(&format!("/images?{query}")).await.body["data"].clone();
    assert_eq!(list("status=ready").await, json!([image]));
    assert_eq!(list("status=failed").await, json!([]));
    assert_eq!(list("name=My%20image").await, json!([image]));
    caller.get("/images?status=importing").await.refused(400, "invalid_request");
}

/// What events said of an image from its beginning to its end, and that none speaks of its copy.
async fn told(caller: &Caller, id: &str) {
    let mut events = std::pin::pin!(client(caller).events(Some(0)).await.expect("a stream"));
    let mut told = Vec::new();
    while told.len() < 4 {
        let event = events.next().await.expect("more").expect("an event");
        assert!(!event.kind.starts_with("disk_snapshot"), "nobody is told of its copy: {event:?}");
        if event.subject == id {
            told.push((event.kind, event.data["status"].clone()));
        }
    }
    let steps = [("created", "pending"), ("status", "ready"), ("status", "deleting"), ("status", "deleted")];
    assert_eq!(told, steps.map(|(kind, status)| (format!("project_image.{kind}"), json!(status))));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_an_image_is_refused() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let root = root(caller).await;
    let refused = async |body: Value, code: &str, field: &str| {
        let answer = caller.post("/images", body).await;
        answer.refused(400, code);
        assert!(answer.names(field), "{answer:?}");
    };
    refused(json!({"name": "a"}), "invalid_request", "from_root_disk").await;
    refused(json!({"from_root_disk": root}), "invalid_request", "name").await;
    refused(json!({"from_root_disk": root, "name": "a", "size_gb": 3}), "invalid_request", "size_gb").await;
    refused(json!({"from_root_disk": Uuid::now_v7(), "name": "a"}), "disk_not_found", "from_root_disk").await;
    let data = json!({"name": "data", "type": "block", "size_gb": 10, "region_id": "local"});
    let data = caller.post("/disks", data).await.id();
    refused(json!({"from_root_disk": data, "name": "a"}), "invalid_request", "from_root_disk").await;
    let elsewhere = caller.another_project("other").await;
    let body = json!({"from_root_disk": root, "name": "a"});
    elsewhere.post("/images", body).await.refused(400, "disk_not_found");
    let none = format!("/images/{}", Uuid::now_v7());
    caller.get(&none).await.refused(404, "image_not_found");
    caller.delete(&none).await.refused(404, "image_not_found");
    caller.get("/images/micro").await.refused(400, "invalid_request");
    // One that is not ready yet is no image to clone.
    platform.engine.refuse("make_image", EngineError::Transient("slow".into()));
    let late = asked(caller, &root).await;
    caller.post("/vms", vm_of(&late)).await.refused(404, "image_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_being_made_is_given_up_at_either_move() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let root = root(caller).await;
    platform.engine.set_copying(u32::MAX);
    let id = asked(caller, &root).await;
    caller.until("its copy", async |_| platform.engine.snapshots() == (0, 1)).await;
    let path = format!("/images/{id}");
    assert_eq!(caller.delete(&path).await.status, 202);
    gone(caller, &path).await;
    caller.until("the end of its copy", async |_| platform.engine.snapshots() == (0, 0)).await;
    platform.engine.set_copying(0);
    platform.engine.hold("make_image");
    let id = asked(caller, &root).await;
    caller.until("its turn", async |_| platform.engine.waiting() > 0).await;
    let path = format!("/images/{id}");
    assert_eq!(caller.get(&path).await.body["message"], "making an image of the copy");
    assert_eq!(caller.delete(&path).await.status, 202);
    assert_eq!(caller.delete(&path).await.status, 202, "it is under way");
    gone(caller, &path).await;
    caller.until("the end of its copy", async |_| platform.engine.snapshots() == (0, 0)).await;
    platform.engine.let_go();
    assert_eq!(platform.engine.owned_images(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_at_either_move_is_told_and_leaves_nothing() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let root = root(caller).await;
    for call in ["snapshot_disk", "make_image"] {
        platform.engine.refuse(call, EngineError::Permanent("it could not be copied: broken".into()));
        let id = asked(caller, &root).await;
        assert_eq!(reaches(caller, &id, "failed").await["message"], "it could not be copied: broken");
        platform.engine.allow(call);
        caller.until("the end of its copy", async |_| platform.engine.snapshots() == (0, 0)).await;
        assert_eq!(caller.delete(&format!("/images/{id}")).await.status, 202);
        gone(caller, &format!("/images/{id}")).await;
    }
    assert_eq!(platform.engine.owned_images(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_a_disk_is_to_be_made_of_stays() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let root = root(caller).await;
    let id = asked(caller, &root).await;
    reaches(caller, &id, "ready").await;
    platform.engine.refuse("make_disk", EngineError::Transient("slow".into()));
    let vm = caller.create_vm(vm_of(&id)).await;
    let path = format!("/images/{id}");
    caller.delete(&path).await.refused(409, "image_in_use");
    platform.engine.allow("make_disk");
    platform.advance(30);
    caller.reaches(&vm, "running").await;
    assert_eq!(caller.delete(&path).await.status, 202);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_takes_its_place_on_the_host_and_in_the_quota() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let root = root(caller).await;
    let used = async || caller.get("/quota").await.body["disk_gb"]["used"].clone();
    assert_eq!(used().await, 20);
    // The copy fits beside the disk, and the image beside both does not.
    platform.engine.set_capacity(|capacity| capacity.disk_gb = 59);
    let id = asked(caller, &root).await;
    let failed = reaches(caller, &id, "failed").await;
    assert!(failed["message"].as_str().is_some_and(|text| text.starts_with("insufficient_capacity:")), "{failed}");
    caller.until("the end of its copy", async |_| platform.engine.snapshots() == (0, 0)).await;
    platform.engine.set_capacity(|capacity| capacity.disk_gb = 60);
    caller.delete(&format!("/images/{id}")).await;
    gone(caller, &format!("/images/{id}")).await;
    platform.engine.hold("make_image");
    let id = asked(caller, &root).await;
    caller.until("its turn", async |_| platform.engine.waiting() > 0).await;
    assert_eq!(used().await, 40, "its copy is not counted beside it");
    platform.engine.let_go();
    reaches(caller, &id, "ready").await;
    assert_eq!(used().await, 40);
    let usage = platform.resource_usage().await;
    let kinds: Vec<_> = usage["data"].as_array().expect("a list").iter().map(|line| &line["resource_type"]).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "image").count(), 1, "{usage}");
    assert!(!kinds.iter().any(|kind| **kind == "disk_snapshot"), "{usage}");
    // A project with images stays.
    let project = caller.another_project("empty").await;
    assert_eq!(project.delete("").await.status, 204);
    caller.delete("").await.refused(409, "conflict");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_makes_one_image() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let root = root(caller).await;
    let body = json!({"from_root_disk": root, "name": "one"});
    let ask = async || {
        let request = caller.request(reqwest::Method::POST, "/images").header("Idempotency-Key", "once").json(&body);
        caller.send(request).await
    };
    let (first, second) = (ask().await, ask().await);
    assert_eq!((first.status, first.id()), (201, second.id()));
    assert_eq!(second.header("idempotent-replayed"), Some("true"));
    assert_eq!(caller.get("/images").await.body["pagination"]["total_items"], 1);
}
