//! Tokens of a session.

use serde::{Deserialize, Serialize};

/// The tokens of a sign-in.
#[derive(Clone, Deserialize, Serialize)]
pub struct Tokens {
    /// For `Authorization: Bearer`.
    pub access_token: String,
    /// Buys one new pair; empty if the access token cannot be renewed.
    pub refresh_token: String,
}
