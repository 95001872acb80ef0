//! Projects.

use berth_domain::identity::ProjectRole;
use berth_domain::identity::project::{ChangeProject, NewProject};
use berth_domain::ids::{OrgId, ProjectId, UserId};
use berth_domain::names::Slug;
use berth_domain::{Code, Error, Result, Timestamp};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{quota, slug_taken, suffix};
use crate::db::Tx;
use crate::db::audit::Audit;
use crate::db::tenant::Whose;
use crate::http::auth::{Caller, OrgScope, Person, Scope};
use crate::http::idempotency::{Idempotency, Outcome};
use crate::services::identity::absence::project_not_found;
use crate::services::identity::store::project::ProjectRow;
use crate::services::identity::wire::project::ProjectView;
use crate::services::identity::{Identity, store};

/// A new project as its maker sees it, not written yet.
pub(super) async fn new(tx: &mut Tx, org: OrgId, named: &NewProject, now: Timestamp) -> Result<ProjectRow> {
    let id = ProjectId(Uuid::now_v7());
    let slug = if let Some(slug) = &named.slug {
        free(tx, org, slug).await?
    } else {
        let slug = Slug::from_title(&named.name, "project");
        let taken = store::project::slug_taken(tx, org, slug.as_str()).await?;
        if taken { slug.with_suffix(&suffix(id.0)) } else { slug }
    };
    Ok(ProjectRow {
        id,
        org,
        name: named.name.clone(),
        slug: slug.as_str().to_owned(),
        slug_since: now,
        role: Some(ProjectRole::Admin),
        created_at: now,
        updated_at: now,
    })
}

async fn free(tx: &mut Tx, org: OrgId, slug: &Slug) -> Result<Slug> {
    if store::project::slug_taken(tx, org, slug.as_str()).await? { Err(slug_taken(slug)) } else { Ok(slug.clone()) }
}

/// Writes a new project; its maker becomes a member.
pub(super) async fn write(tx: &mut Tx, project: &ProjectRow, maker: UserId) -> Result<()> {
    store::project::insert(tx, project).await?;
    Ok(store::member::put_in_project(tx, project.id, maker, ProjectRole::Admin, project.created_at).await?)
}

/// What records tell of a project.
fn told(project: &ProjectRow) -> Value {
    json!({"name": project.name, "slug": project.slug})
}

/// Makes a project of an organization.
pub(in crate::services::identity) async fn create(
    identity: &Identity,
    scope: &OrgScope,
    named: NewProject,
    key: Idempotency,
) -> Result<Outcome<ProjectView>> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(scope).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    quota::one_more_project(&mut tx, scope.org).await?;
    let project = new(&mut tx, scope.org, &named, now).await?;
    write(&mut tx, &project, scope.person.user).await?;
    quota::begin(identity, &mut tx, Whose::Project(project.id), now).await?;
    let subject = project.id.to_string();
    let audit = Audit { project: Some(project.id), ..scope.audit("project.create", &subject) };
    audit.with(told(&project)).write_and_tell(&mut tx, now).await?;
    let view = ProjectView::from(&project);
    let outcome = key.created(&mut tx, now, view.location(scope.org), view).await?;
    identity.forgets_org(&mut tx, scope.org);
    tx.commit().await?;
    Ok(outcome)
}

/// Changes name or slug.
pub(in crate::services::identity) async fn update(
    identity: &Identity,
    scope: &Scope,
    change: ChangeProject,
) -> Result<ProjectView> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(scope).await?;
    let before = store::project::find(&mut tx, scope.project).await?.ok_or_else(project_not_found)?;
    let mut project = before.clone();
    if let Some(name) = change.name {
        project.name = name;
    }
    if let Some(slug) = change.slug.filter(|slug| slug.as_str() != project.slug) {
        free(&mut tx, scope.org, &slug).await?.as_str().clone_into(&mut project.slug);
        project.slug_since = now;
    }
    if project == before {
        return Ok(ProjectView::from(&ProjectRow { role: scope.project_role, ..project }));
    }
    project.updated_at = now;
    store::project::update(&mut tx, &project).await?;
    let subject = project.id.to_string();
    scope.audit("project.update", &subject).with(told(&project)).write_and_tell(&mut tx, now).await?;
    identity.forgets_org(&mut tx, scope.org);
    tx.commit().await?;
    Ok(ProjectView::from(&ProjectRow { role: scope.project_role, ..project }))
}

/// Deletes a project that holds nothing. Its keys end with it.
pub(in crate::services::identity) async fn delete(identity: &Identity, scope: &Scope) -> Result<()> {
    let mut tx = identity.inner.db.begin_as(scope).await?;
    remove(identity, &mut tx, &scope.caller, scope.project).await?;
    Ok(tx.commit().await?)
}

/// Deletes somebody's project that holds nothing, as an administrator of the platform.
pub(in crate::services::identity) async fn delete_any(
    identity: &Identity,
    admin: &Person,
    id: ProjectId,
) -> Result<()> {
    let mut tx = identity.inner.db.begin_as(admin).await?;
    remove(identity, &mut tx, &admin.caller, id).await?;
    Ok(tx.commit().await?)
}

async fn remove(identity: &Identity, tx: &mut Tx, by: &Caller, id: ProjectId) -> Result<()> {
    let now = identity.inner.clock.now();
    let project = store::project::find(&mut *tx, id).await?.ok_or_else(project_not_found)?;
    if holds(identity, tx, id).await? {
        return Err(Error::new(
            Code::Conflict,
            "The project still has VMs, disks, sandboxes or snapshots. Delete those first.",
        ));
    }
    store::project::remove(tx, id, now).await?;
    let (org, subject) = (project.org, id.to_string());
    let audit = Audit { org: Some(org), project: Some(id), ..by.audit("project.delete", &subject) };
    audit.with(told(&project)).write_and_tell(tx, now).await?;
    identity.forgets_org(tx, org);
    Ok(())
}

/// Whether any service keeps something in a project.
pub(super) async fn holds(identity: &Identity, tx: &mut Tx, project: ProjectId) -> Result<bool> {
    for holder in &identity.inner.holders {
        if holder.holds(tx, project).await? {
            return Ok(true);
        }
    }
    Ok(false)
}
