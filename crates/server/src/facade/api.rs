//! The API's routes, asked from within the service.

use axum::Router;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use axum::response::Response;
use berth_domain::ids::KeyId;
use berth_domain::{Code, Error, Result};
use http_body_util::{BodyExt, Limited};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tower::ServiceExt;

use crate::http::client_address::ClientAddress;
use crate::http::edge::Secure;
use crate::http::envelope::{RequestId, error_of};
use crate::http::from_within::{Counted, OnBehalf};
use crate::http::limit::Slot;
use crate::http::paced::Grace;
use crate::http::streams::Streams;

/// The largest answer of a service that is read whole, in bytes: a page of a hundred sandboxes with all their metadata.
const LARGEST: usize = 8 << 20;
/// Headers by which a caller shows who they are.
const CREDENTIALS: [HeaderName; 3] =
    [header::AUTHORIZATION, HeaderName::from_static("x-api-key"), header::SEC_WEBSOCKET_PROTOCOL];
/// Headers that say where they know the service, and by which program they ask.
const OTHERS: [HeaderName; 2] = [header::HOST, header::USER_AGENT];

/// The routes.
#[derive(Clone)]
pub struct Api {
    router: Router,
}

/// Who asks.
#[derive(Clone)]
pub struct Asker {
    headers: HeaderMap,
    extensions: Extensions,
}

impl Asker {
    /// The sender of a request.
    pub fn of(parts: &Parts) -> Self {
        let mut headers = HeaderMap::new();
        for name in CREDENTIALS.into_iter().chain(OTHERS) {
            if let Some(value) = parts.headers.get(&name) {
                headers.insert(name, value.clone());
            }
        }
        let mut extensions = Extensions::new();
        let from = &parts.extensions;
        copy::<ClientAddress>(from, &mut extensions);
        copy::<Grace>(from, &mut extensions);
        copy::<RequestId>(from, &mut extensions);
        copy::<Secure>(from, &mut extensions);
        copy::<Slot>(from, &mut extensions);
        copy::<std::sync::Arc<Streams>>(from, &mut extensions);
        Self { headers, extensions }
    }

    /// The same, whose requests were counted as one.
    #[must_use]
    pub fn uncounted(mut self) -> Self {
        self.extensions.insert(Counted);
        self
    }

    /// The same without what shows who they are.
    #[must_use]
    pub fn without_credentials(mut self) -> Self {
        for name in CREDENTIALS {
            self.headers.remove(name);
        }
        self
    }

    /// The same by an access token.
    ///
    /// # Errors
    /// It cannot be part of a header.
    pub fn with_bearer(mut self, token: &str) -> Result<Self> {
        let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(Error::internal)?;
        value.set_sensitive(true);
        self.headers.insert(header::AUTHORIZATION, value);
        Ok(self)
    }

    /// The same for a key whose holder has shown that in another way.
    #[must_use]
    pub fn on_behalf(mut self, key: KeyId) -> Self {
        self.headers.remove(header::AUTHORIZATION);
        self.extensions.insert(OnBehalf(key));
        self
    }
}

fn copy<T: Clone + Send + Sync + 'static>(from: &Extensions, to: &mut Extensions) {
    if let Some(value) = from.get::<T>() {
        to.insert(value.clone());
    }
}

impl Api {
    /// The routes of a table.
    pub const fn new(router: Router) -> Self {
        Self { router }
    }

    /// Asks, and returns what is answered if that is no refusal.
    ///
    /// # Errors
    /// The refusal.
    pub async fn ask(&self, asker: &Asker, request: Request<Body>) -> Result<Response> {
        let response = self.send(asker, request).await;
        let status = response.status();
        if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        Err(error_of(&response).unwrap_or_else(|| Error::internal(format!("a route of the API answered {status}"))))
    }

    /// Asks, and returns what is answered.
    pub async fn send(&self, asker: &Asker, mut request: Request<Body>) -> Response {
        for (name, value) in &asker.headers {
            request.headers_mut().insert(name, value.clone());
        }
        request.extensions_mut().extend(asker.extensions.clone());
        match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    /// Asks with JSON, or nothing, for JSON; null where nothing is answered.
    ///
    /// # Errors
    /// The refusal, or an answer that is no JSON.
    pub async fn json(&self, asker: &Asker, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        self.keyed(asker, method, path, body, None).await
    }

    /// The same with an `Idempotency-Key`.
    ///
    /// # Errors
    /// As of [`Self::json`].
    pub async fn keyed(
        &self,
        asker: &Asker,
        method: Method,
        path: &str,
        body: Option<&Value>,
        key: Option<&HeaderValue>,
    ) -> Result<Value> {
        let mut request = question(method, path, body.map_or_else(Body::empty, |body| body.to_string().into()))?;
        if body.is_some() {
            request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(key) = key {
            request.headers_mut().insert("idempotency-key", key.clone());
        }
        said(self.ask(asker, request).await?, LARGEST).await
    }
}

/// What an answer of at most so many bytes says; nothing of it is kept that is not asked for. One without a body says `null`.
///
/// # Errors
/// It breaks off, is too large, or says something else.
pub async fn said<T: DeserializeOwned>(answer: Response, most: usize) -> Result<T> {
    let whole = Limited::new(answer.into_body(), most).collect().await;
    let bytes = whole.map_err(|error| Error::unavailable(format!("an answer broke off: {error}")))?.to_bytes();
    let text = if bytes.is_empty() { &b"null"[..] } else { &bytes };
    serde_json::from_slice(text).map_err(|error| Error::unavailable(format!("an answer makes no sense: {error}")))
}

/// A request for a path of the API.
///
/// # Errors
/// The path is none.
pub fn question(method: Method, path: &str, body: Body) -> Result<Request<Body>> {
    let built = Request::builder().method(method).uri(path).body(body);
    built.map_err(|_| Error::new(Code::InvalidRequest, "A name in the request cannot be part of an address."))
}

/// A text as a part of a path or a value of a query.
pub fn escaped(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_within_their_part_of_an_address() {
        assert_eq!(escaped("a/b?c d&e=f%2f"), "a%2Fb%3Fc%20d%26e%3Df%252f");
        assert!(question(Method::GET, &format!("/a/{}", escaped("ä\n\"")), Body::empty()).is_ok());
        assert!(question(Method::GET, "/a b", Body::empty()).is_err());
    }
}
