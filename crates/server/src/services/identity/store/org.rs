//! Rows of organizations.

use berth_domain::Timestamp;
use berth_domain::identity::OrgRole;
use berth_domain::ids::{OrgId, UserId};

use crate::columns;
use crate::db::listing::{Listed, Listing};
use crate::db::record::{self, Columns};
use crate::db::{Db, DbError, FromRow, On, Row, Tx, page_of, sql};

/// The table.
const TABLE: &str = "orgs";

/// Whether the organization `o` is refused: suspended itself, or without an owner who is not suspended.
pub(super) const REFUSED: &str = "CASE WHEN o.suspended_at IS NOT NULL OR NOT EXISTS (SELECT 1 FROM org_members w \
     JOIN users x ON x.id = w.user_id WHERE w.org_id = o.id AND w.role = 'owner' AND x.suspended_at IS NULL) \
     THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END";

/// An organization, with the role of whoever looks.
#[derive(Clone, Debug, PartialEq)]
pub struct OrgRow {
    /// Id.
    pub id: OrgId,
    /// Name.
    pub name: String,
    /// Slug.
    pub slug: String,
    /// The caller's role; `None` where nobody in particular looks.
    pub role: Option<OrgRole>,
    /// When an administrator suspended it.
    pub suspended_at: Option<Timestamp>,
    /// Whether everything of it is refused: it is suspended, or nobody who owns it is active.
    pub refused: bool,
    /// How long an API key may live that is made now, in seconds.
    pub max_key_seconds: Option<i64>,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
}

impl FromRow for OrgRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            name: row.text("name")?,
            slug: row.text("slug")?,
            role: row.opt_word("role", OrgRole::parse)?,
            suspended_at: row.opt_time("suspended_at")?,
            refused: row.flag("refused")?,
            max_key_seconds: row.opt_int("max_key_seconds")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
        })
    }
}

/// Whether an organization has this slug.
pub async fn slug_taken(tx: &mut Tx, slug: &str) -> Result<bool, DbError> {
    let n: i64 = sql("SELECT COUNT(*) FROM orgs WHERE slug = $1").bind(slug).fetch_one(tx).await?;
    Ok(n > 0)
}

/// The id, and what may change of an organization.
fn changeable(org: &OrgRow) -> Columns {
    columns! {
        "id": org.id, "name": &org.name, "slug": &org.slug, "suspended_at": org.suspended_at,
        "max_key_seconds": org.max_key_seconds, "updated_at": org.updated_at,
    }
}

fn columns(org: &OrgRow, personal: bool) -> Columns {
    [changeable(org), columns! { "is_personal": personal, "created_at": org.created_at }].concat()
}

/// Writes a new organization.
pub async fn insert(tx: &mut Tx, org: &OrgRow, personal: bool) -> Result<(), DbError> {
    record::insert(TABLE, columns(org, personal)).execute(tx).await.map(drop)
}

/// Writes what may change of an organization.
pub async fn update(tx: &mut Tx, org: &OrgRow) -> Result<(), DbError> {
    record::overwrite(TABLE, changeable(org)).execute(tx).await.map(drop)
}

/// Marks an organization as gone; its slug is free again.
pub async fn remove(tx: &mut Tx, id: OrgId, now: Timestamp) -> Result<(), DbError> {
    let gone = columns! { "id": id, "slug": id.to_string(), "deleted_at": now, "updated_at": now };
    record::overwrite(TABLE, gone).execute(&mut *tx).await?;
    sql("DELETE FROM org_members WHERE org_id = $1").bind(id).execute(&mut *tx).await?;
    sql("UPDATE invitations SET revoked_at = $2 WHERE org_id = $1 AND accepted_at IS NULL AND revoked_at IS NULL")
        .bind(id)
        .bind(now)
        .execute(tx)
        .await
        .map(drop)
}

/// An organization by id, whoever looks.
pub async fn find(on: impl On, id: OrgId) -> Result<Option<OrgRow>, DbError> {
    sql(format!("SELECT o.*, {REFUSED} AS refused, NULL AS role FROM orgs o WHERE o.id = $1 AND o.deleted_at IS NULL"))
        .bind(id)
        .fetch_optional(on)
        .await
}

/// An organization as one of its members sees it, by id or slug.
pub async fn of(on: impl On, user: UserId, name: &str) -> Result<Option<OrgRow>, DbError> {
    sql(format!(
        "SELECT o.*, {REFUSED} AS refused, m.role AS role FROM orgs o JOIN org_members m ON m.org_id = o.id \
         WHERE m.user_id = $1 AND (o.id = $2 OR o.slug = $2) AND o.deleted_at IS NULL"
    ))
    .bind(user)
    .bind(name)
    .fetch_optional(on)
    .await
}

/// By what a list of organizations can be narrowed and ordered.
pub const LISTED: Listed =
    Listed { id: "o.id", created: "o.created_at", name: Some("o.name"), status: None, labels: None };

/// A page of the organizations a person belongs to, and how many there are.
pub async fn list_of(db: &Db, user: UserId, listing: &Listing) -> Result<(Vec<OrgRow>, i64), DbError> {
    let columns = format!("o.*, {REFUSED} AS refused, m.role AS role");
    let from = "orgs o JOIN org_members m ON m.org_id = o.id WHERE m.user_id = $1";
    page_of(columns, from).bind(user).list(db, &LISTED, listing).await
}

/// A page of all organizations, and how many there are.
pub async fn list(db: &Db, listing: &Listing) -> Result<(Vec<OrgRow>, i64), DbError> {
    let columns = format!("o.*, {REFUSED} AS refused, NULL AS role");
    page_of(columns, "orgs o WHERE o.deleted_at IS NULL").list(db, &LISTED, listing).await
}

/// Organizations of which a person is the only owner.
pub async fn solely_owned(tx: &mut Tx, user: UserId) -> Result<Vec<OrgRow>, DbError> {
    sql(format!(
        "SELECT o.*, {REFUSED} AS refused, m.role AS role FROM orgs o JOIN org_members m ON m.org_id = o.id \
         WHERE m.user_id = $1 AND m.role = 'owner' AND o.deleted_at IS NULL AND NOT EXISTS \
         (SELECT 1 FROM org_members x WHERE x.org_id = o.id AND x.role = 'owner' AND x.user_id <> $1)"
    ))
    .bind(user)
    .fetch_all(tx)
    .await
}

struct IdRow(OrgId);

impl FromRow for IdRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        row.parsed("id").map(Self)
    }
}

/// Organizations that are suspended, or whose owners all are.
pub async fn suspended(db: &Db) -> Result<Vec<OrgId>, DbError> {
    let rows: Vec<IdRow> =
        sql(format!("SELECT o.id FROM orgs o WHERE o.deleted_at IS NULL AND {REFUSED} = 1")).fetch_all(db).await?;
    Ok(rows.into_iter().map(|row| row.0).collect())
}
