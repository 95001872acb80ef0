//! Rows of quotas: what an administrator lets a project have, and all projects of an organization together. Every
//! service reads them in the transaction that would add to what is held.

use berth_domain::Timestamp;
use berth_domain::identity::Limits;

use super::tenant::Whose;
use super::{DbError, FromRow, On, Row, Tx, sql};

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

/// What may be had; no limit where none was set.
pub async fn find(on: impl On, whose: Whose) -> Result<Limits, DbError> {
    let (table, key) = (table(whose), whose.column());
    let found: Option<Limits> =
        sql(format!("SELECT * FROM {table} WHERE {key} = $1")).bind(whose.id().to_string()).fetch_optional(on).await?;
    Ok(found.unwrap_or_default())
}

/// Sets what may be had.
pub async fn put(tx: &mut Tx, whose: Whose, limits: &Limits, now: Timestamp) -> Result<(), DbError> {
    let (table, key) = (table(whose), whose.column());
    let named = limits.named();
    let columns = named.map(|(name, _)| name).join(", ");
    let places: Vec<String> = (3..named.len() + 3).map(|n| format!("${n}")).collect();
    let changes: Vec<String> =
        named.iter().zip(&places).map(|((name, _), place)| format!("{name} = {place}")).collect();
    let query = sql(format!(
        "INSERT INTO {table} ({key}, updated_at, {columns}) VALUES ($1, $2, {}) \
         ON CONFLICT ({key}) DO UPDATE SET updated_at = $2, {}",
        places.join(", "),
        changes.join(", ")
    ));
    let query = query.bind(whose.id().to_string()).bind(now);
    named.into_iter().fold(query, |query, (_, limit)| query.bind(limit)).execute(tx).await.map(drop)
}
