//! Rows of memberships: of people in organizations, and in projects.

use berth_domain::Timestamp;
use berth_domain::identity::{OrgRole, ProjectRole};
use berth_domain::ids::{OrgId, ProjectId, UserId};
use berth_domain::page::Page;

use crate::db::{Db, DbError, FromRow, On, Row, Tx, page_of, sql};

/// A person as others of the organization or project see it.
#[derive(Clone, Debug)]
pub struct MemberRow {
    /// The person.
    pub user: UserId,
    /// Address.
    pub email: String,
    /// Name.
    pub name: Option<String>,
    /// Role, as a word.
    pub role: String,
    /// Since when.
    pub created_at: Timestamp,
}

/// Columns of a member.
const MEMBER: &str = "m.*, u.email AS email, u.name AS name";

impl FromRow for MemberRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            user: row.parsed("user_id")?,
            email: row.text("email")?,
            name: row.opt_text("name")?,
            role: row.text("role")?,
            created_at: row.time("created_at")?,
        })
    }
}

/// Makes a person a member of an organization, or changes the role.
pub async fn put(tx: &mut Tx, org: OrgId, user: UserId, role: OrgRole, now: Timestamp) -> Result<(), DbError> {
    sql("INSERT INTO org_members (org_id, user_id, role, created_at) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (org_id, user_id) DO UPDATE SET role = $3")
    .bind(org)
    .bind(user)
    .bind(role.as_str())
    .bind(now)
    .execute(tx)
    .await
    .map(drop)
}

/// A person's role in an organization.
pub async fn role(on: impl On, org: OrgId, user: UserId) -> Result<Option<OrgRole>, DbError> {
    let word: Option<String> = sql("SELECT role FROM org_members WHERE org_id = $1 AND user_id = $2")
        .bind(org)
        .bind(user)
        .fetch_optional(on)
        .await?;
    word.map(|word| OrgRole::parse(&word).map_err(DbError::Other)).transpose()
}

/// How many owners an organization has.
pub async fn owners(tx: &mut Tx, org: OrgId) -> Result<i64, DbError> {
    sql("SELECT COUNT(*) FROM org_members WHERE org_id = $1 AND role = 'owner'").bind(org).fetch_one(tx).await
}

/// How many members an organization has.
pub async fn count(tx: &mut Tx, org: OrgId) -> Result<i64, DbError> {
    sql("SELECT COUNT(*) FROM org_members WHERE org_id = $1").bind(org).fetch_one(tx).await
}

/// Ends a membership in an organization, and in all of its projects.
pub async fn remove(tx: &mut Tx, org: OrgId, user: UserId) -> Result<(), DbError> {
    sql("DELETE FROM project_members WHERE user_id = $2 AND project_id IN (SELECT id FROM projects WHERE org_id = $1)")
        .bind(org)
        .bind(user)
        .execute(&mut *tx)
        .await?;
    sql("DELETE FROM org_members WHERE org_id = $1 AND user_id = $2").bind(org).bind(user).execute(tx).await.map(drop)
}

/// Ends every membership of a person.
pub async fn remove_all(tx: &mut Tx, user: UserId) -> Result<(), DbError> {
    sql("DELETE FROM project_members WHERE user_id = $1").bind(user).execute(&mut *tx).await?;
    sql("DELETE FROM org_members WHERE user_id = $1").bind(user).execute(tx).await.map(drop)
}

/// One member of an organization.
pub async fn find(on: impl On, org: OrgId, user: UserId) -> Result<Option<MemberRow>, DbError> {
    sql("SELECT m.*, u.email AS email, u.name AS name FROM org_members m JOIN users u ON u.id = m.user_id \
         WHERE m.org_id = $1 AND m.user_id = $2")
    .bind(org)
    .bind(user)
    .fetch_optional(on)
    .await
}

/// A page of an organization's members, newest first, and how many there are.
pub async fn list(db: &Db, org: OrgId, page: Page) -> Result<(Vec<MemberRow>, i64), DbError> {
    let from = "org_members m JOIN users u ON u.id = m.user_id WHERE m.org_id = $1";
    page_of(MEMBER, from, "m.created_at DESC, m.user_id DESC").bind(org).fetch(db, page).await
}

/// Makes a person a member of a project, or changes the role.
pub async fn put_in_project(
    tx: &mut Tx,
    project: ProjectId,
    user: UserId,
    role: ProjectRole,
    now: Timestamp,
) -> Result<(), DbError> {
    sql("INSERT INTO project_members (project_id, user_id, role, created_at) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (project_id, user_id) DO UPDATE SET role = $3")
    .bind(project)
    .bind(user)
    .bind(role.as_str())
    .bind(now)
    .execute(tx)
    .await
    .map(drop)
}

/// Ends a membership in a project.
pub async fn remove_from_project(tx: &mut Tx, project: ProjectId, user: UserId) -> Result<(), DbError> {
    sql("DELETE FROM project_members WHERE project_id = $1 AND user_id = $2")
        .bind(project)
        .bind(user)
        .execute(tx)
        .await
        .map(drop)
}

/// One member of a project.
pub async fn find_in_project(on: impl On, project: ProjectId, user: UserId) -> Result<Option<MemberRow>, DbError> {
    sql("SELECT m.*, u.email AS email, u.name AS name FROM project_members m JOIN users u ON u.id = m.user_id \
         WHERE m.project_id = $1 AND m.user_id = $2")
    .bind(project)
    .bind(user)
    .fetch_optional(on)
    .await
}

/// A page of a project's own members, newest first, and how many there are.
pub async fn list_in_project(db: &Db, project: ProjectId, page: Page) -> Result<(Vec<MemberRow>, i64), DbError> {
    let from = "project_members m JOIN users u ON u.id = m.user_id WHERE m.project_id = $1";
    page_of(MEMBER, from, "m.created_at DESC, m.user_id DESC").bind(project).fetch(db, page).await
}
