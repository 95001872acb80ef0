//! Rows of referrals: who brought whom.

use berth_domain::Timestamp;
use berth_domain::identity::ReferralStatus;
use berth_domain::ids::{ReferralId, UserId};

use crate::columns;
use crate::db::listing::{Listed, Listing, Words};
use crate::db::{Db, DbError, FromRow, On, Row, Tx, page_of, record, sql};

/// The table.
const TABLE: &str = "referrals";

/// A referral as its referrer sees it.
#[derive(Clone, Debug)]
pub struct ReferralRow {
    /// Id.
    pub id: ReferralId,
    /// The address, as far as it is shown.
    pub masked: String,
    /// Where it stands.
    pub status: ReferralStatus,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
}

/// A referral as administrators of the platform see it.
#[derive(Clone, Debug)]
pub struct AdminReferralRow {
    /// The referral.
    pub referral: ReferralRow,
    /// Who brought somebody.
    pub referrer: UserId,
    /// Their address, if the account is there.
    pub referrer_email: Option<String>,
    /// Who was brought.
    pub referred: UserId,
}

impl FromRow for AdminReferralRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            referral: ReferralRow::from_row(row)?,
            referrer: row.parsed("referrer_id")?,
            referrer_email: row.opt_text("referrer_email")?,
            referred: row.parsed("referred_id")?,
        })
    }
}

impl FromRow for ReferralRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            masked: row.text("masked")?,
            status: row.word("status", ReferralStatus::parse)?,
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
    let columns = columns! {
        "id": ReferralId(uuid::Uuid::now_v7()), "referrer_id": brought_by, "referred_id": person, "masked": masked,
        "status": ReferralStatus::Pending.as_str(), "created_at": now, "updated_at": now,
    };
    record::insert(TABLE, columns).execute(tx).await.map(drop)
}

/// Moves the referral of a person on from one of the statuses.
pub async fn advance(
    tx: &mut Tx,
    referred: UserId,
    from: [ReferralStatus; 2],
    to: ReferralStatus,
    now: Timestamp,
) -> Result<u64, DbError> {
    sql("UPDATE referrals SET status = $4, updated_at = $5 WHERE referred_id = $1 AND status IN ($2, $3)")
        .bind(referred)
        .bind(from[0].as_str())
        .bind(from[1].as_str())
        .bind(to.as_str())
        .bind(now)
        .execute(tx)
        .await
}

/// Writes where a referral stands.
pub async fn set(tx: &mut Tx, id: ReferralId, status: ReferralStatus, now: Timestamp) -> Result<(), DbError> {
    let columns = columns! { "id": id, "status": status.as_str(), "updated_at": now };
    record::overwrite(TABLE, columns).execute(tx).await.map(drop)
}

const OF_ALL: &str = "referrals.*, u.email AS referrer_email";
const FROM_ALL: &str = "referrals LEFT JOIN users u ON u.id = referrals.referrer_id AND u.deleted_at IS NULL";

/// A referral, as administrators see it.
pub async fn find(on: impl On, id: ReferralId) -> Result<Option<AdminReferralRow>, DbError> {
    sql(format!("SELECT {OF_ALL} FROM {FROM_ALL} WHERE referrals.id = $1")).bind(id).fetch_optional(on).await
}

/// A page of everybody's referrals, and how many there are.
pub async fn list_all(db: &Db, listing: &Listing) -> Result<(Vec<AdminReferralRow>, i64), DbError> {
    page_of(OF_ALL, format!("{FROM_ALL} WHERE 1 = 1")).list(db, &LISTED, listing).await
}

/// By what a list of referrals can be narrowed and ordered.
pub const LISTED: Listed = Listed {
    id: "referrals.id",
    created: "referrals.created_at",
    name: None,
    status: Some(Words { param: "status", column: "referrals.status", words: ReferralStatus::WORDS }),
    labels: None,
};

/// A page of the referrals of a person, and how many there are.
pub async fn list(db: &Db, referrer: UserId, listing: &Listing) -> Result<(Vec<ReferralRow>, i64), DbError> {
    page_of("*", "referrals WHERE referrer_id = $1").bind(referrer).list(db, &LISTED, listing).await
}
