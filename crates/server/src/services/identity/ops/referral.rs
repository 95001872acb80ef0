//! Referrals: who brought whom.

use berth_domain::identity::ReferralStatus;
use berth_domain::identity::contact::masked;
use berth_domain::ids::ReferralId;
use berth_domain::{Code, Error, Result, Timestamp};
use serde_json::json;

use crate::db::Tx;
use crate::http::auth::{Person, unauthorized};
use crate::services::identity::absence::not_found;
use crate::services::identity::store::referral::AdminReferralRow;
use crate::services::identity::store::user::UserRow;
use crate::services::identity::{Identity, store, token};

/// A person's code, made when it is first asked for.
pub(in crate::services::identity) async fn code(identity: &Identity, person: &Person) -> Result<String> {
    let now = identity.inner.clock.now();
    let known = store::user::find(&identity.inner.db, person.user).await?.ok_or_else(unauthorized)?;
    if let Some(code) = known.referral_code {
        return Ok(code);
    }
    let mut tx = identity.inner.db.begin_as(person).await?;
    let mut user = store::user::find(&mut tx, person.user).await?.ok_or_else(unauthorized)?;
    if let Some(code) = user.referral_code {
        return Ok(code);
    }
    let code = token::new_referral_code()?;
    user.referral_code = Some(code.clone());
    store::user::update(&mut tx, &user).await?;
    person.caller.audit("referral.code", &user.id.to_string()).write(&mut tx, now).await?;
    tx.commit().await?;
    Ok(code)
}

/// Records that a new person was brought by whose code it is.
pub(super) async fn record(tx: &mut Tx, code: &str, user: &UserRow, now: Timestamp) -> Result<()> {
    let referrer = store::user::by_referral_code(&mut *tx, code).await?;
    let referrer = referrer.ok_or_else(|| Error::field("referral_code", "is not known; leave it out"))?;
    Ok(store::referral::insert(tx, referrer.id, user.id, &masked(&user.email), now).await?)
}

/// Notes that who brought somebody had something for it, or takes that back. What the reward is, is the operator's: here
/// stands that it was given, so that nobody gives it twice.
pub(in crate::services::identity) async fn reward(
    identity: &Identity,
    admin: &Person,
    id: ReferralId,
    to: ReferralStatus,
) -> Result<AdminReferralRow> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(admin).await?;
    let mut row = store::referral::find(&mut tx, id).await?.ok_or_else(|| not_found("referral"))?;
    match row.referral.status {
        status if status == to => return Ok(row),
        ReferralStatus::Qualified | ReferralStatus::Rewarded => {}
        status @ (ReferralStatus::Pending | ReferralStatus::Void) => {
            let message = format!("This referral is {status}. Only one that is qualified is rewarded.");
            return Err(Error::new(Code::Conflict, message));
        }
    }
    store::referral::set(&mut tx, id, to, now).await?;
    let data = json!({"status": to.as_str(), "referrer_id": row.referrer.to_string()});
    admin.caller.audit("referral.reward", &id.to_string()).with(data).write(&mut tx, now).await?;
    tx.commit().await?;
    (row.referral.status, row.referral.updated_at) = (to, now);
    Ok(row)
}
