//! Whose a row is to be: asked by every service in the transaction that creates something.

use berth_domain::ids::{OrgId, ProjectId};

use super::{DbError, Tx, sql};

/// Whose rows a query may see. Only a checked scope yields one, so a query cannot forget it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The organization.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
}

/// Whether a project is there at this moment. A transaction that saw it creates before it can be deleted.
pub async fn lives(tx: &mut Tx, project: ProjectId) -> Result<bool, DbError> {
    let n: i64 =
        sql("SELECT COUNT(*) FROM projects WHERE id = $1 AND deleted_at IS NULL").bind(project).fetch_one(tx).await?;
    Ok(n > 0)
}
