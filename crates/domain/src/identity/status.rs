//! Where keys, invitations and referrals stand.

use crate::words::words;

words! {
    /// Where an API key stands.
    KeyStatus {
        /// It counts.
        Active = "active",
        /// Its time is over.
        Expired = "expired",
        /// Somebody ended it.
        Revoked = "revoked",
    }
}

words! {
    /// Where an invitation stands.
    InvitationStatus {
        /// It can be accepted.
        Pending = "pending",
        /// Whom it was for has joined.
        Accepted = "accepted",
        /// Somebody took it back.
        Revoked = "revoked",
        /// Its time is over.
        Expired = "expired",
    }
}

words! {
    /// Where a referral stands (contract, section 2).
    ReferralStatus {
        /// Somebody signed up with the code.
        Pending = "pending",
        /// Their address is verified.
        Qualified = "qualified",
        /// Who brought them has had something for it.
        Rewarded = "rewarded",
        /// The account was deleted before.
        Void = "void",
    }
}
