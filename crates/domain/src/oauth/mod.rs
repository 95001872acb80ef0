//! OAuth, as programs ask people for keys by it: an authorization server of OAuth 2.1 for clients that can keep no secret, in
//! the part of it that the Model Context Protocol wants.
//!
//! A client registers itself (RFC 7591) and sends a person to the service, who signs in and chooses what it may do and where.
//! What it gets is an API key of that project: it ends, is listed and is revoked as any other.

pub mod client;
pub mod redirect;
pub mod request;

/// How long a client's key lasts, in seconds: 90 days. There are no refresh tokens: then the client asks again.
pub const KEY: i64 = 90 * 86_400;
/// How long a client may take to fetch the key that a person let it have, in seconds (RFC 6749, 4.1.2: at most ten minutes).
pub const CODE: i64 = 60;

/// A refusal, in the words of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Its code.
    pub error: &'static str,
    /// For the developer of the client.
    pub description: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(error: &'static str, description: impl Into<String>) -> Self {
        Self { error, description: description.into() }
    }
}
