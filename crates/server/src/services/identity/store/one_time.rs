//! Rows of what is sent to prove that a person reads an address or a number: links and codes. Of both there
//! are only hashes.

use berth_domain::Timestamp;

use crate::columns;
use crate::db::{DbError, FromRow, On, Row, Tx, record, sql};

/// A link, and perhaps a code.
#[derive(Clone, Debug)]
pub struct OneTimeRow {
    /// Id.
    pub id: String,
    /// `verify_email`, `verify_phone`, `reset_password` or `invitation`.
    pub purpose: String,
    /// The user or the invitation.
    pub subject: String,
    /// The address or number it was sent to.
    pub recipient: String,
    /// SHA-256 of the link's token, in hexadecimal.
    pub token_hash: Option<String>,
    /// SHA-256 of id and code, in hexadecimal.
    pub code_hash: Option<String>,
    /// Creation.
    pub created_at: Timestamp,
    /// The link's end.
    pub expires_at: Timestamp,
    /// The code's end.
    pub code_expires_at: Option<Timestamp>,
}

/// A link or code that somebody presents.
#[derive(Clone, Debug)]
pub struct Presented {
    /// Id.
    pub id: String,
    /// The user or the invitation.
    pub subject: String,
    /// The address or number it was sent to.
    pub recipient: String,
    /// SHA-256 of id and code, in hexadecimal.
    pub code_hash: Option<String>,
    /// The link's end.
    pub expires_at: Timestamp,
    /// When it was used.
    pub used_at: Option<Timestamp>,
}

impl Presented {
    /// Whether the link is good.
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.used_at.is_none() && self.expires_at > now
    }
}

impl FromRow for Presented {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.text("id")?,
            subject: row.text("subject")?,
            recipient: row.text("recipient")?,
            code_hash: row.opt_text("code_hash")?,
            expires_at: row.time("expires_at")?,
            used_at: row.opt_time("used_at")?,
        })
    }
}

/// Writes a new one.
pub async fn insert(tx: &mut Tx, row: &OneTimeRow) -> Result<(), DbError> {
    let columns = columns! {
        "id": &row.id, "purpose": &row.purpose, "subject": &row.subject, "recipient": &row.recipient,
        "token_hash": row.token_hash.clone(), "code_hash": row.code_hash.clone(), "created_at": row.created_at,
        "expires_at": row.expires_at, "code_expires_at": row.code_expires_at,
    };
    record::insert("one_time_tokens", columns).execute(tx).await.map(drop)
}

/// The one with this token's hash.
pub async fn by_token(on: impl On, purpose: &str, hash: &str) -> Result<Option<Presented>, DbError> {
    sql("SELECT * FROM one_time_tokens WHERE purpose = $1 AND token_hash = $2")
        .bind(purpose)
        .bind(hash)
        .fetch_optional(on)
        .await
}

/// Those of a subject whose code may still be tried, newest first.
pub async fn with_code(
    tx: &mut Tx,
    purpose: &str,
    subject: &str,
    tries: i64,
    now: Timestamp,
) -> Result<Vec<Presented>, DbError> {
    sql("SELECT * FROM one_time_tokens WHERE purpose = $1 AND subject = $2 AND used_at IS NULL AND tries < $3 \
         AND code_expires_at > $4 ORDER BY created_at DESC")
    .bind(purpose)
    .bind(subject)
    .bind(tries)
    .bind(now)
    .fetch_all(tx)
    .await
}

/// The subject of codes that nobody was sent.
pub const NOBODY: &str = "nobody";

/// Counts a wrong code against every open one of a subject. A row is written where there is none, too, so that the time
/// does not tell.
pub async fn tried(tx: &mut Tx, purpose: &str, subject: &str, tries: i64, now: Timestamp) -> Result<(), DbError> {
    sql("UPDATE one_time_tokens SET tries = tries + 1 WHERE id = $1 OR (purpose = $2 AND subject = $3 \
         AND used_at IS NULL AND tries < $4 AND code_expires_at > $5)")
    .bind(NOBODY)
    .bind(purpose)
    .bind(subject)
    .bind(tries)
    .bind(now)
    .execute(tx)
    .await
    .map(drop)
}

/// Ends every one of a subject: what is proved is proved once.
pub async fn end(tx: &mut Tx, purpose: &str, subject: &str, now: Timestamp) -> Result<(), DbError> {
    sql("UPDATE one_time_tokens SET used_at = $3 WHERE purpose = $1 AND subject = $2 AND used_at IS NULL")
        .bind(purpose)
        .bind(subject)
        .bind(now)
        .execute(tx)
        .await
        .map(drop)
}

/// How many were made for a subject since a time.
pub async fn since(tx: &mut Tx, purpose: &str, subject: &str, since: Timestamp) -> Result<i64, DbError> {
    sql("SELECT COUNT(*) FROM one_time_tokens WHERE purpose = $1 AND subject = $2 AND created_at > $3")
        .bind(purpose)
        .bind(subject)
        .bind(since)
        .fetch_one(tx)
        .await
}

/// Removes so many of those that ended before a time; how many there were.
pub async fn forget(tx: &mut Tx, before: Timestamp, most: i64) -> Result<u64, DbError> {
    sql("DELETE FROM one_time_tokens WHERE id IN (SELECT id FROM one_time_tokens WHERE expires_at < $1 LIMIT $2)")
        .bind(before)
        .bind(most)
        .execute(tx)
        .await
}
