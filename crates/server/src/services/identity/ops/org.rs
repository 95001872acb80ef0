//! Organizations.

use berth_domain::identity::OrgRole;
use berth_domain::identity::org::{ChangeOrg, NewOrg};
use berth_domain::ids::{OrgId, UserId};
use berth_domain::names::Slug;
use berth_domain::{Code, Error, Result, Timestamp};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{project, quota, slug_taken, suffix};
use crate::db::Tx;
use crate::db::audit::Audit;
use crate::db::tenant::Whose;
use crate::http::auth::{OrgScope, Person};
use crate::http::idempotency::{Idempotency, Outcome};
use crate::services::identity::absence::org_not_found;
use crate::services::identity::store::org::OrgRow;
use crate::services::identity::wire::org::OrgView;
use crate::services::identity::{Identity, store};

/// A new organization as its owner sees it, not written yet.
pub(super) async fn new(tx: &mut Tx, named: &NewOrg, now: Timestamp) -> Result<OrgRow> {
    let id = OrgId(Uuid::now_v7());
    let slug = if let Some(slug) = &named.slug {
        free(tx, slug).await?
    } else {
        let slug = Slug::from_title(&named.name, "org");
        if store::org::slug_taken(tx, slug.as_str()).await? { slug.with_suffix(&suffix(id.0)) } else { slug }
    };
    Ok(OrgRow {
        id,
        name: named.name.clone(),
        slug: slug.as_str().to_owned(),
        role: Some(OrgRole::Owner),
        suspended_at: None,
        refused: false,
        max_key_seconds: None,
        created_at: now,
        updated_at: now,
    })
}

async fn free(tx: &mut Tx, slug: &Slug) -> Result<Slug> {
    if store::org::slug_taken(tx, slug.as_str()).await? { Err(slug_taken(slug)) } else { Ok(slug.clone()) }
}

/// Writes a new organization with its owner.
pub(super) async fn write(tx: &mut Tx, org: &OrgRow, owner: UserId, personal: bool) -> Result<()> {
    store::org::insert(tx, org, personal).await?;
    Ok(store::member::put(tx, org.id, owner, OrgRole::Owner, org.created_at).await?)
}

/// What records tell of an organization.
fn told(org: &OrgRow) -> Value {
    json!({"name": org.name, "slug": org.slug, "max_key_seconds": org.max_key_seconds})
}

/// Makes an organization; its maker owns it.
pub(in crate::services::identity) async fn create(
    identity: &Identity,
    person: &Person,
    named: NewOrg,
    key: Idempotency,
) -> Result<Outcome<OrgView>> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(person).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    quota::one_more(identity, &mut tx, person.user, person.is_admin).await?;
    let org = new(&mut tx, &named, now).await?;
    write(&mut tx, &org, person.user, false).await?;
    quota::begin(identity, &mut tx, Whose::Org(org.id), now).await?;
    let subject = org.id.to_string();
    let audit = Audit { org: Some(org.id), ..person.caller.audit("org.create", &subject) };
    audit.with(told(&org)).write(&mut tx, now).await?;
    let view = OrgView::from(&org);
    let outcome = key.created(&mut tx, now, view.location(), view).await?;
    let user = person.user;
    identity.once_committed(&mut tx, move |inner| inner.cache.forget_person(user));
    tx.commit().await?;
    Ok(outcome)
}

/// Changes name, slug, or how long API keys live at most. Those that are there go on, and are listed as exceeding it.
pub(in crate::services::identity) async fn update(
    identity: &Identity,
    scope: &OrgScope,
    change: ChangeOrg,
) -> Result<OrgView> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(scope).await?;
    let before = store::org::find(&mut tx, scope.org).await?.ok_or_else(org_not_found)?;
    let mut org = before.clone();
    if let Some(name) = change.name {
        org.name = name;
    }
    if let Some(slug) = change.slug.filter(|slug| slug.as_str() != org.slug) {
        free(&mut tx, &slug).await?.as_str().clone_into(&mut org.slug);
    }
    if let Some(longest) = change.max_key_seconds {
        org.max_key_seconds = (longest > 0).then_some(longest);
    }
    if org == before {
        return Ok(OrgView::from(&OrgRow { role: Some(scope.role), ..org }));
    }
    org.updated_at = now;
    store::org::update(&mut tx, &org).await?;
    scope.audit("org.update", &org.id.to_string()).with(told(&org)).write(&mut tx, now).await?;
    identity.forgets_org(&mut tx, scope.org);
    tx.commit().await?;
    Ok(OrgView::from(&OrgRow { role: Some(scope.role), ..org }))
}

/// Deletes an organization that holds nothing, with its empty projects.
pub(in crate::services::identity) async fn delete(identity: &Identity, scope: &OrgScope) -> Result<()> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(scope).await?;
    if holds(identity, &mut tx, scope.org).await? {
        return Err(Error::new(
            Code::Conflict,
            "The organization still has VMs, disks, sandboxes or snapshots. Delete those first.",
        ));
    }
    let org = store::org::find(&mut tx, scope.org).await?.ok_or_else(org_not_found)?;
    remove(&mut tx, scope.org, now).await?;
    scope.audit("org.delete", &scope.org.to_string()).with(told(&org)).write(&mut tx, now).await?;
    identity.forgets_org(&mut tx, scope.org);
    Ok(tx.commit().await?)
}

/// Whether any project of an organization holds anything.
pub(super) async fn holds(identity: &Identity, tx: &mut Tx, org: OrgId) -> Result<bool> {
    for row in store::project::all_of(&mut *tx, org).await? {
        if project::holds(identity, tx, row.id).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes an organization and its projects.
pub(super) async fn remove(tx: &mut Tx, org: OrgId, now: Timestamp) -> Result<()> {
    for project in store::project::all_of(&mut *tx, org).await? {
        store::project::remove(tx, project.id, now).await?;
    }
    Ok(store::org::remove(tx, org, now).await?)
}
