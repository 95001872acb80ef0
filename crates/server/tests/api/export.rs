//! Disks, snapshots and images as files.

use berth_host::EngineError;
use berth_testkit::{Caller, Platform};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::project_image;

const BYTES: usize = 300_000;

/// A data disk that is ready.
async fn disk(caller: &Caller) -> String {
    let body = json!({"name": "data", "type": "block", "size_gb": 10, "region_id": "local"});
    let id = caller.post("/disks", body).await.id();
    let path = format!("/disks/{id}");
    caller.until("the disk", async |caller: Caller| caller.get(&path).await.body["status"] == "ready").await;
    id
}

/// Asks for a file, with headers.
async fn asked(caller: &Caller, method: Method, path: &str, headers: &[(&str, &str)]) -> Response {
    let request = caller.request(method, &format!("{path}/export"));
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.send().await.expect("an answer")
}

fn header(response: &Response, name: &str) -> String {
    response.headers().get(name).map(|value| value.to_str().expect("text").to_owned()).unwrap_or_default()
}

async fn bytes(response: Response) -> Vec<u8> {
    response.bytes().await.expect("all of it").to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_stands_still_is_a_file_with_its_digest() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let data = disk(caller).await;
    let vm = caller.running_vm("web").await;
    let root = caller.get(&format!("/vms/{vm}")).await.body["root_disk"]["id"].as_str().expect("an id").to_owned();
    let snapshot = caller.post("/disk_snapshots", json!({"root_disk_id": root})).await.id();
    let path = format!("/disk_snapshots/{snapshot}");
    caller.until("it", async |caller: Caller| caller.get(&path).await.body["status"] == "ready").await;
    let image = project_image::asked(caller, &root).await;
    project_image::reaches(caller, &image, "ready").await;
    // A disk that a running VM has is written to.
    let root = format!("/root_disks/{root}");
    let refused = caller.get(&format!("{root}/export")).await;
    refused.refused(409, "disk_in_use");
    assert!(refused.body["message"].as_str().is_some_and(|text| text.contains("snapshot")), "{refused:?}");
    for status in ["suspended", "stopped"] {
        caller.act(&format!("/vms/{vm}/{}", if status == "stopped" { "stop" } else { "suspend" })).await;
        caller.reaches(&vm, status).await;
        assert_eq!(asked(caller, Method::HEAD, &root, &[]).await.status(), 200, "{status}");
    }
    let mut digests = Vec::new();
    for path in [format!("/disks/{data}"), root, path, format!("/images/{image}")] {
        let response = asked(caller, Method::GET, &path, &[]).await;
        assert_eq!(response.status(), 200, "{path}");
        assert_eq!(header(&response, "content-type"), "application/x-qemu-disk");
        assert_eq!(header(&response, "content-length"), BYTES.to_string());
        assert_eq!(header(&response, "accept-ranges"), "bytes");
        assert!(header(&response, "content-disposition").contains(".qcow2\""));
        let digest = header(&response, "content-digest");
        assert!(digest.starts_with("sha-256=:") && digest == header(&response, "repr-digest"));
        let tag = header(&response, "etag");
        let all = bytes(response).await;
        assert_eq!((all.len(), &all[..4]), (BYTES, b"QFI\xfb".as_slice()));
        let head = asked(caller, Method::HEAD, &path, &[]).await;
        let told = (head.status().as_u16(), header(&head, "content-length"), header(&head, "content-digest"));
        assert_eq!(told, (200, BYTES.to_string(), digest.clone()));
        assert!(bytes(head).await.is_empty());
        parts(caller, &path, &all, (&tag, &digest)).await;
        digests.push(digest);
    }
    digests.dedup();
    assert_eq!(digests.len(), 4, "each is a file of its own");
    let log = caller.get("/api/v1/admin/audit?limit=100").await.body;
    for action in ["disk.export", "root_disk.export", "disk_snapshot.export", "project_image.export"] {
        let found = log["data"].as_array().expect("records").iter().filter(|record| record["action"] == action);
        assert_eq!(found.filter(|record| record["data"]["bytes"] == json!(BYTES)).count(), 6, "{action}: {log}");
    }
}

/// Parts of a file.
async fn parts(caller: &Caller, path: &str, all: &[u8], (tag, digest): (&str, &str)) {
    for (range, from, to) in
        [("bytes=10-19", 10, 20), ("bytes=299990-", 299_990, BYTES), ("bytes=-5", BYTES - 5, BYTES)]
    {
        let response = asked(caller, Method::GET, path, &[("Range", range), ("If-Range", tag)]).await;
        assert_eq!(response.status(), 206, "{range}");
        assert_eq!(header(&response, "content-range"), format!("bytes {from}-{}/{BYTES}", to - 1));
        assert_eq!(header(&response, "repr-digest"), digest);
        assert_eq!(header(&response, "content-digest"), "", "that would be of the part alone");
        assert_eq!(bytes(response).await, all[from..to], "{range}");
    }
    // Another file than the one that the first part is of is sent whole, and so is what is asked for in another way.
    for headers in
        [[("Range", "bytes=10-"), ("If-Range", "\"another\"")], [("Range", "bytes=0-1,4-5"), ("If-Range", tag)]]
    {
        let response = asked(caller, Method::GET, path, &headers).await;
        assert_eq!((response.status().as_u16(), header(&response, "content-length")), (200, BYTES.to_string()));
    }
    let response = asked(caller, Method::GET, path, &[("Range", "bytes=300000-")]).await;
    assert_eq!((response.status().as_u16(), header(&response, "content-range")), (416, format!("bytes */{BYTES}")));
    let body: Value = response.json().await.expect("an error");
    assert_eq!(body["code"], "range_not_satisfiable");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_or_not_ready_or_cannot_be_read_is_told() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let data = disk(caller).await;
    let unknown = Uuid::now_v7();
    for (path, code) in [
        ("disks", "volume_not_found"),
        ("root_disks", "volume_not_found"),
        ("disk_snapshots", "snapshot_not_found"),
        ("images", "image_not_found"),
    ] {
        caller.get(&format!("/{path}/{unknown}/export")).await.refused(404, code);
        caller.get(&format!("/{path}/x/export")).await.refused(400, "invalid_request");
    }
    let elsewhere = caller.another_project("other").await;
    elsewhere.get(&format!("/disks/{data}/export")).await.refused(404, "volume_not_found");
    platform.engine.hold("snapshot_disk");
    let late = caller.post("/disk_snapshots", json!({"disk_id": data})).await.id();
    caller.get(&format!("/disk_snapshots/{late}/export")).await.refused(409, "snapshot_not_ready");
    platform.engine.let_go();
    let export = format!("/disks/{data}/export");
    for (error, status, code) in [
        (EngineError::Permanent("this host cannot".into()), 409, "not_supported"),
        (EngineError::NoCapacity("the host's disk is full".into()), 507, "no_space"),
        (EngineError::Transient("it was written to".into()), 503, "service_unavailable"),
    ] {
        for call in ["export", "exported"] {
            platform.engine.refuse(call, error.clone());
            caller.get(&export).await.refused(status, code);
            platform.engine.allow(call);
        }
    }
    assert_eq!(caller.get(&export).await.status, 200, "what was refused has no place any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_few_go_on_at_a_time_and_whoever_leaves_makes_room() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let data = disk(caller).await;
    platform.engine.hold("export");
    let path = format!("/disks/{data}");
    let ask = || tokio::spawn(caller.request(Method::GET, &format!("{path}/export")).send());
    let (one, other) = (ask(), ask());
    caller.until("two that wait", async |_| platform.engine.waiting() == 2).await;
    let refused = caller.get(&format!("{path}/export")).await;
    refused.refused(429, "too_many");
    assert!(refused.header("retry-after").is_some());
    one.abort();
    caller.until("its end", async |_| platform.engine.waiting() == 1).await;
    let next = ask();
    caller.until("two that wait", async |_| platform.engine.waiting() == 2).await;
    platform.engine.let_go();
    for waiting in [other, next] {
        let response = waiting.await.expect("an answer").expect("an answer");
        assert_eq!(bytes(response).await.len(), BYTES);
    }
    let place = async |caller: Caller| caller.get(&format!("{path}/export")).await.status == 200;
    caller.until("places again", place).await;
}
