//! What the service notes about the database as a whole.

use super::{DbError, On, Tx, sql};

/// A note.
pub async fn find(on: impl On, key: &str) -> Result<Option<String>, DbError> {
    sql("SELECT value FROM settings WHERE key = $1").bind(key).fetch_optional(on).await
}

/// Writes a note, in the place of one that is there.
pub async fn put(tx: &mut Tx, key: &str, value: &str) -> Result<(), DbError> {
    sql("INSERT INTO settings (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = $2")
        .bind(key)
        .bind(value)
        .execute(tx)
        .await
        .map(drop)
}
