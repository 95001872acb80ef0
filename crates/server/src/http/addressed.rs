//! Requests that name a port of a sandbox by headers or by the name of the host they were sent to, and not by their path.
//!
//! They get the path that says the same, [`INSIDE`], before any route is looked for: so nothing that is sent to a sandbox's
//! name can reach a route of the platform.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Uri, header};
use berth_domain::e2b::address::{Address, PORT, SANDBOX};
use berth_domain::{Code, Error, Result};

/// Below this lie the ports of sandboxes: `/e2b/inside/{sandbox}/{port}/…`.
pub const INSIDE: &str = "/e2b/inside";

/// Gives a request the path of the port that it names, if it names one.
///
/// # Errors
/// It means to name one and names none that can be, or its path is too long: no route may answer it.
pub fn readdress(request: &mut Request) -> Result<()> {
    let Some(address) = named(request.headers(), request.uri())? else { return Ok(()) };
    let asked = request.uri().path_and_query().map_or("/", |asked| asked.as_str());
    let slash = if asked.starts_with('/') { "" } else { "/" };
    let path = format!("{INSIDE}/{}/{}{slash}{asked}", address.sandbox, address.port);
    let too_long = |_| Error::new(Code::InvalidRequest, "The address is too long.");
    *request.uri_mut() = path.parse().map_err(too_long)?;
    Ok(())
}

/// The port that a request names.
///
/// # Errors
/// It means to name one and names none that can be.
pub fn named(headers: &HeaderMap, uri: &Uri) -> Result<Option<Address>> {
    let text = |value: &HeaderValue| value.to_str().unwrap_or("?").to_owned();
    // Of a connection with HTTP/2 the address has the name.
    let host = uri.host().map(str::to_owned).or_else(|| headers.get(header::HOST).map(text));
    let by_host = host.and_then(|host| Address::of_host(&host));
    let Some(sandbox) = headers.get(SANDBOX).map(text) else { return Ok(by_host) };
    let by_headers = Address::of_headers(&sandbox, headers.get(PORT).map(text).as_deref());
    let wrong = || Error::new(Code::NotFound, format!("{SANDBOX} and {PORT} name no port of a sandbox."));
    by_headers.ok_or_else(wrong).map(Some)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    const ID: &str = "0198f3a0-0000-7000-8000-000000000001";

    fn path(uri: &str, headers: &[(&str, &str)]) -> (bool, String) {
        let request = headers.iter().fold(Request::get(uri), |request, (name, value)| request.header(*name, *value));
        let mut request = request.body(Body::empty()).unwrap();
        let before = request.uri().to_string();
        readdress(&mut request).unwrap();
        let after = request.uri().to_string();
        (after != before, after)
    }

    #[test]
    fn what_is_sent_to_a_sandbox_s_name_reaches_no_route_of_the_platform() {
        let host = format!("3000-{ID}.localhost:8080");
        assert_eq!(
            path("/api/v1/users/me?a=b", &[("host", &host)]),
            (true, format!("{INSIDE}/{ID}/3000/api/v1/users/me?a=b"))
        );
        assert_eq!(path(&format!("http://{host}/x"), &[]), (true, format!("{INSIDE}/{ID}/3000/x")));
        assert_eq!(path("/health", &[(SANDBOX, ID)]), (true, format!("{INSIDE}/{ID}/49983/health")));
        let named = [(SANDBOX, ID), (PORT, "8888"), ("host", host.as_str())];
        assert_eq!(path("/", &named), (true, format!("{INSIDE}/{ID}/8888/")));
        for headers in [vec![("host", "localhost:8080")], vec![], vec![(PORT, "1")]] {
            assert_eq!(path("/api/v1/users/me", &headers), (false, "/api/v1/users/me".into()));
        }
        let refused = |uri: &str, headers: &[(&str, &str)]| {
            let request =
                headers.iter().fold(Request::get(uri), |request, (name, value)| request.header(*name, *value));
            readdress(&mut request.body(Body::empty()).unwrap()).is_err()
        };
        assert!(refused("/metrics", &[(SANDBOX, "nothing"), ("host", &host)]));
        assert!(refused("/metrics", &[(SANDBOX, ID), (PORT, "0")]));
        assert!(refused(&format!("/docs?x={}", "a".repeat(65_500)), &[("host", &host)]));
    }
}
