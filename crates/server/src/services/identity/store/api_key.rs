//! Rows of API keys. Of a key itself there is only the hash.

use std::net::IpAddr;

use berth_domain::Timestamp;
use berth_domain::identity::api_key::outlives;
use berth_domain::identity::{KeyScopes, KeyStatus, SourceNetworks};
use berth_domain::ids::{KeyId, OrgId, ProjectId, UserId};

use crate::columns;
use crate::db::listing::{Listed, Listing, Words};
use crate::db::record::{self, Columns};
use crate::db::{Db, DbError, FromRow, On, Row, Tx, page_of, sql};

/// The table.
const TABLE: &str = "api_keys";

/// A key.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyRow {
    /// Id.
    pub id: KeyId,
    /// Its organization.
    pub org: OrgId,
    /// Its project.
    pub project: ProjectId,
    /// Name.
    pub name: String,
    /// The 12 characters by which people recognise it.
    pub public_id: String,
    /// SHA-256 of the whole key, in hexadecimal.
    pub hash: String,
    /// What it is good for.
    pub scopes: KeyScopes,
    /// Who made it.
    pub created_by: UserId,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
    /// When it ends.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
    /// When it was used last, to the minute.
    pub last_used_at: Option<Timestamp>,
    /// Where it was used last.
    pub last_used_address: Option<String>,
    /// Where it may be used from.
    pub networks: SourceNetworks,
    /// Whether who made it is suspended.
    pub suspended: bool,
    /// The address of who made it, if the account is there.
    pub maker_email: Option<String>,
    /// How long a key of the organization may live, in seconds.
    pub longest: Option<i64>,
}

impl KeyRow {
    /// Whether it counts.
    pub fn lives(&self, now: Timestamp) -> bool {
        self.status(now) == KeyStatus::Active
    }

    /// Where it stands.
    pub fn status(&self, now: Timestamp) -> KeyStatus {
        KeyStatus::of(self.expires_at, self.revoked_at, now)
    }

    /// Whether it lives longer than the organization lets keys live that are made now.
    pub fn outlives_limit(&self) -> bool {
        outlives(self.expires_at, self.created_at, self.longest)
    }
}

impl FromRow for KeyRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            org: row.parsed("org_id")?,
            project: row.parsed("project_id")?,
            name: row.text("name")?,
            public_id: row.text("public_id")?,
            hash: row.text("hash")?,
            scopes: row.word("scopes", KeyScopes::parse)?,
            created_by: row.parsed("created_by")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
            expires_at: row.opt_time("expires_at")?,
            revoked_at: row.opt_time("revoked_at")?,
            last_used_at: row.opt_time("last_used_at")?,
            last_used_address: row.opt_text("last_used_address")?,
            networks: row.opt_word("networks", SourceNetworks::parse)?.unwrap_or_default(),
            suspended: row.opt_time("maker_suspended_at")?.is_some(),
            maker_email: row.opt_text("maker_email")?.filter(|email| !email.is_empty()),
            longest: row.opt_int("max_key_seconds")?,
        })
    }
}

/// Columns of a key, with how who made it stands.
const COLUMNS: &str =
    "k.*, u.suspended_at AS maker_suspended_at, u.email AS maker_email, o.max_key_seconds AS max_key_seconds";
/// Keys, with who made them.
const FROM: &str = "api_keys k LEFT JOIN users u ON u.id = k.created_by LEFT JOIN orgs o ON o.id = k.org_id";

/// The id, and what may change of a key.
fn changeable(key: &KeyRow) -> Columns {
    columns! {
        "id": key.id, "name": &key.name, "scopes": key.scopes.to_string(), "networks": key.networks.to_string(),
        "expires_at": key.expires_at, "revoked_at": key.revoked_at, "updated_at": key.updated_at,
    }
}

fn columns(key: &KeyRow) -> Columns {
    let lasting = columns! {
        "org_id": key.org, "project_id": key.project, "public_id": &key.public_id, "hash": &key.hash,
        "created_by": key.created_by, "created_at": key.created_at,
    };
    [changeable(key), lasting].concat()
}

/// Writes a new key.
pub async fn insert(tx: &mut Tx, key: &KeyRow) -> Result<(), DbError> {
    record::insert(TABLE, columns(key)).execute(tx).await.map(drop)
}

/// Writes what may change of a key.
pub async fn update(tx: &mut Tx, key: &KeyRow) -> Result<(), DbError> {
    record::overwrite(TABLE, changeable(key)).execute(tx).await.map(drop)
}

/// The keys of an organization that count, which a person made in projects that they do not see any more.
pub async fn unseen(tx: &mut Tx, org: OrgId, maker: UserId) -> Result<Vec<KeyRow>, DbError> {
    sql(format!(
        "SELECT {COLUMNS} FROM {FROM} WHERE k.created_by = $1 AND k.org_id = $2 AND k.revoked_at IS NULL \
         AND NOT EXISTS (SELECT 1 FROM org_members m WHERE m.org_id = $2 AND m.user_id = $1 \
         AND m.role IN ('owner', 'admin')) AND NOT EXISTS (SELECT 1 FROM project_members r \
         WHERE r.project_id = k.project_id AND r.user_id = $1)"
    ))
    .bind(maker)
    .bind(org)
    .fetch_all(tx)
    .await
}

/// The keys that count, which a person made.
pub async fn of_maker(tx: &mut Tx, maker: UserId) -> Result<Vec<KeyRow>, DbError> {
    sql(format!("SELECT {COLUMNS} FROM {FROM} WHERE k.created_by = $1 AND k.revoked_at IS NULL"))
        .bind(maker)
        .fetch_all(tx)
        .await
}

/// A key by its hash, if its project is there.
pub async fn by_hash(db: &Db, hash: &str) -> Result<Option<KeyRow>, DbError> {
    sql(format!(
        "SELECT {COLUMNS} FROM {FROM} JOIN projects p ON p.id = k.project_id WHERE k.hash = $1 AND p.deleted_at IS NULL"
    ))
    .bind(hash)
    .fetch_optional(db)
    .await
}

/// A key by its id, if its project is there.
pub async fn by_id(db: &Db, id: KeyId) -> Result<Option<KeyRow>, DbError> {
    sql(format!(
        "SELECT {COLUMNS} FROM {FROM} JOIN projects p ON p.id = k.project_id WHERE k.id = $1 AND p.deleted_at IS NULL"
    ))
    .bind(id)
    .fetch_optional(db)
    .await
}

/// The keys of a project that were not revoked, the newest first and at most so many.
pub async fn of_project(db: &Db, project: ProjectId) -> Result<Vec<KeyRow>, DbError> {
    sql(format!(
        "SELECT {COLUMNS} FROM {FROM} WHERE k.project_id = $1 AND k.revoked_at IS NULL \
         ORDER BY k.created_at DESC, k.id DESC LIMIT {MOST}"
    ))
    .bind(project)
    .fetch_all(db)
    .await
}

/// A key of a project.
pub async fn find(on: impl On, project: ProjectId, id: KeyId) -> Result<Option<KeyRow>, DbError> {
    sql(format!("SELECT {COLUMNS} FROM {FROM} WHERE k.project_id = $1 AND k.id = $2"))
        .bind(project)
        .bind(id)
        .fetch_optional(on)
        .await
}

/// Most keys of a project that [`of_project`] reads.
const MOST: usize = 1000;
/// [`KeyRow::status`] at `$2`.
const STATUS: &str = "CASE WHEN k.revoked_at IS NOT NULL THEN 'revoked' WHEN k.expires_at <= $2 THEN 'expired' \
     ELSE 'active' END";

/// By what a list of keys can be narrowed and ordered.
pub const LISTED: Listed = Listed {
    id: "listed.id",
    created: "listed.created_at",
    name: Some("listed.name"),
    status: Some(Words { param: "status", column: "listed.status", words: KeyStatus::WORDS }),
    labels: None,
};

/// A page of a project's keys, and how many there are.
pub async fn list(
    db: &Db,
    project: ProjectId,
    now: Timestamp,
    listing: &Listing,
) -> Result<(Vec<KeyRow>, i64), DbError> {
    let from = format!(
        "(SELECT {COLUMNS}, {STATUS} AS status FROM {FROM} WHERE k.project_id = $1) \
         AS listed WHERE 1 = 1"
    );
    page_of("*", from).bind(project).bind(now).list(db, &LISTED, listing).await
}

/// Notes when and where a key was used; never sets the time back.
pub async fn used(tx: &mut Tx, id: KeyId, at: Timestamp, from: Option<IpAddr>) -> Result<(), DbError> {
    sql("UPDATE api_keys SET last_used_at = $2, last_used_address = $3 WHERE id = $1 AND (last_used_at IS NULL \
         OR last_used_at < $2 OR (last_used_at = $2 AND (last_used_address IS NULL OR last_used_address <> $3)))")
    .bind(id)
    .bind(at)
    .bind(from.map(|address| address.to_string()))
    .execute(tx)
    .await
    .map(drop)
}
