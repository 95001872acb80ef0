//! Who calls, and what of it they may see: bearer to [`Caller`], path to [`Scope`].
//!
//! The extractors run in the order of the contract: 401 before 404 before 403, and all of them before
//! the body is looked at. The decisions themselves belong to identity, behind [`Gate`]; a service
//! sees only the scope it was given.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use axum::extract::{FromRequestParts, Path};
use axum::http::header;
use axum::http::request::Parts;
use berth_domain::identity::policy::{self, Action};
use berth_domain::identity::{OrgRole, ProjectRole};
use berth_domain::ids::{OrgId, ProjectId, SessionId, UserId};
use berth_domain::{Code, Error, Result};
use serde_json::json;

use super::envelope::{ApiError, RequestId};
use super::path::storable;
use crate::db::audit::Audit;

/// Somebody with a valid credential.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The person.
    pub user: UserId,
    /// The session the credential belongs to.
    pub session: SessionId,
    /// Administrator of the platform.
    pub is_admin: bool,
    /// Id of the request, for audit.
    pub request_id: String,
}

/// An organization as its caller sees it.
#[derive(Clone, Debug)]
pub struct OrgScope {
    /// Who asks.
    pub caller: Caller,
    /// The organization.
    pub org: OrgId,
    /// The caller's role in it.
    pub role: Option<OrgRole>,
}

/// A project as its caller sees it: what every query of a tenant's resources starts from.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Who asks.
    pub caller: Caller,
    /// The organization.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
    /// The caller's role in the organization.
    pub org_role: Option<OrgRole>,
    /// The caller's role in the project.
    pub project_role: Option<ProjectRole>,
}

/// Identity as the edge needs it.
#[async_trait]
pub trait Gate: Send + Sync + 'static {
    /// The caller behind a bearer token; 401 where there is none.
    async fn caller(&self, bearer: &str) -> Result<Caller>;

    /// The organization named in a path, by id or slug; 404 where the caller cannot see it.
    async fn org(&self, caller: Caller, org: &str) -> Result<OrgScope>;

    /// The project named in a path, by ids or slugs; 404 where the caller cannot see it.
    async fn project(&self, caller: Caller, org: &str, project: &str) -> Result<Scope>;
}

/// The 401 of every route.
pub fn unauthorized() -> Error {
    Error::new(
        Code::Unauthorized,
        "Sign in first: send 'Authorization: Bearer <access_token>' from POST /api/v1/auth/login.",
    )
}

fn gate(parts: &Parts) -> Result<Arc<dyn Gate>> {
    parts.extensions.get::<Arc<dyn Gate>>().cloned().ok_or_else(|| Error::internal("no gate"))
}

/// The token of `Authorization: Bearer …`, or of the WebSocket subprotocols `berth, bearer.<token>`,
/// because browsers cannot set the header there.
fn bearer(parts: &Parts) -> Option<&str> {
    if let Some(value) = parts.headers.get(header::AUTHORIZATION) {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        return scheme.eq_ignore_ascii_case("bearer").then(|| token.trim());
    }
    let protocols = parts.headers.get(header::SEC_WEBSOCKET_PROTOCOL)?.to_str().ok()?;
    protocols.split(',').find_map(|p| p.trim().strip_prefix("bearer."))
}

async fn path_of(parts: &mut Parts) -> Result<HashMap<String, String>> {
    Path::<HashMap<String, String>>::from_request_parts(parts, &())
        .await
        .map(|Path(map)| map.into_iter().map(|(name, value)| (name, storable(value))).collect())
        .map_err(|_| Error::new(Code::InvalidRequest, "The path is not valid UTF-8."))
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let token = bearer(parts).filter(|t| !t.is_empty()).ok_or_else(unauthorized)?;
        let mut caller = gate(parts)?.caller(token).await?;
        caller.request_id = parts.extensions.get::<RequestId>().map(|id| id.0.clone()).unwrap_or_default();
        Ok(caller)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for OrgScope {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let caller = Caller::from_request_parts(parts, state).await?;
        let path = path_of(parts).await?;
        let org = path.get("org_id").map_or("", String::as_str);
        Ok(gate(parts)?.org(caller, org).await?)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Scope {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let caller = Caller::from_request_parts(parts, state).await?;
        let path = path_of(parts).await?;
        let name = |key: &str| path.get(key).map_or("", String::as_str);
        Ok(gate(parts)?.project(caller, name("org_id"), name("project_id")).await?)
    }
}

impl Caller {
    /// The audit record of what this caller does.
    pub fn audit<'a>(&'a self, action: &'a str, subject: &'a str) -> Audit<'a> {
        Audit {
            org: None,
            project: None,
            actor: Some(self.user),
            request_id: &self.request_id,
            action,
            subject,
            data: json!({}),
        }
    }
}

impl OrgScope {
    /// The audit record of what the caller does in the organization.
    pub fn audit<'a>(&'a self, action: &'a str, subject: &'a str) -> Audit<'a> {
        Audit { org: Some(self.org), ..self.caller.audit(action, subject) }
    }

    /// Refuses with 403 what the caller's role does not allow.
    pub fn require(&self, action: Action) -> Result<()> {
        if policy::may(self.role, None, action) { Ok(()) } else { Err(forbidden()) }
    }
}

impl Scope {
    /// The audit record of what the caller does in the project.
    pub fn audit<'a>(&'a self, action: &'a str, subject: &'a str) -> Audit<'a> {
        Audit { org: Some(self.org), project: Some(self.project), ..self.caller.audit(action, subject) }
    }

    /// Refuses with 403 what the caller's roles do not allow.
    pub fn require(&self, action: Action) -> Result<()> {
        if policy::may(self.org_role, self.project_role, action) { Ok(()) } else { Err(forbidden()) }
    }
}

fn forbidden() -> Error {
    Error::new(Code::Forbidden, "Your role does not allow this. Ask an administrator of the project or organization.")
}

/// A caller who may create and delete projects of the organization.
pub struct OrgManager(pub OrgScope);

impl<S: Send + Sync> FromRequestParts<S> for OrgManager {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let scope = OrgScope::from_request_parts(parts, state).await?;
        scope.require(Action::ManageOrganization)?;
        Ok(Self(scope))
    }
}

/// A caller who may read the project.
pub struct Reader(pub Scope);

impl<S: Send + Sync> FromRequestParts<S> for Reader {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let scope = Scope::from_request_parts(parts, state).await?;
        scope.require(Action::ReadProject)?;
        Ok(Self(scope))
    }
}

/// A caller who may change the project's resources.
pub struct Editor(pub Scope);

impl<S: Send + Sync> FromRequestParts<S> for Editor {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let scope = Scope::from_request_parts(parts, state).await?;
        scope.require(Action::ChangeResources)?;
        Ok(Self(scope))
    }
}

/// An administrator of the platform.
pub struct Administrator(pub Caller);

impl<S: Send + Sync> FromRequestParts<S> for Administrator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let caller = Caller::from_request_parts(parts, state).await?;
        if caller.is_admin {
            Ok(Self(caller))
        } else {
            Err(Error::new(Code::Forbidden, "Only an administrator of the platform may do this.").into())
        }
    }
}
