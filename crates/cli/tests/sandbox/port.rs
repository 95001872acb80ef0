//! Servers inside, reached from here.

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{BOX, Here, PATIENCE};

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
    let sandboxes = here.platform.admin.get(&format!("/sandboxes?name={BOX}")).await.body;
    let id = sandboxes["data"][0]["id"].as_str().unwrap().to_owned();
    let host = here.platform.admin.base.trim_start_matches("http://").to_owned();
    let mut stream = TcpStream::connect(&host).await.unwrap();
    let head = format!(
        "POST /sandbox/{id}/ports/{port}/ HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Length: 9\r\n\r\nhalf",
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
