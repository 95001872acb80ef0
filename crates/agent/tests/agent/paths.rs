//! Paths that lead out of the workspace, by their text, by links, and by races.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::Method;
use serde_json::{Value, json};

use crate::harness::{Agent, Client, Reply, request, whole};

const SECRET: &str = "outside";

/// Asks every route for a path.
async fn every(client: &Client, path: &str) -> Vec<(&'static str, Reply)> {
    let query = path.bytes().map(|b| format!("%{b:02X}")).collect::<String>();
    let post = async |route: &str, body: Value| client.post(&format!("/runtime/files/{route}"), body).await;
    let extract = request(Method::POST, &format!("/runtime/files/extract?path={query}"), whole(vec![0; 1024]));
    vec![
        ("content", client.get(&format!("/runtime/files/content?path={query}")).await),
        ("put", client.put(&format!("/runtime/files/content?path={query}"), "overwritten").await),
        ("list", client.get(&format!("/runtime/files/list?path={query}")).await),
        ("stat", client.get(&format!("/runtime/files/stat?path={query}")).await),
        ("exists", client.get(&format!("/runtime/files/exists?path={query}")).await),
        ("mkdir", post("mkdir", json!({ "path": path })).await),
        ("mkdir parents", post("mkdir", json!({"path": path, "parents": true})).await),
        ("remove", post("remove", json!({"path": path, "recursive": true})).await),
        ("move from", post("move", json!({"from": path, "to": "taken"})).await),
        ("move to", post("move", json!({"from": "own", "to": path, "overwrite": true})).await),
        ("archive", post("archive", json!({ "path": path })).await),
        ("extract", client.call(extract).await),
        ("cwd", client.post("/runtime/commands", json!({"cmd": "true", "cwd": path})).await),
    ]
}

fn untouched(agent: &Agent) {
    let outside = agent.folder.path().join("out");
    assert_eq!(std::fs::read_to_string(outside.join("file")).unwrap(), SECRET);
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1, "nothing came to be outside");
}

async fn prepared() -> (Agent, Client) {
    let (agent, client) = Agent::start().await;
    let outside = agent.folder.path().join("out");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), SECRET).unwrap();
    // So that whoever reached it could change it.
    std::fs::set_permissions(&outside, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::set_permissions(outside.join("file"), std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    agent.write("own", b"own");
    (agent, client)
}

#[tokio::test]
async fn words_do_not_lead_out() {
    let (agent, client) = prepared().await;
    let absolute = agent.folder.path().join("out/file").to_str().unwrap().to_owned();
    for path in
        ["../out/file", "..", "own/../../out", "a/b/../../../out/file", &absolute, "/", "nul\0", "missing/../../x"]
    {
        for (route, reply) in every(&client, path).await {
            assert_eq!(reply.status, 400, "{route} {path:?}");
            let code = reply.json()["code"].clone();
            // In a query a NUL is ordinary text; in a field it breaks the field's rule.
            assert!(
                code == "invalid_path" || (path.contains('\0') && code == "invalid_request"),
                "{route} {path:?} {code}"
            );
        }
    }
    untouched(&agent);
}

#[tokio::test]
async fn links_do_not_lead_out() {
    let (agent, client) = prepared().await;
    let out = agent.folder.path().join("out");
    let links = [("up", "../out".into()), ("absolute", out.clone()), ("proc", "/proc/self/root".into())];
    for (name, target) in links {
        std::os::unix::fs::symlink(target, agent.path(name)).unwrap();
        for (route, reply) in every(&client, &format!("{name}/file")).await {
            reply.refused(400, "invalid_path");
            assert!(!route.is_empty());
        }
    }
    std::os::unix::fs::symlink("../out/file", agent.path("file")).unwrap();
    client.get("/runtime/files/content?path=file").await.refused(400, "invalid_path");
    client.put("/runtime/files/content?path=file", "x").await.refused(400, "invalid_path");
    client.post("/runtime/files/archive", json!({"path": "file"})).await.refused(400, "invalid_path");
    client.get("/runtime/files/list?path=up").await.refused(400, "invalid_path");
    client.get("/runtime/files/watch?path=up").await.refused(400, "invalid_path");
    untouched(&agent);
}

#[tokio::test]
async fn links_within_are_followed() {
    let (agent, client) = prepared().await;
    agent.write("a/b/file", b"inside");
    for (name, target) in [("dir", "a/b"), ("a/up", "../a/b/file"), ("chain", "dir/file"), ("a/new", "../made/there")] {
        std::os::unix::fs::symlink(target, agent.path(name)).unwrap();
    }
    for path in ["dir/file", "a/up", "chain"] {
        assert_eq!(client.get(&format!("/runtime/files/content?path={path}")).await.ok().bytes, "inside");
    }
    client.put("/runtime/files/content?path=chain", "changed").await.ok();
    assert_eq!(std::fs::read_to_string(agent.path("a/b/file")).unwrap(), "changed");
    assert!(agent.path("chain").is_symlink(), "the link stays");
    client.put("/runtime/files/content?path=a/new", "made").await.ok();
    assert_eq!(std::fs::read_to_string(agent.path("made/there")).unwrap(), "made");
    std::os::unix::fs::symlink("loop", agent.path("loop")).unwrap();
    client.get("/runtime/files/content?path=loop").await.refused(400, "invalid_path");
    client.put("/runtime/files/content?path=loop", "x").await.refused(400, "invalid_path");
}

/// Swaps a directory and a link that leads out, until told to stop.
fn swapping(agent: &Agent, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let (dir, link) = (agent.path("here"), agent.path("there"));
    std::fs::create_dir(&dir).unwrap();
    agent.give(&dir);
    std::os::unix::fs::symlink("../out", &link).unwrap();
    std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            let exchange = rustix::fs::RenameFlags::EXCHANGE;
            rustix::fs::renameat_with(rustix::fs::CWD, &dir, rustix::fs::CWD, &link, exchange).unwrap();
        }
    })
}

#[tokio::test]
async fn races_do_not_lead_out() {
    let (agent, client) = prepared().await;
    let stop = Arc::new(AtomicBool::new(false));
    let swapper = swapping(&agent, stop.clone());
    let (mut inside, mut refused) = (0, 0);
    for round in 0..150 {
        let path = format!("here/{}", if round % 2 == 0 { "file" } else { "sub/file" });
        let put = client.put(&format!("/runtime/files/content?path={path}"), "inside").await;
        let read = client.get(&format!("/runtime/files/content?path={path}")).await;
        assert_ne!(read.bytes, SECRET);
        let mkdir = client.post("/runtime/files/mkdir", json!({"path": format!("here/d{round}")})).await;
        let remove = client.post("/runtime/files/remove", json!({"path": "here/file", "recursive": true})).await;
        let mut header = tar::Header::new_gnu();
        header.set_size(3);
        header.set_mode(0o644);
        let mut archive = tar::Builder::new(Vec::new());
        archive.append_data(&mut header, "here/packed", &b"tar"[..]).unwrap();
        let body = whole(archive.into_inner().unwrap());
        let extract = client.call(request(Method::POST, "/runtime/files/extract", body)).await;
        for reply in [put, read, mkdir, remove, extract] {
            match reply.status.as_u16() {
                200..300 => inside += 1,
                400 => refused += 1,
                404 | 409 => {}
                other => panic!("{other} {:?}", reply.bytes),
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    swapper.join().unwrap();
    untouched(&agent);
    assert!(inside > 0 && refused > 0, "both were met: {inside} inside, {refused} refused");
}
