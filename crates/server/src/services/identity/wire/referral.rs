//! Referrals.

use berth_domain::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::services::identity::store::referral::{AdminReferralRow, ReferralRow};

/// What others sign up with to be counted as brought by the caller.
#[derive(Serialize, ToSchema)]
#[schema(as = ReferralCodeResponse)]
pub struct CodeView {
    /// The code.
    pub code: String,
    /// A link that signs up with it.
    pub url: String,
}

/// Somebody whom the caller brought.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ReferralResponse)]
pub struct ReferralView {
    #[schema(value_type = uuid::Uuid)]
    id: String,
    /// The address, masked.
    email: String,
    /// `pending`, `qualified` (the address is verified), `rewarded` or `void`.
    status: &'static str,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

impl From<ReferralRow> for ReferralView {
    fn from(row: ReferralRow) -> Self {
        let ReferralRow { id, masked, status, created_at, updated_at } = row;
        Self { id: id.to_string(), email: masked, status: status.as_str(), created_at, updated_at }
    }
}

/// A referral as administrators of the platform see it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AdminReferralResponse)]
pub struct AdminReferralView {
    /// The referral.
    #[serde(flatten)]
    referral: ReferralView,
    /// Who brought somebody.
    #[schema(value_type = uuid::Uuid)]
    referrer_id: String,
    /// Their address; `null` where the account was deleted.
    #[schema(required = true)]
    referrer_email: Option<String>,
    /// Who was brought.
    #[schema(value_type = uuid::Uuid)]
    user_id: String,
}

impl From<AdminReferralRow> for AdminReferralView {
    fn from(row: AdminReferralRow) -> Self {
        let AdminReferralRow { referral, referrer, referrer_email, referred } = row;
        let (referrer_id, user_id) = (referrer.to_string(), referred.to_string());
        Self { referral: referral.into(), referrer_id, referrer_email, user_id }
    }
}

/// Where an administrator puts a referral.
#[derive(ToSchema)]
#[schema(as = RewardRequest)]
#[expect(dead_code, reason = "describes")]
pub struct RewardBody {
    /// `rewarded`, or `qualified` to take that back.
    #[schema(pattern = "^(rewarded|qualified)$")]
    status: String,
}
