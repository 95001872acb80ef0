//! Who may use models: the extractor of the routes below `/v1`, whose paths name no project.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use berth_domain::identity::Action;

use crate::http::auth::{Scope, scope_at_home};
use crate::http::envelope::ApiError;
use crate::services::gateway::Gateway;

/// A caller who may use models: a person with a role that changes things, or a key of scope `inference`. Listing models
/// needs only a role that reads.
pub(super) struct Inference<const CHANGES: bool>(pub Scope);

impl<S: Send + Sync, const CHANGES: bool> FromRequestParts<S> for Inference<CHANGES> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let action = if CHANGES { Action::ChangeResources } else { Action::ReadProject };
        Ok(Self(scope_at_home::<Gateway>(parts, action).await?))
    }
}
