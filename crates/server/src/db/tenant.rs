//! Whose a row is to be: asked by every service in the transaction that creates something.

use berth_domain::ids::ProjectId;

use super::{DbError, Tx, sql};

/// Whether a project is there at this moment. A transaction that saw it creates before it can be deleted.
pub async fn lives(tx: &mut Tx, project: ProjectId) -> Result<bool, DbError> {
    let n: i64 =
        sql("SELECT COUNT(*) FROM projects WHERE id = $1 AND deleted_at IS NULL").bind(project).fetch_one(tx).await?;
    Ok(n > 0)
}
