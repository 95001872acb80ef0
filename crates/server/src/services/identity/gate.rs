//! The gate: from a bearer token to a caller, from a path to a scope. Warm, it asks no database.

use async_trait::async_trait;
use berth_domain::hex;
use berth_domain::identity::policy::{Action, may};
use berth_domain::identity::{ProjectRole, api_key};
use berth_domain::ids::{KeyId, ProjectId};
use berth_domain::{Code, Error, FieldError, Result, Timestamp};
use sha2::{Digest, Sha256};

use super::absence::{org_not_found, project_not_found};
use super::barred::{org_suspended, require_network, user_suspended};
use super::store::org::OrgRow;
use super::store::project::ProjectRow;
use super::token::Claims;
use super::{Identity, cache, ops, standing, store};
use crate::db::tenant::Whose;
use crate::db::{Tx, quota};
use crate::http::auth::{AnyOf, Caller, Gate, Grant, OrgScope, PROJECT_ID, Person, Scope, Who, unauthorized};
use crate::http::client_address::ClientAddress;
use crate::http::envelope::RequestId;
use crate::http::limit::Window;

#[async_trait]
impl Gate for Identity {
    async fn caller(&self, bearer: &str, from: ClientAddress) -> Result<Who> {
        let now = self.inner.clock.now();
        if bearer.starts_with(api_key::PREFIX) {
            self.key_of(bearer, from, now).await
        } else {
            self.person(bearer, now).await
        }
    }

    async fn key(&self, id: KeyId, from: ClientAddress) -> Result<Who> {
        let now = self.inner.clock.now();
        let read_at = self.inner.cache.generation();
        if let Some(key) = self.inner.cache.key_of_id(id, now) {
            return self.admit_key(&key, from, now);
        }
        let row = store::api_key::by_id(&self.inner.db, id).await?.ok_or_else(unauthorized)?;
        let hash = hex::decode(&row.hash).ok_or_else(|| Error::internal("a key's hash is none"))?;
        self.admit_key(&self.inner.cache.remember_key(hash, &row, read_at, now), from, now)
    }

    async fn keys_of(&self, project: ProjectId, right: AnyOf) -> Result<Vec<KeyId>> {
        let now = self.inner.clock.now();
        let rows = store::api_key::of_project(&self.inner.db, project).await?;
        let counts = rows.iter().filter(|row| row.lives(now) && right.is_among(row.scopes));
        Ok(counts.map(|row| row.id).collect())
    }

    async fn refused(&self, bearer: &str, refusal: &Error, request: &RequestId) {
        if refusal.code.status() >= 500 {
            return;
        }
        if let Err(error) = ops::refusal::key(self, bearer, refusal, request).await {
            tracing::warn!(%error, "a refused key cannot be recorded");
        }
    }

    async fn org(&self, person: Person, org: &str) -> Result<OrgScope> {
        let row = store::org::of(&self.inner.db, person.user, org).await?.ok_or_else(org_not_found)?;
        let role = row.role.ok_or_else(org_not_found)?;
        refuse_suspended(&row)?;
        Ok(OrgScope { person, org: row.id, role })
    }

    async fn project(&self, caller: Caller, org: &str, project: &str) -> Result<Scope> {
        let (now, read_at) = (self.inner.clock.now(), self.inner.cache.generation());
        if let Some(scope) = self.inner.cache.scope(&caller, org, project, now) {
            return Ok(scope);
        }
        let scope = match caller.who {
            Who::Person { .. } => self.of_person(caller, org, project).await?,
            Who::Key { .. } => self.of_key(caller, org, project).await?,
        };
        self.inner.cache.remember_scope(org, project, &scope, read_at, now);
        Ok(scope)
    }

    async fn home(&self, caller: Caller, named: Option<&str>) -> Result<Scope> {
        let (now, read_at) = (self.inner.clock.now(), self.inner.cache.generation());
        let name = named.map(str::trim).filter(|name| !name.is_empty());
        // No organization is called like this, so no path's scope is taken for it.
        if let Some(scope) = self.inner.cache.scope(&caller, "", name.unwrap_or_default(), now) {
            return Ok(scope);
        }
        let scope = match caller.who {
            Who::Person { .. } => self.home_of_person(caller, name.ok_or_else(project_required)?).await?,
            Who::Key { .. } => self.home_of_key(caller, name).await?,
        };
        self.inner.cache.remember_scope("", name.unwrap_or_default(), &scope, read_at, now);
        Ok(scope)
    }

    async fn recheck(&self, who: &Who, grant: Grant) -> Result<()> {
        standing::require(self, &self.inner.db, who, grant).await
    }

    async fn confirm(&self, tx: &mut Tx, who: &Who, grant: Grant) -> Result<()> {
        standing::require(self, tx, who, grant).await
    }

    fn admit(&self, who: &Who, scope: Option<&Scope>) -> Result<Option<Window>> {
        // All sessions of a person share one counter.
        let own = self.inner.limiter.credential(who.id())?;
        let Some(scope) = scope else { return Ok(own) };
        let limits = [
            (Whose::Project(scope.project), scope.limits.requests_per_minute),
            (Whose::Org(scope.org), scope.org_limits.requests_per_minute),
        ];
        let mut least = own;
        for (whose, limit) in limits {
            let window = self.inner.limiter.of(whose, limit)?;
            least = least.into_iter().chain(window).min_by_key(|window| window.left);
        }
        Ok(least)
    }
}

fn project_required() -> Error {
    let message = "Name the project: send its id in the header 'X-Project-Id', or call with an API key of the project.";
    let field = FieldError { field: PROJECT_ID.into(), message: "is required with an access token".into() };
    Error { details: vec![field], ..Error::new(Code::ProjectRequired, message) }
}

fn refuse_suspended(org: &OrgRow) -> Result<()> {
    if org.refused { Err(org_suspended()) } else { Ok(()) }
}

impl Identity {
    async fn person(&self, token: &str, now: Timestamp) -> Result<Who> {
        let claims = match self.inner.cache.claims(token, now) {
            Some(claims) => claims,
            None => self.verify(token, now).await?,
        };
        let session = match self.inner.cache.session(claims.sid, now) {
            Some(session) => session,
            None => self.session(&claims, now).await?,
        };
        if !session.lives(now) || session.user != claims.sub {
            return Err(unauthorized());
        }
        if session.suspended {
            return Err(user_suspended(false));
        }
        Ok(Who::Person { user: claims.sub, session: claims.sid, is_admin: session.is_admin })
    }

    async fn verify(&self, token: &str, now: Timestamp) -> Result<Claims> {
        if self.signer().misses_key_of(token) && self.inner.limits.may_reload_keys(now) {
            // The service that came after this one may have made a key since.
            ops::signing_key::reload(self).await?;
        }
        let claims = self.signer().verify(token, now)?;
        self.inner.cache.remember_claims(token, &claims);
        Ok(claims)
    }

    async fn session(&self, claims: &Claims, now: Timestamp) -> Result<cache::Session> {
        let read_at = self.inner.cache.generation();
        let row = store::session::find(&self.inner.db, claims.sid).await?.ok_or_else(unauthorized)?;
        Ok(self.inner.cache.remember_session(&row, read_at, now))
    }

    async fn key_of(&self, text: &str, from: ClientAddress, now: Timestamp) -> Result<Who> {
        api_key::public_part(text).ok_or_else(unauthorized)?;
        let hash: cache::KeyHash = Sha256::digest(text.as_bytes()).into();
        let read_at = self.inner.cache.generation();
        let key = if let Some(key) = self.inner.cache.key(&hash, now) {
            key
        } else {
            let row = store::api_key::by_hash(&self.inner.db, &hex::encode(&hash)).await?.ok_or_else(unauthorized)?;
            self.inner.cache.remember_key(hash, &row, read_at, now)
        };
        self.admit_key(&key, from, now)
    }

    /// Whom a key stands for, if it counts and may be used from there.
    fn admit_key(&self, key: &cache::Key, from: ClientAddress, now: Timestamp) -> Result<Who> {
        if !key.lives(now) {
            return Err(unauthorized());
        }
        if key.suspended {
            return Err(user_suspended(true));
        }
        require_network(&key.networks, from)?;
        self.inner.cache.key_used(key.id, from.known(), now);
        Ok(Who::Key { id: key.id, project: key.project, scopes: key.scopes, from })
    }

    async fn of_person(&self, caller: Caller, org: &str, project: &str) -> Result<Scope> {
        let Who::Person { user, .. } = caller.who else { return Err(project_not_found()) };
        let found = store::org::of(&self.inner.db, user, org).await?.ok_or_else(project_not_found)?;
        let row = store::project::of(&self.inner.db, found.id, user, project).await?;
        let row = row.filter(|row| may(found.role, row.role, Action::ReadProject)).ok_or_else(project_not_found)?;
        refuse_suspended(&found)?;
        self.scope(caller, row, found.role).await
    }

    /// A key is an editor of its own project, and sees no other.
    async fn of_key(&self, caller: Caller, org: &str, project: &str) -> Result<Scope> {
        let Who::Key { project: own, .. } = caller.who else { return Err(project_not_found()) };
        let row = store::project::named(&self.inner.db, own, org, project).await?.ok_or_else(project_not_found)?;
        self.of_own(caller, row).await
    }

    /// What a key sees of its own project.
    async fn of_own(&self, caller: Caller, row: ProjectRow) -> Result<Scope> {
        let org = store::org::find(&self.inner.db, row.org).await?.ok_or_else(project_not_found)?;
        refuse_suspended(&org)?;
        self.scope(caller, ProjectRow { role: Some(ProjectRole::Editor), ..row }, None).await
    }

    /// A project by its id or a slug that only one of the person's organizations has.
    async fn home_of_person(&self, caller: Caller, name: &str) -> Result<Scope> {
        let Who::Person { user, .. } = caller.who else { return Err(project_not_found()) };
        let mut found = None;
        for row in store::project::anywhere(&self.inner.db, user, name).await? {
            let org = store::org::of(&self.inner.db, user, &row.org.to_string()).await?;
            let Some(org) = org.filter(|org| may(org.role, row.role, Action::ReadProject)) else { continue };
            if found.replace((row, org)).is_some() {
                return Err(Error::field(PROJECT_ID, "names projects of several organizations; send the project's id"));
            }
        }
        let (row, org) = found.ok_or_else(project_not_found)?;
        refuse_suspended(&org)?;
        self.scope(caller, row, org.role).await
    }

    /// A key has one project, and may name it.
    async fn home_of_key(&self, caller: Caller, name: Option<&str>) -> Result<Scope> {
        let Who::Key { project: own, .. } = caller.who else { return Err(project_not_found()) };
        let row = store::project::find(&self.inner.db, own).await?.ok_or_else(project_not_found)?;
        if name.is_some_and(|name| name != row.slug && name != row.id.to_string()) {
            return Err(project_not_found());
        }
        self.of_own(caller, row).await
    }

    async fn scope(
        &self,
        caller: Caller,
        row: ProjectRow,
        org_role: Option<berth_domain::identity::OrgRole>,
    ) -> Result<Scope> {
        let limits = quota::find(&self.inner.db, Whose::Project(row.id)).await?;
        let org_limits = quota::find(&self.inner.db, Whose::Org(row.org)).await?;
        Ok(Scope { caller, org: row.org, project: row.id, org_role, project_role: row.role, limits, org_limits })
    }
}
