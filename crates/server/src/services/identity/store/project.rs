//! Rows of projects.

use berth_domain::Timestamp;
use berth_domain::identity::ProjectRole;
use berth_domain::ids::{OrgId, ProjectId, UserId};

use crate::columns;
use crate::db::listing::{Listed, Listing};
use crate::db::owned::{self, Owned, OwnerFilter};
use crate::db::record::{self, Columns};
use crate::db::ssh_key::{self, KeyOwner};
use crate::db::{Db, DbError, FromRow, On, Row, Tx, page_of, sql};

/// The table.
const TABLE: &str = "projects";

/// A project, with the role of whoever looks.
#[derive(Clone, Debug, PartialEq)]
pub struct ProjectRow {
    /// Id.
    pub id: ProjectId,
    /// Its organization.
    pub org: OrgId,
    /// Name.
    pub name: String,
    /// Slug.
    pub slug: String,
    /// Since when it has the slug.
    pub slug_since: Timestamp,
    /// The caller's role, if it is a member of the project itself.
    pub role: Option<ProjectRole>,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
}

impl FromRow for ProjectRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            org: row.parsed("org_id")?,
            name: row.text("name")?,
            slug: row.text("slug")?,
            slug_since: row.opt_time("slug_since")?.map_or_else(|| row.time("created_at"), Ok)?,
            role: row.opt_word("role", ProjectRole::parse)?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
        })
    }
}

/// Whether a project of the organization has this slug.
pub async fn slug_taken(tx: &mut Tx, org: OrgId, slug: &str) -> Result<bool, DbError> {
    let n: i64 =
        sql("SELECT COUNT(*) FROM projects WHERE org_id = $1 AND slug = $2").bind(org).bind(slug).fetch_one(tx).await?;
    Ok(n > 0)
}

/// The id, and what may change of a project.
fn changeable(project: &ProjectRow) -> Columns {
    columns! {
        "id": project.id, "name": &project.name, "slug": &project.slug, "slug_since": project.slug_since,
        "updated_at": project.updated_at,
    }
}

fn columns(project: &ProjectRow) -> Columns {
    [changeable(project), columns! { "org_id": project.org, "created_at": project.created_at }].concat()
}

/// Writes a new project.
pub async fn insert(tx: &mut Tx, project: &ProjectRow) -> Result<(), DbError> {
    record::insert(TABLE, columns(project)).execute(tx).await.map(drop)
}

/// Writes what may change of a project.
pub async fn update(tx: &mut Tx, project: &ProjectRow) -> Result<(), DbError> {
    record::overwrite(TABLE, changeable(project)).execute(tx).await.map(drop)
}

/// Marks a project as gone; its slug is free again, its members and keys are none any more.
pub async fn remove(tx: &mut Tx, id: ProjectId, now: Timestamp) -> Result<(), DbError> {
    let gone = columns! { "id": id, "slug": id.to_string(), "deleted_at": now, "updated_at": now };
    record::overwrite(TABLE, gone).execute(&mut *tx).await?;
    sql("DELETE FROM project_members WHERE project_id = $1").bind(id).execute(&mut *tx).await?;
    ssh_key::forget(&mut *tx, KeyOwner::Project(id)).await?;
    sql("UPDATE api_keys SET revoked_at = $2 WHERE project_id = $1 AND revoked_at IS NULL")
        .bind(id)
        .bind(now)
        .execute(tx)
        .await
        .map(drop)
}

/// A project by id, whoever looks.
pub async fn find(on: impl On, id: ProjectId) -> Result<Option<ProjectRow>, DbError> {
    sql("SELECT p.*, NULL AS role FROM projects p WHERE p.id = $1 AND p.deleted_at IS NULL")
        .bind(id)
        .fetch_optional(on)
        .await
}

/// A project of an organization, by id or slug, with a person's role in it.
pub async fn of(on: impl On, org: OrgId, user: UserId, name: &str) -> Result<Option<ProjectRow>, DbError> {
    sql("SELECT p.*, m.role AS role FROM projects p \
         LEFT JOIN project_members m ON m.project_id = p.id AND m.user_id = $2 \
         WHERE p.org_id = $1 AND (p.id = $3 OR p.slug = $3) AND p.deleted_at IS NULL")
    .bind(org)
    .bind(user)
    .bind(name)
    .fetch_optional(on)
    .await
}

/// Projects of this id or slug in any organization, with a person's role in each.
pub async fn anywhere(on: impl On, user: UserId, name: &str) -> Result<Vec<ProjectRow>, DbError> {
    sql("SELECT p.*, m.role AS role FROM projects p \
         JOIN org_members o ON o.org_id = p.org_id AND o.user_id = $1 \
         LEFT JOIN project_members m ON m.project_id = p.id AND m.user_id = $1 \
         WHERE (p.id = $2 OR p.slug = $2) AND p.deleted_at IS NULL")
    .bind(user)
    .bind(name)
    .fetch_all(on)
    .await
}

/// A project by the names in a path, if it is the one with this id.
pub async fn named(on: impl On, id: ProjectId, org: &str, name: &str) -> Result<Option<ProjectRow>, DbError> {
    sql("SELECT p.*, NULL AS role FROM projects p JOIN orgs o ON o.id = p.org_id \
         WHERE p.id = $1 AND (o.id = $2 OR o.slug = $2) AND (p.id = $3 OR p.slug = $3) AND p.deleted_at IS NULL")
    .bind(id)
    .bind(org)
    .bind(name)
    .fetch_optional(on)
    .await
}

/// How many projects an organization has.
pub async fn count(on: impl On, org: OrgId) -> Result<i64, DbError> {
    sql("SELECT COUNT(*) FROM projects WHERE org_id = $1 AND deleted_at IS NULL").bind(org).fetch_one(on).await
}

/// Every project of an organization.
pub async fn all_of(tx: &mut Tx, org: OrgId) -> Result<Vec<ProjectRow>, DbError> {
    sql("SELECT p.*, NULL AS role FROM projects p WHERE p.org_id = $1 AND p.deleted_at IS NULL")
        .bind(org)
        .fetch_all(tx)
        .await
}

/// By what a list of projects can be narrowed and ordered.
pub const LISTED: Listed =
    Listed { id: "p.id", created: "p.created_at", name: Some("p.name"), status: None, labels: None };

/// A page of an organization's projects, and how many there are: all of them, or only those a person is a member of.
pub async fn list(
    db: &Db,
    org: OrgId,
    user: UserId,
    all: bool,
    listing: &Listing,
) -> Result<(Vec<ProjectRow>, i64), DbError> {
    let from = "projects p LEFT JOIN project_members m ON m.project_id = p.id AND m.user_id = $2 \
         WHERE p.org_id = $1 AND p.deleted_at IS NULL AND ($3 = 1 OR m.role IS NOT NULL)";
    page_of("p.*, m.role AS role", from).bind(org).bind(user).bind(all).list(db, &LISTED, listing).await
}

/// A page of everybody's projects with their organizations, and how many there are.
pub async fn list_all(
    db: &Db,
    whose: &OwnerFilter,
    listing: &Listing,
) -> Result<(Vec<Owned<ProjectRow>>, i64), DbError> {
    owned::list(db, owned::PROJECTS, whose, &LISTED, listing).await
}
