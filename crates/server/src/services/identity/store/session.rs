//! Rows of sessions and of their refresh tokens.

use berth_domain::Timestamp;
use berth_domain::ids::{SessionId, UserId};

use crate::columns;
use crate::db::listing::{Listed, Listing};
use crate::db::{Db, DbError, FromRow, On, Row, Tx, page_of, record, sql};

/// A signed-in session.
#[derive(Clone, Debug)]
pub struct SessionRow {
    /// Id.
    pub id: SessionId,
    /// Whose.
    pub user: UserId,
    /// Whether that person administers the platform.
    pub is_admin: bool,
    /// Whether that person is suspended.
    pub suspended: bool,
    /// The program that signed in, as it calls itself.
    pub client: Option<String>,
    /// Where the sign-in came from.
    pub address: Option<String>,
    /// Sign-in.
    pub created_at: Timestamp,
    /// Last refresh.
    pub last_used_at: Timestamp,
    /// The absolute limit.
    pub expires_at: Timestamp,
    /// When it was ended.
    pub revoked_at: Option<Timestamp>,
}

impl SessionRow {
    /// Whether it counts.
    pub fn lives(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at > now
    }
}

impl FromRow for SessionRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            user: row.parsed("user_id")?,
            is_admin: row.flag("is_admin")?,
            suspended: row.opt_time("suspended_at")?.is_some(),
            client: row.opt_text("client")?,
            address: row.opt_text("address")?,
            created_at: row.time("created_at")?,
            last_used_at: row.time("last_used_at")?,
            expires_at: row.time("expires_at")?,
            revoked_at: row.opt_time("revoked_at")?,
        })
    }
}

const COLUMNS: &str = "s.*, u.is_admin AS is_admin, u.suspended_at AS suspended_at";

/// Writes a new session.
pub async fn insert(tx: &mut Tx, session: &SessionRow) -> Result<(), DbError> {
    let columns = columns! {
        "id": session.id, "user_id": session.user, "client": session.client.clone(),
        "address": session.address.clone(), "created_at": session.created_at, "last_used_at": session.last_used_at,
        "expires_at": session.expires_at,
    };
    record::insert("sessions", columns).execute(tx).await.map(drop)
}

/// Notes that a session was refreshed.
pub async fn used(tx: &mut Tx, id: SessionId, now: Timestamp) -> Result<(), DbError> {
    sql("UPDATE sessions SET last_used_at = $2 WHERE id = $1").bind(id).bind(now).execute(tx).await.map(drop)
}

/// A session by id.
pub async fn find(on: impl On, id: SessionId) -> Result<Option<SessionRow>, DbError> {
    sql(format!("SELECT {COLUMNS} FROM sessions s JOIN users u ON u.id = s.user_id WHERE s.id = $1"))
        .bind(id)
        .fetch_optional(on)
        .await
}

/// By what a list of sessions can be ordered.
pub const LISTED: Listed = Listed { id: "s.id", created: "s.created_at", name: None, status: None, labels: None };

/// A page of a person's sessions that last, and how many there are.
pub async fn list(db: &Db, user: UserId, now: Timestamp, listing: &Listing) -> Result<(Vec<SessionRow>, i64), DbError> {
    let from = "sessions s JOIN users u ON u.id = s.user_id \
         WHERE s.user_id = $1 AND s.revoked_at IS NULL AND s.expires_at > $2";
    page_of(COLUMNS, from).bind(user).bind(now).list(db, &LISTED, listing).await
}

/// Ends a session.
pub async fn revoke(tx: &mut Tx, id: SessionId, now: Timestamp) -> Result<(), DbError> {
    sql("UPDATE sessions SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL")
        .bind(id)
        .bind(now)
        .execute(tx)
        .await
        .map(drop)
}

struct SessionIdRow(SessionId);

impl FromRow for SessionIdRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        row.parsed("id").map(Self)
    }
}

/// Ends every session of a person but one; those that were ended.
pub async fn revoke_all(
    tx: &mut Tx,
    user: UserId,
    but: Option<SessionId>,
    now: Timestamp,
) -> Result<Vec<SessionId>, DbError> {
    let but = but.map(|id| id.to_string()).unwrap_or_default();
    let open: Vec<SessionIdRow> = sql("SELECT id FROM sessions WHERE user_id = $1 AND revoked_at IS NULL AND id <> $2")
        .bind(user)
        .bind(&but)
        .fetch_all(&mut *tx)
        .await?;
    sql("UPDATE sessions SET revoked_at = $2 WHERE user_id = $1 AND revoked_at IS NULL AND id <> $3")
        .bind(user)
        .bind(now)
        .bind(&but)
        .execute(tx)
        .await?;
    Ok(open.into_iter().map(|row| row.0).collect())
}

/// A refresh token at rest.
#[derive(Clone, Debug)]
pub struct RefreshRow {
    /// SHA-256 of the token, in hexadecimal.
    pub hash: String,
    /// Its session.
    pub session: SessionId,
    /// When it ends.
    pub expires_at: Timestamp,
    /// When it was used.
    pub used_at: Option<Timestamp>,
    /// What it was exchanged for, sealed with a key that only the token yields.
    pub successor: Option<String>,
}

impl FromRow for RefreshRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            hash: row.text("hash")?,
            session: row.parsed("session_id")?,
            expires_at: row.time("expires_at")?,
            used_at: row.opt_time("used_at")?,
            successor: row.opt_text("successor")?,
        })
    }
}

/// Writes a new refresh token.
pub async fn insert_refresh(tx: &mut Tx, token: &RefreshRow, now: Timestamp) -> Result<(), DbError> {
    let columns = columns! {
        "hash": &token.hash, "session_id": token.session, "created_at": now, "expires_at": token.expires_at,
    };
    record::insert("refresh_tokens", columns).execute(tx).await.map(drop)
}

/// A refresh token by its hash.
pub async fn refresh(tx: &mut Tx, hash: &str) -> Result<Option<RefreshRow>, DbError> {
    sql("SELECT * FROM refresh_tokens WHERE hash = $1").bind(hash).fetch_optional(tx).await
}

/// Marks a refresh token as used.
pub async fn use_refresh(tx: &mut Tx, hash: &str, successor: &str, now: Timestamp) -> Result<(), DbError> {
    let columns = columns! { "hash": hash, "used_at": now, "successor": successor };
    record::overwrite("refresh_tokens", columns).execute(tx).await.map(drop)
}

/// Removes so many refresh tokens that ended before a time; how many there were.
pub async fn forget_refresh(tx: &mut Tx, before: Timestamp, most: i64) -> Result<u64, DbError> {
    sql("DELETE FROM refresh_tokens WHERE hash IN (SELECT hash FROM refresh_tokens WHERE expires_at < $1 LIMIT $2)")
        .bind(before)
        .bind(most)
        .execute(tx)
        .await
}

/// Removes so many sessions that ended before a time, with their refresh tokens; how many sessions there were.
pub async fn forget(tx: &mut Tx, before: Timestamp, most: i64) -> Result<u64, DbError> {
    const ENDED: &str = "SELECT id FROM sessions WHERE expires_at < $1 OR revoked_at < $1 ORDER BY id LIMIT $2";
    let tokens = format!("DELETE FROM refresh_tokens WHERE session_id IN ({ENDED})");
    sql(tokens).bind(before).bind(most).execute(&mut *tx).await?;
    sql(format!("DELETE FROM sessions WHERE id IN ({ENDED})")).bind(before).bind(most).execute(tx).await
}

struct AddressRow(String);

impl FromRow for AddressRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        row.text("address").map(Self)
    }
}

/// The addresses that a person signed in from, as far as sessions are kept.
pub async fn addresses(db: &Db, user: UserId) -> Result<Vec<String>, DbError> {
    let rows: Vec<AddressRow> =
        sql("SELECT DISTINCT address FROM sessions WHERE user_id = $1 AND address IS NOT NULL LIMIT 1000")
            .bind(user)
            .fetch_all(db)
            .await?;
    Ok(rows.into_iter().map(|row| row.0).collect())
}
