//! Passwords: forgotten, reset, changed.

use berth_domain::identity::password::{ChangePassword, ResetPassword};
use berth_domain::{Code, Error, Result, Secret};

use super::session::refuse_from_elsewhere;
use super::{api_key, by_themselves, invalid_token, subject, verification};
use crate::http::auth::{Person, unauthorized};
use crate::http::client_address::ClientNetwork;
use crate::http::envelope::RequestId;
use crate::services::identity::password::Asker;
use crate::services::identity::{Identity, mail, store, token};

/// Has a link sent to an address, if it has an account. Who asks cannot tell: the account is looked up when
/// the mail is made.
pub(in crate::services::identity) async fn forgot(identity: &Identity, email: &str) -> Result<()> {
    verification::ask(identity, mail::RESET_PASSWORD, email).await
}

/// Sets a new password by a link from a mail, and ends every session. Who takes over an account whose address nobody
/// had proved to read gets it without what somebody else may have left in it: keys, and invitations that are open.
pub(in crate::services::identity) async fn reset(
    identity: &Identity,
    request: ResetPassword,
    network: ClientNetwork,
    id: &RequestId,
) -> Result<()> {
    let inner = &identity.inner;
    let hash = token::hash(&request.token.0);
    let find = store::one_time::by_token(&inner.db, mail::RESET_PASSWORD, &hash);
    let open = |p: &store::one_time::Presented| p.is_open(inner.clock.now());
    let presented = find.await?.filter(open).ok_or_else(invalid_token)?;
    // What the password alone has wrong was told before the link was looked at; its address is known now.
    inner.config.password_rules().require("new_password", &request.new_password, &presented.recipient)?;
    let password_hash = inner.hasher.hash(Asker::Account, request.new_password.0).await?;
    let now = inner.clock.now();
    let mut tx = inner.db.begin_for_request().await?;
    // Of two who present it at once the second finds it used.
    let again = store::one_time::by_token(&mut tx, mail::RESET_PASSWORD, &hash).await?.filter(open);
    let mut user = subject::of_subject(&mut tx, &again.ok_or_else(invalid_token)?.subject).await?;
    // Who reads an address that was the account's once has no say in it.
    if !user.email.eq_ignore_ascii_case(&presented.recipient) {
        return Err(invalid_token());
    }
    user.password_hash = password_hash;
    let taken_over = user.email_verified_at.is_none();
    if taken_over {
        api_key::end_all(&mut tx, user.id, now).await?;
        store::invitation::end_of(&mut tx, user.id, None, now).await?;
    }
    // Who has the link reads the address.
    verification::verified(&mut tx, &mut user, now).await?;
    store::one_time::end(&mut tx, mail::RESET_PASSWORD, &presented.subject, now).await?;
    let ended = store::session::revoke_all(&mut tx, user.id, None, now).await?;
    store::outbox::put(&mut tx, mail::PASSWORD_CHANGED, &user.email, None, now).await?;
    by_themselves(user.id, id, "password.reset", &presented.subject).write(&mut tx, now).await?;
    identity.once_committed(&mut tx, move |inner| {
        inner.throttle.forget(&user.email, network);
        inner.cache.revoke(ended, user.id, now);
        if taken_over {
            inner.cache.forget_person(user.id);
        }
    });
    Ok(tx.commit().await?)
}

/// Changes one's password, and ends the other sessions.
pub(in crate::services::identity) async fn change(
    identity: &Identity,
    person: &Person,
    network: ClientNetwork,
    request: ChangePassword,
) -> Result<()> {
    let inner = &identity.inner;
    let known = store::user::find(&inner.db, person.user).await?.ok_or_else(unauthorized)?;
    inner.config.password_rules().require("new_password", &request.new_password, &known.email)?;
    confirm(identity, person, network, Some(request.current_password)).await?;
    let password_hash = inner.hasher.hash(Asker::Account, request.new_password.0).await?;
    let now = inner.clock.now();
    let mut tx = inner.db.begin_as(person).await?;
    let mut user = store::user::find(&mut tx, person.user).await?.ok_or_else(unauthorized)?;
    user.password_hash = password_hash;
    user.updated_at = now;
    store::user::update(&mut tx, &user).await?;
    let ended = store::session::revoke_all(&mut tx, user.id, Some(person.session), now).await?;
    store::outbox::put(&mut tx, mail::PASSWORD_CHANGED, &user.email, None, now).await?;
    person.caller.audit("password.change", &user.id.to_string()).write(&mut tx, now).await?;
    identity.once_committed(&mut tx, move |inner| inner.cache.revoke(ended, user.id, now));
    Ok(tx.commit().await?)
}

/// Refuses who does not know the account's password: a stolen token is not enough for what matters.
pub(super) async fn confirm(
    identity: &Identity,
    person: &Person,
    network: ClientNetwork,
    current: Option<Secret>,
) -> Result<()> {
    let inner = &identity.inner;
    let wrong = || Error::new(Code::WrongPassword, "The current password is wrong.");
    let user = store::user::find(&inner.db, person.user).await?.ok_or_else(unauthorized)?;
    let attempt = inner.throttle.attempt(&user.email, network, &inner.clock).await?;
    refuse_from_elsewhere(identity, &attempt, Some(user.id), network).await?;
    let right = inner.hasher.verify(current.ok_or_else(wrong)?.0, Some(user.password_hash)).await?;
    if !right {
        let now = inner.clock.now();
        attempt.failed(now);
        let mut tx = inner.db.begin_for_request().await?;
        person.caller.audit("password.refused", &user.id.to_string()).write(&mut tx, now).await?;
        tx.commit().await?;
        return Err(wrong());
    }
    attempt.succeeded();
    Ok(())
}
