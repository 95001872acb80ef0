//! Where an upstream is: its connections, the heads of requests to it, and the secrets that no answer may show.

use std::sync::Arc;

use axum::http::uri::PathAndQuery;
use axum::http::{HeaderValue, Uri};
use berth_domain::gateway::body::Operation;
use bytes::Bytes;

use super::client::{Origin, Request};

/// Where an upstream is, ready for use.
pub struct Address {
    /// Its connections.
    pub origin: Arc<Origin>,
    /// The beginning of the head of every request, by path.
    heads: Heads,
    /// What must never stand in an answer: its address and its key.
    secrets: Vec<String>,
}

/// Heads of requests, with the key in them.
struct Heads {
    chat: Box<[u8]>,
    completions: Box<[u8]>,
    embeddings: Box<[u8]>,
    speech: Box<[u8]>,
    models: Box<[u8]>,
}

impl Address {
    /// The address of a base URL, with a key.
    pub fn new(base: &str, key: Option<&str>) -> anyhow::Result<Self> {
        let uri: Uri = base.parse()?;
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        let host = uri.host().unwrap_or_default().to_owned();
        let credential = key.map(|key| HeaderValue::from_str(&format!("Bearer {key}"))).transpose()?;
        let head = |method: &str, path: &str| head(&format!("{base}{path}"), method, credential.as_ref());
        let post = |operation: Operation| head("POST", operation.path());
        let heads = Heads {
            chat: post(Operation::Chat)?,
            completions: post(Operation::Completions)?,
            embeddings: post(Operation::Embeddings)?,
            speech: post(Operation::Speech)?,
            models: head("GET", "/models")?,
        };
        let mut secrets = vec![base.to_owned(), authority, host];
        secrets.extend(key.map(str::to_owned));
        secrets.retain(|secret| secret.len() > 3);
        Ok(Self { origin: Origin::new(uri), heads, secrets })
    }

    /// The beginning of the head of a request for an operation: without the fields that are each request's own, and
    /// without the blank line.
    pub fn head(&self, operation: Operation) -> &[u8] {
        match operation {
            Operation::Chat => &self.heads.chat,
            Operation::Completions => &self.heads.completions,
            Operation::Embeddings => &self.heads.embeddings,
            Operation::Speech => &self.heads.speech,
        }
    }

    /// A request that lists its models, to see whether it is well.
    pub fn look(&self) -> Request {
        Request::new([&self.heads.models[..], b"\r\n"].concat(), Bytes::new())
    }

    /// The texts that must never stand in an answer.
    pub fn secrets(&self) -> Vec<&str> {
        self.secrets.iter().map(String::as_str).collect()
    }
}

/// The request line and the headers that every request has.
fn head(url: &str, method: &str, credential: Option<&HeaderValue>) -> anyhow::Result<Box<[u8]>> {
    let uri: Uri = url.parse()?;
    let target = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let host = uri.host().unwrap_or_default();
    let default = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    let port = uri.port_u16().filter(|port| *port != default).map(|port| format!(":{port}")).unwrap_or_default();
    let agent = concat!("berth/", env!("CARGO_PKG_VERSION"));
    let mut head = format!("{method} {target} HTTP/1.1\r\nhost: {host}{port}\r\nuser-agent: {agent}\r\n").into_bytes();
    if let Some(credential) = credential {
        head.extend_from_slice(b"authorization: ");
        head.extend_from_slice(credential.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    Ok(head.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_an_upstream_is_addressed() {
        for (base, line, host) in [
            ("http://h:80/v1", "POST /v1/chat/completions HTTP/1.1", "host: h"),
            ("https://h:443", "POST /chat/completions HTTP/1.1", "host: h"),
            ("http://h:443/a/b", "POST /a/b/chat/completions HTTP/1.1", "host: h:443"),
            ("https://[::1]:9101/v1", "POST /v1/chat/completions HTTP/1.1", "host: [::1]:9101"),
        ] {
            let address = Address::new(base, Some("sk-1")).unwrap();
            let head = String::from_utf8(address.head(Operation::Chat).to_vec()).unwrap();
            let lines: Vec<_> = head.split("\r\n").collect();
            assert_eq!((lines[0], lines[1]), (line, host), "{base}");
            assert_eq!((lines[3], lines[4], lines.len()), ("authorization: Bearer sk-1", "", 5), "{base}");
        }
        assert!(Address::new("http://h", Some("a\nb")).is_err());
    }
}
