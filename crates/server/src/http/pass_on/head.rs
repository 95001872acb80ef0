//! Which headers go on: all but those that concern one connection only (RFC 9110, section 7.6.1).

use axum::body::{Body, HttpBody};
use axum::http::request::Parts;
use axum::http::uri::{Authority, PathAndQuery, Scheme};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, Version, header};

use crate::http::envelope::{REQUEST_ID, RequestId};
use crate::http::passed::Passed;

/// Headers of one connection, beside those that `Connection` names.
const OF_A_CONNECTION: [HeaderName; 6] = [
    header::CONNECTION,
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("keep-alive"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];
/// What the client library knows the active replica by; it is in no request.
const NOMINAL: &str = "replica.berth";

/// What a connection is to become, if its client or server would leave HTTP.
pub fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let wants = options(headers).iter().any(|option| option.eq_ignore_ascii_case("upgrade"));
    headers.get(header::UPGRADE).filter(|_| wants).cloned()
}

/// Removes what concerns one connection only.
pub fn leave_connection(headers: &mut HeaderMap) {
    for name in options(headers) {
        headers.remove(name);
    }
    for name in &OF_A_CONNECTION {
        headers.remove(name);
    }
}

/// Has a connection leave HTTP for this protocol.
pub fn leave_http(protocol: HeaderValue, headers: &mut HeaderMap) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, protocol);
}

/// The same request for the active replica. `None` where its target is no path.
pub fn outgoing(parts: Parts, body: Body, passed: Passed, upgrade: Option<HeaderValue>) -> Option<Request<Body>> {
    let Parts { method, uri, mut headers, extensions, .. } = parts;
    let chunked = headers.contains_key(header::TRANSFER_ENCODING) && !body.is_end_stream();
    leave_connection(&mut headers);
    if chunked {
        // The client library takes a GET of unknown length for one without a body, unless it is told.
        headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    if let Some(protocol) = upgrade {
        leave_http(protocol, &mut headers);
    }
    // A target that names a host says where the request was sent, whatever stands beside it (RFC 9112, 3.2.2).
    if let Some(host) = uri.authority().and_then(|host| HeaderValue::try_from(host.as_str()).ok()) {
        headers.insert(header::HOST, host);
    }
    if let Some(id) = extensions.get::<RequestId>().and_then(|id| HeaderValue::try_from(&id.id).ok()) {
        headers.insert(REQUEST_ID, id);
    }
    passed.put(&mut headers);
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = target(uri.into_parts().path_and_query?)?;
    *request.headers_mut() = headers;
    *request.version_mut() = Version::HTTP_11;
    Some(request)
}

/// The target of a request for this path.
fn target(path: PathAndQuery) -> Option<Uri> {
    let to = Uri::builder().scheme(Scheme::HTTPS).authority(Authority::from_static(NOMINAL));
    to.path_and_query(path).build().ok()
}

/// What `Connection` names.
fn options(headers: &HeaderMap) -> Vec<String> {
    let lines = headers.get_all(header::CONNECTION).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(|name| name.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::client_address::ClientAddress;
    use crate::http::passed::{HEADER, Way};

    const PASSED: Passed = Passed { way: Way::Main, is_secure: false, client: ClientAddress::Unknown };

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn what_concerns_one_connection_goes_no_further() {
        let mut all = headers(&[
            ("connection", "keep-alive, X-Own"),
            ("connection", "te"),
            ("x-own", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "close"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("x-request-id", "r"),
            ("x-forwarded-for", "192.0.2.7"),
            ("authorization", "Bearer t"),
            ("host", "api.example.com"),
        ]);
        leave_connection(&mut all);
        assert_eq!(names(&all), ["authorization", "host", "x-forwarded-for", "x-request-id"]);
    }

    #[test]
    fn who_would_leave_http_says_so_twice() {
        let asked = |lines: &[_]| upgrade(&headers(lines)).map(|to| to.to_str().unwrap().to_owned());
        assert_eq!(
            asked(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]),
            Some("websocket".to_owned())
        );
        assert_eq!(asked(&[("upgrade", "websocket")]), None);
        assert_eq!(asked(&[("connection", "upgrade")]), None);
        assert_eq!(asked(&[("connection", "x-upgrade"), ("upgrade", "websocket")]), None);
    }

    #[test]
    fn a_target_stays_as_it_was_and_says_where_the_request_was_sent() {
        for (uri, path, host) in [
            ("/a//b?c=%2F&d", "/a//b?c=%2F&d", "api.example.com"),
            ("//a", "//a", "api.example.com"),
            ("http://other.example.com:81/a?", "/a?", "other.example.com:81"),
        ] {
            let request = Request::get(uri).header("host", "api.example.com").header(HEADER, "admin https 1.1.1.1");
            let (parts, body) = request.body(Body::empty()).unwrap().into_parts();
            let sent = outgoing(parts, body, PASSED, None).unwrap();
            assert_eq!(
                (sent.uri().path_and_query().unwrap().as_str(), &sent.headers()["host"]),
                (path, &host.parse().unwrap())
            );
            assert_eq!(sent.headers().get_all(HEADER).iter().collect::<Vec<_>>(), ["main http unknown"]);
        }
        let (parts, body) = Request::connect("example.com:443").body(Body::empty()).unwrap().into_parts();
        assert!(outgoing(parts, body, PASSED, None).is_none(), "a tunnel goes nowhere");
    }

    #[test]
    fn a_body_of_unknown_length_stays_one() {
        let endless = || Body::from_stream(futures::stream::pending::<Result<bytes::Bytes, std::io::Error>>());
        for (body, chunked) in [(endless(), true), (Body::empty(), false)] {
            let request = Request::get("/").header("transfer-encoding", "chunked").body(body).unwrap();
            let (parts, body) = request.into_parts();
            let sent = outgoing(parts, body, PASSED, None).unwrap();
            assert_eq!(sent.headers().contains_key("transfer-encoding"), chunked);
        }
    }
}
