//! Rows of referrals: who brought whom.

use berth_domain::Timestamp;
use berth_domain::ids::{ReferralId, UserId};
use berth_domain::page::Page;

use crate::db::{Db, DbError, FromRow, Row, Tx, page_of, sql};

/// A referral as its referrer sees it.
#[derive(Clone, Debug)]
pub struct ReferralRow {
    /// Id.
    pub id: ReferralId,
    /// The address, as far as it is shown.
    pub masked: String,
    /// `pending`, `qualified`, `rewarded` or `void`.
    pub status: String,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
}

impl FromRow for ReferralRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            masked: row.text("masked")?,
            status: row.text("status")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
        })
    }
}

/// Writes a new referral, pending.
pub async fn insert(
    tx: &mut Tx,
    brought_by: UserId,
    person: UserId,
    masked: &str,
    now: Timestamp,
) -> Result<(), DbError> {
    sql("INSERT INTO referrals (id, referrer_id, referred_id, masked, status, created_at, updated_at) \
         VALUES ($1, $2, $3, $4, 'pending', $5, $5)")
    .bind(ReferralId(uuid::Uuid::now_v7()))
    .bind(brought_by)
    .bind(person)
    .bind(masked)
    .bind(now)
    .execute(tx)
    .await
    .map(drop)
}

/// Moves the referral of a person on from one of the statuses.
pub async fn advance(tx: &mut Tx, referred: UserId, from: [&str; 2], to: &str, now: Timestamp) -> Result<u64, DbError> {
    sql("UPDATE referrals SET status = $4, updated_at = $5 WHERE referred_id = $1 AND status IN ($2, $3)")
        .bind(referred)
        .bind(from[0])
        .bind(from[1])
        .bind(to)
        .bind(now)
        .execute(tx)
        .await
}

/// A page of the referrals of a person, newest first, and how many there are.
pub async fn list(db: &Db, referrer: UserId, page: Page) -> Result<(Vec<ReferralRow>, i64), DbError> {
    page_of("*", "referrals WHERE referrer_id = $1", "created_at DESC, id DESC").bind(referrer).fetch(db, page).await
}
