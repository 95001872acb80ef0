//! Sessions: signing in, refreshing, signing out.

use berth_domain::ids::SessionId;
use berth_domain::{Code, Error, Result, Timestamp};
use uuid::Uuid;

use super::by_themselves;
use crate::config::Secret;
use crate::db::Tx;
use crate::http::auth::Person;
use crate::http::envelope::RequestId;
use crate::services::identity::gate::user_suspended;
use crate::services::identity::store::session::{RefreshRow, SessionRow};
use crate::services::identity::store::user::UserRow;
use crate::services::identity::wire::session::{Client, Login, Logout, TokensView};
use crate::services::identity::wire::user::UserView;
use crate::services::identity::{Identity, not_found, store, token};

/// Signs a person in.
pub(in crate::services::identity) async fn login(
    identity: &Identity,
    request: Login,
    client: Client,
    id: &RequestId,
) -> Result<TokensView> {
    let inner = &identity.inner;
    inner.throttle.account(&request.email, inner.clock.now())?;
    let user = store::user::by_email(&inner.db, &request.email).await?;
    let hash = user.as_ref().map(|user| user.password_hash.clone());
    let right = inner.hasher.verify(request.password.0, hash).await?;
    let now = inner.clock.now();
    let Some(user) = user.filter(|_| right) else {
        inner.throttle.failed(&request.email, now);
        return Err(Error::new(Code::InvalidCredentials, "The address or the password is wrong."));
    };
    inner.throttle.succeeded(&request.email);
    if user.suspended_at.is_some() {
        return Err(user_suspended());
    }
    if inner.config.require_verified_email && user.email_verified_at.is_none() {
        return Err(Error::new(Code::EmailNotVerified, "Verify your address first: open the link in the mail."));
    }
    let session = SessionRow {
        id: SessionId(Uuid::now_v7()),
        user: user.id,
        is_admin: user.is_admin,
        suspended: false,
        client: client.program,
        address: client.address,
        created_at: now,
        last_used_at: now,
        expires_at: now.plus_seconds(inner.config.refresh_absolute_seconds),
        revoked_at: None,
    };
    let read_at = inner.memory.generation();
    let mut tx = inner.db.begin().await?;
    store::session::insert(&mut tx, &session).await?;
    let (refresh, ends) = new_refresh(identity, &mut tx, &session, now).await?;
    by_themselves(user.id, id, "user.login", &user.id.to_string()).write(&mut tx, now).await?;
    tx.commit().await?;
    inner.memory.remember_session(&session, read_at, now);
    tokens(identity, &user, session.id, refresh, ends, now)
}

/// A new refresh token of a session and when it ends: after its idle time, at the latest with the session.
async fn new_refresh(
    identity: &Identity,
    tx: &mut Tx,
    session: &SessionRow,
    now: Timestamp,
) -> Result<(String, Timestamp)> {
    let token = token::new_opaque()?;
    let ends = now.plus_seconds(identity.inner.config.refresh_idle_seconds).min(session.expires_at);
    let row =
        RefreshRow { hash: token::hash(&token), session: session.id, expires_at: ends, used_at: None, successor: None };
    store::session::insert_refresh(tx, &row, now).await?;
    Ok((token, ends))
}

fn tokens(
    identity: &Identity,
    user: &UserRow,
    session: SessionId,
    refresh_token: String,
    ends: Timestamp,
    now: Timestamp,
) -> Result<TokensView> {
    let seconds = identity.inner.config.access_token_seconds;
    Ok(TokensView {
        access_token: identity.signer().sign(user.id, session, now, seconds)?,
        token_type: "Bearer",
        expires_in: seconds,
        refresh_token,
        refresh_expires_in: (ends.0 - now.0) / Timestamp::SECOND,
        user: UserView::from(user),
    })
}

fn bad_refresh() -> Error {
    Error::new(Code::InvalidRefreshToken, "The refresh token is unknown, used, revoked or expired. Sign in again.")
}

/// Exchanges a refresh token. A second use within the grace time, of a client that lost the answer, gets
/// the same successor; a later one means that the token was stolen, and ends the session.
pub(in crate::services::identity) async fn refresh(
    identity: &Identity,
    presented: &Secret,
    id: &RequestId,
) -> Result<TokensView> {
    let inner = &identity.inner;
    let now = inner.clock.now();
    let hash = token::hash(&presented.0);
    let mut tx = inner.db.begin().await?;
    let row = store::session::refresh(&mut tx, &hash).await?.ok_or_else(bad_refresh)?;
    let session = store::session::find(&mut tx, row.session).await?.ok_or_else(bad_refresh)?;
    if !session.lives(now) || row.expires_at <= now {
        return Err(bad_refresh());
    }
    if session.suspended {
        return Err(user_suspended());
    }
    let (successor, ends) = match (row.used_at, row.successor) {
        (None, _) => {
            let (successor, ends) = new_refresh(identity, &mut tx, &session, now).await?;
            store::session::use_refresh(&mut tx, &hash, &token::seal(&presented.0, &successor)?, now).await?;
            (successor, ends)
        }
        (Some(used), Some(sealed)) if used.plus_seconds(inner.config.refresh_grace_seconds) >= now => {
            let successor = token::open(&presented.0, &sealed)?;
            let kept = store::session::refresh(&mut tx, &token::hash(&successor)).await?.ok_or_else(bad_refresh)?;
            (successor, kept.expires_at)
        }
        _ => {
            store::session::revoke(&mut tx, session.id, now).await?;
            let subject = session.id.to_string();
            by_themselves(session.user, id, "session.reuse_detected", &subject).write(&mut tx, now).await?;
            tx.commit().await?;
            inner.memory.revoke(session.id, session.user, now);
            return Err(bad_refresh());
        }
    };
    store::session::used(&mut tx, session.id, now).await?;
    let user = store::user::find(&mut tx, session.user).await?.ok_or_else(bad_refresh)?;
    tx.commit().await?;
    tokens(identity, &user, session.id, successor, ends, now)
}

/// Ends this session, the session of a refresh token, or all sessions.
pub(in crate::services::identity) async fn logout(identity: &Identity, person: &Person, request: Logout) -> Result<()> {
    let inner = &identity.inner;
    let now = inner.clock.now();
    let mut tx = inner.db.begin().await?;
    let ended = if request.all {
        store::session::revoke_all(&mut tx, person.user, None, now).await?
    } else {
        let named = match &request.refresh_token {
            Some(presented) => {
                store::session::refresh(&mut tx, &token::hash(&presented.0)).await?.map(|row| row.session)
            }
            None => Some(person.session),
        };
        match named {
            Some(id) => end_own(&mut tx, person, id, now).await?.into_iter().collect(),
            None => Vec::new(),
        }
    };
    person.caller.audit("user.logout", &person.user.to_string()).write(&mut tx, now).await?;
    tx.commit().await?;
    for id in ended {
        inner.memory.revoke(id, person.user, now);
    }
    Ok(())
}

/// Ends one of one's own sessions.
pub(in crate::services::identity) async fn end(identity: &Identity, person: &Person, id: SessionId) -> Result<()> {
    let inner = &identity.inner;
    let now = inner.clock.now();
    let mut tx = inner.db.begin().await?;
    end_own(&mut tx, person, id, now).await?.ok_or_else(|| not_found("session"))?;
    person.caller.audit("session.end", &id.to_string()).write(&mut tx, now).await?;
    tx.commit().await?;
    inner.memory.revoke(id, person.user, now);
    Ok(())
}

async fn end_own(tx: &mut Tx, person: &Person, id: SessionId, now: Timestamp) -> Result<Option<SessionId>> {
    let found = store::session::find(&mut *tx, id).await?;
    if found.is_none_or(|s| s.user != person.user || !s.lives(now)) {
        return Ok(None);
    }
    store::session::revoke(tx, id, now).await?;
    Ok(Some(id))
}
