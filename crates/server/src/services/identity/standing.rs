//! Whether a caller may do what an extractor once let it in for, by how it stands at this moment.

use berth_domain::identity::policy::{Action, may};
use berth_domain::{Result, Timestamp};

use super::Identity;
use super::absence::{org_not_found, project_not_found};
use super::barred::{org_suspended, require_network, user_suspended};
use super::store::standing::{self, Place, Standing};
use crate::db::On;
use crate::http::auth::{Grant, Who, administrators_only, forbidden, missing_scope, unauthorized};

/// Refuses what the caller may not do any more, in the order of the contract: 401, then what is suspended, then 404,
/// then 403.
pub(super) async fn require(identity: &Identity, on: impl On, who: &Who, grant: Grant) -> Result<()> {
    let place = match grant {
        Grant::Oneself | Grant::Administration => Place::default(),
        Grant::Organization { org, .. } => Place { org: Some(org), project: None },
        Grant::Project { org, project, .. } => Place { org: Some(org), project: Some(project) },
    };
    let found = match *who {
        Who::Person { user, session, .. } => standing::of_person(on, user, session, place).await?,
        Who::Key { id, .. } => standing::of_key(on, id, place).await?,
    };
    found.ok_or_else(unauthorized)?.require(who, grant, identity.inner.clock.now())
}

impl Standing {
    fn require(&self, who: &Who, grant: Grant, now: Timestamp) -> Result<()> {
        if self.revoked || self.ends_at.is_some_and(|at| at <= now) {
            return Err(unauthorized());
        }
        if self.suspended {
            return Err(user_suspended(self.scopes.is_some()));
        }
        if let Who::Key { from, .. } = *who {
            require_network(&self.networks, from)?;
        }
        match grant {
            Grant::Oneself => Ok(()),
            Grant::Administration if self.is_admin => Ok(()),
            Grant::Administration => Err(administrators_only()),
            Grant::Organization { action, .. } => {
                if !self.has_org || self.org_role.is_none() {
                    return Err(org_not_found());
                }
                self.require_active()?;
                self.require_role(action)
            }
            Grant::Project { action, right, .. } => {
                let sees = may(self.org_role, self.project_role, Action::ReadProject);
                if !self.has_org || !self.has_project || !sees {
                    return Err(project_not_found());
                }
                self.require_active()?;
                if let (Some(scopes), Some(right)) = (self.scopes, right)
                    && !right.is_among(scopes)
                {
                    return Err(missing_scope(right));
                }
                self.require_role(action)
            }
        }
    }

    fn require_active(&self) -> Result<()> {
        if self.org_refused { Err(org_suspended()) } else { Ok(()) }
    }

    fn require_role(&self, action: Action) -> Result<()> {
        if may(self.org_role, self.project_role, action) { Ok(()) } else { Err(forbidden()) }
    }
}
