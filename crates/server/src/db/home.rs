//! What lies in a service's own data folder is on the service's own host.
//!
//! A database has one data folder beside those of the hosts that joined. Whatever the folder's host is called and wherever
//! the folder lies, what is in it is on the host of the service that starts: also what was on a host whose service had the
//! database before, and what has its place without a host that its row names. What is on a host that joined lies there, and
//! stays.

use berth_domain::ids::HostId;

use super::{DbError, Tx, sql};

/// A condition: no template of the platform names this one by any of these columns. The service makes those templates anew
/// wherever it is, so that what they name stays with it.
#[macro_export]
macro_rules! no_platforms {
    ($id:literal, $first:literal $(, $more:literal)*) => {
        concat!(
            "NOT EXISTS (SELECT 1 FROM sandbox_templates t WHERE t.project_id IS NULL AND t.deleted_at IS NULL AND ",
            $id, " IN (t.", $first, $(", t.", $more,)* "))"
        )
    };
}

/// A condition: this layer is none of a template of the platform.
#[macro_export]
macro_rules! no_platforms_layer {
    ($id:literal) => {
        $crate::no_platforms!($id, "base_layer_id", "layer_id", "next_layer_id")
    };
}

/// Has rows of a table be on a service's own host that lie in its folder. Of those that name no host, `has_place` says which
/// have a place on one.
pub async fn bring(tx: &mut Tx, table: &str, has_place: &str, host: HostId) -> Result<(), DbError> {
    sql(format!(
        "UPDATE {table} SET host_id = $1 WHERE (host_id IS NULL AND ({has_place})) \
         OR host_id IN (SELECT id FROM hosts WHERE joined = 0 AND id <> $1)"
    ))
    .bind(host)
    .execute(tx)
    .await
    .map(drop)
}
