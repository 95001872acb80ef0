//! Referrals: who was brought by whom.

use serde::{Deserialize, Serialize};

use crate::{Client, List, Page, Result};

/// What others sign up with to be counted as brought by the caller.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ReferralCode {
    /// The code.
    pub code: String,
    /// A link that signs up with it.
    pub url: String,
}

/// Somebody whom the caller brought.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Referral {
    /// Id.
    pub id: String,
    /// The address, masked.
    pub email: String,
    /// `pending`, `qualified`, `rewarded` or `void`.
    pub status: String,
    /// Sign-up, RFC 3339.
    pub created_at: String,
    /// Last change, RFC 3339.
    pub updated_at: String,
}

impl Client {
    /// The caller's referral code; made at the first call.
    pub async fn referral_code(&self) -> Result<ReferralCode> {
        self.get("/api/v1/referrals/code").await
    }

    /// Whom the caller brought, newest first.
    pub async fn referrals(&self, page: Page) -> Result<List<Referral>> {
        self.list("/api/v1/referrals", &page).await
    }
}
