//! Rows of API keys. Of a key itself there is only the hash.

use berth_domain::Timestamp;
use berth_domain::identity::KeyScopes;
use berth_domain::ids::{KeyId, OrgId, ProjectId, UserId};
use berth_domain::page::Page;

use crate::db::{Db, DbError, FromRow, On, Row, Tx, page_of, sql};

/// A key.
#[derive(Clone, Debug)]
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
}

impl KeyRow {
    /// Whether it counts.
    pub fn lives(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|at| at > now)
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
        })
    }
}

/// Writes a new key.
pub async fn insert(tx: &mut Tx, key: &KeyRow) -> Result<(), DbError> {
    sql("INSERT INTO api_keys (id, org_id, project_id, name, public_id, hash, scopes, created_by, created_at, \
         updated_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)")
    .bind(key.id)
    .bind(key.org)
    .bind(key.project)
    .bind(&key.name)
    .bind(&key.public_id)
    .bind(&key.hash)
    .bind(key.scopes.to_string())
    .bind(key.created_by)
    .bind(key.created_at)
    .bind(key.updated_at)
    .bind(key.expires_at)
    .execute(tx)
    .await
    .map(drop)
}

/// Writes what may change of a key.
pub async fn update(tx: &mut Tx, key: &KeyRow) -> Result<(), DbError> {
    sql("UPDATE api_keys SET name = $2, scopes = $3, expires_at = $4, revoked_at = $5, updated_at = $6 WHERE id = $1")
        .bind(key.id)
        .bind(&key.name)
        .bind(key.scopes.to_string())
        .bind(key.expires_at)
        .bind(key.revoked_at)
        .bind(key.updated_at)
        .execute(tx)
        .await
        .map(drop)
}

/// A key by its hash, if its project is there.
pub async fn by_hash(db: &Db, hash: &str) -> Result<Option<KeyRow>, DbError> {
    sql("SELECT k.* FROM api_keys k JOIN projects p ON p.id = k.project_id \
         WHERE k.hash = $1 AND p.deleted_at IS NULL")
    .bind(hash)
    .fetch_optional(db)
    .await
}

/// A key of a project.
pub async fn find(on: impl On, project: ProjectId, id: KeyId) -> Result<Option<KeyRow>, DbError> {
    sql("SELECT * FROM api_keys WHERE project_id = $1 AND id = $2").bind(project).bind(id).fetch_optional(on).await
}

/// A page of a project's keys, newest first, and how many there are.
pub async fn list(db: &Db, project: ProjectId, page: Page) -> Result<(Vec<KeyRow>, i64), DbError> {
    page_of("*", "api_keys WHERE project_id = $1", "created_at DESC, id DESC").bind(project).fetch(db, page).await
}

/// Notes when a key was used; never sets the time back.
pub async fn used(tx: &mut Tx, id: KeyId, at: Timestamp) -> Result<(), DbError> {
    sql("UPDATE api_keys SET last_used_at = $2 WHERE id = $1 AND (last_used_at IS NULL OR last_used_at < $2)")
        .bind(id)
        .bind(at)
        .execute(tx)
        .await
        .map(drop)
}
