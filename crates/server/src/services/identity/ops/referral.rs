//! Referrals: who brought whom.

use berth_domain::{Error, Result, Timestamp};

use crate::db::Tx;
use crate::http::auth::{Person, unauthorized};
use crate::services::identity::store::user::UserRow;
use crate::services::identity::{Identity, store, token};

/// A person's code, made when it is first asked for.
pub(in crate::services::identity) async fn code(identity: &Identity, person: &Person) -> Result<String> {
    let now = identity.inner.clock.now();
    let known = store::user::find(&identity.inner.db, person.user).await?.ok_or_else(unauthorized)?;
    if let Some(code) = known.referral_code {
        return Ok(code);
    }
    let mut tx = identity.inner.db.begin().await?;
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

/// An address as far as somebody else may see it: `a***@example.com`.
fn masked(email: &str) -> String {
    let (local, domain) = email.split_once('@').unwrap_or((email, ""));
    format!("{}***@{domain}", local.chars().take(1).collect::<String>())
}
