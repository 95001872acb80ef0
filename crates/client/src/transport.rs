//! Requests and answers.

use std::sync::{Arc, PoisonError, RwLock};

use http::{Method, StatusCode, header};
use reqwest::{Body, RequestBuilder, Response};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Error, FieldError, Result, Tokens};

type Listener = Arc<dyn Fn(&Tokens) + Send + Sync>;

/// A service, with the caller's credential.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    tokens: Arc<RwLock<Option<Tokens>>>,
    renewing: Arc<tokio::sync::Mutex<()>>,
    listener: Option<Listener>,
}

/// A project of a service.
#[derive(Clone)]
pub struct ProjectClient {
    pub(crate) client: Client,
    pub(crate) path: String,
}

/// A page of a list.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct List<T> {
    /// The items.
    pub data: Vec<T>,
    /// The position of the page in the list.
    pub pagination: Pagination,
}

/// The position of a page.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Pagination {
    /// Items of all pages.
    pub total_items: i64,
    /// Pages.
    pub total_pages: i64,
    /// This page.
    pub current_page: i64,
    /// Most items of a page.
    pub items_per_page: i64,
}

/// A page of a list to ask for.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Page {
    /// From 1.
    pub page: u32,
    /// 1 to 100.
    pub limit: u32,
}

/// A page of things with a name.
#[derive(Debug, Serialize)]
pub(crate) struct Named<'a> {
    name: &'a str,
    page: u32,
    limit: u32,
}

impl<'a> Named<'a> {
    pub(crate) const fn new(name: &'a str, Page { page, limit }: Page) -> Self {
        Self { name, page, limit }
    }
}

impl Default for Page {
    fn default() -> Self {
        Self { page: 1, limit: 100 }
    }
}

impl Page {
    /// The items of all pages of a list.
    pub async fn all<T>(list: impl AsyncFn(Self) -> Result<List<T>>) -> Result<Vec<T>> {
        let mut found = Vec::new();
        for page in 1.. {
            let List { data, pagination } = list(Self { page, ..Self::default() }).await?;
            found.extend(data);
            if i64::from(page) >= pagination.total_pages {
                break;
            }
        }
        Ok(found)
    }
}

impl Client {
    /// A client of the service at `base`, as `http://127.0.0.1:8080`.
    pub fn new(base: &str) -> Result<Self> {
        let http = reqwest::Client::builder()
            .user_agent(concat!("berth/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(std::time::Duration::from_secs(10))
            // A server inside a sandbox could otherwise redirect a client with a credential to anywhere.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|e| Error::Protocol(e.to_string()))?;
        let base = base.trim_end_matches('/').to_owned();
        Ok(Self { http, base, tokens: Arc::default(), renewing: Arc::default(), listener: None })
    }

    /// The same client, signed in.
    #[must_use]
    pub fn with_tokens(self, tokens: Tokens) -> Self {
        self.set_tokens(Some(tokens));
        self
    }

    /// The same client with the API key of a project. A key is never renewed.
    #[must_use]
    pub fn with_api_key(self, key: String) -> Self {
        self.with_tokens(Tokens { access_token: key, refresh_token: String::new() })
    }

    /// Calls `listener` with every new pair of tokens, so that it can keep them.
    #[must_use]
    pub fn on_tokens(mut self, listener: impl Fn(&Tokens) + Send + Sync + 'static) -> Self {
        self.listener = Some(Arc::new(listener));
        self
    }

    /// The service's address.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The tokens that it sends.
    pub fn tokens(&self) -> Option<Tokens> {
        self.tokens.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A project, by ids or slugs.
    pub fn project(&self, org: &str, project: &str) -> ProjectClient {
        let path = format!("/api/v1/orgs/{}/projects/{}", segment(org), segment(project));
        ProjectClient { client: self.clone(), path }
    }

    pub(crate) fn keep_tokens(&self, tokens: Tokens) {
        if let Some(listener) = &self.listener {
            listener(&tokens);
        }
        self.set_tokens(Some(tokens));
    }

    pub(crate) fn set_tokens(&self, tokens: Option<Tokens>) {
        *self.tokens.write().unwrap_or_else(PoisonError::into_inner) = tokens;
    }

    /// Reads something.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        json(self.send(Method::GET, path, None).await?).await
    }

    pub(crate) async fn list<T: DeserializeOwned>(&self, path: &str, query: &impl Serialize) -> Result<List<T>> {
        let query = query_text(query)?;
        self.get(&format!("{path}?{query}")).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
    ) -> Result<T> {
        self.call(Method::POST, path, body).await
    }

    pub(crate) async fn patch<T: DeserializeOwned>(&self, path: &str, body: &(impl Serialize + Sync)) -> Result<T> {
        self.call(Method::PATCH, path, Some(body)).await
    }

    pub(crate) async fn put<T: DeserializeOwned>(&self, path: &str, body: &(impl Serialize + Sync)) -> Result<T> {
        self.call(Method::PUT, path, Some(body)).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
    ) -> Result<T> {
        let body = body.map(serde_json::to_value).transpose().map_err(|e| Error::Protocol(e.to_string()))?;
        json(self.send(method, path, body).await?).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<()> {
        self.send(Method::DELETE, path, None).await.map(drop)
    }

    /// Sends a request; renews an expired access token and sends the request again.
    pub(crate) async fn send(&self, method: Method, path: &str, body: Option<Value>) -> Result<Response> {
        self.send_again(|| {
            let request = self.request(method.clone(), path);
            if let Some(body) = &body { request.json(body) } else { request }
        })
        .await
    }

    /// Sends the request that `build` makes, and again if the access token had expired.
    pub(crate) async fn send_again(&self, build: impl Fn() -> RequestBuilder) -> Result<Response> {
        let used = self.tokens().map(|t| t.access_token);
        match self.once(build()).await {
            Err(Error::Api { status: 401, code, .. }) if is_refused(&code) && self.renew(used).await? => {
                self.once(build()).await
            }
            other => other,
        }
    }

    /// A request with the credential; `path` is a path of the service, or a whole URL.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let url = if path.starts_with('/') { format!("{}{path}", self.base) } else { path.to_owned() };
        let request = self.http.request(method, url);
        match self.tokens() {
            Some(tokens) => request.bearer_auth(tokens.access_token),
            None => request,
        }
    }

    pub(crate) async fn once(&self, request: RequestBuilder) -> Result<Response> {
        let response = request.send().await.map_err(|e| self.unreachable(&e))?;
        let fine = response.status().is_success() || response.status() == StatusCode::SWITCHING_PROTOCOLS;
        if fine { Ok(response) } else { Err(refusal(response).await) }
    }

    /// Renews the tokens, unless another task did so meanwhile. False if they cannot be renewed.
    pub(crate) async fn renew(&self, used: Option<String>) -> Result<bool> {
        let _one_at_a_time = self.renewing.lock().await;
        let Some(tokens) = self.tokens() else { return Ok(false) };
        if Some(&tokens.access_token) != used.as_ref() {
            return Ok(true);
        }
        if tokens.refresh_token.is_empty() {
            return Ok(false);
        }
        let body = serde_json::json!({ "refresh_token": tokens.refresh_token });
        let request = self.http.post(format!("{}/api/v1/auth/refresh", self.base)).json(&body);
        let renewed = match self.once(request).await {
            Ok(response) => json(response).await?,
            Err(Error::Api { status: 401, .. }) => return Ok(false),
            Err(other) => return Err(other),
        };
        self.keep_tokens(renewed);
        Ok(true)
    }

    pub(crate) fn unreachable(&self, error: &reqwest::Error) -> Error {
        let mut cause: &dyn std::error::Error = error;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        Error::Unreachable { base: self.base.clone(), cause: cause.to_string(), sent: !error.is_connect() }
    }

    /// Sends bytes as they come.
    pub(crate) async fn put_stream<T: DeserializeOwned>(&self, path: &str, body: Body, length: u64) -> Result<T> {
        let request = self.request(Method::PUT, path).header(header::CONTENT_LENGTH, length).body(body);
        json(self.once(request).await?).await
    }
}

pub(crate) async fn json<T: DeserializeOwned>(response: Response) -> Result<T> {
    let bytes = response.bytes().await.map_err(|e| Error::Protocol(format!("the answer broke off: {e}")))?;
    if bytes.is_empty() {
        return serde_json::from_value(Value::Null).map_err(|e| Error::Protocol(e.to_string()));
    }
    serde_json::from_slice(&bytes).map_err(|e| Error::Protocol(format!("the answer is not what was expected: {e}")))
}

#[derive(Deserialize)]
struct Refusal {
    code: String,
    message: String,
    #[serde(default)]
    details: Vec<FieldError>,
}

/// An error in OpenAI's form, as in answers below `/v1`.
#[derive(Deserialize)]
pub(crate) struct Enveloped {
    error: Told,
}

#[derive(Deserialize)]
struct Told {
    message: String,
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    param: Option<String>,
    #[serde(default)]
    code: Option<Value>,
}

impl From<Enveloped> for Refusal {
    fn from(Enveloped { error: Told { message, kind, param, code } }: Enveloped) -> Self {
        // An upstream's own code may be a number.
        let word = |code: &Value| code.as_str().map_or_else(|| code.to_string(), str::to_owned);
        let code = code.as_ref().filter(|code| !code.is_null()).map(word);
        let details = param.map(|first| fields(&first, &message)).unwrap_or_default();
        Self { code: code.or(kind).unwrap_or_default(), message, details }
    }
}

/// The fields of an error that names only the first one separately and all of them in its message, as `voice: …; speed:
/// …`. An upstream's own message names none.
fn fields(first: &str, message: &str) -> Vec<FieldError> {
    let mut fields: Vec<FieldError> = Vec::new();
    let parts = message.split("; ").filter(|_| message.starts_with(&format!("{first}: ")));
    for part in parts {
        if let Some((field, rule)) = part.split_once(": ").filter(|(field, _)| is_field(field)) {
            fields.push(FieldError { field: field.to_owned(), message: rule.to_owned() });
        } else if let Some(last) = fields.last_mut() {
            last.message = format!("{}; {part}", last.message);
        }
    }
    if fields.is_empty() {
        fields.push(FieldError { field: first.to_owned(), message: message.to_owned() });
    }
    fields
}

/// Whether a text is the path of a field, like `stream_options.include_usage` or `messages[2]`.
fn is_field(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.[]".contains(&byte))
}

impl Enveloped {
    /// The error in an event of a started answer.
    pub(crate) fn within(self, request_id: String) -> Error {
        let kind = self.error.kind.clone();
        let Refusal { code, message, details } = self.into();
        let status = match (code.as_str(), kind.as_deref()) {
            ("upstream_timeout", _) => 504,
            (_, Some("rate_limit_error")) => 429,
            _ => 502,
        };
        Error::Api { status, code, message, details, retry_after: None, request_id }
    }
}

/// Whether the service refused the credential, by the code of either form of errors.
fn is_refused(code: &str) -> bool {
    ["unauthorized", "invalid_api_key"].contains(&code)
}

/// The id of an answer's request in the operator's log.
pub(crate) fn request_id(response: &Response) -> String {
    response.headers().get("x-request-id").and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned()
}

pub(crate) async fn refusal(response: Response) -> Error {
    let refused = Refused::of(&response);
    refused.with(&response.bytes().await.unwrap_or_default())
}

/// What the head of a refusal says.
pub(crate) struct Refused {
    status: StatusCode,
    request_id: String,
    retry_after: Option<u64>,
    /// Where it redirects to.
    place: Option<String>,
}

impl Refused {
    /// Of an answer.
    pub(crate) fn of(response: &Response) -> Self {
        let header = |name| response.headers().get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
        let (status, retry_after) = (response.status(), header("retry-after").and_then(|v| v.parse().ok()));
        let place = header("location").filter(|_| status.is_redirection());
        Self { status, request_id: request_id(response), retry_after, place }
    }

    /// The refusal with its body.
    pub(crate) fn with(self, bytes: &[u8]) -> Error {
        let Self { status, request_id, retry_after, place } = self;
        if let Some(place) = place {
            return Error::Protocol(format!("the address redirects to {place}; use that one"));
        }
        let enveloped = || serde_json::from_slice::<Enveloped>(bytes).map(Refusal::from);
        match serde_json::from_slice::<Refusal>(bytes).or_else(|_| enveloped()) {
            Ok(Refusal { code, message, details }) => {
                Error::Api { status: status.as_u16(), code, message, details, retry_after, request_id }
            }
            Err(_) => Error::Protocol(format!("the answer was {status}, and not from Berth; is the address right?")),
        }
    }
}

/// A name as one segment of a path.
pub(crate) fn segment(text: &str) -> String {
    use std::fmt::Write;
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(byte.into());
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

/// The fields of a struct as a query; absent ones are left out.
pub(crate) fn query_text(query: &impl Serialize) -> Result<String> {
    let value = serde_json::to_value(query).map_err(|e| Error::Protocol(e.to_string()))?;
    let pairs = value.as_object().into_iter().flatten().filter(|(_, v)| !v.is_null());
    let texts = pairs.map(|(key, value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{key}={}", segment(&text))
    });
    Ok(texts.collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_escaped() {
        assert_eq!(segment("a/b ä?"), "a%2Fb%20%C3%A4%3F");
        let page = Page { page: 2, limit: 5 };
        assert_eq!(query_text(&page).unwrap(), "limit=5&page=2");
        assert_eq!(query_text(&Named::new("a b", page)).unwrap(), "limit=5&name=a%20b&page=2");
    }

    #[test]
    fn errors_of_either_form() {
        let read = |text: &str| Refusal::from(serde_json::from_str::<Enveloped>(text).unwrap());
        let full = read(r#"{"error": {"message": "no", "type": "t", "param": "voice", "code": "invalid_request"}}"#);
        assert_eq!((full.code.as_str(), full.message.as_str()), ("invalid_request", "no"));
        assert_eq!(full.details[0].field, "voice");
        let told = |message: &str| {
            let text = serde_json::json!({"error": {"message": message, "param": "voice"}}).to_string();
            read(&text).details.into_iter().map(|told| (told.field, told.message)).collect::<Vec<_>>()
        };
        let pair = |field: &str, message: &str| (field.to_owned(), message.to_owned());
        assert_eq!(told("voice: is not known; ask"), [pair("voice", "is not known; ask")]);
        assert_eq!(told("voice: a; b: c; speed_x: d"), [pair("voice", "a"), pair("b", "c"), pair("speed_x", "d")]);
        assert_eq!(told("no voice: x"), [pair("voice", "no voice: x")]);
        let bare = read(r#"{"error": {"message": "no", "type": "api_error", "param": null, "code": null}}"#);
        assert_eq!((bare.code.as_str(), bare.details.len()), ("api_error", 0));
        assert_eq!(read(r#"{"error": {"message": "no", "code": 7}}"#).code, "7");
        let within = |text: &str| serde_json::from_str::<Enveloped>(text).unwrap().within("r".into());
        for (code, kind, status) in
            [("upstream_timeout", "api_error", 504), ("rate_limited", "rate_limit_error", 429), ("x", "y", 502)]
        {
            let error = within(&format!(r#"{{"error": {{"message": "no", "type": "{kind}", "code": "{code}"}}}}"#));
            assert_eq!((error.status(), error.code()), (Some(status), Some(code)));
        }
    }
}
