//! Proving that a person reads an address or a number.

use berth_domain::identity::ReferralStatus;
use berth_domain::identity::verification::{VerifyEmail, VerifyPhone};
use berth_domain::ids::UserId;
use berth_domain::{Code, Error, Result, Secret, Timestamp};

use super::{by_themselves, invalid_token, subject};
use crate::config::VerifiedEmail;
use crate::db::Tx;
use crate::http::auth::{Person, unauthorized};
use crate::http::envelope::RequestId;
use crate::services::identity::limits::Door;
use crate::services::identity::store::one_time::NOBODY;
use crate::services::identity::store::user::UserRow;
use crate::services::identity::{Identity, mail, store, token};

/// Has a link and a code sent to an address, if it has an account that is not verified. Who asks cannot tell.
pub(in crate::services::identity) async fn ask_email(identity: &Identity, email: &str) -> Result<()> {
    ask(identity, mail::VERIFY_EMAIL, email).await
}

/// Has a mail sent that anybody may ask for. Where the same waits, or was asked for often enough, nothing is written;
/// the answer is the same.
pub(super) async fn ask(identity: &Identity, kind: &str, email: &str) -> Result<()> {
    let inner = &identity.inner;
    let now = inner.clock.now();
    if store::outbox::waits(&inner.db, kind, email, None).await? || !inner.limits.may_ask(kind, email, now) {
        return Ok(());
    }
    let mut tx = inner.db.begin_for_request().await?;
    store::outbox::put(&mut tx, kind, email, None, now).await?;
    Ok(tx.commit().await?)
}

/// Verifies an address by what a mail to it said.
pub(in crate::services::identity) async fn verify_email(
    identity: &Identity,
    request: VerifyEmail,
    id: &RequestId,
) -> Result<()> {
    let now = identity.inner.clock.now();
    if let VerifyEmail::Code { email, .. } = &request {
        identity.inner.limits.recipient(Door::Proof, email, id.from.into(), now)?;
    }
    let mut tx = identity.inner.db.begin_for_request().await?;
    let found = match request {
        VerifyEmail::Token(token) => by_token(&mut tx, &token, now).await?,
        VerifyEmail::Code { email, code } => {
            let user = store::user::by_email(&mut tx, &email).await?;
            let subject = user.as_ref().map_or_else(|| NOBODY.to_owned(), |user| user.id.to_string());
            let recipient = by_code(identity, &mut tx, mail::VERIFY_EMAIL, &subject, &code.0, now).await?;
            user.zip(recipient)
        }
    };
    let proved = found.filter(|(user, recipient)| user.email.eq_ignore_ascii_case(recipient));
    let Some((mut user, _)) = proved else {
        // A wrong code was counted.
        tx.commit().await?;
        return Err(invalid_token());
    };
    verified(&mut tx, &mut user, now).await?;
    by_themselves(user.id, id, "email.verify", &user.id.to_string()).write(&mut tx, now).await?;
    Ok(tx.commit().await?)
}

/// Records that a person reads the address: every link for it has served, and a referral counts from now on.
pub(super) async fn verified(tx: &mut Tx, user: &mut UserRow, now: Timestamp) -> Result<()> {
    user.email_verified_at = user.email_verified_at.or(Some(now));
    user.updated_at = now;
    store::user::update(tx, user).await?;
    store::one_time::end(tx, mail::VERIFY_EMAIL, &user.id.to_string(), now).await?;
    store::referral::advance(tx, user.id, [ReferralStatus::Pending; 2], ReferralStatus::Qualified, now).await?;
    Ok(())
}

/// Refuses with 403 who has not proved to read their address: an account in somebody else's name gives nothing away that
/// would outlive the day its true owner takes it over.
pub(super) async fn require_verified(identity: &Identity, tx: &mut Tx, user: UserId) -> Result<()> {
    if identity.inner.config.require_verified_email == VerifiedEmail::Never {
        return Ok(());
    }
    let row = store::user::find(tx, user).await?.ok_or_else(unauthorized)?;
    if row.email_verified_at.is_some() {
        return Ok(());
    }
    Err(Error::new(
        Code::EmailNotVerified,
        "Verify your address first: before that it makes no API keys and sends no invitations. Open the link in the \
         mail, or have it sent again with POST /api/v1/auth/email/verification.",
    ))
}

async fn by_token(tx: &mut Tx, presented: &Secret, now: Timestamp) -> Result<Option<(UserRow, String)>> {
    let found = store::one_time::by_token(&mut *tx, mail::VERIFY_EMAIL, &token::hash(&presented.0)).await?;
    match found.filter(|p| p.is_open(now)) {
        Some(found) => Ok(Some((subject::of_subject(tx, &found.subject).await?, found.recipient))),
        None => Ok(None),
    }
}

/// The address or number that a code was sent to; a wrong code is counted against every open one. For a subject without
/// codes the work is the same.
async fn by_code(
    identity: &Identity,
    tx: &mut Tx,
    purpose: &str,
    subject: &str,
    code: &str,
    now: Timestamp,
) -> Result<Option<String>> {
    let tries = identity.inner.config.code_tries;
    let open = store::one_time::with_code(tx, purpose, subject, tries, now).await?;
    let right = open.iter().find(|o| o.code_hash.as_deref() == Some(&token::hash_code(&o.id, code)));
    if right.is_none() {
        store::one_time::tried(tx, purpose, subject, tries, now).await?;
    }
    Ok(right.map(|right| right.recipient.clone()))
}

/// Has a code sent to a number.
pub(in crate::services::identity) async fn ask_phone(identity: &Identity, person: &Person, phone: &str) -> Result<()> {
    let now = identity.inner.clock.now();
    identity.inner.limits.text(person.user, now)?;
    let mut tx = identity.inner.db.begin_as(person).await?;
    let subject = person.user.to_string();
    store::outbox::put(&mut tx, mail::VERIFY_PHONE, phone, Some(&subject), now).await?;
    person.caller.audit("phone.verification", &subject).write(&mut tx, now).await?;
    Ok(tx.commit().await?)
}

/// Verifies a number by the code that was sent to it; it becomes the person's number.
pub(in crate::services::identity) async fn verify_phone(
    identity: &Identity,
    person: &Person,
    request: VerifyPhone,
) -> Result<()> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(person).await?;
    let mut user = store::user::find(&mut tx, person.user).await?.ok_or_else(unauthorized)?;
    let proved = by_code(identity, &mut tx, mail::VERIFY_PHONE, &user.id.to_string(), &request.code.0, now).await?;
    if proved.is_none_or(|number| number != request.phone) {
        tx.commit().await?;
        return Err(invalid_token());
    }
    user.phone = Some(request.phone);
    user.phone_verified_at = Some(now);
    user.updated_at = now;
    store::user::update(&mut tx, &user).await?;
    store::one_time::end(&mut tx, mail::VERIFY_PHONE, &user.id.to_string(), now).await?;
    person.caller.audit("phone.verify", &user.id.to_string()).write(&mut tx, now).await?;
    Ok(tx.commit().await?)
}
