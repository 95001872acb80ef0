//! Kept answers of creations, beside what they created.
//!
//! They belong to no service: every service's creation writes one in its own transaction.

use berth_domain::Timestamp;
use uuid::Uuid;

use super::{DbError, FromRow, Row, Tx, record, sql};
use crate::columns;

/// The key of a kept answer.
pub struct Slot<'a> {
    /// Who asked.
    pub caller: Uuid,
    /// Path of the request.
    pub path: &'a str,
    /// The caller's key.
    pub key: &'a str,
}

/// A kept answer.
pub struct Kept {
    /// Hash of the request's body.
    pub body_hash: String,
    /// Path of what was created.
    pub location: String,
    /// The answer's body.
    pub body: String,
}

impl FromRow for Kept {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self { body_hash: row.text("body_hash")?, location: row.text("headers")?, body: row.text("body")? })
    }
}

impl Slot<'_> {
    /// The answer kept in this slot after `since`.
    pub async fn find(&self, tx: &mut Tx, since: Timestamp) -> Result<Option<Kept>, DbError> {
        sql("SELECT body_hash, headers, body FROM idempotency \
             WHERE caller = $1 AND path = $2 AND key = $3 AND created_at > $4")
        .bind(self.caller.to_string())
        .bind(self.path)
        .bind(self.key)
        .bind(since)
        .fetch_optional(tx)
        .await
    }

    /// Writes what is kept in this slot anew, as it is.
    pub async fn touch(&self, tx: &mut Tx) -> Result<(), DbError> {
        sql("UPDATE idempotency SET status = status WHERE caller = $1 AND path = $2 AND key = $3")
            .bind(self.caller.to_string())
            .bind(self.path)
            .bind(self.key)
            .execute(tx)
            .await
            .map(drop)
    }

    /// Keeps an answer in this slot; removes all that were kept before `since`.
    pub async fn put(&self, tx: &mut Tx, kept: &Kept, now: Timestamp, since: Timestamp) -> Result<(), DbError> {
        sql("DELETE FROM idempotency WHERE (caller = $1 AND path = $2 AND key = $3) OR created_at <= $4")
            .bind(self.caller.to_string())
            .bind(self.path)
            .bind(self.key)
            .bind(since)
            .execute(tx)
            .await?;
        let columns = columns! {
            "caller": self.caller.to_string(), "path": self.path, "key": self.key, "body_hash": &kept.body_hash,
            "status": 201_i64, "headers": &kept.location, "body": &kept.body, "created_at": now,
        };
        record::insert("idempotency", columns).execute(tx).await.map(drop)
    }
}
