//! Notes of the service about the database as a whole.

use super::{DbError, On, Tx, record, sql};
use crate::columns;

/// A note.
pub async fn find(on: impl On, key: &str) -> Result<Option<String>, DbError> {
    sql("SELECT value FROM settings WHERE key = $1").bind(key).fetch_optional(on).await
}

/// Writes a note, in place of an earlier one.
pub async fn put(tx: &mut Tx, key: &str, value: &str) -> Result<(), DbError> {
    record::upsert("settings", columns! { "key": key }, columns! { "value": value }).execute(tx).await.map(drop)
}
