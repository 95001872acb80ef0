//! Quotas: what an administrator lets a project have, and all projects of an organization together.

use berth_domain::identity::Limits;
use berth_domain::ids::{OrgId, ProjectId, UserId};
use berth_domain::{Code, Error, Result, Timestamp};
use serde_json::Value;

use crate::db::audit::Audit;
use crate::db::tenant::Whose;
use crate::db::{Tx, quota};
use crate::http::auth::Person;
use crate::services::identity::absence::{org_not_found, project_not_found};
use crate::services::identity::{Identity, store};
use crate::services::quota::room;

/// Sets what a project may have; what is there already stays.
pub(in crate::services::identity) async fn set(
    identity: &Identity,
    admin: &Person,
    project: ProjectId,
    limits: Limits,
) -> Result<()> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(admin).await?;
    let row = store::project::find(&mut tx, project).await?.ok_or_else(project_not_found)?;
    quota::put(&mut tx, Whose::Project(project), &limits, now).await?;
    let subject = project.to_string();
    let audit = Audit {
        org: Some(row.org),
        project: Some(project),
        data: told(&limits),
        ..admin.caller.audit("quota.set", &subject)
    };
    audit.write_and_tell(&mut tx, now).await?;
    identity.forgets_org(&mut tx, row.org);
    Ok(tx.commit().await?)
}

/// Sets what all projects of an organization may have together; what is there already stays.
pub(in crate::services::identity) async fn set_of_org(
    identity: &Identity,
    admin: &Person,
    org: OrgId,
    limits: Limits,
) -> Result<()> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(admin).await?;
    store::org::find(&mut tx, org).await?.ok_or_else(org_not_found)?;
    quota::put(&mut tx, Whose::Org(org), &limits, now).await?;
    let subject = org.to_string();
    let audit = Audit { org: Some(org), data: told(&limits), ..admin.caller.audit("org_quota.set", &subject) };
    audit.write(&mut tx, now).await?;
    identity.forgets_org(&mut tx, org);
    Ok(tx.commit().await?)
}

/// Refuses with 403 an organization more than a person may own, however they come by it. Administrators of the platform
/// own what they like.
pub(super) async fn one_more(identity: &Identity, tx: &mut Tx, user: UserId, is_admin: bool) -> Result<()> {
    let limit = identity.inner.quota.organizations_per_person;
    if is_admin || store::member::owned(tx, user).await? < limit {
        return Ok(());
    }
    Err(Error::new(
        Code::QuotaExceeded,
        format!(
            "A person may own {limit} organizations. Delete one, leave one that has another owner, or ask an administrator \
             of the platform to make one."
        ),
    ))
}

/// Refuses with 403 an organization more projects than it may have.
pub(super) async fn one_more_project(tx: &mut Tx, org: OrgId) -> Result<()> {
    let limits = quota::find(&mut *tx, Whose::Org(org)).await?;
    let used = store::project::count(&mut *tx, org).await?;
    room(Whose::Org(org), "projects", (used, 1), limits.projects)
}

/// Sets what the configuration says of what was just made.
pub(super) async fn begin(identity: &Identity, tx: &mut Tx, whose: Whose, now: Timestamp) -> Result<()> {
    let defaults = &identity.inner.quota;
    let limits = match whose {
        Whose::Project(_) => &defaults.project,
        Whose::Org(_) => &defaults.organization,
    };
    if !limits.is_empty() {
        quota::put(tx, whose, limits, now).await?;
    }
    Ok(())
}

fn told(limits: &Limits) -> Value {
    limits.named().into_iter().map(|(name, limit)| (name.to_owned(), Value::from(limit))).collect()
}
