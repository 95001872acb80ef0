//! Work inside a sandbox, over the API.

use futures::{SinkExt, StreamExt};
use reqwest::Method;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::harness::{content, events, put, run, service, shell};

#[tokio::test(flavor = "multi_thread")]
async fn files_commands_processes_terminals_and_ports() {
    let (_service, caller) = service().await;
    let id = caller.ready_sandbox().await;
    // What Berth ran in there to have it warm is none of its processes.
    assert_eq!(caller.get(&format!("/sandbox/{id}/processes")).await.body["data"], json!([]));
    files(&caller, &id).await;
    commands(&caller, &id).await;
    processes(&caller, &id).await;
    ports(&caller, &id).await;
    terminal(&caller, &id).await;
    callers(&caller, &id).await;
}

async fn files(caller: &berth_testkit::Caller, id: &str) {
    let big: Vec<u8> =
        (0..3_000_000u32).map(|n| u8::try_from(n.wrapping_mul(2_654_435_761) >> 24).unwrap_or(0)).collect();
    assert_eq!(put(caller, id, "deep/er/big.bin", big.clone()).await.status, 201);
    assert!(content(caller, id, "deep/er/big.bin").await == big);
    let path = format!("/sandbox/{id}/files/content?path=deep/er/big.bin");
    let part = caller.request(Method::GET, &path).header("range", "bytes=10-19").send().await.expect("an answer");
    assert_eq!(part.status(), 206);
    assert_eq!(part.headers()["content-security-policy"], "sandbox; default-src 'none'");
    assert_eq!(part.bytes().await.expect("a body")[..], big[10..20]);
    let files = |rest: &str| format!("/sandbox/{id}/files/{rest}");
    let listed = caller.get(&files("list?depth=3")).await.body;
    assert!(
        listed["data"].as_array().is_some_and(|all| all.iter().any(|e| e["path"] == "deep/er/big.bin")),
        "{listed}"
    );
    assert_eq!(caller.get(&files("exists?path=nothing")).await.body, json!({"exists": false}));
    caller.get(&files("stat?path=nothing")).await.refused(404, "not_found");
    caller.get(&files("content?path=../../etc/shadow")).await.refused(400, "invalid_path");
    caller.get(&files("content?path=/etc/shadow")).await.refused(400, "invalid_path");
    caller.post(&files("mkdir"), json!({"path": "deep"})).await.refused(409, "already_exists");
    caller.post(&files("remove"), json!({"path": "deep"})).await.refused(409, "not_empty");
    assert_eq!(caller.post(&files("move"), json!({"from": "deep/er/big.bin", "to": "big"})).await.status, 200);
    assert_eq!(caller.post(&files("remove"), json!({"path": "deep", "recursive": true})).await.status, 204);
    assert_eq!(caller.get(&files("exists?path=big")).await.body, json!({"exists": true}));
    caller.post(&files("mkdir"), json!({})).await.refused(400, "invalid_request");
}

async fn commands(caller: &berth_testkit::Caller, id: &str) {
    let outcome = run(caller, id, json!({"cmd": "echo out; echo err >&2; printf no-newline; exit 3"})).await;
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("out\nno-newline", "err\n"));
    assert_eq!(outcome.last, ("exit".into(), json!({"code": 3, "signal": null, "timed_out": false})));
    let root = run(caller, id, json!({"argv": ["id", "-u"], "user": "root", "cwd": "."})).await;
    assert_eq!(root.stdout, "0\n");
    let fed = run(caller, id, json!({"cmd": "cat; echo $X", "stdin": "given", "env": {"X": "y"}})).await;
    assert_eq!(fed.stdout, "giveny\n");
    let late = run(caller, id, json!({"cmd": "sleep 60", "timeout_seconds": 1})).await;
    assert_eq!((late.last.0.as_str(), &late.last.1["timed_out"]), ("exit", &json!(true)));
    caller
        .post(&format!("/sandbox/{id}/commands"), json!({"argv": ["no-such-program"]}))
        .await
        .refused(400, "command_not_found");
}

async fn processes(caller: &berth_testkit::Caller, id: &str) {
    let processes = format!("/sandbox/{id}/processes");
    let started = caller.post(&processes, json!({"cmd": "while read line; do echo got $line; done; exit 7"})).await;
    assert_eq!(started.status, 201, "{started:?}");
    let one = format!("{processes}/{}", started.body["pid"]);
    assert_eq!(started.header("location"), Some(one.as_str()));
    for (text, eof) in [("a\nb\n", false), ("c\n", true)] {
        let request = caller.request(Method::POST, &format!("{one}/stdin?eof={eof}")).body(text);
        assert_eq!(caller.send(request).await.status, 204);
    }
    let log = caller.get(&format!("{one}/logs?follow=true")).await.body;
    let log = events(log.as_str().expect("a stream"));
    let lines: Vec<&str> = log.iter().filter_map(|(_, data)| data["line"].as_str()).collect();
    assert_eq!(lines, ["got a", "got b", "got c"]);
    assert_eq!(log.last().map(|(name, data)| (name.as_str(), data["code"].clone())), Some(("exit", json!(7))));
    let again = caller.get(&format!("{one}/logs?offset=6")).await.body;
    let again = events(again.as_str().expect("a stream"));
    assert_eq!(again.iter().find_map(|(_, data)| data["line"].as_str()), Some("got b"));
    assert_eq!(caller.get(&one).await.body["exit"]["code"], 7);
    let endless = caller.post(&processes, json!({"argv": ["sleep", "1000"]})).await;
    let endless = format!("{processes}/{}", endless.body["pid"]);
    assert_eq!(caller.post(&format!("{endless}/signal"), json!({"signal": "SIGKILL"})).await.status, 204);
    let log = caller.get(&format!("{endless}/logs?follow=true")).await.body;
    assert_eq!(
        events(log.as_str().expect("a stream")).last().map(|(_, data)| data["signal"].clone()),
        Some(json!("SIGKILL"))
    );
    caller.get(&format!("{processes}/999999")).await.refused(404, "not_found");
}

async fn ports(caller: &berth_testkit::Caller, id: &str) {
    shell(caller, id, "mkdir -p www && echo '<b>page</b>' >www/index.html").await;
    let server = json!({"argv": ["python3", "-m", "http.server", "8000", "--bind", "127.0.0.1"], "cwd": "www"});
    assert_eq!(caller.post(&format!("/sandbox/{id}/processes"), server).await.status, 201);
    caller
        .until("the server", |c| {
            let path = format!("/sandbox/{id}/ports/8000/index.html");
            async move { c.get(&path).await.status == 200 }
        })
        .await;
    let page = caller.get(&format!("/sandbox/{id}/ports/8000/")).await;
    assert_eq!(page.body, Value::String("<b>page</b>\n".into()));
    assert_eq!(page.header("content-security-policy"), Some("sandbox allow-scripts allow-forms"));
    caller.get(&format!("/sandbox/{id}/ports/8001/")).await.refused(502, "port_refused");
    caller.get(&format!("/sandbox/{id}/ports/0/")).await.refused(400, "invalid_request");
}

async fn terminal(caller: &berth_testkit::Caller, id: &str) {
    caller.get(&format!("/sandbox/{id}/terminal")).await.refused(400, "invalid_request");
    let mut socket = open(caller, &format!("/sandbox/{id}/terminal?cols=100&rows=30")).await;
    let ready = text(&mut socket).await;
    assert_eq!(ready["type"], "ready");
    socket.send(Message::binary("stty size; cd www\n")).await.expect("sent");
    shows(&mut socket, "30 100").await;
    socket.send(Message::text(json!({"type": "resize", "cols": 90, "rows": 20}).to_string())).await.expect("sent");
    socket.send(Message::binary("stty size\n")).await.expect("sent");
    shows(&mut socket, "20 90").await;
    drop(socket);
    // It survived, and is where it was.
    let path = format!("/sandbox/{id}/terminal?id={}", ready["id"].as_str().expect("an id"));
    let mut socket = open(caller, &path).await;
    assert_eq!(text(&mut socket).await["id"], ready["id"]);
    shows(&mut socket, "20 90").await;
    socket.send(Message::binary("pwd; exit 4\n")).await.expect("sent");
    shows(&mut socket, "/home/user/www").await;
    let exit = text(&mut socket).await;
    assert_eq!((&exit["type"], &exit["code"]), (&json!("exit"), &json!(4)));
}

pub type Socket = tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>>;

/// Opens a terminal.
pub async fn open(caller: &berth_testkit::Caller, path: &str) -> Socket {
    let url = format!("{}{path}", caller.base().replace("http", "ws"));
    let mut request = url.into_client_request().expect("a request");
    let protocols = format!("berth, bearer.{}", caller.token());
    request.headers_mut().insert("sec-websocket-protocol", protocols.parse().expect("a header"));
    tokio_tungstenite::connect_async(request).await.expect("a terminal").0
}

/// The next text; bytes before it are passed over.
pub async fn text(socket: &mut Socket) -> Value {
    loop {
        match socket.next().await.expect("more").expect("a message") {
            Message::Text(text) => return serde_json::from_str(&text).expect("JSON"),
            Message::Close(frame) => panic!("closed: {frame:?}"),
            _ => {}
        }
    }
}

/// Reads until the terminal has shown this.
pub async fn shows(socket: &mut Socket, wanted: &str) {
    let mut shown = String::new();
    while !shown.contains(wanted) {
        match socket.next().await.expect("more").expect("a message") {
            Message::Binary(bytes) => shown.push_str(&String::from_utf8_lossy(&bytes)),
            Message::Close(frame) => panic!("closed before {wanted:?}: {frame:?}; it showed {shown:?}"),
            _ => {}
        }
    }
}

/// Who may: 401 before 404 before 403.
async fn callers(caller: &berth_testkit::Caller, id: &str) {
    let list = format!("/sandbox/{id}/files/list");
    caller.anonymous().get(&list).await.refused(401, "unauthorized");
    caller.get("/sandbox/01900000-0000-7000-8000-000000000000/files/list").await.refused(404, "sandbox_not_found");
    caller.get("/sandbox/x/files/list").await.refused(404, "sandbox_not_found");
    caller.get(&format!("/sandbox/{id}/no/such/route")).await.refused(404, "not_found");
    let made = caller.post("/api_keys", json!({"name": "k", "scopes": ["sandbox"]})).await;
    let key = made.body["key"].as_str().expect("a key").to_owned();
    assert_eq!(caller.with_token(&key).get(&list).await.status, 200);
    let by_header = caller.anonymous().request(Method::GET, &list).header("x-api-key", &key);
    assert_eq!(caller.send(by_header).await.status, 200);
    let other = caller.post("/api_keys", json!({"name": "o", "scopes": ["vm"]})).await;
    let other = other.body["key"].as_str().expect("a key").to_owned();
    caller.with_token(&other).get(&list).await.refused(403, "missing_scope");
}
