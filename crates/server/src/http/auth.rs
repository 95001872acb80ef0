//! Who calls, and what they may see: bearer to [`Caller`], path to [`Scope`].
//!
//! The extractors run in the order of the contract: 401 before 404 before 403, and all of them before the body.
//! Identity decides, behind [`Gate`]; a service sees only the scope that it gets.
//!
//! A credential is a person's access token or a project's API key. Identity's own operations take persons
//! only ([`Person`]); a service's operations take keys with its scope ([`Reader`], [`Editor`]); what every
//! key of a project may read takes an [`Onlooker`]. Which scope that is, each service says of itself ([`Right`]).

use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
pub use berth_domain::identity::Limits;
use berth_domain::identity::policy::{self, Action};
use berth_domain::identity::{OrgRole, ProjectRole};
use berth_domain::ids::{KeyId, OrgId, Owner, ProjectId, SessionId, UserId};
use berth_domain::{Code, Error, Result};
use serde_json::json;
use uuid::Uuid;

pub use super::authority::{Grant, Granted, Watch};
use super::client_address::ClientAddress;
use super::credential;
pub use super::denial::{administrators_only, forbidden, missing_scope, persons_only, unauthorized};
use super::envelope::{ApiError, RequestId};
use super::from_within::{Counted, OnBehalf};
use super::limit::Window;
use super::path::PathText;
use super::query;
pub use super::right::AnyOf;
pub use super::who::Who;
use crate::db::Tx;
use crate::db::audit::{Actor, Audit};
use crate::db::tenant::Tenant;

/// A caller with a valid credential.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Who.
    pub who: Who,
    /// Id of the request, for audit.
    pub request_id: String,
    /// The grant of the extractor that let the caller in.
    pub granted: Option<Granted>,
    /// Where the request comes from, for audit.
    pub from: Option<IpAddr>,
}

impl Caller {
    /// The id of the person or the key.
    pub const fn id(&self) -> Uuid {
        self.who.id()
    }

    /// The caller as records name it.
    pub const fn actor(&self) -> Actor {
        match self.who {
            Who::Person { user, .. } => Actor::User(user),
            Who::Key { id, .. } => Actor::Key(id),
        }
    }

    /// Whether the caller administers the platform.
    pub const fn is_administrator(&self) -> bool {
        matches!(self.who, Who::Person { is_admin: true, .. })
    }

    /// The audit record of what this caller does.
    pub fn audit<'a>(&'a self, action: &'a str, subject: &'a str) -> Audit<'a> {
        Audit {
            org: None,
            project: None,
            actor: self.actor(),
            request_id: &self.request_id,
            from: self.from,
            action,
            subject,
            data: json!({}),
        }
    }

    /// Refuses a key that lacks a scope.
    fn require_right(&self, needed: Option<AnyOf>) -> Result<()> {
        match (self.who, needed) {
            (Who::Key { scopes, .. }, Some(needed)) if !needed.is_among(scopes) => Err(missing_scope(needed)),
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
    /// What all projects of the organization may have together.
    pub org_limits: Limits,
}

/// Identity as the edge needs it.
#[async_trait]
pub trait Gate: Send + Sync + 'static {
    /// The caller behind a bearer token; 401 where there is none, 403 where it is suspended or comes from elsewhere.
    async fn caller(&self, bearer: &str, from: ClientAddress) -> Result<Who>;

    /// The key with an id, as if it had been sent from there; 401 where it is none any more.
    async fn key(&self, id: KeyId, from: ClientAddress) -> Result<Who>;

    /// The keys of a project that count now and have one of these scopes.
    async fn keys_of(&self, project: ProjectId, right: AnyOf) -> Result<Vec<KeyId>>;

    /// Notes a refused bearer token.
    async fn refused(&self, bearer: &str, refusal: &Error, request: &RequestId);

    /// The organization named in a path, by id or slug; 404 where the caller cannot see it.
    async fn org(&self, person: Person, org: &str) -> Result<OrgScope>;

    /// The project named in a path, by ids or slugs; 404 where the caller cannot see it.
    async fn project(&self, caller: Caller, org: &str, project: &str) -> Result<Scope>;

    /// The project that a call goes to where no path names one: a key's own, else the one named by id, or by a slug
    /// that is not ambiguous; 400 where a person names none, 404 where the caller cannot see it.
    async fn home(&self, caller: Caller, named: Option<&str>) -> Result<Scope>;

    /// Refuses if the caller may not do it any more, by what the database says now.
    async fn recheck(&self, who: &Who, grant: Grant) -> Result<()>;

    /// The same by what a transaction reads, which holds until the transaction is over.
    async fn confirm(&self, tx: &mut Tx, who: &Who, grant: Grant) -> Result<()>;

    /// Counts a request of a caller, and of its project; returns what is left, or 429.
    fn admit(&self, who: &Who, scope: Option<&Scope>) -> Result<Option<Window>>;
}

pub(super) fn gate(parts: &Parts) -> Result<Arc<dyn Gate>> {
    parts.extensions.get::<Arc<dyn Gate>>().cloned().ok_or_else(|| Error::internal("no gate"))
}

/// Whom the credential of a request stands for.
async fn who_of(parts: &Parts, request: &RequestId) -> Result<Who> {
    let address = parts.extensions.get::<ClientAddress>().copied().unwrap_or_default();
    let gate = gate(parts)?;
    if let Some(OnBehalf(key)) = parts.extensions.get() {
        return gate.key(*key, address).await;
    }
    let token = credential::of(parts).filter(|t| !t.is_empty()).ok_or_else(unauthorized)?;
    match gate.caller(&token, address).await {
        Ok(who) => Ok(who),
        Err(refusal) => {
            gate.refused(&token, &refusal, request).await;
            Err(refusal)
        }
    }
}

/// The caller, before the request is counted.
pub(super) async fn caller_of(parts: &Parts) -> Result<Caller> {
    let request = parts.extensions.get::<RequestId>().cloned().unwrap_or_default();
    let who = who_of(parts, &request).await?;
    if let Some(slot) = parts.extensions.get::<super::limit::Slot>() {
        slot.asked_by(who);
    }
    Ok(Caller { who, request_id: request.id, from: request.from, granted: None })
}

/// Counts the request, and notes what is left for the answer's headers.
pub(super) fn admit(parts: &Parts, who: &Who, scope: Option<&Scope>) -> Result<()> {
    if parts.extensions.get::<Counted>().is_some() {
        return Ok(());
    }
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
        Who::Key { .. } => Err(persons_only()),
    }
}

async fn scope_of(parts: &mut Parts, caller: Caller) -> Result<Scope> {
    let path = PathText::of(parts).await?;
    let scope = gate(parts)?.project(caller, path.text("org_id"), path.text("project_id")).await?;
    admit(parts, &scope.caller.who, Some(&scope))?;
    Ok(scope)
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let mut caller = caller_of(parts).await?;
        admit(parts, &caller.who, None)?;
        caller.let_in(parts, Grant::Oneself)?;
        query::refuse(parts)?;
        Ok(caller)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Person {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let person = counted_person(parts).await?;
        query::refuse(parts)?;
        Ok(person)
    }
}

/// A person, for an operation on themselves; the request is counted.
async fn counted_person(parts: &mut Parts) -> Result<Person> {
    let mut person = person_of(parts).await?;
    admit(parts, &person.caller.who, None)?;
    person.caller.let_in(parts, Grant::Oneself)?;
    Ok(person)
}

impl<S: Send + Sync> FromRequestParts<S> for OrgScope {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let person = counted_person(parts).await?;
        let path = PathText::of(parts).await?;
        Ok(gate(parts)?.org(person, path.text("org_id")).await?)
    }
}

impl OrgScope {
    /// The audit record of what the caller does in the organization.
    pub fn audit<'a>(&'a self, action: &'a str, subject: &'a str) -> Audit<'a> {
        Audit { org: Some(self.org), ..self.person.caller.audit(action, subject) }
    }

    /// Refuses with 403 an action that the caller's role does not allow.
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
    /// The project as an owner.
    pub const fn owner(&self) -> Owner {
        (self.org, self.project)
    }

    /// The audit record of what the caller does in the project.
    pub fn audit<'a>(&'a self, action: &'a str, subject: &'a str) -> Audit<'a> {
        Audit { org: Some(self.org), project: Some(self.project), ..self.caller.audit(action, subject) }
    }

    /// Refuses with 403 an action that the caller's roles do not allow.
    pub fn require(&self, action: Action) -> Result<()> {
        if policy::may(self.org_role, self.project_role, action) { Ok(()) } else { Err(forbidden()) }
    }

    /// Lets the caller in for an action, if key and roles allow it.
    pub(super) fn let_in(&mut self, parts: &mut Parts, action: Action, right: Option<AnyOf>) -> Result<()> {
        self.caller.require_right(right)?;
        self.require(action)?;
        self.caller.let_in(parts, Grant::Project { org: self.org, project: self.project, action, right })
    }
}

macro_rules! org_extractors {
    ($($(#[$doc:meta])* $name:ident needs $action:ident;)*) => {$(
        $(#[$doc])*
        pub struct $name(pub OrgScope);

        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = ApiError;

            async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
                let mut scope = OrgScope::from_request_parts(parts, state).await?;
                let action = Action::$action;
                scope.require(action)?;
                scope.person.caller.let_in(parts, Grant::Organization { org: scope.org, action })?;
                query::refuse(parts)?;
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
    ($($(#[$doc:meta])* $name:ident by $caller:expr, needs $action:ident;)*) => {$(
        $(#[$doc])*
        pub struct $name(pub Scope);

        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = ApiError;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
                let caller: Caller = $caller(parts).await?;
                let mut scope = scope_of(parts, caller).await?;
                scope.let_in(parts, Action::$action, None)?;
                query::refuse(parts)?;
                Ok(Self(scope))
            }
        }
    )*};
}

async fn person_caller(parts: &Parts) -> Result<Caller> {
    person_of(parts).await.map(|person| person.caller)
}

/// What a service asks of an API key.
pub trait Right: Send + Sync + 'static {
    /// The scopes of which an API key needs one.
    const SCOPES: AnyOf;
}

/// The caller, unless it is a key without a right whose refusal is a 401: that comes before what the path names. A 403
/// comes after.
async fn caller_with<R: Right>(parts: &Parts) -> Result<Caller> {
    let caller = caller_of(parts).await?;
    match caller.require_right(Some(R::SCOPES)) {
        Err(refusal) if refusal.code == Code::Unauthorized => Err(refusal),
        _ => Ok(caller),
    }
}

/// A caller who may do something in the project of the path with what a service holds there.
async fn scope_with<R: Right>(parts: &mut Parts, action: Action) -> Result<Scope> {
    let caller = caller_with::<R>(parts).await?;
    let mut scope = scope_of(parts, caller).await?;
    scope.let_in(parts, action, Some(R::SCOPES))?;
    query::refuse(parts)?;
    Ok(scope)
}

macro_rules! service_extractors {
    ($($(#[$doc:meta])* $name:ident needs $action:ident;)*) => {$(
        $(#[$doc])*
        pub struct $name<R>(pub Scope, pub PhantomData<R>);

        impl<S: Send + Sync, R: Right> FromRequestParts<S> for $name<R> {
            type Rejection = ApiError;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
                Ok(Self(scope_with::<R>(parts, Action::$action).await?, PhantomData))
            }
        }
    )*};
}

service_extractors! {
    /// A caller who may read what a service holds of the project: a person, or a key with the right.
    Reader needs ReadProject;
    /// A caller who may change what a service holds of the project: a person, or a key with the right.
    Editor needs ChangeResources;
}

/// The caller's view of the project that a thing belongs to, for routes that name the thing alone; `None` where there
/// is no such thing, or the caller cannot see it.
pub async fn scope_at<R: Right>(
    parts: &mut Parts,
    place: Option<(OrgId, ProjectId)>,
    action: Action,
) -> Result<Option<Scope>> {
    let caller = caller_with::<R>(parts).await?;
    let Some((org, project)) = place else {
        admit(parts, &caller.who, None)?;
        return Ok(None);
    };
    let mut scope = match gate(parts)?.project(caller.clone(), &org.to_string(), &project.to_string()).await {
        Ok(scope) => scope,
        Err(refusal) if refusal.code == Code::ProjectNotFound => {
            admit(parts, &caller.who, None)?;
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    admit(parts, &scope.caller.who, Some(&scope))?;
    scope.let_in(parts, action, Some(R::SCOPES))?;
    Ok(Some(scope))
}

/// The header in which a person names the project of a call whose path names none.
pub const PROJECT_ID: &str = "x-project-id";

/// The caller's view of the project that a call goes to whose path names none: a key's own, else the header's.
pub async fn scope_at_home<R: Right>(parts: &mut Parts, action: Action) -> Result<Scope> {
    let caller = caller_with::<R>(parts).await?;
    let named = parts.headers.get(PROJECT_ID).map(|value| value.to_str().unwrap_or("?"));
    let mut scope = gate(parts)?.home(caller, named).await?;
    admit(parts, &scope.caller.who, Some(&scope))?;
    scope.let_in(parts, action, Some(R::SCOPES))?;
    Ok(scope)
}

project_extractors! {
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

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let mut person = counted_person(parts).await?;
        if !person.is_admin {
            return Err(administrators_only().into());
        }
        person.caller.let_in(parts, Grant::Administration)?;
        query::refuse(parts)?;
        Ok(Self(person))
    }
}
