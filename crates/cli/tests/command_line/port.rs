//! Servers inside, reached from here.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::harness::{BOX, Here, PATIENCE, until};

/// A server on a port of this machine, which is the sandbox's, too: it answers with what it was asked.
async fn server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream));
        }
    });
    port
}

async fn answer(stream: TcpStream) -> Option<()> {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        (stream.read_line(&mut head).await.ok()? > 0).then_some(())?;
    }
    if head.starts_with("GET /away ") {
        let away = "HTTP/1.1 302 Found\r\nLocation: /api/v1/users/me\r\nContent-Length: 0\r\n\r\n";
        return stream.write_all(away.as_bytes()).await.ok();
    }
    if head.to_lowercase().contains("upgrade: echo") {
        let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
        stream.write_all(switch.as_bytes()).await.ok()?;
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes).await.ok()?;
        return stream.write_all(&bytes).await.ok();
    }
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    let text = format!("{head}{}", String::from_utf8_lossy(&body));
    let reply = format!("HTTP/1.1 418 Teapot\r\nX-Own: yes\r\nContent-Length: {}\r\n\r\n{text}", text.len());
    stream.write_all(reply.as_bytes()).await.ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_is_told_and_answered_for() {
    let here = Here::start().await;
    let port = server().await;
    let url = here.fine(&["port", BOX, &port.to_string()]).await;
    assert!(url.starts_with(&here.way.url) && url.ends_with(&format!("/ports/{port}/\n")), "{url}");
    let zero = here.sandbox(&["port", BOX, "0"]).await;
    assert_eq!(zero.status.code(), Some(2), "{zero:?}");
    let mut command = here.berth(&["sandbox", "port", BOX, &port.to_string(), "--listen", "127.0.0.1:0"]);
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).await.unwrap();
    let address = line.split_whitespace().next().unwrap().to_owned();
    let answer = reqwest::Client::new().post(format!("{address}/a/b?c=d")).body("body").send().await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers()["x-own"].to_str().unwrap()), (418, "yes"));
    assert!(!answer.headers().contains_key("content-security-policy"), "that is for another origin");
    let text = answer.text().await.unwrap();
    assert!(text.starts_with("POST /a/b?c=d HTTP/1.1") && text.ends_with("body"), "{text}");
    assert!(!text.to_lowercase().contains("authorization"), "the credential stays with the service: {text}");
    // A server inside leads whoever asks it where it likes, and not who holds the credential.
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let away = client.get(format!("{address}/away")).send().await.unwrap();
    let place = away.headers()["location"].to_str().unwrap().to_owned();
    assert_eq!((away.status().as_u16(), place.as_str()), (302, "/api/v1/users/me"));
    assert_eq!(away.text().await.unwrap(), "");
    let host = address.trim_start_matches("http://").to_owned();
    // Out of the port, in a way that no client would take away.
    let mut stream = TcpStream::connect(&host).await.unwrap();
    let request = "GET /%2e%2e/%2e%2e/processes HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 400") && reply.contains("leads out"), "{reply}");
    let mut stream = TcpStream::connect(&host).await.unwrap();
    let request = "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(stream.read_line(&mut head).await.unwrap() > 0, "{head}");
    }
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    stream.write_all(b"ping").await.unwrap();
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"ping");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_to_a_port_keeps_coming_or_is_refused() {
    let here = Here::start_with(|config| config.http.body_grace_seconds = 1).await;
    let port = server().await;
    let root = root(&here).await;
    let host = here.platform.admin.base.trim_start_matches("http://").to_owned();
    let mut stream = TcpStream::connect(&host).await.unwrap();
    let head = format!(
        "POST {root}/ports/{port}/ HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Length: 9\r\n\r\nhalf",
        here.platform.admin.token
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).await.unwrap();
    assert!(line.starts_with("HTTP/1.1 408"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_an_end_ends_with_the_key_that_asked_for_it() {
    let here = Here::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = [0; 4096];
        assert!(stream.read(&mut head).await.unwrap() > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n").await.unwrap();
        // It says no more, and stays.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    });
    let admin = &here.platform.admin;
    let id = admin.get("/sandboxes").await.body["data"][0]["id"].as_str().unwrap().to_owned();
    let key = admin.post("/api_keys", serde_json::json!({"name": "k", "scopes": ["sandbox"]})).await;
    let by_key = admin.with_token(key.body["key"].as_str().unwrap());
    let request = by_key.request(reqwest::Method::GET, &format!("/sandbox/{id}/ports/{port}/"));
    let mut answer = request.send().await.unwrap();
    assert_eq!(answer.chunk().await.unwrap().unwrap(), "x");
    assert!(admin.delete(&format!("/api_keys/{}", key.id())).await.status < 300);
    let more = tokio::time::timeout(PATIENCE, answer.chunk()).await.expect("it ends");
    assert!(more.is_err(), "{more:?}");
}

/// The path of the sandbox.
async fn root(here: &Here) -> String {
    let sandboxes = here.platform.admin.get(&format!("/sandboxes?name={BOX}")).await.body;
    format!("/sandbox/{}", sandboxes["data"][0]["id"].as_str().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_listens_a_second_after_the_beginning_answers_the_first_request() {
    let here = Here::start().await;
    let root = root(&here).await;
    // It has the port, and nobody is let in yet.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let path = format!("{root}/ports/{}/", socket.local_addr().unwrap().port());
    let ask = || here.platform.admin.request(Method::GET, &path);
    // Of a sandbox that began long ago it is told at once.
    here.platform.admin.send(ask()).await.refused(502, "port_refused");
    here.platform.sandboxes.set_began(Instant::now() + PATIENCE);
    let mut first = std::pin::pin!(ask().send());
    assert!(timeout(Duration::from_secs(1), &mut first).await.is_err(), "it is waited for");
    let listener = socket.listen(8).unwrap();
    let served = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = [0; 4096];
        assert!(stream.read(&mut head).await.unwrap() > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup").await.unwrap();
        stream
    };
    let (answer, _stream) = timeout(PATIENCE, async { tokio::join!(first, served) }).await.expect("an answer in time");
    let answer = answer.unwrap();
    assert_eq!((answer.status().as_u16(), answer.text().await.unwrap().as_str()), (200, "up"));
}

/// What only stands in the second request of a session: the beginning of its headers (RFC 9113, section 4.1), where a body
/// follows. The first gives the agent its identity.
const SECOND: &str = "\u{1}\u{4}\0\0\0\u{3}";

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_takes_requests_and_says_nothing_is_given_up() {
    let here = Here::start().await;
    let (root, admin, port) = (root(&here).await, &here.platform.admin, server().await);
    let terminal = admin.request(Method::GET, &format!("{root}/terminal"));
    let terminal = terminal.header("connection", "upgrade").header("upgrade", "websocket");
    let terminal =
        terminal.header("sec-websocket-version", "13").header("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA==");
    let held = here.hold_answers_to(SECOND);
    here.platform.sandboxes.set_patience(Duration::from_millis(100));
    let run = admin.request(Method::POST, &format!("{root}/processes")).json(&json!({"cmd": "touch ran"}));
    for request in [run, terminal, admin.request(Method::GET, &format!("{root}/ports/{port}/"))] {
        let answer = timeout(PATIENCE, admin.send(request)).await.expect("an answer in time");
        answer.refused(503, "service_unavailable");
        assert_eq!(answer.header("retry-after"), Some("5"));
    }
    // It had its reasons: it was asked, and did it.
    until("the process", async || here.inside("ran").exists()).await;
    held.send_replace(false);
}
