//! A sandbox that a request works in, and the runtime's calls.

use axum::Json;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_domain::agent::runtime::Entry;
use berth_domain::e2b::connect::{Refused, USUAL};
use berth_domain::ids::{KeyId, SandboxId};
use berth_domain::{Code, Error, Result};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};

use super::state::E2b;
use crate::facade::api::{Api, Asker, escaped, question, said};
use crate::http::envelope::{ApiError, keep_shape};

/// The account that works where no other is named.
const USER: &str = "user";

/// A sandbox, with who works in it.
#[derive(Clone)]
pub struct Room {
    api: Api,
    asker: Asker,
    id: SandboxId,
    /// The account that acts.
    pub user: String,
}

/// Why a request for the inside failed.
pub enum Failure {
    /// The sandbox is gone, or rests: whoever asks for it is told so, whatever they asked, and why.
    Gone(SandboxId, String),
    /// The API refuses.
    Refused(Error),
    /// A call makes no sense, or its answer does not.
    Wrong(Refused),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Self::Wrong(refused)
    }
}

impl Failure {
    /// What a call that failed so is answered with.
    pub fn of_call(self) -> Response {
        match self {
            Self::Refused(error) => refused(&Refused::from(&error)),
            other => other.into_response(),
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self {
            Self::Gone(id, why) => gone(id, &why),
            Self::Refused(error) => ApiError(error).into_response(),
            Self::Wrong(wrong) => refused(&wrong),
        }
    }
}

/// What a single call that failed is answered with.
fn refused(refused: &Refused) -> Response {
    let status = StatusCode::from_u16(refused.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    keep_shape((status, Json(refused.body())).into_response())
}

/// SDKs know this by the first words of its message.
fn gone(id: SandboxId, why: &str) -> Response {
    let body =
        json!({"sandboxId": id.to_string(), "message": format!("The sandbox was not found. {why}"), "code": 502});
    keep_shape((StatusCode::BAD_GATEWAY, Json(body)).into_response())
}

impl Room {
    /// The sandbox of a request, for a key that may be there, or else for whoever the request's own credential stands for.
    pub fn of(e2b: &E2b, parts: &Parts, id: SandboxId, key: Option<KeyId>) -> Self {
        let user = named(&parts.headers).unwrap_or_else(|| USER.to_owned());
        let asker = Asker::of(parts);
        let asker = match key {
            Some(key) => asker.on_behalf(key),
            None => asker,
        };
        Self { api: e2b.api.clone(), asker, id, user }
    }

    /// The sandbox for who shows nothing but an address that was signed: as the account that it was signed for, whatever the
    /// request says beside it.
    pub fn signed(e2b: &E2b, parts: &Parts, (id, key): (SandboxId, KeyId), user: &str) -> Self {
        let user = if user.is_empty() { USER } else { user }.to_owned();
        Self { user, ..Self::of(e2b, parts, id, Some(key)) }
    }

    /// The sandbox's id.
    pub const fn id(&self) -> SandboxId {
        self.id
    }

    /// A query that says that paths are the machine's, and who acts. As in envd, no permission keeps it out, and what it makes
    /// is the account's.
    pub fn whole(&self) -> String {
        format!("root=true&privileged=true&user={}", escaped(&self.user))
    }

    /// The same with a path.
    pub fn about(&self, path: &str) -> String {
        let path = if path.is_empty() { "." } else { path };
        format!("{}&path={}", self.whole(), escaped(path))
    }

    /// Asks the runtime, and returns what is answered as it comes.
    pub async fn open(
        &self,
        method: Method,
        route: &str,
        headers: &[(HeaderName, HeaderValue)],
        body: Body,
    ) -> Result<Response, Failure> {
        let mut request = question(method, &format!("/sandbox/{}/{route}", self.id), body)?;
        request.headers_mut().extend(headers.iter().cloned());
        self.api.ask(&self.asker, request).await.map_err(|error| self.failure(error))
    }

    /// Asks the runtime with JSON, or nothing, for what it says in at most so many bytes: the guest may say anything.
    pub async fn read<T: DeserializeOwned>(
        &self,
        method: Method,
        route: &str,
        body: Option<&Value>,
        most: usize,
    ) -> Result<T, Failure> {
        let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let kind: &[_] = if body.is_some() { &[kind] } else { &[] };
        let text = body.map_or_else(Body::empty, |body| body.to_string().into());
        Ok(said(self.open(method, route, kind, text).await?, most).await?)
    }

    /// Has the runtime do something.
    pub async fn act(&self, method: Method, route: &str, body: Option<&Value>) -> Result<(), Failure> {
        self.read::<IgnoredAny>(method, route, body, USUAL).await.map(drop)
    }

    /// A thing with its details. Below what is no directory there is nothing.
    pub async fn stat(&self, path: &str) -> Result<Entry, Failure> {
        let found = self.read(Method::GET, &format!("files/stat?details=true&{}", self.about(path)), None, USUAL).await;
        found.map_err(|failure| match failure {
            Failure::Refused(error) if error.code == Code::NotADirectory => {
                Error::new(Code::NotFound, error.message).into()
            }
            failure => failure,
        })
    }

    /// Ends a program at once.
    pub async fn kill(&self, pid: i32) {
        let body = json!({"signal": "SIGKILL"});
        // Whoever ended meanwhile needs no signal.
        let _ = self.act(Method::POST, &format!("processes/{pid}/signal"), Some(&body)).await;
    }

    /// Asks the API, and returns what is answered, whatever that is.
    pub async fn send(&self, request: Request<Body>) -> Response {
        self.api.send(&self.asker, request).await
    }

    /// The phase of the sandbox, without going in.
    pub async fn phase(&self, project: &str) -> Result<String, Failure> {
        let path = format!("{project}/sandboxes/{}", self.id);
        let sandbox = self.api.json(&self.asker, Method::GET, &path, None).await;
        let sandbox = sandbox.map_err(|error| self.failure(error))?;
        Ok(sandbox["phase"].as_str().unwrap_or_default().to_owned())
    }

    /// What a refusal of the API means here.
    pub fn failure(&self, error: Error) -> Failure {
        let is_gone = matches!(
            error.code,
            Code::SandboxNotFound | Code::SandboxPaused | Code::SandboxFailed | Code::ProjectNotFound
        );
        if is_gone { Failure::Gone(self.id, error.message) } else { Failure::Refused(error) }
    }
}

/// The account that a request names.
fn named(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, text) = value.split_once(' ')?;
    let pair = STANDARD.decode(text.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    let pair = String::from_utf8(pair).ok()?;
    let name = pair.split(':').next().filter(|name| !name.is_empty())?;
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_named_by_basic_authentication() {
        let of = |value: &str| {
            named(&HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap())]))
        };
        assert_eq!(of("Basic cm9vdDo=").as_deref(), Some("root"));
        for none in ["Basic Og==", "Bearer cm9vdDo=", "Basic", "Basic !"] {
            assert_eq!(of(none), None, "{none}");
        }
        assert_eq!(named(&HeaderMap::new()), None);
    }
}
