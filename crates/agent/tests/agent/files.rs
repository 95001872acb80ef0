//! Files: every route, and what it refuses.

use std::collections::HashSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Agent, Client, PATIENCE, piecewise, request, whole};

async fn ranged(client: &Client, path: &str, range: &str) -> crate::harness::Reply {
    let mut request = request(Method::GET, path, whole(""));
    request.headers_mut().insert("range", range.parse().unwrap());
    client.call(request).await
}

fn names(listing: &Value) -> Vec<&str> {
    listing["data"].as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn what_was_written_is_read() {
    let (agent, client) = Agent::start().await;
    let content = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>();
    let reply = client.put("/runtime/files/content?path=new/deep/file&mode=0600", content.clone()).await;
    assert_eq!(reply.status, StatusCode::CREATED);
    let entry = reply.json();
    let expected =
        (json!("new/deep/file"), json!("file"), json!("file"), json!(4_000_000), json!("0600"), json!(agent.user));
    let shown = ["path", "name", "type", "size", "mode", "owner"].map(|name| entry[name].clone());
    assert_eq!(shown, <[Value; 6]>::from(expected));
    let read = client.get("/runtime/files/content?path=new/deep/file").await.ok();
    assert_eq!(read.headers["content-length"], "4000000");
    assert!(read.bytes == content);
    assert_eq!(std::fs::metadata(agent.path("new/deep")).unwrap().mode() & 0o777, 0o755);
}

#[tokio::test]
async fn a_field_that_is_not_known_is_refused_and_nothing_is_done() {
    let (agent, client) = Agent::start().await;
    client.put("/runtime/files/content?path=file", "x").await;
    let misspelt = [
        ("/runtime/files/mkdir", json!({"path": "made", "parent": true}), "parent"),
        ("/runtime/files/remove", json!({"path": "file", "recursiv": true}), "recursiv"),
        ("/runtime/files/move", json!({"from": "file", "to": "moved", "overwritten": true}), "overwritten"),
        ("/runtime/files/archive", json!({"path": "file", "format": "tar"}), "format"),
        ("/runtime/commands", json!({"cmd": "touch made", "timeout": 1}), "timeout"),
        ("/runtime/processes", json!({"cmd": "touch made", "timeout": 1}), "timeout"),
    ];
    for (path, body, field) in misspelt {
        client.post(path, body).await.names(&[field]);
    }
    assert!(agent.path("file").exists() && !agent.path("made").exists() && !agent.path("moved").exists());
}

#[tokio::test]
async fn a_file_is_replaced_whole_and_keeps_its_mode() {
    let (agent, client) = Agent::start().await;
    client.put("/runtime/files/content?path=a&mode=0750", "one").await.ok();
    let reply = client.put("/runtime/files/content?path=a", "two").await;
    assert_eq!((reply.status, reply.json()["mode"].clone()), (StatusCode::OK, json!("0750")));
    let before = std::fs::metadata(agent.path("a")).unwrap().ino();
    let (sender, body) = piecewise();
    let uploading = tokio::spawn({
        let client = client.clone();
        async move { client.call(request(Method::PUT, "/runtime/files/content?path=a", body)).await }
    });
    sender.send(Bytes::from(vec![b'x'; 600_000])).await.unwrap();
    assert_eq!(client.get("/runtime/files/content?path=a").await.bytes, "two");
    drop(sender);
    uploading.await.unwrap().ok();
    assert_eq!(client.get("/runtime/files/content?path=a").await.bytes.len(), 600_000);
    assert_ne!(std::fs::metadata(agent.path("a")).unwrap().ino(), before);
    assert_eq!(names(&client.get("/runtime/files/list").await.json()), ["a"], "nothing is left over");
}

#[tokio::test]
async fn an_upload_that_breaks_off_leaves_nothing() {
    let (agent, client) = Agent::start().await;
    client.put("/runtime/files/content?path=a", "old").await.ok();
    let other = agent.client().await;
    let (sender, body) = piecewise();
    let upload = tokio::spawn(async move {
        let _ = other.try_send(request(Method::PUT, "/runtime/files/content?path=a", body)).await;
    });
    sender.send(Bytes::from(vec![b'x'; 600_000])).await.unwrap();
    upload.abort();
    let _ = upload.await;
    drop(sender);
    assert_eq!(client.get("/runtime/files/content?path=a").await.bytes, "old");
    assert_eq!(names(&client.get("/runtime/files/list").await.json()), ["a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_written_anew_meanwhile_is_read() {
    let (agent, client) = Agent::start().await;
    agent.write("tick", b"0123456789");
    let over = Arc::new(AtomicBool::new(false));
    let (stop, path) = (over.clone(), agent.workspace().join("tick"));
    // What a shell does for `>tick`, again and again.
    let writer = std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            std::fs::write(&path, b"0123456789").unwrap();
        }
    });
    let mut lengths = HashSet::new();
    // A busy machine may let the writer wait for long.
    for turn in 0.. {
        if turn >= 2000 && lengths.len() > 2 {
            break;
        }
        assert!(turn < 1_000_000, "the writer was never met: {lengths:?}");
        let path = "/runtime/files/content?path=tick";
        let reply = if turn % 2 == 0 { client.get(path).await.ok() } else { ranged(&client, path, "bytes=5-").await };
        assert!(b"0123456789".ends_with(&reply.bytes[..]) || reply.status == 416, "{} {:?}", reply.status, reply.bytes);
        lengths.insert(reply.bytes.len());
    }
    over.store(true, Ordering::Relaxed);
    writer.join().unwrap();
}

#[tokio::test]
async fn ranges_are_parts() {
    let (agent, client) = Agent::start().await;
    agent.write("a", b"0123456789");
    let path = "/runtime/files/content?path=a";
    for (range, body, header) in
        [("bytes=0-3", "0123", "bytes 0-3/10"), ("bytes=7-", "789", "bytes 7-9/10"), ("bytes=-2", "89", "bytes 8-9/10")]
    {
        let reply = ranged(&client, path, range).await;
        assert_eq!((reply.status, &reply.bytes[..]), (StatusCode::PARTIAL_CONTENT, body.as_bytes()));
        assert_eq!(reply.headers["content-range"], header);
    }
    for range in ["bytes=10-", "bytes=5-2", "bytes=0-1,3-4", "bytes=x"] {
        let reply = ranged(&client, path, range).await;
        reply.refused(416, "range_not_satisfiable");
        assert_eq!(reply.headers["content-range"], "bytes */10");
    }
    agent.write("empty", b"");
    assert_eq!(client.get("/runtime/files/content?path=empty").await.ok().bytes, "");
}

#[tokio::test]
async fn content_is_of_files_only() {
    let (agent, client) = Agent::start().await;
    agent.write("dir/file", b"x");
    rustix::fs::mknodat(rustix::fs::CWD, agent.path("pipe"), rustix::fs::FileType::Fifo, 0o666.into(), 0).unwrap();
    client.get("/runtime/files/content?path=dir").await.refused(400, "is_a_directory");
    client.put("/runtime/files/content?path=dir", "x").await.refused(400, "is_a_directory");
    client.put("/runtime/files/content?path=.", "x").await.refused(400, "is_a_directory");
    client.put("/runtime/files/content?path=new/", "x").await.refused(400, "is_a_directory");
    client.get("/runtime/files/content?path=missing").await.refused(404, "not_found");
    client.get("/runtime/files/content?path=dir/file/x").await.refused(400, "not_a_directory");
    client.put("/runtime/files/content?path=dir/file/x", "x").await.refused(400, "not_a_directory");
    client.get("/runtime/files/content?path=pipe").await.refused(409, "conflict");
    client.put("/runtime/files/content?path=pipe", "x").await.refused(409, "conflict");
    client.get("/runtime/files/content").await.names(&["path"]);
    client.put("/runtime/files/content?mode=8", "x").await.names(&["path", "mode"]);
}

#[tokio::test]
async fn lists_go_as_deep_and_as_far_as_asked() {
    let (agent, client) = Agent::start().await;
    for file in ["b/c/d", "b/a", "z"] {
        agent.write(file, b"12");
    }
    std::os::unix::fs::symlink("b/c", agent.path("link")).unwrap();
    let listed = async |query: &str| client.get(&format!("/runtime/files/list{query}")).await.ok().json();
    assert_eq!(names(&listed("").await), ["b", "link", "z"]);
    assert_eq!(names(&listed("?path=b&depth=2").await), ["b/a", "b/c", "b/c/d"]);
    assert_eq!(names(&listed("?depth=64").await), ["b", "b/a", "b/c", "b/c/d", "link", "z"]);
    let link = listed("").await["data"][1].clone();
    assert_eq!((link["type"].clone(), link["target"].clone()), (json!("symlink"), json!("b/c")));
    let exact = listed("?limit=3").await;
    assert_eq!((names(&exact).len(), &exact["truncated"]), (3, &json!(false)));
    let cut = listed("?limit=2").await;
    assert_eq!((names(&cut), &cut["truncated"]), (vec!["b", "link"], &json!(true)));
    client.get("/runtime/files/list?path=z").await.refused(400, "not_a_directory");
    client.get("/runtime/files/list?path=missing").await.refused(404, "not_found");
    client.get("/runtime/files/list?limit=100000").await.ok();
    client.get("/runtime/files/list?depth=0&limit=100001").await.names(&["depth", "limit"]);
}

#[tokio::test]
async fn stat_and_exists_tell_of_the_thing_itself() {
    let (agent, client) = Agent::start().await;
    agent.write("a", b"123");
    std::os::unix::fs::symlink("nowhere", agent.path("link")).unwrap();
    let entry = client.get("/runtime/files/stat?path=./a").await.ok().json();
    assert_eq!((entry["path"].clone(), entry["size"].clone()), (json!("a"), json!(3)));
    assert!(entry["modified_at"].as_str().unwrap().ends_with('Z'));
    let root = client.get("/runtime/files/stat?path=.").await.ok().json();
    assert_eq!((root["name"].clone(), root["type"].clone()), (json!("."), json!("directory")));
    assert_eq!(client.get("/runtime/files/stat?path=link").await.ok().json()["target"], "nowhere");
    client.get("/runtime/files/stat?path=missing").await.refused(404, "not_found");
    for (path, there) in [("a", true), ("link", true), ("missing", false), ("a/b", false), (".", true)] {
        let reply = client.get(&format!("/runtime/files/exists?path={path}")).await.ok().json();
        assert_eq!(reply, json!({ "exists": there }), "{path}");
    }
    client.get("/runtime/files/exists").await.names(&["path"]);
}

#[tokio::test]
async fn directories_are_made() {
    let (agent, client) = Agent::start().await;
    let mkdir = async |body: Value| client.post("/runtime/files/mkdir", body).await;
    assert_eq!(mkdir(json!({"path": "a"})).await.status, StatusCode::CREATED);
    mkdir(json!({"path": "a"})).await.refused(409, "already_exists");
    mkdir(json!({"path": "x/y"})).await.refused(404, "not_found");
    assert_eq!(mkdir(json!({"path": "x/y/z", "parents": true})).await.json()["path"], "x/y/z");
    assert_eq!(mkdir(json!({"path": "x/y/z", "parents": true})).await.status, StatusCode::OK);
    mkdir(json!({"path": "."})).await.refused(409, "already_exists");
    agent.write("file", b"");
    mkdir(json!({"path": "file", "parents": true})).await.refused(409, "already_exists");
    mkdir(json!({"path": "file/a", "parents": true})).await.refused(400, "not_a_directory");
    mkdir(json!({"parents": 1})).await.names(&["parents", "path"]);
}

#[tokio::test]
async fn things_are_removed_and_links_not_followed() {
    let (agent, client) = Agent::start().await;
    let remove = async |body: Value| client.post("/runtime/files/remove", body).await;
    for file in ["full/a/b/c", "full/d", "kept/file", "file"] {
        agent.write(file, b"");
    }
    std::os::unix::fs::symlink("../kept", agent.path("full/link")).unwrap();
    std::fs::create_dir(agent.path("empty")).unwrap();
    remove(json!({"path": "full"})).await.refused(409, "not_empty");
    for path in ["file", "empty"] {
        assert_eq!(remove(json!({ "path": path })).await.status, StatusCode::NO_CONTENT);
    }
    assert_eq!(remove(json!({"path": "full", "recursive": true})).await.status, StatusCode::NO_CONTENT);
    assert_eq!(names(&client.get("/runtime/files/list?depth=5").await.json()), ["kept", "kept/file"]);
    remove(json!({"path": "full", "recursive": true})).await.refused(404, "not_found");
    remove(json!({"path": ".", "recursive": true})).await.refused(400, "invalid_path");
    remove(json!({"path": ""})).await.refused(400, "invalid_path");
}

#[tokio::test]
async fn things_are_moved() {
    let (agent, client) = Agent::start().await;
    let rename = async |body: Value| client.post("/runtime/files/move", body).await;
    for file in ["a", "b", "dir/x", "full/y"] {
        agent.write(file, file.as_bytes());
    }
    rename(json!({"from": "a", "to": "b"})).await.refused(409, "already_exists");
    rename(json!({"from": "a", "to": "dir"})).await.refused(409, "already_exists");
    assert_eq!(rename(json!({"from": "a", "to": "b", "overwrite": true})).await.ok().json()["path"], "b");
    assert_eq!(client.get("/runtime/files/content?path=b").await.bytes, "a");
    rename(json!({"from": "dir", "to": "full", "overwrite": true})).await.ok();
    assert_eq!(names(&client.get("/runtime/files/list?depth=5").await.json()), ["b", "full", "full/x"]);
    rename(json!({"from": "b", "to": "full", "overwrite": true})).await.ok();
    assert_eq!(names(&client.get("/runtime/files/list").await.json()), ["full"]);
    assert_eq!(client.get("/runtime/files/stat?path=full").await.json()["type"], "file");
    rename(json!({"from": "missing", "to": "c"})).await.refused(404, "not_found");
    rename(json!({"from": "full", "to": "no/c"})).await.refused(404, "not_found");
    client.post("/runtime/files/mkdir", json!({"path": "d"})).await.ok();
    rename(json!({"from": "d", "to": "d/e"})).await.refused(400, "invalid_path");
    rename(json!({})).await.names(&["from", "to"]);
}

#[tokio::test]
async fn permissions_are_the_users() {
    let (agent, client) = Agent::start().await;
    agent.write("locked/file", b"x");
    agent.write("secret", b"x");
    std::fs::set_permissions(agent.path("locked"), PermissionsExt::from_mode(0o000)).unwrap();
    std::fs::set_permissions(agent.path("secret"), PermissionsExt::from_mode(0o000)).unwrap();
    client.get("/runtime/files/content?path=secret").await.refused(403, "permission_denied");
    client.get("/runtime/files/content?path=locked/file").await.refused(403, "permission_denied");
    client.put("/runtime/files/content?path=locked/new", "x").await.refused(403, "permission_denied");
    client.get("/runtime/files/list?path=locked").await.refused(403, "permission_denied");
    client.post("/runtime/files/mkdir", json!({"path": "locked/d"})).await.refused(403, "permission_denied");
    client.post("/runtime/files/remove", json!({"path": "locked/file"})).await.refused(403, "permission_denied");
    client.post("/runtime/files/archive", json!({"path": "secret"})).await.refused(403, "permission_denied");
    std::fs::set_permissions(agent.path("locked"), PermissionsExt::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn a_full_disk_is_told_and_the_old_file_stays() {
    let (agent, client) = Agent::start().await;
    if rustix::process::geteuid().is_root() {
        let mounted = agent.path("small");
        std::fs::create_dir(&mounted).unwrap();
        let options = c"size=64k,mode=0777";
        rustix::mount::mount("tmpfs", &mounted, "tmpfs", rustix::mount::MountFlags::NODEV, Some(options)).unwrap();
        let path = "/runtime/files/content?path=small/a";
        // A mount below the workspace is part of it.
        client.put(path, "old").await.ok();
        let full = client.put(path, vec![0; 1_000_000]).await;
        let kept = client.get(path).await;
        rustix::mount::unmount(&mounted, rustix::mount::UnmountFlags::DETACH).unwrap();
        full.refused(507, "no_space");
        assert_eq!(kept.bytes, "old");
    } else {
        // Only root can make a small disk; a unit test checks the translation of the kernel's error.
        let refused = rustix::mount::mount("tmpfs", agent.path("."), "tmpfs", rustix::mount::MountFlags::NODEV, None);
        assert_eq!(refused, Err(rustix::io::Errno::PERM));
    }
}

#[tokio::test]
async fn bodies_are_json_of_a_bounded_size() {
    let (_agent, client) = Agent::start().await;
    let mut plain = request(Method::POST, "/runtime/files/mkdir", whole("{}"));
    client.call(plain).await.refused(415, "unsupported_media_type");
    for (length, status, code) in [(256 * 1024, 400, "invalid_request"), (256 * 1024 + 1, 413, "payload_too_large")] {
        plain = request(Method::POST, "/runtime/files/mkdir", whole(vec![b' '; length]));
        plain.headers_mut().insert("content-type", "application/json; charset=utf-8".parse().unwrap());
        client.call(plain).await.refused(status, code);
    }
    let twice = request(Method::POST, "/runtime/files/mkdir", whole(r#"{"path": "a", "path": "b"}"#));
    let (mut parts, body) = twice.into_parts();
    parts.headers.insert("content-type", "application/json".parse().unwrap());
    client.call(http::Request::from_parts(parts, body)).await.refused(400, "invalid_request");
}

#[tokio::test]
async fn a_slow_reader_of_a_file_holds_nobody_up() {
    let (agent, client) = Agent::start().await;
    agent.write("big", &vec![1; 20_000_000]);
    let slow = client.send(request(Method::GET, "/runtime/files/content?path=big", whole(""))).await;
    for _ in 0..20 {
        client.get("/runtime/files/stat?path=big").await.ok();
    }
    let body = http_body_util::BodyExt::collect(slow.into_body());
    let bytes = tokio::time::timeout(PATIENCE, body).await.unwrap().unwrap().to_bytes();
    assert_eq!(bytes.len(), 20_000_000);
}
