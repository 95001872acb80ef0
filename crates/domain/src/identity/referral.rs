//! Referrals: who brought whom.

use serde_json::Value;

use super::status::ReferralStatus;
use crate::error::Result;
use crate::fields::{Fields, text};

/// Reads where an administrator puts a referral: rewarded, or back.
///
/// # Errors
/// Every invalid field.
pub fn reward(body: &Value) -> Result<ReferralStatus> {
    let mut f = Fields::of(body);
    let status = f.required("status", |v| match ReferralStatus::parse(text(v)?) {
        Ok(status @ (ReferralStatus::Rewarded | ReferralStatus::Qualified)) => Ok(status),
        _ => Err("must be one of: rewarded qualified".into()),
    });
    f.finish(status)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_administrator_rewards_or_takes_that_back() {
        for status in ReferralStatus::ALL {
            let can = matches!(status, ReferralStatus::Rewarded | ReferralStatus::Qualified);
            assert_eq!(reward(&json!({"status": status.as_str()})).ok(), can.then_some(*status));
        }
        assert_eq!(
            reward(&json!({"status": "paid"})).unwrap_err().message,
            "status: must be one of: rewarded qualified"
        );
    }
}
