//! What every operation has in common: request ids, errors, the order of checks, bad bodies.

use berth_testkit::{Platform, vm};
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::edge::doors;

#[tokio::test(flavor = "multi_thread")]
async fn request_ids_are_the_callers_where_they_can_be() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let longest = "x".repeat(128);
    for good in ["a", "my request 1", longest.as_str()] {
        let answer = caller.send(caller.request(Method::GET, "/vms").header("x-request-id", good)).await;
        assert_eq!(answer.header("x-request-id"), Some(good));
    }
    let too_long = "x".repeat(129);
    for bad in ["", too_long.as_str(), "tab\there"] {
        let answer = caller.send(caller.request(Method::GET, "/vms").header("x-request-id", bad)).await;
        assert!(answer.header("x-request-id").is_some_and(|id| id.len() == 36), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_routes_and_methods() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    caller.get("/api/v1/nothing").await.refused(404, "not_found");
    caller.anonymous().get("/api/v2/vms").await.refused(404, "not_found");
    let answer = caller.send(caller.request(Method::PUT, "/vms")).await;
    answer.refused(405, "method_not_allowed");
    let allowed = answer.header("allow").unwrap_or_default();
    assert!(allowed.contains("GET") && allowed.contains("POST"), "{allowed}");
    // Route and method come before authentication.
    caller.anonymous().send(caller.anonymous().request(Method::PUT, "/vms")).await.refused(405, "method_not_allowed");
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_no_json() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let send = |body: Vec<u8>| {
        caller.send(caller.request(Method::POST, "/vms").header("content-type", "application/json").body(body))
    };
    let deep = [vec![b'['; 5000], vec![b']'; 5000]].concat();
    let duplicate = vm("web").to_string().replacen("\"name\"", "\"name\":\"x\",\"name\"", 1);
    for bad in [
        b"".to_vec(),
        b"{".to_vec(),
        b"{} {}".to_vec(),
        b"\xff\xfe".to_vec(),
        b"nul".to_vec(),
        deep,
        duplicate.into_bytes(),
    ] {
        send(bad).await.refused(400, "invalid_request");
    }
    let large = [b"{\"name\":\"".to_vec(), vec![b'a'; 256 * 1024], b"\"}".to_vec()].concat();
    send(large).await.refused(413, "payload_too_large");
    let most = [b"{\"name\":\"".to_vec(), vec![b'a'; 256 * 1024 - 11], b"\"}".to_vec()].concat();
    assert_eq!(most.len(), 256 * 1024);
    send(most).await.refused(400, "invalid_request");
    for kind in ["text/plain", "application/x-www-form-urlencoded", ""] {
        let request = caller.request(Method::POST, "/vms").header("content-type", kind).body(vm("web").to_string());
        caller.send(request).await.refused(415, "unsupported_media_type");
    }
    let request = caller.request(Method::POST, "/vms").body(vm("web").to_string());
    caller.send(request).await.refused(415, "unsupported_media_type");
    let request = caller
        .request(Method::POST, "/vms")
        .header("content-type", "Application/JSON; charset=utf-8")
        .body(vm("web").to_string());
    assert_eq!(caller.send(request).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_order_of_checks() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let nobody = caller.anonymous();
    let bad = || "not json";
    // 401 before 404 before 403 before 415 before 400.
    nobody
        .send(nobody.request(Method::POST, "/api/v1/orgs/none/projects/none/vms").body(bad()))
        .await
        .refused(401, "unauthorized");
    caller
        .send(caller.request(Method::POST, "/api/v1/orgs/none/projects/none/vms").body(bad()))
        .await
        .refused(404, "project_not_found");
    caller
        .send(caller.request(Method::POST, &format!("{}/projects/none/vms", caller.org())).body(bad()))
        .await
        .refused(404, "project_not_found");
    caller.send(caller.request(Method::POST, "/vms").body(bad())).await.refused(415, "unsupported_media_type");
    let json = caller.request(Method::POST, "/vms").header("content-type", "application/json").body(bad());
    caller.send(json).await.refused(400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_are_none() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    for route in [
        "/vms",
        "/root_disks",
        "/disks",
        "/networks",
        "/quota",
        "/events",
        "/api/v1/images",
        "/api/v1/regions",
        "/api/v1/users/me",
        "/api/v1/orgs",
    ] {
        let answer = caller.anonymous().get(route).await;
        answer.refused(401, "unauthorized");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    }
    let mut other = caller.token.clone();
    other.replace_range(other.len() - 4.., "AAAA");
    for bad in ["x", "a.b.c", other.as_str()] {
        caller.with_token(bad).get("/vms").await.refused(401, "unauthorized");
    }
    let basic = caller.anonymous().request(Method::GET, "/vms").header("authorization", "Basic YTpi");
    caller.send(basic).await.refused(401, "unauthorized");
    let lower =
        caller.anonymous().request(Method::GET, "/vms").header("authorization", format!("bearer {}", caller.token));
    assert_eq!(caller.send(lower).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_and_documents_need_no_credential() {
    let platform = Platform::start().await;
    let base = &platform.admin.base;
    for path in ["/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/.well-known/jwks.json"] {
        let fine = |_| async move { reqwest::get(format!("{base}{path}")).await.expect("an answer").status() == 200 };
        platform.admin.until(path, fine).await;
    }
    platform.engine.refuse("ready", berth_host::EngineError::Permanent("no QEMU".into()));
    let answer = reqwest::get(format!("{base}/readyz")).await.expect("an answer");
    assert_eq!(answer.status(), 503);
    assert!(answer.text().await.expect("a body").contains("no QEMU"));
    platform.admin.running_vm("web").await;
    let counted = |_| async move {
        let answer = reqwest::get(format!("{base}/metrics")).await.expect("an answer");
        answer.text().await.expect("a body").contains("berth_vms")
    };
    platform.admin.until("berth_vms in the metrics", counted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_show_nothing_of_the_host() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let dir = platform.config.data_dir.to_string_lossy().into_owned();
    let answers = [
        caller.get("/vms/x").await,
        caller.post("/vms", json!({"name": 1})).await,
        caller.get("/api/v1/images/%00").await,
        caller.get("/vms?status=%27%20OR%201=1").await,
        caller.get("/api/v1/orgs/%00/projects/%00/vms").await,
        caller.post("/vms", json!({"name": "a", "user_data": "\0"})).await,
    ];
    for answer in answers {
        let text = answer.body.to_string();
        assert!((400..500).contains(&answer.status), "{answer:?}");
        assert!(!text.contains(&dir) && !text.contains("SELECT") && !text.contains("panicked"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_refused_while_it_sends_is_told_why() {
    const LENGTH: usize = 32 << 20;
    let platform = Platform::start().await;
    let (addresses, _open) = doors(&platform, platform.config.http.clone(), None).await;
    let mut stream = TcpStream::connect(addresses.main).await.expect("a connection");
    let head = format!(
        "POST /api/v1/orgs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
         Content-Length: {LENGTH}\r\n\r\n",
        platform.admin.token
    );
    stream.write_all(head.as_bytes()).await.expect("a head");
    // As many clients, it looks for an answer when all is sent.
    for _ in 0..LENGTH >> 16 {
        stream.write_all(&vec![b' '; 1 << 16]).await.expect("somebody takes it");
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("connection: close"), "{answer}");
}
