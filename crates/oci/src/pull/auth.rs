//! The authorization that a registry asks for, and the credentials that an operator has.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};
use serde::Deserialize;

use crate::{Error, Result};

/// The authorization that a registry asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Challenge {
    /// With a name and a password.
    Basic,
    /// With a token from another address.
    Bearer {
        /// That address.
        realm: String,
        /// The service that the token is for.
        service: Option<String>,
    },
}

impl Challenge {
    /// Parses `WWW-Authenticate`; prefers a token.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let texts = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        let challenges = texts.filter_map(Self::parse).collect::<Vec<_>>();
        let bearer = challenges.iter().position(|challenge| *challenge != Self::Basic);
        challenges.into_iter().nth(bearer.unwrap_or(0))
    }

    fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let mut parameters = parameters(rest);
        Some(Self::Bearer { realm: parameters.remove("realm")?, service: parameters.remove("service") })
    }
}

/// Parses `name="value", name=value`; in quotes a comma and an escaped quote are part of the value.
fn parameters(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim_matches([',', ' ']).to_ascii_lowercase();
        let mut value = String::new();
        let mut chars = after.trim_start().chars();
        if chars.as_str().starts_with('"') {
            chars.next();
            while let Some(c) = chars.next() {
                match c {
                    '"' => break,
                    '\\' => value.extend(chars.next()),
                    c => value.push(c),
                }
            }
        } else {
            value.extend(chars.by_ref().take_while(|c| *c != ','));
        }
        found.insert(name, value.trim().to_owned());
        rest = chars.as_str();
    }
    found
}

/// The token in an answer.
pub fn token(bytes: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Token {
        token: Option<String>,
        access_token: Option<String>,
    }
    let Token { token, access_token } = serde_json::from_slice(bytes).ok()?;
    let printable = |token: &String| !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    token.or(access_token).filter(printable)
}

/// A name and a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Login(String);

impl Login {
    /// The value of `Authorization`.
    pub fn basic(&self) -> String {
        format!("Basic {}", self.0)
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(…)")
    }
}

/// An operator's credentials for registries.
#[derive(Clone, Debug, Default)]
pub struct Credentials(BTreeMap<String, Login>);

impl Credentials {
    /// Parses the `config.json` that `docker login` writes.
    ///
    /// # Errors
    /// The text has another form, or refers to a helper program, which Berth does not run.
    pub fn from_docker_config(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Config {
            #[serde(default)]
            auths: BTreeMap<String, Auth>,
        }
        #[derive(Deserialize)]
        struct Auth {
            #[serde(rename = "auth")]
            encoded: Option<String>,
            username: Option<String>,
            password: Option<String>,
        }
        let config: Config = serde_json::from_str(text)
            .map_err(|_| Error::invalid("The registry credentials are not what 'docker login' writes."))?;
        let mut logins = BTreeMap::new();
        for (registry, auth) in config.auths {
            let encoded = match auth {
                Auth { username: Some(name), password: Some(password), .. } => {
                    STANDARD.encode(format!("{name}:{password}"))
                }
                Auth { encoded: Some(encoded), .. }
                    if STANDARD.decode(&encoded).is_ok_and(|plain| plain.contains(&b':')) =>
                {
                    encoded
                }
                _ => {
                    let message = format!("The credentials for '{registry}' are not in the file; put 'auth' into it.");
                    return Err(Error::invalid(message));
                }
            };
            logins.insert(host(&registry), Login(encoded));
        }
        Ok(Self(logins))
    }

    /// The login for a registry.
    pub fn find(&self, registry: &str) -> Option<&Login> {
        self.0.get(&host(registry))
    }
}

/// The host of a key; for its own registry, Docker writes a URL.
fn host(key: &str) -> String {
    let key = key.trim_start_matches("https://").trim_start_matches("http://");
    let host = key.split('/').next().unwrap_or_default().to_ascii_lowercase();
    match host.as_str() {
        "index.docker.io" | "registry-1.docker.io" => "docker.io".to_owned(),
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn challenge(texts: &[&'static str]) -> Option<Challenge> {
        let mut headers = HeaderMap::new();
        for text in texts {
            headers.append(WWW_AUTHENTICATE, reqwest::header::HeaderValue::from_static(text));
        }
        Challenge::of(&headers)
    }

    #[test]
    fn challenges_are_read_with_quotes_and_commas() {
        let bearer = |realm: &str, service: Option<&str>| {
            Some(Challenge::Bearer { realm: realm.into(), service: service.map(Into::into) })
        };
        let text = r#"Bearer realm="https://a.example/token?x=1,2",service="a \"b\"",scope="c""#;
        assert_eq!(challenge(&["Basic realm=\"x\"", text]), bearer("https://a.example/token?x=1,2", Some("a \"b\"")));
        assert_eq!(challenge(&["bearer Realm=https://a, foo=b"]), bearer("https://a", None));
        assert_eq!(challenge(&["Basic"]), Some(Challenge::Basic));
        assert_eq!(challenge(&["Bearer service=x"]), None);
        assert_eq!(challenge(&["Negotiate"]), None);
    }

    #[test]
    fn credentials_are_found_by_host_and_hidden() {
        let auth = STANDARD.encode("me:geheim");
        let text = format!(
            r#"{{"auths": {{"https://index.docker.io/v1/": {{"auth": "{auth}"}}, "r.example:5000":
                {{"username": "me", "password": "geheim"}}}}, "credsStore": "x"}}"#
        );
        let credentials = Credentials::from_docker_config(&text).unwrap();
        let login = credentials.find("registry-1.docker.io").unwrap();
        assert_eq!(login.basic(), format!("Basic {auth}"));
        assert_eq!(credentials.find("r.example:5000"), Some(login));
        assert_eq!(credentials.find("r.example"), None);
        assert!(!format!("{credentials:?}").contains(&auth));
        assert!(Credentials::from_docker_config(r#"{"auths": {"a": {}}}"#).is_err());
        assert!(Credentials::from_docker_config("7").is_err());
        assert!(Credentials::from_docker_config("{}").unwrap().find("a").is_none());
    }

    #[test]
    fn tokens_have_two_names() {
        assert_eq!(token(br#"{"token": "a"}"#).as_deref(), Some("a"));
        assert_eq!(token(br#"{"access_token": "b"}"#).as_deref(), Some("b"));
        assert_eq!(token(br#"{"token": "a\nb"}"#), None);
        assert_eq!(token(b"{}"), None);
    }
}
