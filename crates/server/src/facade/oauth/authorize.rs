//! Where a person signs in and agrees.
//!
//! There are no cookies and no scripts. What a page has to know stands in its form: the client's request as it came, and once
//! somebody has signed in their access token, sealed. So nobody can agree in another's name, and no page of a stranger knows
//! what to send.

use axum::extract::{FromRequestParts, RawQuery, Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use berth_domain::identity::api_key::{KeyScope, KeyScopes};
use berth_domain::ids::{OrgId, ProjectId};
use berth_domain::oauth::request::{AuthorizationRequest, Wrong};
use berth_domain::oauth::{KEY, redirect};
use berth_domain::{Code, Error, Result};
use serde_json::{Value, json};

use super::code::{Granted, Holder};
use super::page::{self, Choice};
use super::state::OAuth;
use crate::facade::api::Asker;
use crate::http::base_url::BaseUrl;
use crate::http::body::read_of;
use crate::http::envelope::ApiError;

/// The largest form, in bytes.
const LARGEST: usize = 64 << 10;
/// What access tokens are sealed for.
const SESSION: &str = "oauth session";
/// Most organizations whose projects are offered, and most projects of each.
const OFFERED: usize = 20;

/// The first page.
pub(super) async fn ask(State(oauth): State<OAuth>, BaseUrl(base): BaseUrl, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    match oauth.asked(&query, &base) {
        Ok(asked) => page::sign_in(&asked, &query, None),
        Err(Wrong::Client(back)) => page::back(&back),
        Err(Wrong::Person(message)) => page::refused(StatusCode::BAD_REQUEST, &message),
    }
}

/// The next pages.
pub(super) async fn answer(State(oauth): State<OAuth>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let base = match BaseUrl::from_request_parts(&mut parts, &()).await {
        Ok(BaseUrl(base)) => base,
        Err(refused) => return refused.into_response(),
    };
    let form = match read_of(&parts, body, LARGEST).await {
        Ok(bytes) => Form(form_urlencoded::parse(&bytes).into_owned().collect()),
        Err(error) => return ApiError(error).into_response(),
    };
    let query = form.field("request");
    let asked = match oauth.asked(query, &base) {
        Ok(asked) => asked,
        Err(Wrong::Client(back)) => return page::back(&back),
        Err(Wrong::Person(message)) => return page::refused(StatusCode::BAD_REQUEST, &message),
    };
    let consent =
        Consent { oauth, asker: Asker::of(&parts).without_credentials(), base, asked, query: query.to_owned() };
    match form.field("session") {
        "" => consent.sign_in(form.field("email"), form.field("password")).await,
        session => consent.decide(session, &form).await,
    }
}

/// What a form says.
struct Form(Vec<(String, String)>);

impl Form {
    fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(named, _)| named == name).map(|(_, value)| value.as_str())
    }

    fn field(&self, name: &str) -> &str {
        self.all(name).next().unwrap_or_default()
    }
}

impl OAuth {
    fn asked(&self, query: &str, base: &str) -> Result<AuthorizationRequest, Wrong> {
        if !redirect::is_safe(base) {
            return Err(Wrong::Person("This service is not reached over TLS: nobody signs in here.".to_owned()));
        }
        AuthorizationRequest::parse(query, base, |id| self.client(id))
    }
}

/// A person who is asked.
struct Consent {
    oauth: OAuth,
    asker: Asker,
    base: String,
    asked: AuthorizationRequest,
    query: String,
}

impl Consent {
    async fn sign_in(&self, email: &str, password: &str) -> Response {
        let body = json!({"email": email, "password": password});
        let signed_in = self.oauth.api.json(&self.asker, Method::POST, "/api/v1/auth/login", Some(&body)).await;
        let token = signed_in.and_then(|tokens| match tokens["access_token"].as_str() {
            Some(token) => Ok(token.to_owned()),
            None => Err(Error::internal("a sign-in without an access token")),
        });
        match token {
            Ok(token) => self.offer(&token, None).await,
            Err(error) => page::sign_in(&self.asked, &self.query, Some(&error)),
        }
    }

    /// The page on which the person agrees, which may say what was wrong before.
    async fn offer(&self, token: &str, wrong: Option<&Error>) -> Response {
        let sealed = self.oauth.sealer.seal(&self.session(), token.as_bytes());
        match (sealed, self.choices(token).await) {
            (Ok(session), Ok(choices)) => page::consent(&self.asked, &self.query, &session, &choices, wrong),
            (_, Err(error)) if error.code == Code::Unauthorized => {
                page::sign_in(&self.asked, &self.query, Some(&error))
            }
            (Err(error), _) | (_, Err(error)) => ApiError(error).into_response(),
        }
    }

    /// What an access token is sealed for: this request alone.
    fn session(&self) -> String {
        format!("{SESSION}:{}", self.query)
    }

    /// The projects that the person may choose from.
    async fn choices(&self, token: &str) -> Result<Vec<Choice>> {
        let asker = self.asker.clone().with_bearer(token)?;
        let list = async |path: String| -> Result<Vec<Value>> {
            let mut list = self.oauth.api.json(&asker, Method::GET, &format!("{path}?limit={OFFERED}"), None).await?;
            Ok(list["data"].as_array_mut().map(std::mem::take).unwrap_or_default())
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut choices = Vec::new();
        for org in list("/api/v1/orgs".to_owned()).await? {
            let of = text(&org["id"]);
            for project in list(format!("/api/v1/orgs/{of}/projects")).await? {
                let name = format!("{} / {}", text(&org["name"]), text(&project["name"]));
                choices.push(Choice { value: format!("{of}/{}", text(&project["id"])), name });
            }
        }
        Ok(choices)
    }

    async fn decide(&self, session: &str, form: &Form) -> Response {
        let opened = self.oauth.sealer.open_sealed(&self.session(), session).ok();
        let Some(token) = opened.and_then(|bytes| String::from_utf8(bytes).ok()) else {
            return page::sign_in(&self.asked, &self.query, None);
        };
        let Ok(person) = self.asker.clone().with_bearer(&token) else {
            return page::sign_in(&self.asked, &self.query, None);
        };
        if form.field("decision") != "allow" {
            self.oauth.codes.sign_out(&person).await;
            return page::back(&self.asked.denied(&self.base));
        }
        match self.agree(person, form).await {
            Ok(code) => page::back(&self.asked.granted(&code, &self.base)),
            Err(error) => self.offer(&token, Some(&error)).await,
        }
    }

    /// Makes the key, and the code by which it is fetched.
    async fn agree(&self, person: Asker, form: &Form) -> Result<String> {
        let scopes = KeyScopes::new(form.all("scope").filter_map(|scope| KeyScope::parse(scope).ok()));
        let scopes = scopes.ok_or_else(|| Error::new(Code::InvalidRequest, "Choose at least one thing it may use."))?;
        let project = form
            .field("project")
            .split_once('/')
            .and_then(|(org, project)| Some((org.parse::<OrgId>().ok()?, project.parse::<ProjectId>().ok()?)));
        let (org, project) = project.ok_or_else(|| Error::new(Code::InvalidRequest, "Choose a project."))?;
        let (api, words) = (&self.oauth.api, scopes.iter().map(KeyScope::as_str).collect::<Vec<_>>());
        let limits = api.json(&person, Method::GET, &format!("/api/v1/orgs/{org}"), None).await?;
        let seconds = limits["max_key_seconds"].as_i64().map_or(KEY, |most| most.min(KEY));
        let expires_at = self.oauth.clock.now().plus_seconds(seconds).to_string();
        let name = self.asked.client.key_name(&self.asked.redirect);
        let body = json!({"name": name, "scopes": words, "expires_at": expires_at});
        let keys = format!("/api/v1/orgs/{org}/projects/{project}/api_keys");
        let made = api.json(&person, Method::POST, &keys, Some(&body)).await?;
        let (Some(id), Some(key)) = (made["id"].as_str(), made["key"].as_str()) else {
            return Err(Error::internal("a key without its secret"));
        };
        let (key, path) = (key.to_owned(), format!("{keys}/{id}"));
        let granted = Granted { key, path, scope: words.join(" "), seconds, person };
        let holder = Holder { client: self.asked.client_id.clone(), redirect: self.asked.redirect.clone() };
        Ok(self.oauth.codes.make(granted, holder, self.asked.challenge.clone()))
    }
}
