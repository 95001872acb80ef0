//! Sessions: signing in, refreshing, signing out.

use berth_domain::identity::session::{Login, Logout};
use berth_domain::ids::{SessionId, UserId};
use berth_domain::{Code, Error, Result, Secret, Timestamp};
use uuid::Uuid;

use super::{by_themselves, refusal};
use crate::config::VerifiedEmail;
use crate::db::Tx;
use crate::http::auth::Person;
use crate::http::client_address::ClientNetwork;
use crate::http::envelope::RequestId;
use crate::services::identity::absence::not_found;
use crate::services::identity::barred::user_suspended;
use crate::services::identity::password::Asker;
use crate::services::identity::store::session::{RefreshRow, SessionRow};
use crate::services::identity::store::user::UserRow;
use crate::services::identity::throttle::Attempt;
use crate::services::identity::wire::session::{Client, TokensView};
use crate::services::identity::wire::user::UserView;
use crate::services::identity::{Identity, store, token};

/// Signs a person in.
pub(in crate::services::identity) async fn login(
    identity: &Identity,
    request: Login,
    client: Client,
    id: &RequestId,
) -> Result<TokensView> {
    let inner = &identity.inner;
    let network = client.address.network();
    let attempt = inner.throttle.attempt(&request.email, network, &inner.clock).await?;
    let known = store::user::by_email(&inner.db, &request.email).await?;
    refuse_from_elsewhere(identity, &attempt, known.as_ref().map(|user| user.id), network).await?;
    let Proven { user, rehashed, read_at, mut tx } = match prove(identity, &request.password, known).await? {
        Ok(proven) => proven,
        Err(known) => {
            let wait = attempt.failed(inner.clock.now());
            refusal::login(identity, &request.email, known.as_ref(), "credentials", wait, id).await?;
            return Err(Error::new(Code::InvalidCredentials, "The address or the password is wrong."));
        }
    };
    attempt.succeeded();
    if let Some((why, error)) = not_now(identity, &user) {
        drop(tx);
        refusal::login(identity, &request.email, Some(&user), why, None, id).await?;
        return Err(error);
    }
    let now = inner.clock.now();
    let session = SessionRow {
        id: SessionId(Uuid::now_v7()),
        user: user.id,
        is_admin: user.is_admin,
        suspended: false,
        client: client.program,
        address: client.address.known().map(|address| address.to_string()),
        created_at: now,
        last_used_at: now,
        expires_at: now.plus_seconds(inner.config.refresh_absolute_seconds),
        revoked_at: None,
    };
    if let Some(hash) = rehashed {
        store::user::rehash(&mut tx, user.id, &user.password_hash, &hash).await?;
    }
    store::session::insert(&mut tx, &session).await?;
    let (refresh, ends) = new_refresh(identity, &mut tx, &session, now).await?;
    by_themselves(user.id, id, "user.login", &user.id.to_string()).write(&mut tx, now).await?;
    tx.commit().await?;
    inner.cache.remember_session(&session, read_at, now);
    tokens(identity, &user, session.id, refresh, ends, now)
}

/// Who gave the right password, and the transaction in which it is still theirs.
struct Proven {
    user: UserRow,
    /// The password's hash at the present cost, where the kept one has another.
    rehashed: Option<String>,
    /// What the cache had forgotten before the transaction began.
    read_at: u64,
    tx: Tx,
}

/// Looks at a password; whom it is not of, where it is wrong. Hashing takes its time, in which the account may get
/// another password, be suspended or deleted: so its row is read again in the transaction that signs in, and where that
/// has another hash by then, the password is looked at once more.
async fn prove(
    identity: &Identity,
    password: &Secret,
    mut known: Option<UserRow>,
) -> Result<Result<Proven, Option<UserRow>>> {
    let inner = &identity.inner;
    loop {
        let hash = known.as_ref().map(|user| user.password_hash.clone());
        let right = inner.hasher.verify(password.0.clone(), hash).await?;
        let Some(looked_at) = known.as_ref().filter(|_| right) else { return Ok(Err(known)) };
        let rehashed = rehashed(identity, looked_at, password.clone()).await?;
        let read_at = inner.cache.generation();
        let mut tx = inner.db.begin_for_request().await?;
        match store::user::find(&mut tx, looked_at.id).await? {
            Some(user) if user.password_hash == looked_at.password_hash => {
                return Ok(Ok(Proven { user, rehashed, read_at, tx }));
            }
            changed => known = changed,
        }
    }
}

/// Why somebody who knows the password is not signed in: a word for the record, and what they are told.
fn not_now(identity: &Identity, user: &UserRow) -> Option<(&'static str, Error)> {
    let verified = user.email_verified_at.is_some();
    if user.suspended_at.is_some() {
        Some(("suspended", user_suspended(false)))
    } else if identity.inner.config.require_verified_email == VerifiedEmail::SignIn && !verified {
        let message = "Verify your address first: open the link in the mail.";
        Some(("not_verified", Error::new(Code::EmailNotVerified, message)))
    } else {
        None
    }
}

/// Refuses who comes from a network that an account did not sign in from, where too much failed from everywhere.
pub(super) async fn refuse_from_elsewhere(
    identity: &Identity,
    attempt: &Attempt<'_>,
    user: Option<UserId>,
    network: ClientNetwork,
) -> Result<()> {
    let Some(refused) = attempt.refused_from_elsewhere(identity.inner.clock.now()) else { return Ok(()) };
    let known = match user {
        Some(user) => store::session::addresses(&identity.inner.db, user).await?,
        None => Vec::new(),
    };
    let is_here = |address: &String| address.parse().is_ok_and(|address| ClientNetwork::of(address) == network);
    if known.iter().any(is_here) { Ok(()) } else { Err(refused) }
}

/// The hash of a password at the present cost, where the kept one has another.
async fn rehashed(identity: &Identity, user: &UserRow, password: Secret) -> Result<Option<String>> {
    let hasher = &identity.inner.hasher;
    if !hasher.is_outdated(&user.password_hash) {
        return Ok(None);
    }
    hasher.hash(Asker::Account, password.0).await.map(Some)
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
    let mut tx = inner.db.begin_for_request().await?;
    let row = store::session::refresh(&mut tx, &hash).await?.ok_or_else(bad_refresh)?;
    let session = store::session::find(&mut tx, row.session).await?.ok_or_else(bad_refresh)?;
    if !session.lives(now) || row.expires_at <= now {
        return Err(bad_refresh());
    }
    inner.limits.rotation(session.id, now)?;
    if session.suspended {
        return Err(user_suspended(false));
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
            identity.once_committed(&mut tx, move |inner| inner.cache.revoke([session.id], session.user, now));
            tx.commit().await?;
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
    let mut tx = inner.db.begin_as(person).await?;
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
    let user = person.user;
    identity.once_committed(&mut tx, move |inner| inner.cache.revoke(ended, user, now));
    Ok(tx.commit().await?)
}

/// Ends one of one's own sessions.
pub(in crate::services::identity) async fn end(identity: &Identity, person: &Person, id: SessionId) -> Result<()> {
    let inner = &identity.inner;
    let now = inner.clock.now();
    let mut tx = inner.db.begin_as(person).await?;
    end_own(&mut tx, person, id, now).await?.ok_or_else(|| not_found("session"))?;
    person.caller.audit("session.end", &id.to_string()).write(&mut tx, now).await?;
    let user = person.user;
    identity.once_committed(&mut tx, move |inner| inner.cache.revoke([id], user, now));
    Ok(tx.commit().await?)
}

async fn end_own(tx: &mut Tx, person: &Person, id: SessionId, now: Timestamp) -> Result<Option<SessionId>> {
    let found = store::session::find(&mut *tx, id).await?;
    if found.is_none_or(|s| s.user != person.user || !s.lives(now)) {
        return Ok(None);
    }
    store::session::revoke(tx, id, now).await?;
    Ok(Some(id))
}
