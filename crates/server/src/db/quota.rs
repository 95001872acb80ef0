//! Rows of quotas: what an administrator grants a project, and all projects of an organization together. Every service
//! reads them in the transaction that would add to what the tenant holds.

use berth_domain::Timestamp;
use berth_domain::identity::Limits;

use super::tenant::Whose;
use super::{DbError, FromRow, On, Row, Tx, Value, record, sql};
use crate::columns;

impl FromRow for Limits {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Self::by_name(|name| row.opt_int(name))
    }
}

/// The table of its quotas.
const fn table(whose: Whose) -> &'static str {
    match whose {
        Whose::Project(_) => "quotas",
        Whose::Org(_) => "org_quotas",
    }
}

/// The limits; none where none was set.
pub async fn find(on: impl On, whose: Whose) -> Result<Limits, DbError> {
    let (table, key) = (table(whose), whose.column());
    let found: Option<Limits> =
        sql(format!("SELECT * FROM {table} WHERE {key} = $1")).bind(whose.id().to_string()).fetch_optional(on).await?;
    Ok(found.unwrap_or_default())
}

/// Sets the limits.
pub async fn put(tx: &mut Tx, whose: Whose, limits: &Limits, now: Timestamp) -> Result<(), DbError> {
    let limits = limits.named().into_iter().map(|(name, limit)| (name, Value::from(limit)));
    let mut columns = columns! { "updated_at": now };
    columns.extend(limits);
    let keys = vec![(whose.column(), Value::from(whose.id().to_string()))];
    record::upsert(table(whose), keys, columns).execute(tx).await.map(drop)
}
