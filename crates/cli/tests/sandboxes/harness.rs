//! A service with sandboxes, and working inside one.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

pub use berth_testkit::commands::{events, run, shell};
use berth_testkit::{Answer, Caller, Service, eventually};
use reqwest::Method;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;

use crate::BERTH;

/// A service whose `base` is ready. It makes no warm machines: each begins as a sandbox does, and files would not be counted.
pub async fn service() -> (Service, Caller) {
    service_with("[sandbox]\nwarm_machines = 0\n").await
}

/// The same over a host that it asks by bytes.
pub async fn service_by_bytes() -> (Service, Caller) {
    begun("[sandbox]\nwarm_machines = 0\n", Service::ask_by_bytes).await
}

/// A service with more configuration, whose `base` is ready: a copy of one on which it became so.
pub async fn service_with(configuration: &str) -> (Service, Caller) {
    begun(configuration, |_| ()).await
}

/// The same with another of the platform's templates, which is ready, too.
pub async fn service_with_template(name: &str) -> (Service, Caller) {
    let mut service = Service::copy_of(prepared().await).with_template(name);
    service.configure(&patient("[sandbox]\nwarm_machines = 0\n"));
    service.start();
    let caller = service.admin().await;
    template_ready(&caller, name).await;
    (service, caller)
}

/// The same where machines have time to begin, though others are emulated beside them.
fn patient(configuration: &str) -> String {
    let keys = configuration.strip_prefix("[sandbox]\n").unwrap_or(configuration);
    format!("[sandbox]\nprovisioning_seconds = 600\nresuming_seconds = 600\nrestoring_seconds = 600\n{keys}")
}

async fn begun(configuration: &str, also: impl FnOnce(&mut Service)) -> (Service, Caller) {
    let mut service = Service::copy_of(prepared().await);
    service.configure(&patient(configuration));
    also(&mut service);
    service.start();
    let caller = service.admin().await;
    base_ready(&caller).await;
    (service, caller)
}

/// A service that was stopped when its `base` was ready. It takes seconds of two processors, so the tests that run
/// share one, which goes with the last of them.
async fn prepared() -> Arc<Service> {
    static PREPARED: Mutex<Weak<Service>> = Mutex::const_new(Weak::new());
    let mut prepared = PREPARED.lock().await;
    if let Some(service) = prepared.upgrade() {
        return service;
    }
    let mut service = Service::new(BERTH, &[]).with_sandboxes();
    service.configure("[sandbox]\nwarm_machines = 0\n");
    service.start();
    base_ready(&service.admin().await).await;
    assert_eq!(service.stop(), Some(0));
    let service = Arc::new(service);
    *prepared = Arc::downgrade(&service);
    service
}

pub async fn base_ready(caller: &Caller) {
    template_ready(caller, "base").await;
}

/// Waits until a template, by id or name, is ready.
pub async fn template_ready(caller: &Caller, template: &str) {
    let path = format!("/sandbox_templates/{template}");
    caller
        .until("the template", |c| {
            let path = path.clone();
            async move { c.get(&path).await.body["status"] == "ready" }
        })
        .await;
}

/// What a snapshot became, once that is decided.
pub async fn decided(caller: &Caller, snapshot: &str) -> Value {
    let path = format!("/snapshots/{snapshot}");
    caller
        .until("the snapshot", |c| {
            let path = path.clone();
            async move { c.get(&path).await.body["status"] != "Pending" }
        })
        .await;
    caller.get(&path).await.body
}

/// What no two sandboxes share, a line each.
pub const OWN: &str = "cat /etc/machine-id /proc/sys/kernel/random/boot_id /etc/hostname; \
                       head -c 16 /dev/urandom | od -An -tx1; python3 -c 'import uuid; print(uuid.uuid4())'";

/// Waits until nothing of any sandbox is left: what remains are the two layers and the memory of the template.
pub fn nothing_left(service: &Service) {
    eventually("the machines' end", 120, || service.files("sandbox/machines").is_empty().then_some(()));
    eventually("the layers' end", 120, || (service.files("sandbox/layers").len() == 2).then_some(()));
    eventually("the memories' end", 120, || (service.files("sandbox/memories").len() == 1).then_some(()));
    eventually("the processes' end", 120, || service.processes("sandbox").is_empty().then_some(()));
}

/// Waits until a path is gone.
pub async fn gone(caller: &Caller, path: &str) {
    caller
        .until("its end", |c| {
            let path = path.to_owned();
            async move { c.get(&path).await.status == 404 }
        })
        .await;
}

pub async fn put(caller: &Caller, sandbox: &str, path: &str, content: Vec<u8>) -> Answer {
    let request = caller.request(Method::PUT, &format!("/sandbox/{sandbox}/files/content?path={path}"));
    caller.send(request.body(content)).await
}

pub async fn content(caller: &Caller, sandbox: &str, path: &str) -> Vec<u8> {
    let request = caller.request(Method::GET, &format!("/sandbox/{sandbox}/files/content?path={path}"));
    let answer = request.send().await.expect("an answer");
    let status = answer.status();
    assert_eq!(status, 200, "{path}: {:?}", answer.text().await);
    answer.bytes().await.expect("a body").to_vec()
}

/// Waits until a file is there.
pub async fn there(caller: &Caller, sandbox: &str, path: &str) {
    let path = format!("/sandbox/{sandbox}/files/exists?path={path}");
    caller
        .until("the file", |c| {
            let path = path.clone();
            async move { c.get(&path).await.body["exists"] == true }
        })
        .await;
}

/// Does something to a sandbox that answers 202.
pub async fn act(caller: &Caller, sandbox: &str, verb: &str, body: Value) {
    let answer = caller.post(&format!("/sandboxes/{sandbox}/{verb}"), body).await;
    assert_eq!(answer.status, 202, "{verb}: {answer:?}");
}

/// Takes a snapshot and waits until it is there; its id.
pub async fn snapshot(caller: &Caller, sandbox: &str, body: Value) -> String {
    let answer = caller.post(&format!("/sandboxes/{sandbox}/snapshots"), body).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let path = format!("/snapshots/{}", answer.id());
    caller
        .until("the snapshot", |c| {
            let path = path.clone();
            async move {
                let snapshot = c.get(&path).await.body;
                assert_ne!(snapshot["status"], "Failed", "{snapshot}");
                snapshot["status"] == "Ready"
            }
        })
        .await;
    answer.id()
}

/// Forks a sandbox; the ids of the forks, all ready.
pub async fn fork(caller: &Caller, sandbox: &str, body: Value) -> Vec<String> {
    let answer = caller.post(&format!("/sandboxes/{sandbox}/fork"), body).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let made = answer.body["data"].as_array().expect("a list").clone();
    let ids: Vec<String> = made.iter().map(|fork| fork["id"].as_str().expect("an id").to_owned()).collect();
    for id in &ids {
        caller.sandbox_reaches(id, "Ready").await;
    }
    ids
}

/// Deletes a sandbox and waits until it is gone.
pub async fn delete(caller: &Caller, sandbox: &str) {
    let path = format!("/sandboxes/{sandbox}");
    assert_eq!(caller.delete(&path).await.status, 202);
    gone(caller, &path).await;
}

/// The hash of everything in a folder of a sandbox: names and contents.
pub async fn tree(caller: &Caller, sandbox: &str) -> String {
    let line = "cd tree && find . -type f -print0 | LC_ALL=C sort -z | xargs -0r sha256sum | sha256sum | cut -c 1-64";
    shell(caller, sandbox, line).await.trim().to_owned()
}

/// What [`tree`] says of these files.
pub fn hash_of(files: &BTreeMap<String, Vec<u8>>) -> String {
    let line = |(name, content): (&String, &Vec<u8>)| format!("{}  ./{name}\n", hex(&Sha256::digest(content)));
    hex(&Sha256::digest(files.iter().map(line).collect::<String>()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
