//! Referrals: which people signed up with whose code.

use serde::{Deserialize, Serialize};

use crate::{Client, List, Page, Result};

/// The caller's code, for others to sign up with.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ReferralCode {
    /// The code.
    pub code: String,
    /// A link for signing up with it.
    pub url: String,
}

/// A person who signed up with the caller's code.
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
    /// The caller's referral code; the first call makes it.
    pub async fn referral_code(&self) -> Result<ReferralCode> {
        self.get("/api/v1/referrals/code").await
    }

    /// The people who signed up with the caller's code, newest first.
    pub async fn referrals(&self, page: Page) -> Result<List<Referral>> {
        self.list("/api/v1/referrals", &page).await
    }
}
