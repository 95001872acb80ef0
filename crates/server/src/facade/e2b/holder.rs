//! A project's key that asks for something of its project.

use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method};
use berth_domain::e2b::sandbox::{Sandbox, Tokens};
use berth_domain::e2b::token::Purpose;
use berth_domain::ids::{KeyId, SandboxId};
use berth_domain::{Code, Error, Result};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use super::state::E2b;
use crate::facade::api::{Asker, escaped};
use crate::http::base_url::BaseUrl;
use crate::http::envelope::ApiError;
use crate::http::own_key::{NEEDS_KEY, key_at_home};

/// How long a sandbox is waited for: less than SDKs wait for an answer.
const PATIENCE: Duration = Duration::from_secs(50);
/// Seconds of one wait for it, after which it is looked at.
const LOOK: u64 = 5;

/// What a caller without a key reads.
const NO_KEY: &str =
    "E2B_API_KEY is no key of a project here, or has ended. Make one: berth key create NAME --scope sandbox --e2b";

/// The holder of a key.
pub struct Holder {
    e2b: E2b,
    asker: Asker,
    key: KeyId,
    /// The path of the key's project.
    project: String,
    /// The name below which ports of sandboxes have theirs.
    pub domain: String,
    idempotency: Option<HeaderValue>,
}

impl FromRequestParts<E2b> for Holder {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, e2b: &E2b) -> Result<Self, ApiError> {
        let (key, scope) = key_at_home(parts, NEEDS_KEY).await.map_err(|error| match error.code {
            Code::Unauthorized => Error { message: NO_KEY.to_owned(), ..error },
            _ => error,
        })?;
        let BaseUrl(base) = BaseUrl::from_request_parts(parts, e2b).await?;
        Ok(Self {
            e2b: e2b.clone(),
            // This request was counted.
            asker: Asker::of(parts).uncounted(),
            key,
            project: format!("/api/v1/orgs/{}/projects/{}", scope.org, scope.project),
            domain: domain(&base),
            idempotency: parts.headers.get("idempotency-key").cloned(),
        })
    }
}

/// The name below which ports have theirs. An address has no names below it: on this machine `localhost` has.
fn domain(base: &str) -> String {
    let host = base.split_once("://").map_or(base, |(_, host)| host);
    let host = host.split('/').next().unwrap_or_default();
    ["127.0.0.1", "[::1]"]
        .into_iter()
        .find_map(|own| host.strip_prefix(own))
        .map_or_else(|| host.to_owned(), |port| format!("localhost{port}"))
}

impl Holder {
    /// Asks for something below the project.
    pub async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        self.e2b.api.json(&self.asker, method, &format!("{}{path}", self.project), body).await
    }

    /// The same for a creation: sent again with its key, it gets the first answer.
    pub async fn create(&self, path: &str, body: &Value) -> Result<Value> {
        let path = format!("{}{path}", self.project);
        self.e2b.api.keyed(&self.asker, Method::POST, &path, Some(body), self.idempotency.as_ref()).await
    }

    /// Asks for something that is told so.
    pub async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        told(self.ask(Method::GET, path, None).await?)
    }

    /// Does something with a sandbox.
    pub async fn act(&self, id: &str, verb: &str, body: Option<&Value>) -> Result<Value> {
        self.ask(Method::POST, &format!("/sandboxes/{}/{verb}", escaped(id)), body).await
    }

    /// A sandbox that runs or is paused.
    pub async fn sandbox(&self, id: &str) -> Result<Sandbox> {
        let sandbox: Sandbox = self.read(&format!("/sandboxes/{}", escaped(id))).await?;
        if sandbox.state().is_none() {
            return Err(Error::new(Code::SandboxNotFound, "The sandbox is on its way out, or has failed."));
        }
        Ok(sandbox)
    }

    /// The sandbox once it has a phase.
    ///
    /// # Errors
    /// It failed, is paused where it was to run, or did not get there in time.
    pub async fn until(&self, id: &str, phase: &str) -> Result<Sandbox> {
        let path = format!("/sandboxes/{}/wait?phase={phase}&timeout={LOOK}", escaped(id));
        let began = Instant::now();
        loop {
            let sandbox: Sandbox = self.read(&path).await?;
            if sandbox.phase == phase {
                return Ok(sandbox);
            }
            let why = sandbox.message.unwrap_or_default();
            match sandbox.phase.as_str() {
                "Failed" => return Err(Error::new(Code::SandboxFailed, format!("The sandbox has failed: {why}"))),
                // Nobody waits for one that was paused again, as where there is no room for it.
                "Paused" => return Err(Error::new(Code::SandboxPaused, format!("The sandbox is paused: {why}"))),
                now if began.elapsed() > PATIENCE => {
                    let seconds = PATIENCE.as_secs();
                    let message = format!("The sandbox is still {now} after {seconds} s, and not {phase}. Try again.");
                    return Err(Error::new(Code::Unavailable, message).retry_after(5));
                }
                _ => {}
            }
        }
    }

    /// The tokens with which the holder works inside a sandbox.
    pub fn tokens(&self, sandbox: &Sandbox) -> Result<Tokens> {
        let id: SandboxId = sandbox.id.parse().map_err(Error::internal)?;
        let token = |purpose| self.e2b.access.token(id, self.key, purpose);
        Ok(Tokens { inside: token(Purpose::Inside)?, ports: token(Purpose::Ports)? })
    }

    /// Whether a creation that is sent again gets the first answer.
    pub const fn may_come_again(&self) -> bool {
        self.idempotency.is_some()
    }

    /// A template by its id or name; none where there is no such.
    pub async fn template(&self, named: &str) -> Result<Option<Value>> {
        if named.is_empty() {
            return Ok(None);
        }
        match self.ask(Method::GET, &format!("/sandbox_templates/{}", escaped(named)), None).await {
            Err(error) if error.code.status() == 404 => Ok(None),
            found => found.map(Some),
        }
    }

    /// The name of the template that a sandbox was made of, if it is still there.
    pub async fn alias(&self, sandbox: &Sandbox) -> Option<String> {
        let told = self.template(sandbox.template_id.as_deref()?).await.ok()??;
        Some(told["name"].as_str()?.to_owned())
    }

    /// The time.
    pub fn now(&self) -> berth_domain::Timestamp {
        self.e2b.clock.now()
    }
}

/// What an answer of the API says.
pub fn told<T: DeserializeOwned>(answer: Value) -> Result<T> {
    serde_json::from_value(answer).map_err(Error::internal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_this_machine_have_names_that_browsers_know() {
        for (base, expected) in [
            ("http://127.0.0.1:8080", "localhost:8080"),
            ("http://[::1]:8080", "localhost:8080"),
            ("http://localhost:8080", "localhost:8080"),
            ("https://cloud.example.org", "cloud.example.org"),
            ("https://cloud.example.org/x", "cloud.example.org"),
            ("", ""),
        ] {
            assert_eq!(domain(base), expected, "{base}");
        }
    }
}
