//! What a client asks a person for (RFC 6749, 4.1.1), with the challenge that only it can answer (RFC 7636).

use std::collections::HashMap;

use super::Refusal;
use super::client::Client;
use super::redirect;
use crate::identity::api_key::{KeyScope, KeyScopes};

/// The characters of a challenge: of SHA-256, in base64 without padding.
const CHALLENGE: usize = 43;

/// A request for authorization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationRequest {
    /// The id of who asks.
    pub client_id: String,
    /// Who asks.
    pub client: Client,
    /// Where the person is sent back to.
    pub redirect: String,
    /// The SHA-256 of what the client shows when it fetches the key.
    pub challenge: String,
    /// What the client wants back as it is.
    pub state: Option<String>,
    /// What it wants to use the key for; sandboxes, where it does not say.
    pub scopes: KeyScopes,
}

/// Who is told of what is wrong with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The person: who asks is not known, or where the answer may go.
    Person(String),
    /// The client, where the person is sent back to.
    Client(Back),
}

/// Where a person is sent back to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Back {
    /// The whole address.
    pub address: String,
    /// Who is there, as a person is told it.
    pub who: String,
    /// Whether the person is sent there without being asked: elsewhere than to their own machine, nobody goes who did not agree.
    pub at_once: bool,
}

impl AuthorizationRequest {
    /// A request by its query. `client` finds who has an id; `base` is the address of the service.
    ///
    /// # Errors
    /// What is wrong with it, and who is told.
    pub fn parse(query: &str, base: &str, client: impl FnOnce(&str) -> Option<Client>) -> Result<Self, Wrong> {
        let mut said = HashMap::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            if said.insert(name, value).is_some() {
                return Err(Wrong::Person("The program that sent you here says something twice.".to_owned()));
            }
        }
        let text = |name: &str| said.get(name).map(AsRef::<str>::as_ref).filter(|value| !value.is_empty());
        let client_id = text("client_id").unwrap_or_default();
        let client = client(client_id).ok_or_else(|| {
            Wrong::Person("The program that sent you here is not registered with this service.".to_owned())
        })?;
        let redirect = text("redirect_uri").filter(|address| client.returns_to(address)).ok_or_else(|| {
            Wrong::Person("The program that sent you here wants the answer where it did not say it would.".to_owned())
        })?;
        let (redirect, state) = (redirect.to_owned(), text("state").map(str::to_owned));
        let request = Self::asked(&text, base);
        let (challenge, scopes) =
            request.map_err(|refusal| Wrong::Client(back(&redirect, state.as_deref(), base, Err(&refusal))))?;
        Ok(Self { client_id: client_id.to_owned(), client, redirect, challenge, state, scopes })
    }

    fn asked<'a>(text: &impl Fn(&str) -> Option<&'a str>, base: &str) -> Result<(String, KeyScopes), Refusal> {
        if text("response_type") != Some("code") {
            return Err(Refusal::new("unsupported_response_type", "response_type must be code."));
        }
        let challenge = text("code_challenge").filter(|challenge| {
            challenge.len() == CHALLENGE && challenge.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
        });
        let (Some(challenge), Some("S256")) = (challenge, text("code_challenge_method")) else {
            let wanted = "code_challenge must be there, with code_challenge_method=S256.";
            return Err(Refusal::new("invalid_request", wanted));
        };
        is_for(text("resource"), base)?;
        // What clients of other services ask for beside that (offline_access, openid) they get nothing for.
        let asked = text("scope").unwrap_or_default().split(' ').filter_map(|scope| KeyScope::parse(scope).ok());
        let scopes = KeyScopes::new(asked).or_else(|| KeyScopes::new([KeyScope::Sandbox]));
        let scopes = scopes.ok_or_else(|| Refusal::new("invalid_scope", "There are no scopes."))?;
        Ok((challenge.to_owned(), scopes))
    }

    /// Where the person is sent with a code.
    pub fn granted(&self, code: &str, base: &str) -> Back {
        back(&self.redirect, self.state.as_deref(), base, Ok(code))
    }

    /// Where the person is sent who does not agree.
    pub fn denied(&self, base: &str) -> Back {
        let refusal = Refusal::new("access_denied", "The person did not agree.");
        back(&self.redirect, self.state.as_deref(), base, Err(&refusal))
    }
}

/// Whether what a client wants to use a key for is this service (RFC 8707).
///
/// # Errors
/// It is another one.
pub fn is_for(resource: Option<&str>, base: &str) -> Result<(), Refusal> {
    let resource = resource.map(|resource| resource.trim_end_matches('/'));
    if resource.is_none_or(|resource| resource == base || resource.strip_prefix(base) == Some("/mcp")) {
        return Ok(());
    }
    Err(Refusal::new("invalid_target", format!("Keys of this service are good for {base}/mcp.")))
}

fn back(redirect: &str, state: Option<&str>, base: &str, told: Result<&str, &Refusal>) -> Back {
    let mut pairs = match told {
        Ok(code) => vec![("code", code)],
        Err(refusal) => vec![("error", refusal.error), ("error_description", refusal.description.as_str())],
    };
    pairs.push(("iss", base));
    pairs.extend(state.map(|state| ("state", state)));
    Back {
        address: redirect::with(redirect, &pairs),
        who: redirect::shown(redirect),
        at_once: told.is_ok() || redirect::is_own_machine(redirect),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "https://cloud.example";
    const GOOD: &str = "response_type=code&client_id=a&redirect_uri=http://127.0.0.1:5000/cb&code_challenge_method=S256&\
                        code_challenge=E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM&state=s%26t&scope=openid+sandbox&\
                        resource=https://cloud.example/mcp";

    fn parsed(query: &str) -> Result<AuthorizationRequest, Wrong> {
        AuthorizationRequest::parse(query, BASE, |id| {
            (id == "a").then(|| Client { name: "A".into(), redirects: vec!["http://127.0.0.1/cb".into()] })
        })
    }

    #[test]
    fn a_request_is_read() {
        let request = parsed(GOOD).expect("a request");
        assert_eq!(request.scopes.to_string(), "sandbox");
        assert_eq!(
            request.granted("x", BASE).address,
            "http://127.0.0.1:5000/cb?code=x&iss=https%3A%2F%2Fcloud.example&state=s%26t"
        );
        assert!(request.denied(BASE).address.starts_with("http://127.0.0.1:5000/cb?error=access_denied&"));
        for (from, to, scopes) in [
            ("openid+sandbox", "offline_access", "sandbox"),
            ("&scope=openid+sandbox", "", "sandbox"),
            ("openid+sandbox", "vm+inference", "vm,inference"),
            ("resource=https://cloud.example/mcp", "resource=https://cloud.example/", "sandbox"),
        ] {
            assert_eq!(parsed(&GOOD.replace(from, to)).expect("a request").scopes.to_string(), scopes);
        }
    }

    #[test]
    fn who_cannot_be_sent_back_is_told_here() {
        for (from, to) in [
            ("client_id=a", "client_id=b"),
            ("client_id=a&", ""),
            ("/cb", "/else"),
            ("state=s%26t", "state=a&state=b"),
            ("redirect_uri=http://127.0.0.1:5000/cb", "redirect_uri=https://evil.example/cb"),
        ] {
            assert!(matches!(parsed(&GOOD.replace(from, to)), Err(Wrong::Person(_))), "{from}");
        }
    }

    #[test]
    fn a_client_is_told_what_is_wrong_with_its_request() {
        for (from, to, error) in [
            ("response_type=code", "response_type=token", "unsupported_response_type"),
            ("S256", "plain", "invalid_request"),
            ("E9Mel", "E9Me", "invalid_request"),
            ("E9Mel", "E9Me=", "invalid_request"),
            ("resource=https://cloud.example/mcp", "resource=https://cloud.example.evil/mcp", "invalid_target"),
        ] {
            let Err(Wrong::Client(back)) = parsed(&GOOD.replace(from, to)) else { panic!("{from}") };
            let address = back.address;
            assert!(address.starts_with(&format!("http://127.0.0.1:5000/cb?error={error}&")), "{address}");
            assert!(address.ends_with("&state=s%26t"), "{address}");
        }
    }

    #[test]
    fn nobody_is_sent_elsewhere_who_did_not_agree() {
        let good = GOOD.replace("http://127.0.0.1:5000/cb", "https://agent.example/cb");
        let parsed = |query: &str| {
            AuthorizationRequest::parse(query, BASE, |_| {
                Some(Client { name: "A".into(), redirects: vec!["https://agent.example/cb".into()] })
            })
        };
        let request = parsed(&good).expect("a request");
        assert!(request.granted("x", BASE).at_once && !request.denied(BASE).at_once);
        assert_eq!(request.denied(BASE).who, "agent.example");
        assert!(matches!(parsed(&good.replace("S256", "plain")), Err(Wrong::Client(Back { at_once: false, .. }))));
    }
}
