//! Tokens of a session.

use serde::{Deserialize, Serialize};

/// What a sign-in gives.
#[derive(Clone, Deserialize, Serialize)]
pub struct Tokens {
    /// For `Authorization: Bearer`.
    pub access_token: String,
    /// Good for one new pair; empty where there is nothing to renew.
    pub refresh_token: String,
}
