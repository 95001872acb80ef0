//! Requests that take their time: something happens after they began and before they ended.

use berth_testkit::{Answer, Caller};
use reqwest::header::HeaderMap;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A request whose body comes in two parts.
pub(crate) struct Slow(TcpStream);

impl Slow {
    /// Sends the head, with one more header or none, and waits until the service, which has let the caller in, asks for the body.
    pub(crate) async fn begin(caller: &Caller, method: &str, path: &str, header: &str) -> Self {
        let path = if path.starts_with("/api/") { path.to_owned() } else { format!("{}{path}", caller.project) };
        let address = caller.base().strip_prefix("http://").expect("an address");
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let kind = if path.contains("/disks/import") { "application/octet-stream" } else { "application/json" };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: berth\r\nAuthorization: Bearer {}\r\nContent-Type: {kind}\r\n{header}\
             Transfer-Encoding: chunked\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n",
            caller.token()
        );
        stream.write_all(head.as_bytes()).await.expect("sent");
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            asked.push(stream.read_u8().await.expect("the service asks for the body"));
        }
        assert!(asked.starts_with(b"HTTP/1.1 100"), "{}", String::from_utf8_lossy(&asked));
        Self(stream)
    }

    /// Sends a part of the body.
    pub(crate) async fn send(&mut self, part: &str) {
        let chunk = format!("{:x}\r\n{part}\r\n", part.len());
        self.0.write_all(chunk.as_bytes()).await.expect("sent");
    }

    /// Ends the body; what the service answers.
    pub(crate) async fn end(mut self) -> Answer {
        self.0.write_all(b"0\r\n\r\n").await.expect("sent");
        self.answer().await
    }

    /// What the service answers, though the body has not ended.
    pub(crate) async fn answer(mut self) -> Answer {
        let mut text = String::new();
        self.0.read_to_string(&mut text).await.expect("an answer");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
        let mut headers = HeaderMap::new();
        for (name, value) in head.lines().skip(1).filter_map(|line| line.split_once(": ")) {
            let name: reqwest::header::HeaderName = name.parse().expect("a name");
            headers.insert(name, value.parse().expect("a value"));
        }
        Answer { status, headers, body: serde_json::from_str(body).unwrap_or(Value::Null) }
    }
}

/// Sends a body in two parts; between them something happens.
pub(crate) async fn with(
    caller: &Caller,
    method: &str,
    path: &str,
    body: Value,
    between: impl Future<Output = ()>,
) -> Answer {
    let text = body.to_string();
    let (first, rest) = text.split_at(text.len() / 2);
    let mut slow = Slow::begin(caller, method, path, "").await;
    slow.send(first).await;
    between.await;
    slow.send(rest).await;
    slow.end().await
}
