//! Who calls, and what of it they may see: bearer to [`Caller`], path to [`Scope`].
//!
//! The extractors run in the order of the contract: 401 before 404 before 403, and all of them before
//! the body is looked at. The decisions themselves belong to identity, behind [`Gate`]; a service
//! sees only the scope it was given.
//!
//! A credential is a person's access token or a project's API key. Identity's own operations take persons
//! only ([`Person`]); a service's operations take keys with its scope ([`Reader`], [`Editor`]); what every
//! key of a project may read takes an [`Onlooker`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::extract::{FromRequestParts, Path};
use axum::http::header;
use axum::http::request::Parts;
use berth_domain::identity::policy::{self, Action};
use berth_domain::identity::{KeyScope, KeyScopes, OrgRole, ProjectRole, api_key};
use berth_domain::ids::{KeyId, OrgId, ProjectId, SessionId, UserId};
use berth_domain::{Code, Error, Result};
use serde_json::json;
use uuid::Uuid;

use super::envelope::{ApiError, RequestId};
use super::limit::Window;
use super::path::storable;
use crate::db::audit::{Actor, Audit};
use crate::db::tenant::Tenant;

/// Between two looks at whether an answer without an end may go on.
const RECHECK: Duration = Duration::from_secs(5);

/// Somebody with a valid credential.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Who.
    pub who: Who,
    /// Id of the request, for audit.
    pub request_id: String,
}

/// What a credential stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A person, signed in.
    Person {
        /// The person.
        user: UserId,
        /// The session the credential belongs to.
        session: SessionId,
        /// Administrator of the platform.
        is_admin: bool,
    },
    /// An API key of a project.
    Key {
        /// The key.
        id: KeyId,
        /// The project it belongs to.
        project: ProjectId,
        /// What it is good for.
        scopes: KeyScopes,
    },
}

impl Caller {
    /// The id of the person or the key.
    pub const fn id(&self) -> Uuid {
        match self.who {
            Who::Person { user, .. } => user.0,
            Who::Key { id, .. } => id.0,
        }
    }

    /// The caller as records name it.
    pub const fn actor(&self) -> Actor {
        match self.who {
            Who::Person { user, .. } => Actor::User(user),
            Who::Key { id, .. } => Actor::Key(id),
        }
    }

    /// The audit record of what this caller does.
    pub fn audit<'a>(&'a self, action: &'a str, subject: &'a str) -> Audit<'a> {
        Audit {
            org: None,
            project: None,
            actor: self.actor(),
            request_id: &self.request_id,
            action,
            subject,
            data: json!({}),
        }
    }

    /// Refuses with 403 a key that lacks a scope.
    fn require_right(&self, needed: KeyScope) -> Result<()> {
        match self.who {
            Who::Key { scopes, .. } if !scopes.contains(needed) => Err(Error::new(
                Code::MissingScope,
                format!("This API key lacks the scope '{needed}'. Make or change one with POST or PATCH …/api_keys."),
            )),
            _ => Ok(()),
        }
    }

    /// Refuses with 401 a key that is not good for a service.
    fn require_scope(&self, needed: KeyScope) -> Result<()> {
        match self.who {
            Who::Key { scopes, .. } if !scopes.contains(needed) => Err(unauthorized()),
            _ => Ok(()),
        }
    }
}

/// A person who is signed in: the caller of identity's own operations.
#[derive(Clone, Debug)]
pub struct Person {
    /// The person.
    pub user: UserId,
    /// The session the credential belongs to.
    pub session: SessionId,
    /// Administrator of the platform.
    pub is_admin: bool,
    /// The same as a caller.
    pub caller: Caller,
}

/// What a project may have and do; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// VMs.
    pub vms: Option<i64>,
    /// Virtual CPUs.
    pub vcpu: Option<i64>,
    /// Memory, in MiB.
    pub memory_mb: Option<i64>,
    /// Disks, root disk volumes among them.
    pub disks: Option<i64>,
    /// Disk, in GiB.
    pub disk_gb: Option<i64>,
    /// Sandboxes.
    pub sandboxes: Option<i64>,
    /// Requests a minute.
    pub requests_per_minute: Option<i64>,
    /// Tokens of models a minute.
    pub tokens_per_minute: Option<i64>,
    /// Money for models a calendar month, in whole units.
    pub spend_per_month: Option<i64>,
}

/// An organization as its caller sees it.
#[derive(Clone, Debug)]
pub struct OrgScope {
    /// Who asks.
    pub person: Person,
    /// The organization.
    pub org: OrgId,
    /// The caller's role in it.
    pub role: OrgRole,
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
    /// What the project may have.
    pub limits: Limits,
}

/// Identity as the edge needs it.
#[async_trait]
pub trait Gate: Send + Sync + 'static {
    /// The caller behind a bearer token; 401 where there is none, 403 where it is suspended.
    async fn caller(&self, bearer: &str) -> Result<Who>;

    /// The organization named in a path, by id or slug; 404 where the caller cannot see it.
    async fn org(&self, person: Person, org: &str) -> Result<OrgScope>;

    /// The project named in a path, by ids or slugs; 404 where the caller cannot see it.
    async fn project(&self, caller: Caller, org: &str, project: &str) -> Result<Scope>;

    /// The project that a call goes to where no path names one: a key's own, else the one named by id, or by a slug
    /// that is not ambiguous; 400 where a person names none, 404 where the caller cannot see it.
    async fn home(&self, caller: Caller, named: Option<&str>) -> Result<Scope>;

    /// Refuses a credential that does not count any more, by what the database says now.
    async fn recheck(&self, who: &Who) -> Result<()>;

    /// Counts a request of a caller, and of the project it goes to: how much is left, or 429.
    fn admit(&self, who: &Who, scope: Option<&Scope>) -> Result<Option<Window>>;
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

/// The credential of a sandbox's operation: as everywhere, or an API key in `X-API-Key`.
fn bearer_or_key(parts: &Parts) -> Option<&str> {
    if parts.headers.contains_key(header::AUTHORIZATION) {
        return bearer(parts);
    }
    match parts.headers.get("x-api-key") {
        Some(value) => value.to_str().ok().filter(|key| key.starts_with(api_key::PREFIX)),
        None => bearer(parts),
    }
}

async fn path_of(parts: &mut Parts) -> Result<HashMap<String, String>> {
    Path::<HashMap<String, String>>::from_request_parts(parts, &())
        .await
        .map(|Path(map)| map.into_iter().map(|(name, value)| (name, storable(value))).collect())
        .map_err(|_| Error::new(Code::InvalidRequest, "The path is not valid UTF-8."))
}

/// The caller, not counted yet.
async fn caller_of(parts: &Parts) -> Result<Caller> {
    caller_by(parts, bearer(parts)).await
}

async fn caller_by(parts: &Parts, token: Option<&str>) -> Result<Caller> {
    let token = token.filter(|t| !t.is_empty()).ok_or_else(unauthorized)?;
    let who = gate(parts)?.caller(token).await?;
    let request_id = parts.extensions.get::<RequestId>().map(|id| id.0.clone()).unwrap_or_default();
    Ok(Caller { who, request_id })
}

/// Counts the request, and notes what is left for the answer's headers.
fn admit(parts: &Parts, who: &Who, scope: Option<&Scope>) -> Result<()> {
    if let Some(window) = gate(parts)?.admit(who, scope)?
        && let Some(slot) = parts.extensions.get::<super::limit::Slot>()
    {
        slot.put(window);
    }
    Ok(())
}

async fn person_of(parts: &Parts) -> Result<Person> {
    let caller = caller_of(parts).await?;
    match caller.who {
        Who::Person { user, session, is_admin } => Ok(Person { user, session, is_admin, caller }),
        Who::Key { .. } => Err(unauthorized()),
    }
}

async fn scope_of(parts: &mut Parts, caller: Caller) -> Result<Scope> {
    let path = path_of(parts).await?;
    let name = |key: &str| path.get(key).map_or("", String::as_str);
    let scope = gate(parts)?.project(caller, name("org_id"), name("project_id")).await?;
    admit(parts, &scope.caller.who, Some(&scope))?;
    Ok(scope)
}

/// Watches over answers that have no end: streams and consoles.
#[derive(Clone)]
pub struct Watch {
    gate: Arc<dyn Gate>,
}

impl Watch {
    /// Returns when the caller may not do this any more: the credential ended, a role was taken, somebody was
    /// suspended. While that cannot be told, the caller may.
    pub async fn over(&self, scope: &Scope, action: Action) {
        loop {
            tokio::time::sleep(RECHECK).await;
            if !self.allows(scope, action).await {
                return;
            }
        }
    }

    async fn allows(&self, scope: &Scope, action: Action) -> bool {
        let (org, project) = (scope.org.to_string(), scope.project.to_string());
        let seen = async {
            self.gate.recheck(&scope.caller.who).await?;
            self.gate.project(scope.caller.clone(), &org, &project).await?.require(action)
        };
        seen.await.map_or_else(|refusal| refusal.code.status() >= 500, |()| true)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Watch {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Ok(Self { gate: gate(parts)? })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let caller = caller_of(parts).await?;
        admit(parts, &caller.who, None)?;
        Ok(caller)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Person {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let person = person_of(parts).await?;
        admit(parts, &person.caller.who, None)?;
        Ok(person)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for OrgScope {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let person = Person::from_request_parts(parts, state).await?;
        let path = path_of(parts).await?;
        let org = path.get("org_id").map_or("", String::as_str);
        Ok(gate(parts)?.org(person, org).await?)
    }
}

impl OrgScope {
    /// The audit record of what the caller does in the organization.
    pub fn audit<'a>(&'a self, action: &'a str, subject: &'a str) -> Audit<'a> {
        Audit { org: Some(self.org), ..self.person.caller.audit(action, subject) }
    }

    /// Refuses with 403 what the caller's role does not allow.
    pub fn require(&self, action: Action) -> Result<()> {
        if policy::may(Some(self.role), None, action) { Ok(()) } else { Err(forbidden()) }
    }
}

impl From<&Scope> for Tenant {
    fn from(scope: &Scope) -> Self {
        Self { org: scope.org, project: scope.project }
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

/// The 403 of a role.
pub fn forbidden() -> Error {
    Error::new(Code::Forbidden, "Your role does not allow this. Ask an administrator of the project or organization.")
}

macro_rules! org_extractors {
    ($($(#[$doc:meta])* $name:ident needs $action:ident;)*) => {$(
        $(#[$doc])*
        pub struct $name(pub OrgScope);

        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = ApiError;

            async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
                let scope = OrgScope::from_request_parts(parts, state).await?;
                scope.require(Action::$action)?;
                Ok(Self(scope))
            }
        }
    )*};
}

org_extractors! {
    /// A person who belongs to the organization.
    OrgReader needs ReadOrganization;
    /// A person who may create and delete projects of the organization, and manage its members.
    OrgManager needs ManageOrganization;
    /// A person who owns the organization.
    OrgOwner needs OwnOrganization;
}

macro_rules! project_extractors {
    ($($(#[$doc:meta])* $name:ident by $caller:expr, needs $action:ident $(and $right:ident)?;)*) => {$(
        $(#[$doc])*
        pub struct $name(pub Scope);

        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = ApiError;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
                let caller: Caller = $caller(parts).await?;
                let scope = scope_of(parts, caller).await?;
                $(scope.caller.require_right(KeyScope::$right)?;)?
                scope.require(Action::$action)?;
                Ok(Self(scope))
            }
        }
    )*};
}

async fn person_caller(parts: &Parts) -> Result<Caller> {
    person_of(parts).await.map(|person| person.caller)
}

async fn vm_caller(parts: &Parts) -> Result<Caller> {
    let caller = caller_of(parts).await?;
    caller.require_scope(KeyScope::Vm)?;
    Ok(caller)
}

async fn sandbox_caller(parts: &Parts) -> Result<Caller> {
    caller_by(parts, bearer_or_key(parts)).await
}

/// The caller's view of the project that a sandbox belongs to, for routes that name the sandbox alone; `None`
/// where there is no such sandbox, or the caller cannot see it.
pub async fn sandbox_scope(parts: &Parts, place: Option<(OrgId, ProjectId)>) -> Result<Option<Scope>> {
    let caller = sandbox_caller(parts).await?;
    let Some((org, project)) = place else {
        admit(parts, &caller.who, None)?;
        return Ok(None);
    };
    let scope = match gate(parts)?.project(caller.clone(), &org.to_string(), &project.to_string()).await {
        Ok(scope) => scope,
        Err(refusal) if refusal.code == Code::ProjectNotFound => {
            admit(parts, &caller.who, None)?;
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    admit(parts, &scope.caller.who, Some(&scope))?;
    scope.caller.require_right(KeyScope::Sandbox)?;
    Ok(Some(scope))
}

/// The header in which a person names the project of a call to a model.
pub const PROJECT_ID: &str = "x-project-id";

/// A caller who may ask models: a person with a role that changes things, or a key of scope `inference`. Listing them
/// takes a role that reads.
pub struct Inference<const CHANGES: bool>(pub Scope);

impl<S: Send + Sync, const CHANGES: bool> FromRequestParts<S> for Inference<CHANGES> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let caller = caller_of(parts).await?;
        let named = parts.headers.get(PROJECT_ID).map(|value| value.to_str().unwrap_or("?"));
        let scope = gate(parts)?.home(caller, named).await?;
        admit(parts, &scope.caller.who, Some(&scope))?;
        scope.caller.require_right(KeyScope::Inference)?;
        scope.require(if CHANGES { Action::ChangeResources } else { Action::ReadProject })?;
        Ok(Self(scope))
    }
}

project_extractors! {
    /// A caller who may read the project's machines: a person, or a key of scope `vm`.
    Reader by vm_caller, needs ReadProject;
    /// A caller who may change the project's machines: a person, or a key of scope `vm`.
    Editor by vm_caller, needs ChangeResources;
    /// A caller who may read the project's sandboxes: a person, or a key of scope `sandbox`.
    SandboxReader by sandbox_caller, needs ReadProject and Sandbox;
    /// A caller who may change the project's sandboxes: a person, or a key of scope `sandbox`.
    SandboxEditor by sandbox_caller, needs ChangeResources and Sandbox;
    /// A caller who may read usage, quota and events: a person, or any key of the project.
    Onlooker by caller_of, needs ReadProject;
    /// A person who sees the project.
    ProjectReader by person_caller, needs ReadProject;
    /// A person who administers the project.
    ProjectManager by person_caller, needs ManageProject;
    /// A person who may delete projects of the organization.
    ProjectOwner by person_caller, needs ManageOrganization;
}

/// An administrator of the platform.
pub struct Administrator(pub Person);

impl<S: Send + Sync> FromRequestParts<S> for Administrator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let person = Person::from_request_parts(parts, state).await?;
        if person.is_admin {
            Ok(Self(person))
        } else {
            Err(Error::new(Code::Forbidden, "Only an administrator of the platform may do this.").into())
        }
    }
}
