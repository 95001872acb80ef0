//! Keys that sign access tokens.

use serde::Serialize;
use utoipa::ToSchema;

/// A key that signs from now on.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SigningKeyResponse)]
pub struct SigningKeyView {
    /// Its name in tokens and in the key set.
    pub kid: String,
}
