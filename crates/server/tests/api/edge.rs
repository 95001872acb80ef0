//! What is true of every connection and answer: TLS, headers for browsers, other origins, doors of their own, bounds.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use berth_server::app::Doors;
use berth_server::config::{Config, Http, Tls};
use berth_server::db::sql;
use berth_server::http::tls::Certificate;
use berth_testkit::{Caller, Platform};
use reqwest::{Client, Method, StatusCode};
use rustix::process::{Signal, getpid, kill_process};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;

const ANY: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

/// More doors of a platform, open for as long as the guard lives.
pub async fn doors(platform: &Platform, http: Http, certificate: Option<Arc<Certificate>>) -> (Addresses, DropGuard) {
    let config = Config { listen: ANY.into(), http, ..platform.config.clone() };
    let doors = Doors::open(&config, certificate, platform.app()).await.expect("free ports");
    let addresses = Addresses { main: doors.main, metrics: doors.metrics, admin: doors.admin };
    let ending = CancellationToken::new();
    tokio::spawn(doors.serve(ending.clone()));
    (addresses, ending.drop_guard())
}

/// Where a service answers.
pub struct Addresses {
    pub main: SocketAddr,
    metrics: Option<SocketAddr>,
    admin: Option<SocketAddr>,
}

/// A certificate for this machine in two files of a folder; the certificate itself.
fn certificate_in(dir: &Path) -> (Tls, reqwest::Certificate) {
    let made =
        rcgen::generate_simple_self_signed(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).expect("a pair");
    let files = Tls { cert: dir.join("cert.pem"), key: dir.join("key.pem") };
    std::fs::write(&files.cert, pem("CERTIFICATE", made.cert.der())).expect("a file");
    std::fs::write(&files.key, pem("PRIVATE KEY", &made.signing_key.serialize_der())).expect("a file");
    (files, reqwest::Certificate::from_der(made.cert.der()).expect("a certificate"))
}

fn pem(kind: &str, der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n", lines.join("\n"))
}

fn trusting(certificate: &reqwest::Certificate) -> Client {
    Client::builder().tls_certs_only([certificate.clone()]).pool_max_idle_per_host(0).build().expect("a client")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_speaks_tls_and_takes_a_new_certificate_without_a_restart() {
    let platform = Platform::start().await;
    let dir = tempfile::tempdir().expect("a folder");
    let (files, first) = certificate_in(dir.path());
    let certificate = Arc::new(Certificate::load(&files).expect("a certificate"));
    let (addresses, _open) = doors(&platform, Http::default(), Some(certificate.clone())).await;
    let url = format!("https://{}", addresses.main);
    let answer = trusting(&first).get(format!("{url}/healthz")).send().await.expect("an answer");
    assert_eq!(answer.headers()["strict-transport-security"], "max-age=31536000");
    // Callers are told to come back the same way.
    let sandboxes = format!("{url}{}/sandboxes", platform.admin.project);
    let request = trusting(&first).post(sandboxes).bearer_auth(&platform.admin.token).json(&serde_json::json!({}));
    let made: Value = request.send().await.expect("an answer").json().await.expect("JSON");
    assert!(made["connect_url"].as_str().is_some_and(|to| to.starts_with(&url)), "{made}");
    // Another certificate lies there; who comes from now on is shown it.
    let (_, second) = certificate_in(dir.path());
    certificate.reload().expect("a certificate");
    assert_eq!(trusting(&second).get(format!("{url}/healthz")).send().await.expect("an answer").status(), 200);
    assert!(trusting(&first).get(format!("{url}/healthz")).send().await.is_err());
    // One that cannot be used changes nothing.
    std::fs::write(&files.cert, "half a certifi").expect("a file");
    assert!(certificate.reload().is_err());
    assert_eq!(trusting(&second).get(format!("{url}/healthz")).send().await.expect("an answer").status(), 200);
    let plain = platform.admin.get("/vms").await;
    assert_eq!(plain.header("strict-transport-security"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_has_the_certificate_read_anew() {
    // From here on the signal ends nobody.
    let _hangups = signal(SignalKind::hangup()).expect("a handler");
    let platform = Platform::start().await;
    let dir = tempfile::tempdir().expect("a folder");
    let (files, first) = certificate_in(dir.path());
    let certificate = Arc::new(Certificate::load(&files).expect("a certificate"));
    let (addresses, _open) = doors(&platform, Http::default(), Some(certificate.clone())).await;
    let _reloading = AbortOnDropHandle::new(tokio::spawn(certificate.reload_on_hangup()));
    let url = format!("https://{}/healthz", addresses.main);
    assert!(trusting(&first).get(&url).send().await.is_ok());
    let (_, second) = certificate_in(dir.path());
    assert!(trusting(&second).get(&url).send().await.is_err(), "nobody said that there is another");
    let shown = async || {
        kill_process(getpid(), Signal::HUP).expect("a signal");
        trusting(&second).get(&url).send().await.is_ok()
    };
    platform.admin.until("the new certificate", |_| async { shown().await }).await;
}

#[test]
fn a_certificate_that_cannot_be_used_is_refused_by_name() {
    let (one, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let (files, _) = certificate_in(one.path());
    let (others, _) = certificate_in(other.path());
    let missing = one.path().join("missing.pem");
    let empty = one.path().join("empty.pem");
    std::fs::write(&empty, "").expect("a file");
    for (cert, key, words) in [
        (&missing, &files.key, ["missing.pem", "cannot be read"]),
        (&files.cert, &missing, ["missing.pem", "cannot be read"]),
        (&empty, &files.key, ["empty.pem", "holds no certificate in PEM"]),
        (&files.cert, &empty, ["empty.pem", "holds no private key in PEM"]),
        (&files.cert, &others.key, ["key.pem", "does not hold the key of"]),
    ] {
        let refused = Certificate::load(&Tls { cert: cert.clone(), key: key.clone() }).err().expect("a refusal");
        let text = format!("{refused:#}");
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_shut_against_frames_and_foreign_scripts() {
    let platform = Platform::start().await;
    let get = |path: &str| {
        let request = platform.admin.anonymous().request(Method::GET, "/.").header("accept", "text/html");
        let mut request = request.build().expect("a request");
        *request.url_mut() = format!("{}{path}", platform.admin.base).parse().expect("a URL");
        async move { Client::new().execute(request).await.expect("an answer") }
    };
    for path in ["/", "/docs", "/account/signup", "/account/reset"] {
        let answer = get(path).await;
        let header =
            |name: &str| answer.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
        assert_eq!(
            (answer.status(), header("content-type")),
            (StatusCode::OK, "text/html; charset=utf-8".into()),
            "{path}"
        );
        assert!(header("content-security-policy").contains("frame-ancestors 'none'"), "{path}");
        assert_eq!(
            (header("x-frame-options"), header("referrer-policy")),
            ("DENY".into(), "no-referrer".into()),
            "{path}"
        );
    }
    for path in ["/", "/docs", "/openapi.json", "/healthz", "/metrics", "/api/v1/orgs", "/nothing", "/v1/models"] {
        assert_eq!(get(path).await.headers()["x-content-type-options"], "nosniff", "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_front_page_tells_people_and_programs_where_to_go() {
    let platform = Platform::start().await;
    let told: Value = reqwest::get(&platform.admin.base).await.expect("an answer").json().await.expect("JSON");
    assert_eq!((told["name"].as_str(), told["documentation"].as_str()), (Some("Berth"), Some("/docs")), "{told}");
    let page =
        Client::new().get(&platform.admin.base).header("accept", "text/html,*/*").send().await.expect("an answer");
    assert!(page.text().await.expect("a page").contains("berth login"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reference_begins_with_how_to_sign_in() {
    let platform = Platform::start().await;
    let get = async |path: &str| {
        let answer = reqwest::get(format!("{}{path}", platform.admin.base)).await.expect("an answer");
        answer.text().await.expect("a body")
    };
    let page = get("/docs").await;
    for part in ["header(), introduction(),", "\"Introduction\"", "\"Sign in\"", "/api/v1/auth/login", ".access_token)"]
    {
        assert!(page.contains(part), "{part}");
    }
    let text = get("/openapi.json").await;
    let document: Value = serde_json::from_str(&text).expect("JSON");
    assert!(document["paths"]["/api/v1/auth/login"]["post"].is_object(), "the page says how to call it");
    assert!(!text.contains("(extension)"), "readers do not know what it extends");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_listed_origins_may_call() {
    const LISTED: &str = "https://app.example.com";
    let platform = Platform::start_with(|config| config.http.cors_origins = vec![LISTED.into()]).await;
    let caller = &platform.admin;
    for path in ["/vms", "/sandbox/x/files/list", "/v1/models", "/v1/chat/completions"] {
        let ask = |origin: &str| {
            let request = caller.anonymous().request(Method::OPTIONS, path).header("origin", origin);
            request.header("access-control-request-method", "POST")
        };
        let answer = caller.send(ask(LISTED)).await;
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (204, Some(LISTED)), "{path}");
        for name in ["authorization", "content-type", "idempotency-key", "x-api-key", "x-project-id"] {
            assert!(answer.header("access-control-allow-headers").is_some_and(|all| all.contains(name)), "{name}");
        }
        assert!(answer.header("access-control-allow-methods").is_some_and(|all| all.contains("PATCH")));
        assert_eq!((answer.header("access-control-allow-credentials"), answer.header("vary")), (None, Some("origin")));
        for other in ["https://evil.example.com", "http://app.example.com", "https://app.example.com:444", "null"] {
            let answer = caller.send(ask(other)).await;
            assert_eq!((answer.status, answer.header("access-control-allow-origin")), (405, None), "{path} {other}");
        }
    }
    // Refusals can be read, too.
    for caller in [caller.clone(), caller.anonymous()] {
        let answer = caller.send(caller.request(Method::GET, "/vms").header("origin", LISTED)).await;
        assert_eq!(answer.header("access-control-allow-origin"), Some(LISTED), "{answer:?}");
        assert!(answer.header("access-control-expose-headers").is_some_and(|all| all.contains("x-request-id")));
    }
    let unlisted = Platform::start().await;
    let request = unlisted.admin.request(Method::GET, "/vms").header("origin", LISTED);
    let answer = unlisted.admin.send(request).await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin"), answer.header("vary")), (200, None, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_and_administration_can_have_doors_of_their_own() {
    let platform = Platform::start().await;
    let http = Http { metrics_listen: Some(ANY.into()), admin_listen: Some(ANY.into()), ..Http::default() };
    let (addresses, _open) = doors(&platform, http, None).await;
    let (metrics, admin) = (addresses.metrics.expect("an address"), addresses.admin.expect("an address"));
    let paths = ["/metrics", "/healthz", "/readyz", "/api/v1/admin/users", "/api/v1/orgs", "/docs"];
    for (address, statuses) in [
        (addresses.main, [404, 200, 200, 404, 200, 200]),
        (metrics, [200, 200, 200, 404, 404, 404]),
        (admin, [404, 200, 200, 200, 200, 200]),
    ] {
        for (path, status) in paths.iter().zip(statuses) {
            let request = Client::new().get(format!("http://{address}{path}")).bearer_auth(&platform.admin.token);
            assert_eq!(request.send().await.expect("an answer").status(), status, "{path} at {address}");
        }
    }
    // Images are everybody's to read, and administrators' to change.
    let ask = |address: SocketAddr, method: Method, path: &str| {
        let request = Client::new().request(method, format!("http://{address}{path}"));
        let request = request.bearer_auth(&platform.admin.token).json(&serde_json::json!({}));
        async move { request.send().await.expect("an answer").status().as_u16() }
    };
    for (method, path) in [
        (Method::POST, "/api/v1/images"),
        (Method::PUT, "/api/v1/images/none/content"),
        (Method::DELETE, "/api/v1/images/none"),
    ] {
        assert_eq!(ask(addresses.main, method.clone(), path).await, 404, "{method} {path}");
    }
    assert_eq!(ask(addresses.main, Method::GET, "/api/v1/images").await, 200);
    assert_eq!(ask(admin, Method::POST, "/api/v1/images").await, 400);
    let missing = |address: SocketAddr| {
        let request = Client::new().delete(format!("http://{address}/api/v1/images/none"));
        let request = request.bearer_auth(&platform.admin.token);
        async move { request.send().await.expect("an answer").json::<Value>().await.expect("JSON")["code"].clone() }
    };
    assert_eq!((missing(addresses.main).await, missing(admin).await), ("not_found".into(), "image_not_found".into()));
    // Where nothing was set, one door has all.
    for path in ["/metrics", "/api/v1/admin/users"] {
        let request = Client::new().get(format!("{}{path}", platform.admin.base)).bearer_auth(&platform.admin.token);
        assert_eq!(request.send().await.expect("an answer").status(), 200, "{path}");
    }
}

/// A connection on which half a request was sent.
async fn half_a_request(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let head =
        "POST /api/v1/auth/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn half_requests_hold_nobody_up() {
    let platform = Platform::start_with(|config| {
        config.http.max_connections = Some(8);
        config.http.max_connections_per_client = Some(6);
    })
    .await;
    let (addresses, _open) = doors(&platform, platform.config.http.clone(), None).await;
    let mut held = Vec::new();
    for _ in 0..40 {
        held.push(half_a_request(addresses.main).await);
        assert!(platform.app().seats.taken() <= 6);
    }
    let answer = reqwest::get(format!("http://{}/healthz", addresses.main)).await.expect("an answer");
    assert_eq!(answer.status(), 200);
    // The first of them was sent away.
    let mut rest = Vec::new();
    assert!(matches!(held[0].read_to_end(&mut rest).await, Ok(0) | Err(_)), "{rest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_streams_leaves_connections_to_others() {
    let platform = Platform::start_with(|config| {
        config.http.max_connections = Some(12);
        config.http.max_connections_per_client = Some(12);
    })
    .await;
    let (ada, bob) = (platform.sign_up("ada@example.com").await, platform.sign_up("bob@example.com").await);
    let key = ada.post("/api_keys", serde_json::json!({"name": "k", "scopes": ["vm"]})).await;
    let by_key = ada.with_token(key.body["key"].as_str().expect("a key"));
    let streams = async |caller: &Caller| {
        let mut held = Vec::new();
        loop {
            let answer = caller.request(Method::GET, "/events").send().await.expect("an answer");
            if answer.status() != 200 {
                assert_eq!(answer.status(), 429);
                assert!(answer.headers().contains_key("retry-after"));
                assert_eq!(answer.json::<Value>().await.expect("JSON")["code"], "too_many");
                return held;
            }
            held.push(answer);
        }
    };
    // Nine of twelve may be streams.
    let of_ada = streams(&ada).await;
    assert_eq!((of_ada.len(), streams(&by_key).await.len()), (5, 0));
    let of_bob = streams(&bob).await;
    assert_eq!(of_bob.len(), 2);
    let answer = reqwest::get(format!("{}/healthz", platform.admin.base)).await.expect("an answer");
    assert_eq!(answer.status(), 200);
    drop(of_ada);
    bob.until("a place", |bob| async move {
        bob.request(Method::GET, "/events").send().await.is_ok_and(|answer| answer.status() == 200)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_get_in_where_all_connections_are_taken() {
    let platform = Platform::start_with(|config| config.http.max_connections = Some(12)).await;
    let http = Http { metrics_listen: Some(ANY.into()), admin_listen: Some(ANY.into()), ..Http::default() };
    let (addresses, _open) = doors(&platform, http, None).await;
    let seats = &platform.app().seats;
    let come = |number| {
        let ticket = seats.enter([192, 0, 2, number].into()).expect("a seat");
        let work = ticket.asked().answer(axum::body::Body::empty());
        (ticket, work)
    };
    let _held: Vec<_> = (0..12).map(come).collect();
    let ask = |address: SocketAddr| reqwest::get(format!("http://{address}/healthz"));
    assert!(ask(addresses.main).await.is_err());
    for address in [addresses.metrics, addresses.admin] {
        assert_eq!(ask(address.expect("an address")).await.expect("an answer").status(), 200);
    }
}

/// Long enough for what comes at once on a machine that is busy.
const AT_LAST: std::time::Duration = std::time::Duration::from_mins(1);

/// A connection on which a request was answered.
async fn asked_once(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
    let mut first = [0; 15];
    stream.read_exact(&mut first).await.expect("an answer");
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_head_has_to_come_in_time_too() {
    let platform = Platform::start().await;
    let http = Http { head_seconds: 15, idle_seconds: 3_600, ..Http::default() };
    let (addresses, _open) = doors(&platform, http, None).await;
    let (mut idle, mut slow) = (asked_once(addresses.main).await, asked_once(addresses.main).await);
    slow.write_all(b"GET /healthz HTTP/1.1\r\n").await.expect("sent");
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(AT_LAST, slow.read_to_end(&mut rest)).await;
    assert!(ended.is_ok() && !String::from_utf8_lossy(&rest).contains("HTTP/1.1"), "{rest:?}");
    // Who has begun nothing is waited for.
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.expect("sent");
    rest.clear();
    idle.read_to_end(&mut rest).await.expect("an end");
    assert_eq!(String::from_utf8_lossy(&rest).matches("200 OK").count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_has_64_kib() {
    let platform = Platform::start().await;
    let http = Http { head_seconds: 3_600, idle_seconds: 3_600, ..Http::default() };
    let (addresses, _open) = doors(&platform, http, None).await;
    for (length, fits) in [(60 << 10, true), (70 << 10, false)] {
        let mut stream = asked_once(addresses.main).await;
        let end = if fits { "\r\nConnection: close\r\n\r\n" } else { "" };
        let head = format!("GET /healthz HTTP/1.1\r\nHost: x\r\nX: {}{end}", "x".repeat(length));
        // Who says too much may find the connection gone before all is sent.
        assert!(stream.write_all(head.as_bytes()).await.is_ok() || !fits);
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(AT_LAST, stream.read_to_end(&mut rest)).await;
        let text = String::from_utf8_lossy(&rest);
        assert_eq!((ended.is_ok(), text.contains("HTTP/1.1 200")), (true, fits), "{length}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_asks_for_nothing_ends() {
    let platform = Platform::start().await;
    let (addresses, _open) = doors(&platform, Http { head_seconds: 15, ..Http::default() }, None).await;
    let mut asks = TcpStream::connect(addresses.main).await.expect("a connection");
    asks.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
    let mut silent = TcpStream::connect(addresses.main).await.expect("a connection");
    silent.write_all(b"GET /healthz HTTP/1.1\r\n").await.expect("sent");
    let mut rest = Vec::new();
    silent.read_to_end(&mut rest).await.expect("an end");
    assert!(rest.is_empty(), "{rest:?}");
    // Who has asked is not bound by that.
    asks.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.expect("sent");
    asks.read_to_end(&mut rest).await.expect("an end");
    assert_eq!(String::from_utf8_lossy(&rest).matches("200 OK").count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_says_which_part_is_not() {
    let platform = Platform::start().await;
    let asked = || async {
        let answer = reqwest::get(format!("{}/readyz", platform.admin.base)).await.expect("an answer");
        (answer.status().as_u16(), answer.json::<Value>().await.expect("JSON"))
    };
    // A database that is not asked within a second, because its thread stood still, is not ready either.
    let ready = || async {
        let answer = async {
            loop {
                let answer = asked().await;
                if answer.1["database"] == "ok" {
                    return answer;
                }
            }
        };
        tokio::time::timeout(AT_LAST, answer).await.expect("a database that answers")
    };
    let fine = serde_json::json!({"status": "ready", "database": "ok", "migrations": "ok", "engines": "ok"});
    assert_eq!(ready().await, (200, fine));
    let broken = berth_host::EngineError::Permanent("no QEMU".into());
    platform.engine.refuse("ready", broken);
    let (status, told) = ready().await;
    assert_eq!((status, &told["status"], &told["database"]), (503, &"not_ready".into(), &"ok".into()));
    assert!(
        told["engines"].as_str().is_some_and(|text| text.starts_with("VMs: ") && text.contains("no QEMU")),
        "{told}"
    );
    platform.engine.allow("ready");
    let mut tx = platform.app().db.begin().await.expect("a transaction");
    sql("UPDATE _sqlx_migrations SET version = version + 1000").execute(&mut tx).await.expect("a change");
    tx.commit().await.expect("a change");
    let (status, told) = ready().await;
    assert_eq!((status, &told["database"], &told["engines"]), (503, &"ok".into(), &"ok".into()));
    assert!(told["migrations"].as_str().is_some_and(|text| text.contains("not the one of this version")), "{told}");
    platform.app().db.close().await;
    let (status, told) = asked().await;
    assert_eq!((status, &told["database"], &told["engines"]), (503, &"does not answer".into(), &"ok".into()));
    assert!(told["migrations"].as_str().is_some_and(|text| text.contains("does not answer")), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_tell_of_requests_the_host_and_the_build() {
    let platform = Platform::start().await;
    platform.admin.get("/vms").await;
    let metrics = reqwest::get(format!("{}/metrics", platform.admin.base)).await.expect("an answer");
    let text = metrics.text().await.expect("a body");
    for name in [
        "berth_http_requests_total{class=\"api\",status=\"200\"}",
        "berth_http_seconds_total{class=\"api\"}",
        "berth_http_connections ",
        "berth_host_memory_bytes ",
        "berth_host_disk_available_bytes ",
        "berth_build_info{version=\"",
        "\nberth_sandboxes_unlimited_total 0\n",
    ] {
        assert!(text.contains(name), "{name}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_tell_of_the_database_and_not_of_what_is_counted_in_it() {
    let platform = Platform::start().await;
    let metrics = async || {
        let answer = reqwest::get(format!("{}/metrics", platform.admin.base)).await.expect("an answer");
        answer.text().await.expect("a body")
    };
    let tell = async |counted: bool| {
        let text = metrics().await;
        text.contains("\nberth_database_up 1\n") && text.contains("# TYPE berth_vms") == counted
    };
    platform.admin.until("a database and its VMs", |_| async { tell(true).await }).await;
    let mut tx = platform.app().db.begin().await.expect("a transaction");
    sql("ALTER TABLE vms RENAME TO things").execute(&mut tx).await.expect("another schema");
    tx.commit().await.expect("committed");
    platform.admin.until("a database alone", |_| async { tell(false).await }).await;
    platform.app().db.close().await;
    assert!(metrics().await.contains("\nberth_database_up 0\n"));
}
