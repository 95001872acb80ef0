//! Identity: people, organizations, projects, sessions; who calls, and what of it they may see.
//!
//! Invariants of this house:
//!
//! - A warm request is authenticated and scoped without the database: tokens that were verified, sessions
//!   that live, and scopes that were resolved are kept in memory. Our own writes change that memory in the
//!   same breath; where other services share the database, nothing in it is older than a second.
//! - No secret is at rest in clear: passwords and tokens are hashes, successors are sealed.
//! - What a caller cannot see answers exactly as what does not exist.

mod api;
mod memory;
mod ops;
mod password;
mod store;
#[cfg(test)]
mod tests;
mod throttle;
mod token;
mod wire;

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use berth_domain::identity::policy::{Action, may};
use berth_domain::{Code, Error, Result};
use utoipa_axum::router::OpenApiRouter;

use crate::clock::Clock;
use crate::config::{Config, Secret};
use crate::db::Db;
use crate::http::auth::{Caller, Gate, OrgScope, Scope, unauthorized};
use memory::Memory;

/// The identity service.
#[derive(Clone)]
pub struct Identity {
    inner: Arc<Inner>,
}

struct Inner {
    db: Db,
    clock: Clock,
    config: crate::config::Identity,
    hasher: password::Hasher,
    throttle: throttle::Throttle,
    signer: token::Signer,
    memory: Memory,
    first_login: Mutex<Option<(String, Secret)>>,
}

impl Identity {
    /// Starts it: makes a signing key and the first administrator where there is none.
    pub async fn start(db: Db, clock: Clock, config: &Config) -> anyhow::Result<Self> {
        let settings = config.identity.clone();
        let issuer = if settings.issuer.is_empty() { config.base_url.clone() } else { settings.issuer.clone() };
        let keys = ops::signing_keys(&db, &clock).await?;
        let inner = Inner {
            hasher: password::Hasher::new(&settings)?,
            throttle: throttle::Throttle::new(&settings),
            signer: token::Signer::new(&keys, &issuer, &settings.audience)?,
            memory: Memory::new(db.is_shared()),
            first_login: Mutex::default(),
            config: settings,
            db,
            clock,
        };
        let identity = Self { inner: Arc::new(inner) };
        let login = ops::first_administrator(&identity, config).await?;
        *identity.inner.first_login.lock().unwrap_or_else(PoisonError::into_inner) = login;
        Ok(identity)
    }

    /// The first administrator's login, if it was just made up; to be shown once.
    pub fn first_login(&self) -> Option<(String, Secret)> {
        self.inner.first_login.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Its routes.
    pub fn routes(&self) -> OpenApiRouter {
        api::routes().with_state(self.clone())
    }
}

/// The 404 of an organization.
fn org_not_found() -> Error {
    Error::new(Code::OrganizationNotFound, "There is no such organization, or you do not belong to it.")
}

/// The 404 of a project, and of everything in an organization that the caller cannot see.
fn project_not_found() -> Error {
    Error::new(Code::ProjectNotFound, "There is no such project, or you do not belong to it.")
}

#[async_trait]
impl Gate for Identity {
    async fn caller(&self, bearer: &str) -> Result<Caller> {
        let now = self.inner.clock.now();
        let claims = if let Some(claims) = self.inner.memory.claims(bearer, now) {
            claims
        } else {
            let claims = self.inner.signer.verify(bearer, now)?;
            self.inner.memory.remember_claims(bearer, &claims);
            claims
        };
        let session = if let Some(session) = self.inner.memory.session(claims.sid, now) {
            session
        } else {
            let row = store::session(&self.inner.db, claims.sid).await?.ok_or_else(unauthorized)?;
            self.inner.memory.remember_session(&row, now)
        };
        if !session.lives(now) || session.user != claims.sub {
            return Err(unauthorized());
        }
        let is_admin = session.is_admin;
        Ok(Caller { user: claims.sub, session: claims.sid, is_admin, request_id: String::new() })
    }

    async fn org(&self, caller: Caller, org: &str) -> Result<OrgScope> {
        let row = store::org_of(&self.inner.db, caller.user, org).await?.ok_or_else(org_not_found)?;
        Ok(OrgScope { caller, org: row.id, role: Some(row.role) })
    }

    async fn project(&self, caller: Caller, org: &str, project: &str) -> Result<Scope> {
        let now = self.inner.clock.now();
        if let Some(scope) = self.inner.memory.scope(&caller, org, project, now) {
            return Ok(scope);
        }
        let found = store::org_of(&self.inner.db, caller.user, org).await?.ok_or_else(project_not_found)?;
        let row = store::project_of(&self.inner.db, found.id, caller.user, project).await?;
        let row =
            row.filter(|row| may(Some(found.role), row.role, Action::ReadProject)).ok_or_else(project_not_found)?;
        let scope =
            Scope { caller, org: found.id, project: row.id, org_role: Some(found.role), project_role: row.role };
        self.inner.memory.remember_scope(org, project, &scope, now);
        Ok(scope)
    }
}
