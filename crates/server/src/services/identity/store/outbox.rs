//! Rows of the outbox: what is to be told to whom. No row holds a secret; the text is made when it is sent.

use berth_domain::Timestamp;
use berth_domain::ids::OutboxId;

use crate::columns;
use crate::db::{Db, DbError, FromRow, On, Row, Signal, Tx, record, sql};

/// The table.
const TABLE: &str = "outbox";

/// A mail or a text message on its way.
#[derive(Clone, Debug)]
pub struct OutboxRow {
    /// Id.
    pub id: OutboxId,
    /// What is told.
    pub kind: String,
    /// Address or phone number.
    pub recipient: String,
    /// The id of what it is about.
    pub subject: Option<String>,
    /// Attempts so far.
    pub attempts: i64,
    /// When the worker is to try.
    pub work_at: Option<Timestamp>,
    /// Creation.
    pub created_at: Timestamp,
}

impl FromRow for OutboxRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            kind: row.text("kind")?,
            recipient: row.text("recipient")?,
            subject: row.opt_text("subject")?,
            attempts: row.int("attempts")?,
            work_at: row.opt_time("work_at")?,
            created_at: row.time("created_at")?,
        })
    }
}

const WAITS: &str = "SELECT COUNT(*) FROM outbox WHERE recipient_key = $1 AND kind = $2 AND COALESCE(subject, '') = $3 \
     AND work_at IS NOT NULL AND begun_at IS NULL";

/// Whether the same waits to be sent. What is being sent does not wait: its text is made.
pub async fn waits(on: impl On, kind: &str, recipient: &str, subject: Option<&str>) -> Result<bool, DbError> {
    let waiting: i64 =
        sql(WAITS).bind(recipient.to_lowercase()).bind(kind).bind(subject.unwrap_or_default()).fetch_one(on).await?;
    Ok(waiting > 0)
}

/// Puts something into the outbox, unless the same waits there; its worker is woken by the commit.
pub async fn put(
    tx: &mut Tx,
    kind: &str,
    recipient: &str,
    subject: Option<&str>,
    now: Timestamp,
) -> Result<(), DbError> {
    if waits(&mut *tx, kind, recipient, subject).await? {
        return Ok(());
    }
    let columns = columns! {
        "id": OutboxId(uuid::Uuid::now_v7()), "kind": kind, "recipient": recipient,
        "recipient_key": recipient.to_lowercase(), "subject": subject, "work_at": now, "created_at": now,
    };
    record::insert(TABLE, columns).execute(&mut *tx).await?;
    tx.signal(Signal::Work(TABLE));
    Ok(())
}

/// What is on its way, by id.
pub async fn find(on: impl On, id: OutboxId) -> Result<Option<OutboxRow>, DbError> {
    sql("SELECT * FROM outbox WHERE id = $1").bind(id).fetch_optional(on).await
}

/// Notes that a message is being sent: from now on another of its kind is another message.
pub async fn begin(tx: &mut Tx, id: OutboxId, now: Timestamp) -> Result<(), DbError> {
    sql("UPDATE outbox SET begun_at = $2 WHERE id = $1").bind(id).bind(now).execute(tx).await.map(drop)
}

/// How many of a kind a recipient was sent since a time, or is being sent; one is not counted.
pub async fn sent(tx: &mut Tx, kind: &str, recipient: &str, since: Timestamp, but: OutboxId) -> Result<i64, DbError> {
    sql("SELECT COUNT(*) FROM outbox WHERE recipient_key = $1 AND kind = $2 AND begun_at > $3 \
         AND (outcome = 'sent' OR work_at IS NOT NULL) AND id <> $4")
    .bind(recipient.to_lowercase())
    .bind(kind)
    .bind(since)
    .bind(but)
    .fetch_one(tx)
    .await
}

/// Notes why a message was not sent, how many attempts failed so far, and when the next is due.
pub async fn postpone(
    tx: &mut Tx,
    id: OutboxId,
    attempts: i64,
    message: &str,
    until: Timestamp,
) -> Result<(), DbError> {
    sql("UPDATE outbox SET attempts = $2, message = $3, work_at = $4, begun_at = NULL \
         WHERE id = $1 AND work_at IS NOT NULL")
    .bind(id)
    .bind(attempts)
    .bind(message)
    .bind(until)
    .execute(tx)
    .await
    .map(drop)
}

/// Notes how it ended: `sent`, `unneeded` or `failed`.
pub async fn settle(tx: &mut Tx, id: OutboxId, outcome: &str, now: Timestamp) -> Result<(), DbError> {
    let columns = columns! { "id": id, "outcome": outcome, "settled_at": now, "work_at": None::<Timestamp> };
    record::overwrite(TABLE, columns).execute(tx).await.map(drop)
}

/// What is due, longest due first, with the time.
pub async fn with_work(db: &Db, limit: usize) -> Result<Vec<(OutboxId, Timestamp)>, DbError> {
    sql("SELECT id, work_at FROM outbox WHERE work_at IS NOT NULL ORDER BY work_at LIMIT $1")
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(db)
        .await
}

/// Removes so many of what was settled before a time; how many there were.
pub async fn forget(tx: &mut Tx, before: Timestamp, most: i64) -> Result<u64, DbError> {
    sql("DELETE FROM outbox WHERE id IN (SELECT id FROM outbox WHERE settled_at < $1 LIMIT $2)")
        .bind(before)
        .bind(most)
        .execute(tx)
        .await
}
