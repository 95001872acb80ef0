//! An API key, as a request comes by it, and the project that is its own.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use berth_domain::identity::Action;
use berth_domain::ids::KeyId;
use berth_domain::{Code, Error, Result};

use super::auth::{PROJECT_ID, Scope, Who, admit, caller_of, gate};
use super::envelope::ApiError;
use super::query;

/// What whoever comes by something else than a key is told, where a key stands for its project.
pub const NEEDS_KEY: &str = "This takes the API key of a project. Make one: berth key create NAME";

/// The key that a request comes by, in the project that is its own. Who comes by something else is refused with this message.
pub async fn key_at_home(parts: &Parts, otherwise: &str) -> Result<(KeyId, Scope)> {
    let caller = caller_of(parts).await?;
    let Who::Key { id, .. } = caller.who else {
        admit(parts, &caller.who, None)?;
        return Err(Error::new(Code::Forbidden, otherwise));
    };
    let scope = gate(parts)?.home(caller, None).await?;
    admit(parts, &scope.caller.who, Some(&scope))?;
    Ok((id, scope))
}

/// The project that a request goes to whose path names none: a key's own, else the one that its header names. Whoever asks
/// there is let in by what they ask for.
pub async fn at_home(parts: &Parts) -> Result<Scope> {
    let caller = caller_of(parts).await?;
    let named = parts.headers.get(PROJECT_ID).map(|value| value.to_str().unwrap_or("?"));
    let scope = gate(parts)?.home(caller, named).await?;
    admit(parts, &scope.caller.who, Some(&scope))?;
    Ok(scope)
}

/// An API key that asks about itself.
pub struct KeyItself {
    /// The key.
    pub id: KeyId,
    /// Its project.
    pub scope: Scope,
}

impl<S: Send + Sync> FromRequestParts<S> for KeyItself {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let otherwise = "This tells an API key what it is. GET /api/v1/users/me tells who is signed in.";
        let (id, mut scope) = key_at_home(parts, otherwise).await?;
        scope.let_in(parts, Action::ReadProject, None)?;
        query::refuse(parts)?;
        Ok(Self { id, scope })
    }
}
