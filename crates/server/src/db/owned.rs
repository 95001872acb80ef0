//! Rows of any service together with the names of their organization and project, for the lists of the platform's
//! administrators. Such a list covers every tenant, so its pages cannot come from the lists of tenants.

use berth_domain::ids::{OrgId, ProjectId};

use super::listing::{Listed, Listing};
use super::{Db, DbError, FromRow, Row, page_of};
use crate::{joined_networks, machine_columns, with_machine};

/// A row with its owner.
#[derive(Clone, Debug)]
pub struct Owned<T> {
    /// The row.
    pub row: T,
    /// The organization.
    pub org: OrgId,
    /// Its slug.
    pub org_slug: String,
    /// The project.
    pub project: ProjectId,
    /// Its slug.
    pub project_slug: String,
}

impl<T: FromRow> FromRow for Owned<T> {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            row: T::from_row(row)?,
            org: row.parsed("org_id")?,
            org_slug: row.text("org_slug")?,
            project: row.parsed("owner_project")?,
            project_slug: row.text("project_slug")?,
        })
    }
}

/// A table whose rows belong to projects.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    columns: &'static str,
    from: &'static str,
}

macro_rules! table {
    ($name:literal, $kind:literal) => {
        Table {
            columns: concat!(
                $name,
                ".*, ",
                machine_columns!(),
                ", ",
                joined_networks!($name, $kind),
                ", o.slug AS org_slug, p.id AS owner_project, p.slug AS project_slug"
            ),
            from: concat!(
                with_machine!($name, $kind),
                " JOIN projects p ON p.id = ",
                $name,
                ".project_id JOIN orgs o ON o.id = p.org_id \
                 WHERE ",
                $name,
                ".deleted_at IS NULL AND ($1 IS NULL OR o.id = $1 OR o.slug = $1) \
                 AND ($2 IS NULL OR p.id = $2 OR p.slug = $2)"
            ),
        }
    };
}

/// VMs.
pub const VMS: Table = table!("vms", "vm");
/// Sandboxes.
pub const SANDBOXES: Table = table!("sandboxes", "sandbox");

/// The projects themselves.
pub const PROJECTS: Table = Table {
    columns: "p.*, CAST(NULL AS TEXT) AS role, o.slug AS org_slug, p.id AS owner_project, p.slug AS project_slug",
    from: "projects p JOIN orgs o ON o.id = p.org_id WHERE p.deleted_at IS NULL \
           AND ($1 IS NULL OR o.id = $1 OR o.slug = $1) AND ($2 IS NULL OR p.id = $2 OR p.slug = $2)",
};

/// The owners of the rows to list; `None` lists everybody's.
#[derive(Clone, Debug, Default)]
pub struct OwnerFilter {
    /// Id or slug of the organization.
    pub org: Option<String>,
    /// Id or slug of the project.
    pub project: Option<String>,
}

/// A page of everybody's rows, and their total number.
pub async fn list<T: FromRow>(
    db: &Db,
    table: Table,
    whose: &OwnerFilter,
    listed: &Listed,
    listing: &Listing,
) -> Result<(Vec<Owned<T>>, i64), DbError> {
    let query = page_of(table.columns, table.from).bind(whose.org.clone()).bind(whose.project.clone());
    query.list(db, listed, listing).await
}
