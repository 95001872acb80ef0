//! Clients: programs that ask people for keys.
//!
//! Nothing is kept of one: its id says what it said of itself, under the service's seal.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Refusal, redirect};
use crate::names::misleads;

/// Most addresses that one is sent back to.
pub const REDIRECTS: usize = 10;
/// The longest name, in characters; a longer one is cut.
const NAME: usize = 60;
/// The longest name of a key, in characters.
const KEY_NAME: usize = 100;
/// The name of a client that says none, or one that would mislead.
const NAMELESS: &str = "MCP client";

/// A client.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Client {
    /// What it calls itself.
    pub name: String,
    /// Where people may be sent back to.
    pub redirects: Vec<String>,
}

impl Client {
    /// A client by what it says of itself (RFC 7591, 2). What it says beside that changes nothing here.
    ///
    /// # Errors
    /// It names no address that people can be sent to, or one that they cannot.
    pub fn parse(metadata: &Value) -> Result<Self, Refusal> {
        let wrong = |what: String| Refusal::new("invalid_redirect_uri", what);
        let listed = metadata["redirect_uris"].as_array().filter(|uris| (1..=REDIRECTS).contains(&uris.len()));
        let listed = listed.ok_or_else(|| wrong(format!("redirect_uris must list 1 to {REDIRECTS} addresses.")))?;
        let mut redirects = Vec::new();
        for uri in listed {
            let uri = uri.as_str().ok_or_else(|| wrong("redirect_uris must be texts.".to_owned()))?;
            redirect::allowed(uri).map_err(|what| wrong(format!("{what}.")))?;
            redirects.push(uri.to_owned());
        }
        let name = metadata["client_name"].as_str().map(str::trim);
        let name = name.filter(|name| !name.is_empty() && !misleads(name) && name.chars().all(is_seen));
        let name = name.unwrap_or(NAMELESS).chars().take(NAME).collect();
        Ok(Self { name, redirects })
    }

    /// What it is answered when it registers under an id. One that wants a secret gets none: the answer says what it gets
    /// instead (RFC 7591, 3.2.1).
    pub fn registered(&self, id: &str, at: i64) -> Value {
        json!({
            "client_id": id,
            "client_id_issued_at": at,
            "client_name": self.name,
            "redirect_uris": self.redirects,
            "token_endpoint_auth_method": "none",
            "grant_types": ["authorization_code"],
            "response_types": ["code"],
        })
    }

    /// Whether people may be sent back to an address.
    pub fn returns_to(&self, address: &str) -> bool {
        // What is allowed may become less than it was when the client registered.
        redirect::allowed(address).is_ok()
            && self.redirects.iter().any(|registered| redirect::is_same(registered, address))
    }

    /// What its key is called: its name, and who has it.
    pub fn key_name(&self, address: &str) -> String {
        let whole = format!("{} ({})", self.name, redirect::short(address));
        whole.chars().take(KEY_NAME).collect()
    }
}

/// Whether a character of a name is seen as what it is: letters, digits and what ASCII has beside them.
fn is_seen(sign: char) -> bool {
    let filler = matches!(sign, '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}');
    (sign.is_alphanumeric() && !filler) || sign == ' ' || sign.is_ascii_graphic()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_says_where_people_are_sent_back_to() {
        let said = json!({"client_name": " Agent ", "redirect_uris": ["http://127.0.0.1/cb"], "logo_uri": "x"});
        let client = Client::parse(&said).expect("a client");
        assert_eq!(client.name, "Agent");
        assert!(client.returns_to("http://127.0.0.1:5000/cb") && !client.returns_to("http://127.0.0.1/else"));
        for wrong in [
            json!({}),
            json!({"redirect_uris": []}),
            json!({"redirect_uris": [1]}),
            json!({"redirect_uris": ["http://a.example/"]}),
        ] {
            assert_eq!(Client::parse(&wrong).map_err(|refusal| refusal.error), Err("invalid_redirect_uri"), "{wrong}");
        }
        let of = |count: usize| json!({"redirect_uris": vec!["https://a.example/"; count]});
        assert!(Client::parse(&of(REDIRECTS)).is_ok() && Client::parse(&of(REDIRECTS + 1)).is_err());
    }

    #[test]
    fn a_name_does_not_mislead() {
        let named = |name: Value| {
            Client::parse(&json!({"client_name": name, "redirect_uris": ["https://a.example/"]}))
                .expect("a client")
                .name
        };
        for nameless in [
            json!(""),
            json!(1),
            json!("see https://evil.example"),
            json!("a\u{202e}b"),
            json!("a\u{200d}b"),
            json!("a\u{3164}"),
            json!("a\nb"),
        ] {
            assert_eq!(named(nameless), NAMELESS);
        }
        assert_eq!(named(json!("x".repeat(NAME + 1))).len(), NAME);
    }
}
