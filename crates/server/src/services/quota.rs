//! Whether a project may have more: its quota, against sums over rows in the transaction that would add to them.

use berth_domain::{Code, Error, Result};

use crate::db::{Tx, tenant};
use crate::http::auth::Scope;

/// Refuses with 404 a project that was deleted meanwhile.
pub async fn require_project(tx: &mut Tx, scope: &Scope) -> Result<()> {
    if tenant::lives(tx, scope.project).await? {
        return Ok(());
    }
    Err(Error::new(Code::ProjectNotFound, "There is no such project, or you do not belong to it."))
}

/// Refuses with 403 what would exceed a limit.
pub fn within(what: &str, used: i64, wanted: i64, limit: Option<i64>) -> Result<()> {
    match limit {
        Some(limit) if wanted > 0 && used.saturating_add(wanted) > limit => Err(Error::new(
            Code::QuotaExceeded,
            format!(
                "The project may have {limit} {what}; it has {used} and this needs {wanted} more. \
                 Delete something, or ask an administrator of the platform for more."
            ),
        )),
        _ => Ok(()),
    }
}
