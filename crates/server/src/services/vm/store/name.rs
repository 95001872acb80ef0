//! What VMs and their projects are called, for who answers for names.

use std::net::IpAddr;

use crate::db::{Db, DbError, FromRow, Row, sql};

/// A VM that has an address that others reach, or this host.
#[derive(Clone, Debug)]
pub struct NamedRow {
    /// Its name.
    pub name: String,
    /// Its project's id.
    pub project: String,
    /// Its address.
    pub address: IpAddr,
    /// Whether nobody else has that.
    pub is_own: bool,
}

impl FromRow for NamedRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        let address: IpAddr = row.parsed("reached")?;
        let is_own = row.opt_text("shared_address")?.is_none();
        Ok(Self { name: row.text("name")?, project: row.text("project_id")?, address, is_own })
    }
}

/// The VMs that have an address.
pub async fn named(db: &Db) -> Result<Vec<NamedRow>, DbError> {
    sql("SELECT vms.name, vms.project_id, m.shared_address, COALESCE(m.shared_address, m.pool_address, m.address) AS reached \
         FROM vms JOIN machines m ON m.owner_id = vms.id AND m.owner_kind = 'vm' WHERE vms.deleted_at IS NULL \
         AND COALESCE(m.shared_address, m.pool_address, m.address) IS NOT NULL")
    .fetch_all(db)
    .await
}

/// A project.
#[derive(Clone, Debug)]
pub struct ProjectRow {
    /// Its id.
    pub id: String,
    /// Its slug.
    pub slug: String,
}

impl FromRow for ProjectRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self { id: row.text("id")?, slug: row.text("slug")? })
    }
}

/// All projects, in the order in which they took their slugs: one that was made long ago takes none from others by calling
/// itself as they do.
pub async fn projects(db: &Db) -> Result<Vec<ProjectRow>, DbError> {
    sql("SELECT id, slug FROM projects WHERE deleted_at IS NULL ORDER BY COALESCE(slug_since, created_at), id")
        .fetch_all(db)
        .await
}
