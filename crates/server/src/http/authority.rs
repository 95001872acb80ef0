//! Grants: what an extractor granted to a caller, and checking it again.
//!
//! An extractor decides by what is in memory and notes what it granted. The service checks the grant again where time
//! may have passed: inside the transaction that acts ([`Db::begin_as`](crate::db::Db::begin_as)), behind a slow body
//! ([`body`](super::body)), and every few seconds beside an answer without an end ([`Watch`]). Without a grant, the
//! transaction is refused, so that an operation behind no extractor does nothing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use berth_domain::identity::Action;
use berth_domain::ids::{OrgId, ProjectId};
use berth_domain::{Error, Result};
use uuid::Uuid;

use super::auth::{Caller, Gate, OrgScope, Person, Scope, Who, gate};
use super::envelope::ApiError;
use super::right::AnyOf;
use super::streams::{Place, Streams};
use crate::db::{Authority, Tx};

/// Pause between two checks whether an answer without an end may go on.
const RECHECK: Duration = Duration::from_secs(5);

/// What an extractor granted to a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// What every credential may do: reading the catalog, changing oneself.
    Oneself,
    /// Administering the platform.
    Administration,
    /// Something in an organization.
    Organization {
        /// The organization.
        org: OrgId,
        /// The action.
        action: Action,
    },
    /// Something in a project.
    Project {
        /// Its organization.
        org: OrgId,
        /// The project.
        project: ProjectId,
        /// The action.
        action: Action,
        /// The scopes of which a key needs one for it.
        right: Option<AnyOf>,
    },
}

/// A grant, with the gate that gave it.
#[derive(Clone)]
pub struct Granted {
    gate: Arc<dyn Gate>,
    grant: Grant,
}

impl fmt::Debug for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.grant.fmt(f)
    }
}

impl Granted {
    /// Notes what was granted.
    pub fn new(gate: Arc<dyn Gate>, grant: Grant) -> Self {
        Self { gate, grant }
    }
}

/// The sender of a request, for the layers behind the extractor that let it in.
#[derive(Clone, Debug)]
pub struct Sender {
    who: Who,
    granted: Granted,
}

impl Sender {
    /// The holders of an answer without an end: the credential, and the organization if there is one.
    fn holders(&self) -> Vec<Uuid> {
        let org = match self.granted.grant {
            Grant::Project { org, .. } | Grant::Organization { org, .. } => Some(org.0),
            Grant::Oneself | Grant::Administration => None,
        };
        std::iter::once(self.who.id()).chain(org).collect()
    }

    /// Refuses if the sender may not do it any more, by what the database says now.
    pub async fn recheck(&self) -> Result<()> {
        self.granted.gate.recheck(&self.who, self.granted.grant).await
    }
}

fn nothing_granted() -> Error {
    Error::internal("an operation acts for a caller whom no extractor has let in for it")
}

impl Caller {
    /// Notes the grant, also in the request's extensions.
    pub(super) fn let_in(&mut self, parts: &mut Parts, grant: Grant) -> Result<()> {
        let granted = Granted::new(gate(parts)?, grant);
        parts.extensions.insert(Sender { who: self.who, granted: granted.clone() });
        self.granted = Some(granted);
        Ok(())
    }

    async fn confirm_as(&self, tx: &mut Tx, grant: Option<Grant>) -> Result<()> {
        let granted = self.granted.as_ref().ok_or_else(nothing_granted)?;
        granted.gate.confirm(tx, &self.who, grant.unwrap_or(granted.grant)).await
    }
}

#[async_trait]
impl Authority for Caller {
    fn tenant(&self) -> Uuid {
        self.id()
    }

    async fn confirm(&self, tx: &mut Tx) -> Result<()> {
        self.confirm_as(tx, None).await
    }
}

#[async_trait]
impl Authority for Person {
    fn tenant(&self) -> Uuid {
        self.user.0
    }

    async fn confirm(&self, tx: &mut Tx) -> Result<()> {
        self.caller.confirm(tx).await
    }
}

#[async_trait]
impl Authority for OrgScope {
    fn tenant(&self) -> Uuid {
        self.org.0
    }

    async fn confirm(&self, tx: &mut Tx) -> Result<()> {
        self.person.caller.confirm(tx).await
    }
}

#[async_trait]
impl Authority for Scope {
    fn tenant(&self) -> Uuid {
        self.org.0
    }

    async fn confirm(&self, tx: &mut Tx) -> Result<()> {
        self.caller.confirm(tx).await
    }
}

impl OrgScope {
    /// Refuses with 403 an action that the caller's role does not allow now, where an operation needs more than its
    /// route.
    pub async fn require_in(&self, tx: &mut Tx, action: Action) -> Result<()> {
        self.person.caller.confirm_as(tx, Some(Grant::Organization { org: self.org, action })).await
    }
}

/// Watches over an answer without an end: a stream, a console or a wait. It holds one of the places for those, on
/// behalf of the caller that was let in.
#[derive(Clone)]
pub struct Watch {
    gate: Arc<dyn Gate>,
    _place: Option<Arc<Place>>,
}

impl Watch {
    /// Returns when the caller may not do this any more.
    pub async fn over(&self, scope: &Scope, action: Action) {
        self.refusal(scope, action).await;
    }

    /// Returns the refusal once the caller may not do this any more: the credential ended, a role was taken, somebody
    /// was suspended. While the database does not answer, the caller may.
    pub async fn refusal(&self, scope: &Scope, action: Action) -> Error {
        let right = scope.caller.granted.as_ref().and_then(|granted| match granted.grant {
            Grant::Project { right, .. } => right,
            _ => None,
        });
        let grant = Grant::Project { org: scope.org, project: scope.project, action, right };
        self.refused(&scope.caller.who, grant).await
    }

    /// Returns when a caller who administers the platform does not any more; for any other one never.
    pub async fn demoted(&self, scope: &Scope) {
        if !scope.caller.is_administrator() {
            return std::future::pending().await;
        }
        self.refused(&scope.caller.who, Grant::Administration).await;
    }

    async fn refused(&self, who: &Who, grant: Grant) -> Error {
        loop {
            tokio::time::sleep(RECHECK).await;
            match self.gate.recheck(who, grant).await {
                Err(refusal) if refusal.code.status() < 500 => return refusal,
                _ => {}
            }
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Watch {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let (streams, sender) = (parts.extensions.get::<Arc<Streams>>(), parts.extensions.get::<Sender>());
        let place = match streams.zip(sender) {
            Some((streams, sender)) => Some(Arc::new(streams.enter(sender.holders())?)),
            None => None,
        };
        Ok(Self { gate: gate(parts)?, _place: place })
    }
}
