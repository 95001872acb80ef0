//! Referrals.

use berth_domain::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::services::identity::store::referral::ReferralRow;

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
#[derive(Serialize, ToSchema)]
#[schema(as = ReferralResponse)]
pub struct ReferralView {
    #[schema(value_type = uuid::Uuid)]
    id: String,
    /// The address, masked.
    email: String,
    /// `pending`, `qualified` (the address is verified), `rewarded` or `void`.
    status: String,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

impl From<ReferralRow> for ReferralView {
    fn from(row: ReferralRow) -> Self {
        let ReferralRow { id, masked, status, created_at, updated_at } = row;
        Self { id: id.to_string(), email: masked, status, created_at, updated_at }
    }
}
