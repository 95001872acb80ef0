//! The owner of a row: every service asks here in the transaction that creates something.

use berth_domain::ids::{OrgId, ProjectId};
use uuid::Uuid;

use super::{DbError, Tx, sql};

/// Whose rows a query may see. Only a checked scope yields one, so that a query cannot forget the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The organization.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
}

/// What a sum covers: a project, or all projects of an organization.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Whose {
    /// A project.
    Project(ProjectId),
    /// An organization.
    Org(OrgId),
}

impl Whose {
    /// Its id.
    pub const fn id(self) -> Uuid {
        match self {
            Self::Project(id) => id.0,
            Self::Org(id) => id.0,
        }
    }

    /// What it is.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Project(_) => "project",
            Self::Org(_) => "organization",
        }
    }

    /// The column that names it, in tables that have one for either.
    pub const fn column(self) -> &'static str {
        match self {
            Self::Project(_) => "project_id",
            Self::Org(_) => "org_id",
        }
    }

    /// The condition that a row's project is this one, or belongs to this organization; `$1` is its [id](Self::id).
    pub const fn owns(self) -> &'static str {
        match self {
            Self::Project(_) => "project_id = $1",
            Self::Org(_) => "project_id IN (SELECT id FROM projects WHERE org_id = $1)",
        }
    }
}

/// Whether a project exists now. If a transaction saw it, its creation comes before any deletion of the project.
pub async fn lives(tx: &mut Tx, project: ProjectId) -> Result<bool, DbError> {
    let n: i64 =
        sql("SELECT COUNT(*) FROM projects WHERE id = $1 AND deleted_at IS NULL").bind(project).fetch_one(tx).await?;
    Ok(n > 0)
}
