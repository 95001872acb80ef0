//! Rows of memberships: of people in organizations, and in projects.

use berth_domain::Timestamp;
use berth_domain::identity::{OrgRole, ProjectRole};
use berth_domain::ids::{OrgId, ProjectId, UserId};

use crate::columns;
use crate::db::listing::{Listed, Listing};
use crate::db::{Db, DbError, FromRow, On, Row, Tx, page_of, record, sql};

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

/// Who is a member already keeps the time of that.
const OF_ORG: &str = "(org_id, user_id) DO UPDATE SET role = excluded.role";
const OF_PROJECT: &str = "(project_id, user_id) DO UPDATE SET role = excluded.role";

/// Makes a person a member of an organization, or changes the role.
pub async fn put(tx: &mut Tx, org: OrgId, user: UserId, role: OrgRole, now: Timestamp) -> Result<(), DbError> {
    let columns = columns! { "org_id": org, "user_id": user, "role": role.as_str(), "created_at": now };
    record::insert("org_members", columns).on_conflict(OF_ORG).execute(tx).await.map(drop)
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

/// The role of a person in an organization, unless the person is suspended.
pub async fn active_role(tx: &mut Tx, org: OrgId, user: UserId) -> Result<Option<OrgRole>, DbError> {
    let word: Option<String> = sql("SELECT m.role FROM org_members m JOIN users u ON u.id = m.user_id \
         WHERE m.org_id = $1 AND m.user_id = $2 AND u.suspended_at IS NULL")
    .bind(org)
    .bind(user)
    .fetch_optional(tx)
    .await?;
    word.map(|word| OrgRole::parse(&word).map_err(DbError::Other)).transpose()
}

/// How many owners an organization has.
pub async fn owners(tx: &mut Tx, org: OrgId) -> Result<i64, DbError> {
    sql("SELECT COUNT(*) FROM org_members WHERE org_id = $1 AND role = 'owner'").bind(org).fetch_one(tx).await
}

/// How many organizations a person owns.
pub async fn owned(tx: &mut Tx, user: UserId) -> Result<i64, DbError> {
    sql("SELECT COUNT(*) FROM org_members m JOIN orgs o ON o.id = m.org_id \
         WHERE m.user_id = $1 AND m.role = 'owner' AND o.deleted_at IS NULL")
    .bind(user)
    .fetch_one(tx)
    .await
}

/// How many members an organization has.
pub async fn count(tx: &mut Tx, org: OrgId) -> Result<i64, DbError> {
    sql("SELECT COUNT(*) FROM org_members WHERE org_id = $1").bind(org).fetch_one(tx).await
}

/// A project of which somebody is a member.
struct ProjectOf(ProjectId);

impl FromRow for ProjectOf {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        row.parsed("project_id").map(Self)
    }
}

/// The projects of which a person is a member, of one organization or of all.
async fn projects(tx: &mut Tx, user: UserId, org: Option<OrgId>) -> Result<Vec<ProjectId>, DbError> {
    let rows: Vec<ProjectOf> =
        sql("SELECT m.project_id FROM project_members m JOIN projects p ON p.id = m.project_id \
                                    WHERE m.user_id = $1 AND p.org_id = COALESCE($2, p.org_id) ORDER BY m.project_id")
        .bind(user)
        .bind(org)
        .fetch_all(tx)
        .await?;
    Ok(rows.into_iter().map(|row| row.0).collect())
}

/// Ends a membership in an organization, and in all of its projects: in which.
pub async fn remove(tx: &mut Tx, org: OrgId, user: UserId) -> Result<Vec<ProjectId>, DbError> {
    let left = projects(tx, user, Some(org)).await?;
    sql("DELETE FROM project_members WHERE user_id = $2 AND project_id IN (SELECT id FROM projects WHERE org_id = $1)")
        .bind(org)
        .bind(user)
        .execute(&mut *tx)
        .await?;
    sql("DELETE FROM org_members WHERE org_id = $1 AND user_id = $2").bind(org).bind(user).execute(tx).await?;
    Ok(left)
}

/// Ends every membership of a person: in which projects.
pub async fn remove_all(tx: &mut Tx, user: UserId) -> Result<Vec<ProjectId>, DbError> {
    let left = projects(tx, user, None).await?;
    sql("DELETE FROM project_members WHERE user_id = $1").bind(user).execute(&mut *tx).await?;
    sql("DELETE FROM org_members WHERE user_id = $1").bind(user).execute(tx).await?;
    Ok(left)
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

/// By what a list of members can be narrowed and ordered.
pub const LISTED: Listed =
    Listed { id: "m.user_id", created: "m.created_at", name: Some("COALESCE(u.name, '')"), status: None, labels: None };

/// A page of an organization's members, and how many there are.
pub async fn list(db: &Db, org: OrgId, listing: &Listing) -> Result<(Vec<MemberRow>, i64), DbError> {
    let from = "org_members m JOIN users u ON u.id = m.user_id WHERE m.org_id = $1";
    page_of(MEMBER, from).bind(org).list(db, &LISTED, listing).await
}

/// Makes a person a member of a project, or changes the role.
pub async fn put_in_project(
    tx: &mut Tx,
    project: ProjectId,
    user: UserId,
    role: ProjectRole,
    now: Timestamp,
) -> Result<(), DbError> {
    let columns = columns! { "project_id": project, "user_id": user, "role": role.as_str(), "created_at": now };
    record::insert("project_members", columns).on_conflict(OF_PROJECT).execute(tx).await.map(drop)
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

/// A page of a project's own members, and how many there are.
pub async fn list_in_project(db: &Db, project: ProjectId, listing: &Listing) -> Result<(Vec<MemberRow>, i64), DbError> {
    let from = "project_members m JOIN users u ON u.id = m.user_id WHERE m.project_id = $1";
    page_of(MEMBER, from).bind(project).list(db, &LISTED, listing).await
}
