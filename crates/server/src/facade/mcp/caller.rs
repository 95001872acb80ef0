//! Who calls, and in which project.

use axum::body::{Body, to_bytes};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Uri, header};
use axum::response::{IntoResponse, Response};
use berth_domain::identity::api_key::{KeyScope, KeyScopes};
use berth_domain::{Code, Error, Result};
use serde_json::Value;
use uuid::Uuid;

use crate::db::settled;
use crate::facade::api::{Api, Asker, escaped, question, said};
use crate::facade::oauth::RESOURCE;
use crate::http::base_url::BaseUrl;
use crate::http::cors::Listed;
use crate::http::envelope::{ApiError, error_of};
use crate::http::own_key::at_home;
use crate::http::who::Who;

/// The longest refusal of a server in a sandbox that is told, in bytes.
const REFUSAL: usize = 4 << 10;
/// The largest list of models that is read, in bytes.
const LISTED: usize = 1 << 20;
/// What a caller without a credential reads.
const NO_KEY: &str = "Send 'Authorization: Bearer KEY' with an API key of a project. Make one: \
                      berth key create agents --scope sandbox --scope vm --scope inference";

/// Whoever calls, with their project.
#[derive(Clone)]
pub struct Caller {
    api: Api,
    asker: Asker,
    /// The path of the project.
    project: String,
    named: HeaderValue,
    /// Credential and organization.
    holders: [Uuid; 2],
    /// What a key is good for; none of a person.
    scopes: Option<KeyScopes>,
    /// Where the service is reached.
    pub base: String,
}

/// Why a request is not let in.
pub struct Refused {
    error: Error,
    base: String,
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let unauthorized = self.error.code == Code::Unauthorized;
        let mut response = ApiError(self.error).into_response();
        let challenge = format!("Bearer resource_metadata=\"{}{RESOURCE}\", scope=\"sandbox\"", self.base);
        if unauthorized && let Ok(value) = HeaderValue::from_str(&challenge) {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, value);
        }
        response
    }
}

impl Caller {
    /// The sender of a request, which is counted.
    ///
    /// # Errors
    /// It comes from a page of a stranger, without a credential, or to no project.
    pub async fn of(api: &Api, parts: &mut Parts) -> Result<Self, Refused> {
        let BaseUrl(base) = match BaseUrl::from_request_parts(parts, &()).await {
            Ok(base) => base,
            Err(ApiError(error)) => return Err(Refused { error, base: String::new() }),
        };
        match Self::found(api, parts, &base).await {
            Ok(caller) => Ok(caller),
            Err(error) => Err(Refused { error, base }),
        }
    }

    async fn found(api: &Api, parts: &mut Parts, base: &str) -> Result<Self> {
        if is_of_a_stranger(parts, base) {
            let message = "Pages of this origin may not call. An operator allows it: [http] cors_origins";
            return Err(Error::new(Code::Forbidden, message));
        }
        let scope = at_home(parts).await.map_err(|error| match error.code {
            Code::Unauthorized => Error { message: NO_KEY.to_owned(), ..error },
            _ => error,
        })?;
        let named = HeaderValue::from_str(&scope.project.to_string()).map_err(Error::internal)?;
        let (credential, scopes) = match &scope.caller.who {
            Who::Key { id, scopes, .. } => (id.0, Some(*scopes)),
            Who::Person { user, .. } => (user.0, None),
        };
        Ok(Self {
            api: api.clone(),
            holders: [credential, scope.org.0],
            scopes,
            // This request was counted.
            asker: Asker::of(parts).uncounted(),
            project: format!("/api/v1/orgs/{}/projects/{}", scope.org, scope.project),
            named,
            base: base.to_owned(),
        })
    }

    /// The path of the project.
    pub fn project(&self) -> &str {
        &self.project
    }

    /// Who holds a connection that is answered for long.
    pub fn holders(&self) -> Vec<Uuid> {
        self.holders.to_vec()
    }

    /// What a caller is told from others by: project and credential.
    pub fn owner(&self) -> String {
        format!("{}/{}", self.project, self.holders[0])
    }

    /// Whether it may have use for what takes a scope.
    pub fn has(&self, scope: KeyScope) -> bool {
        self.scopes.is_none_or(|scopes| scopes.contains(scope))
    }

    /// Asks for something below the project.
    pub async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        settled(self.api.json(&self.asker, method, &format!("{}{path}", self.project), body)).await?
    }

    /// Asks for bytes below the project.
    pub async fn open(&self, path: &str) -> Result<Response> {
        let request = question(Method::GET, &format!("{}{path}", self.project), Body::empty())?;
        settled(self.api.ask(&self.asker, request)).await?
    }

    /// Asks what has its project by a header.
    pub async fn ask_anywhere(&self, path: &str) -> Result<Value> {
        let mut request = question(Method::GET, path, Body::empty())?;
        request.headers_mut().insert(crate::http::auth::PROJECT_ID, self.named.clone());
        said(settled(self.api.ask(&self.asker, request)).await??, LISTED).await
    }

    /// Asks the runtime of a sandbox of the project.
    pub async fn inside(&self, sandbox: &str, request: Inside<'_>) -> Result<Response> {
        self.must_have(sandbox).await?;
        let path = format!("/sandbox/{}/{}", escaped(sandbox), request.route);
        let mut question = question(request.method, &path, request.body)?;
        question.headers_mut().extend(request.headers);
        settled(self.api.ask(&self.asker, question)).await?
    }

    /// Asks a server inside a sandbox of the project, at one of its ports.
    ///
    /// # Errors
    /// What the API refuses, or what the server does.
    pub async fn reach(
        &self,
        sandbox: &str,
        port: u16,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Response> {
        self.must_have(sandbox).await?;
        let path = format!("/sandbox/{}/ports/{port}/{path}", escaped(sandbox));
        let mut question = question(method, &path, body.map_or_else(Body::empty, |body| body.to_string().into()))?;
        question.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let answer = settled(self.api.send(&self.asker, question)).await?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        if let Some(error) = error_of(&answer) {
            return Err(error);
        }
        let status = answer.status();
        let told = to_bytes(answer.into_body(), REFUSAL).await.unwrap_or_default();
        let message = format!("The server in the sandbox answered {status}: {}", String::from_utf8_lossy(&told));
        Err(Error::new(Code::InvalidRequest, message))
    }

    /// Refuses a sandbox that is not the project's. A key has one project; a person has others, whose sandboxes the runtime
    /// lets them into, too.
    async fn must_have(&self, sandbox: &str) -> Result<()> {
        if self.scopes.is_none() {
            self.ask(Method::GET, &format!("/sandboxes/{}", escaped(sandbox)), None).await?;
        }
        Ok(())
    }
}

/// What the runtime of a sandbox is asked.
pub struct Inside<'a> {
    /// How.
    pub method: Method,
    /// What, without the sandbox.
    pub route: &'a str,
    /// With what.
    pub body: Body,
    /// And with which headers.
    pub headers: Vec<(header::HeaderName, HeaderValue)>,
}

impl<'a> Inside<'a> {
    /// A question without a body.
    pub fn get(route: &'a str) -> Self {
        Self { method: Method::GET, route, body: Body::empty(), headers: Vec::new() }
    }

    /// One with JSON.
    pub fn post(route: &'a str, body: &impl serde::Serialize) -> Result<Self> {
        let body = serde_json::to_string(body).map_err(Error::internal)?;
        let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(Self { method: Method::POST, route, body: body.into(), headers: vec![kind] })
    }

    /// The same with another header.
    #[must_use]
    pub fn with(mut self, name: header::HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }
}

/// Whether a request comes from a page that is neither the service's own, nor of this machine, nor on the operator's list. The
/// protocol demands this, because of servers that know a caller by where they are. Names that a page's owner chooses, as the
/// request's `Host` is, prove nothing.
fn is_of_a_stranger(parts: &Parts, base: &str) -> bool {
    let Some(origin) = parts.headers.get(header::ORIGIN) else { return false };
    if parts.extensions.get::<Listed>().is_some() {
        return false;
    }
    let Ok(Ok(uri)) = origin.to_str().map(str::parse::<Uri>) else { return true };
    let is_local = matches!(uri.host(), Some("localhost" | "127.0.0.1" | "[::1]"));
    let configured = parts.extensions.get::<crate::http::base_url::Configured>().is_some_and(|own| own.0.is_some());
    let is_own = configured && base.eq_ignore_ascii_case(uri.to_string().trim_end_matches('/'));
    !is_local && !is_own
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::http::Request;

    use super::*;
    use crate::http::base_url::Configured;

    fn stranger(origin: &str, configured: Option<&str>) -> bool {
        let mut parts = Request::builder().header(header::ORIGIN, origin).body(()).unwrap().into_parts().0;
        parts.extensions.insert(Configured(configured.map(Arc::from)));
        is_of_a_stranger(&parts, configured.unwrap_or(origin))
    }

    #[test]
    fn a_page_is_the_services_own_or_of_this_machine() {
        for own in ["http://localhost:3000", "http://127.0.0.1:8080", "http://[::1]:1"] {
            assert!(!stranger(own, None), "{own}");
        }
        assert!(!stranger("https://cloud.example.org", Some("https://cloud.example.org")));
        for strange in ["https://evil.example", "http://cloud.example.org", "null", "http://localhost.evil.example"] {
            assert!(stranger(strange, Some("https://cloud.example.org")), "{strange}");
            assert!(stranger(strange, None), "{strange}");
        }
        let none = Request::builder().body(()).unwrap().into_parts().0;
        assert!(!is_of_a_stranger(&none, ""));
    }
}
