//! The schema: one list of migrations, in each database's own folder under the same number.
//!
//! Rule: expand, then contract. A migration only adds; what became useless is removed by a later
//! release, when no running service reads it any more. Applied in order they equal the schema of a
//! fresh installation.

use sqlx::migrate::Migrator;

use super::{Db, DbError, Pools};

static SQLITE: Migrator = sqlx::migrate!("../../migrations/sqlite");
static POSTGRES: Migrator = sqlx::migrate!("../../migrations/postgres");

/// Brings the schema up to date; does nothing where it is.
pub(super) async fn run(db: &Db) -> Result<(), DbError> {
    match &db.pools {
        Pools::Sqlite { write, .. } => SQLITE.run(write).await,
        Pools::Postgres(pool, _) => POSTGRES.run(pool).await,
    }
    .map_err(|e| DbError::Other(format!("the schema could not be brought up to date: {e}")))
}
