//! Servers inside a sandbox.

use http::{HeaderMap, HeaderName, Method, header};
use reqwest::{Body, Response, Url};

use super::Runtime;
use crate::{Error, Result};

/// Headers that concern only one connection (RFC 9110, section 7.6.1), or identify the caller.
const PRIVATE: [HeaderName; 8] = [
    header::AUTHORIZATION,
    header::CONNECTION,
    header::HOST,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    HeaderName::from_static("x-api-key"),
];

impl Runtime {
    /// The URL of a server that listens on a port inside, with a slash at the end.
    pub fn port_url(&self, port: u16) -> String {
        self.url(&format!("ports/{port}/"))
    }

    /// Sends a request to a server inside and returns its answer, whatever its status; upgrades work, too.
    ///
    /// `target` is a path and query in the form of a request's first line. Refuses one that leads out of the port, to
    /// another route of the service.
    pub async fn ask_port(
        &self,
        port: u16,
        method: Method,
        target: &str,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Response> {
        let url = self.target(port, target)?;
        let mut request = self.client.request(method, &url);
        for (name, value) in headers.iter().filter(|(name, _)| !PRIVATE.contains(name)) {
            request = request.header(name, value);
        }
        if headers.contains_key(header::UPGRADE) {
            request = request.header(header::CONNECTION, "upgrade");
        } else if headers.contains_key(header::CONTENT_LENGTH) || headers.contains_key(header::TRANSFER_ENCODING) {
            request = request.body(body);
        }
        request.send().await.map_err(|error| self.client.unreachable(&error))
    }

    fn target(&self, port: u16, target: &str) -> Result<String> {
        let root = self.port_url(port);
        let whole = format!("{root}{}", target.strip_prefix('/').unwrap_or(target));
        let read = |text: &str| Url::parse(text).map_err(|e| Error::Protocol(e.to_string()));
        let (below, root) = (read(&whole)?, read(&root)?);
        // The parser has resolved dot segments, in every spelling.
        if below.path().starts_with(root.path()) {
            Ok(whole)
        } else {
            Err(Error::Protocol(format!("'{target}' leads out of the sandbox's port")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;

    #[test]
    fn no_path_leads_out_of_a_port() {
        let client = Client::new("http://127.0.0.1:8080").unwrap();
        let runtime =
            Runtime { client, base: "http://127.0.0.1:8080/sandbox/7".into(), reach: crate::runtime::Reach::default() };
        for fine in ["/", "/a/b?c=../..", "", "/a/../b", "/a//b", "/%2e/x", "/..%2f..%2fcommands"] {
            assert!(runtime.target(8000, fine).is_ok(), "{fine}");
        }
        for bad in
            ["/..", "/../commands", "/%2e%2e/../commands", "/a/../../commands", "/.%2E/9000/", "/..\\..\\commands"]
        {
            assert!(runtime.target(8000, bad).is_err(), "{bad}");
        }
        assert_eq!(runtime.target(8000, "/a?b").unwrap(), "http://127.0.0.1:8080/sandbox/7/ports/8000/a?b");
    }
}
