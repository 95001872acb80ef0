//! Ports of a sandbox: envd's, which the facade answers, and those of servers inside, which answer for themselves.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use berth_domain::e2b::address::ENVD;
use berth_domain::e2b::token::Purpose;
use berth_domain::ids::{KeyId, SandboxId};
use berth_domain::{Code, Error};
use serde_json::json;

use super::envd::{self, TOKEN, bearer};
use super::room::{Failure, Room};
use super::state::E2b;
use crate::facade::api::question;
use crate::http::envelope::{ApiError, error_of, keep_shape};

/// The header with the token of who only reaches ports.
const TRAFFIC: HeaderName = HeaderName::from_static("e2b-traffic-access-token");

/// What who shows nothing reads.
const NO_TOKEN: &str = "Servers in a sandbox are private here. Send its token in 'E2B-Traffic-Access-Token', or a key of its \
                        project in 'X-API-Key'.";

/// Answers a request to a port of a sandbox.
pub async fn reach(
    State(e2b): State<E2b>,
    Path(named): Path<std::collections::HashMap<String, String>>,
    request: Request,
) -> Response {
    let text = |name: &str| named.get(name).map(String::as_str).unwrap_or_default();
    let (sandbox, port) = (text("sandbox_id").parse::<SandboxId>(), text("port").parse::<u16>());
    let (Ok(sandbox), Ok(port)) = (sandbox, port) else {
        return ApiError(Error::new(Code::NotFound, "There is no such port of a sandbox.")).into_response();
    };
    let (parts, body) = request.into_parts();
    if port == ENVD {
        return envd::answer(&e2b, sandbox, text("rest"), parts, body).await;
    }
    served(&e2b, (sandbox, port), parts, body).await.unwrap_or_else(|error| match error {
        Failure::Refused(error) if error.code == Code::PortRefused => closed(sandbox, port),
        failure => failure.into_response(),
    })
}

/// What a server inside answers.
async fn served(
    e2b: &E2b,
    (sandbox, port): (SandboxId, u16),
    mut parts: Parts,
    body: Body,
) -> Result<Response, Failure> {
    let key = traffic(e2b, &parts.headers, sandbox);
    // As it was sent, percent signs and all: behind `/e2b/inside/{sandbox}/{port}/`.
    let below = parts.uri.path().splitn(6, '/').nth(5).unwrap_or_default();
    let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let mut asked = question(parts.method.clone(), &format!("/sandbox/{sandbox}/ports/{port}/{below}{query}"), body)?;
    let is_ours = |name: &HeaderName| *name == TOKEN || name.as_str().starts_with("e2b-");
    let passed = parts.headers.iter().filter(|(name, _)| !is_ours(name));
    asked.headers_mut().extend(passed.map(|(name, value)| (name.clone(), value.clone())));
    // The server is asked by the name of its own loopback, and may want to say where it is reached.
    if let Some(host) = parts.uri.host().and_then(|host| HeaderValue::from_str(host).ok()).or_else(|| host_of(&parts)) {
        asked.headers_mut().insert("x-forwarded-host", host);
    }
    if let Some(upgrade) = parts.extensions.remove::<hyper::upgrade::OnUpgrade>() {
        asked.extensions_mut().insert(upgrade);
    }
    let room = Room::of(e2b, &parts, sandbox, key);
    let mut answer = room.send(asked).await;
    // What a server inside answers is its own, refusals among it.
    match error_of(&answer) {
        Some(error) if error.code == Code::Unauthorized => Err(Error { message: NO_TOKEN.into(), ..error }.into()),
        Some(error) => Err(room.failure(error)),
        None => {
            keep_cookies_here(answer.headers_mut());
            Ok(answer)
        }
    }
}

/// Has each cookie be this name's alone: no server inside sets one for the names above it.
fn keep_cookies_here(headers: &mut HeaderMap) {
    let cookies: Vec<HeaderValue> = headers.get_all(header::SET_COOKIE).iter().cloned().collect();
    headers.remove(header::SET_COOKIE);
    for cookie in cookies {
        let own = cookie.to_str().ok().map(without_domain).and_then(|text| HeaderValue::from_str(&text).ok());
        if let Some(own) = own {
            headers.append(header::SET_COOKIE, own);
        }
    }
}

fn without_domain(cookie: &str) -> String {
    let is_domain = |part: &&str| part.split('=').next().is_some_and(|name| name.trim().eq_ignore_ascii_case("domain"));
    cookie.split(';').filter(|part| !is_domain(part)).collect::<Vec<_>>().join(";")
}

fn host_of(parts: &Parts) -> Option<HeaderValue> {
    parts.headers.get(header::HOST).cloned()
}

/// The key that a token for the sandbox's ports was given to.
fn traffic(e2b: &E2b, headers: &HeaderMap, sandbox: SandboxId) -> Option<KeyId> {
    let sent = || headers.get(TRAFFIC)?.to_str().ok();
    bearer(e2b, headers, sandbox).or_else(|| e2b.access.key(sandbox, sent()?, Purpose::Ports))
}

fn closed(sandbox: SandboxId, port: u16) -> Response {
    let message = "The sandbox is running but port is not open";
    let body = json!({"sandboxId": sandbox.to_string(), "message": message, "port": port, "code": 502});
    keep_shape((StatusCode::BAD_GATEWAY, Json(body)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_stays_with_the_name_that_set_it() {
        for (set, kept) in [
            ("a=b; Domain=example.org; Path=/", "a=b; Path=/"),
            ("a=domain; path=/; DOMAIN = x", "a=domain; path=/"),
            ("a=b", "a=b"),
        ] {
            let mut headers = HeaderMap::from_iter([(header::SET_COOKIE, HeaderValue::from_static(set))]);
            keep_cookies_here(&mut headers);
            assert_eq!(headers[header::SET_COOKIE], kept);
        }
    }
}
