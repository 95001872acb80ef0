//! Where keys, invitations and referrals stand.

use crate::Timestamp;
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

impl KeyStatus {
    /// Where a key stands with this end, which was revoked at that time.
    pub fn of(expires_at: Option<Timestamp>, revoked_at: Option<Timestamp>, now: Timestamp) -> Self {
        match (revoked_at, expires_at) {
            (Some(_), _) => Self::Revoked,
            (None, Some(end)) if end <= now => Self::Expired,
            (None, _) => Self::Active,
        }
    }
}

impl InvitationStatus {
    /// Where an invitation stands with this end, which was accepted or taken back at these times.
    pub fn of(
        expires_at: Timestamp,
        accepted_at: Option<Timestamp>,
        revoked_at: Option<Timestamp>,
        now: Timestamp,
    ) -> Self {
        match (accepted_at, revoked_at) {
            (Some(_), _) => Self::Accepted,
            (None, Some(_)) => Self::Revoked,
            (None, None) if expires_at <= now => Self::Expired,
            (None, None) => Self::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_moment_of_the_end_is_past_it() {
        let (end, before) = (Timestamp(10), Timestamp(9));
        assert_eq!(KeyStatus::of(Some(end), None, before), KeyStatus::Active);
        assert_eq!(KeyStatus::of(Some(end), None, end), KeyStatus::Expired);
        assert_eq!(KeyStatus::of(None, None, Timestamp(i64::MAX)), KeyStatus::Active);
        assert_eq!(InvitationStatus::of(end, None, None, before), InvitationStatus::Pending);
        assert_eq!(InvitationStatus::of(end, None, None, end), InvitationStatus::Expired);
    }

    #[test]
    fn what_somebody_did_comes_before_what_time_does() {
        let (end, later, done) = (Timestamp(10), Timestamp(11), Some(Timestamp(1)));
        assert_eq!(KeyStatus::of(Some(end), done, later), KeyStatus::Revoked);
        assert_eq!(InvitationStatus::of(end, done, None, later), InvitationStatus::Accepted);
        assert_eq!(InvitationStatus::of(end, None, done, later), InvitationStatus::Revoked);
    }
}
