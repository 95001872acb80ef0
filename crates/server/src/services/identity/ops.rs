//! One function for each verb; each owns its transaction.

use berth_domain::identity::{OrgRole, ProjectRole};
use berth_domain::ids::{OrgId, ProjectId, SessionId, UserId};
use berth_domain::names::Slug;
use berth_domain::{Code, Error, Result, Timestamp};
use serde_json::json;
use uuid::Uuid;

use super::store::{self, OrgRow, ProjectRow, RefreshRow, SessionRow, SigningKeyRow, UserRow};
use super::wire::{Login, Logout, Named, OrgView, ProjectView, SignUp, SignUpView, TokensView, UserView};
use super::{Identity, password, token};
use crate::clock::Clock;
use crate::config::{Config, Secret};
use crate::db::audit::Audit;
use crate::db::{Db, DbError, Tx};
use crate::http::auth::{Caller, OrgScope};
use crate::http::envelope::RequestId;
use crate::http::idempotency::{Idempotency, Replay};

/// The keys that sign, made at the first start.
pub(super) async fn signing_keys(db: &Db, clock: &Clock) -> Result<Vec<SigningKeyRow>> {
    let mut tx = db.begin().await?;
    let mut keys = store::signing_keys(&mut tx).await?;
    if keys.is_empty() {
        let key = token::new_key()?;
        store::insert_signing_key(&mut tx, &key, clock.now()).await?;
        tx.commit().await?;
        keys.push(key);
    }
    Ok(keys)
}

/// Makes the first administrator, where there is nobody yet; its login if the password was made up.
pub(super) async fn first_administrator(identity: &Identity, config: &Config) -> Result<Option<(String, Secret)>> {
    let mut tx = identity.inner.db.begin().await?;
    if store::count_users(&mut tx).await? > 0 {
        return Ok(None);
    }
    let made_up = config.admin_password.0.is_empty();
    let password = if made_up { token::new_password()? } else { config.admin_password.0.clone() };
    let now = identity.inner.clock.now();
    let user = UserRow {
        id: UserId(Uuid::now_v7()),
        email: config.admin_email.clone(),
        name: Some("Administrator".into()),
        phone: None,
        password_hash: identity.inner.hasher.hash(password.clone()).await?,
        is_admin: true,
        email_verified_at: None,
        created_at: now,
        updated_at: now,
    };
    found(&mut tx, &user, &RequestId::default(), now).await?;
    tx.commit().await?;
    Ok(made_up.then_some((user.email, Secret(password))))
}

/// The audit record of what somebody does who is not signed in yet.
fn by_themselves<'a>(user: UserId, request: &'a RequestId, action: &'a str, subject: &'a str) -> Audit<'a> {
    let (actor, request_id) = (Some(user), request.0.as_str());
    Audit { org: None, project: None, actor, request_id, action, subject, data: json!({}) }
}

/// Writes a person with an organization and a project of their own.
async fn found(tx: &mut Tx, user: &UserRow, request: &RequestId, now: Timestamp) -> Result<(OrgRow, ProjectRow)> {
    store::insert_user(tx, user).await?;
    let title = user.name.clone().unwrap_or_else(|| user.email.split('@').next().unwrap_or("personal").to_owned());
    let org = new_org(tx, &Named { name: title, slug: None }, now).await?;
    store::insert_org(tx, &org, user.id, true).await?;
    let project = new_project(tx, org.id, &Named { name: "default".into(), slug: None }, now).await?;
    store::insert_project(tx, &project, user.id).await?;
    let subject = user.id.to_string();
    Audit { org: Some(org.id), ..by_themselves(user.id, request, "user.signup", &subject) }.write(tx, now).await?;
    Ok((org, project))
}

async fn new_org(tx: &mut Tx, named: &Named, now: Timestamp) -> Result<OrgRow> {
    let id = OrgId(Uuid::now_v7());
    let slug = match &named.slug {
        Some(slug) if store::org_slug_taken(tx, slug.as_str()).await? => {
            return Err(slug_taken(slug));
        }
        Some(slug) => slug.clone(),
        None => {
            let slug = Slug::from_title(&named.name, "org");
            if store::org_slug_taken(tx, slug.as_str()).await? { slug.with_suffix(&suffix(id.0)) } else { slug }
        }
    };
    Ok(OrgRow {
        id,
        name: named.name.clone(),
        slug: slug.as_str().to_owned(),
        role: OrgRole::Owner,
        created_at: now,
        updated_at: now,
    })
}

async fn new_project(tx: &mut Tx, org: OrgId, named: &Named, now: Timestamp) -> Result<ProjectRow> {
    let id = ProjectId(Uuid::now_v7());
    let slug = match &named.slug {
        Some(slug) if store::project_slug_taken(tx, org, slug.as_str()).await? => {
            return Err(slug_taken(slug));
        }
        Some(slug) => slug.clone(),
        None => {
            let slug = Slug::from_title(&named.name, "project");
            if store::project_slug_taken(tx, org, slug.as_str()).await? {
                slug.with_suffix(&suffix(id.0))
            } else {
                slug
            }
        }
    };
    Ok(ProjectRow {
        id,
        org,
        name: named.name.clone(),
        slug: slug.as_str().to_owned(),
        role: Some(ProjectRole::Admin),
        created_at: now,
        updated_at: now,
    })
}

/// Six digits of an id's random end.
fn suffix(id: Uuid) -> String {
    id.simple().to_string().split_off(26)
}

fn slug_taken(slug: &Slug) -> Error {
    Error::new(Code::SlugTaken, format!("The slug '{}' is taken. Choose another.", slug.as_str()))
}

/// Signs a person up.
pub(super) async fn sign_up(identity: &Identity, request: SignUp, id: &RequestId) -> Result<SignUpView> {
    let inner = &identity.inner;
    password::check(&request.password.0, &request.email, &inner.config)
        .map_err(|rule| Error::field("password", rule))?;
    if request.invitation_token.is_some() {
        return Err(Error::new(Code::InvalidToken, "The invitation is wrong, used or expired. Ask for a new one."));
    }
    let hash = inner.hasher.hash(request.password.0).await?;
    let now = inner.clock.now();
    let user = UserRow {
        id: UserId(Uuid::now_v7()),
        email: request.email,
        name: request.name,
        phone: request.phone,
        password_hash: hash,
        is_admin: false,
        email_verified_at: None,
        created_at: now,
        updated_at: now,
    };
    let mut tx = inner.db.begin().await?;
    if store::user_by_email(&mut tx, &user.email).await?.is_some() {
        return Err(email_taken());
    }
    let (org, project) = found(&mut tx, &user, id, now).await?;
    tx.commit().await.map_err(|e| if matches!(e, DbError::Unique(_)) { email_taken() } else { e.into() })?;
    Ok(SignUpView {
        user: UserView::from(&user),
        organization: OrgView::from(&org),
        project: ProjectView::from(&project),
        verification_required: inner.config.require_verified_email,
    })
}

fn email_taken() -> Error {
    Error::new(Code::EmailTaken, "There is an account with this address. Sign in, or reset its password.")
}

/// Signs a person in.
pub(super) async fn login(identity: &Identity, request: Login, id: &RequestId) -> Result<TokensView> {
    let inner = &identity.inner;
    inner.throttle.account(&request.email, inner.clock.now())?;
    let user = store::user_by_email(&inner.db, &request.email).await?;
    let hash = user.as_ref().map(|user| user.password_hash.clone());
    let right = inner.hasher.verify(request.password.0, hash).await?;
    let now = inner.clock.now();
    let Some(user) = user.filter(|_| right) else {
        inner.throttle.failed(&request.email, now);
        return Err(Error::new(Code::InvalidCredentials, "The address or the password is wrong."));
    };
    inner.throttle.succeeded(&request.email);
    if inner.config.require_verified_email && user.email_verified_at.is_none() {
        return Err(Error::new(Code::EmailNotVerified, "Verify your address first: open the link in the mail."));
    }
    let session = SessionRow {
        id: SessionId(Uuid::now_v7()),
        user: user.id,
        is_admin: user.is_admin,
        expires_at: now.plus_seconds(inner.config.refresh_absolute_seconds),
        revoked_at: None,
    };
    let mut tx = inner.db.begin().await?;
    store::insert_session(&mut tx, &session, now).await?;
    let (refresh, ends) = new_refresh(identity, &mut tx, &session, now).await?;
    by_themselves(user.id, id, "user.login", &user.id.to_string()).write(&mut tx, now).await?;
    tx.commit().await?;
    inner.memory.remember_session(&session, now);
    tokens(identity, &user, session.id, refresh, ends, now)
}

/// A new refresh token of a session and when it ends: after its idle time, at the latest with the session.
async fn new_refresh(
    identity: &Identity,
    tx: &mut Tx,
    session: &SessionRow,
    now: Timestamp,
) -> Result<(String, Timestamp)> {
    let token = token::new_refresh()?;
    let ends = now.plus_seconds(identity.inner.config.refresh_idle_seconds).min(session.expires_at);
    let row =
        RefreshRow { hash: token::hash(&token), session: session.id, expires_at: ends, used_at: None, successor: None };
    store::insert_refresh(tx, &row, now).await?;
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
        access_token: identity.inner.signer.sign(user.id, session, now, seconds)?,
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
pub(super) async fn refresh(identity: &Identity, presented: &Secret, id: &RequestId) -> Result<TokensView> {
    let inner = &identity.inner;
    let now = inner.clock.now();
    let hash = token::hash(&presented.0);
    let mut tx = inner.db.begin().await?;
    let row = store::refresh(&mut tx, &hash).await?.ok_or_else(bad_refresh)?;
    let session = store::session(&mut tx, row.session).await?.ok_or_else(bad_refresh)?;
    if session.revoked_at.is_some() || session.expires_at <= now || row.expires_at <= now {
        return Err(bad_refresh());
    }
    let (successor, ends) = match (row.used_at, row.successor) {
        (None, _) => {
            let (successor, ends) = new_refresh(identity, &mut tx, &session, now).await?;
            store::use_refresh(&mut tx, &hash, &token::seal(&presented.0, &successor)?, now).await?;
            (successor, ends)
        }
        (Some(used), Some(sealed)) if used.plus_seconds(inner.config.refresh_grace_seconds) >= now => {
            let successor = token::open(&presented.0, &sealed)?;
            let kept = store::refresh(&mut tx, &token::hash(&successor)).await?.ok_or_else(bad_refresh)?;
            (successor, kept.expires_at)
        }
        _ => {
            store::revoke_session(&mut tx, session.id, now).await?;
            let subject = session.id.to_string();
            by_themselves(session.user, id, "session.reuse_detected", &subject).write(&mut tx, now).await?;
            tx.commit().await?;
            inner.memory.revoke(session.id, session.user, now);
            return Err(bad_refresh());
        }
    };
    tx.commit().await?;
    let user = store::user(&inner.db, session.user).await?.ok_or_else(bad_refresh)?;
    tokens(identity, &user, session.id, successor, ends, now)
}

/// Ends this session, the session of a refresh token, or all sessions.
pub(super) async fn logout(identity: &Identity, caller: &Caller, request: Logout) -> Result<()> {
    let inner = &identity.inner;
    let now = inner.clock.now();
    let mut tx = inner.db.begin().await?;
    let ended = if request.all {
        store::revoke_sessions(&mut tx, caller.user, now).await?
    } else {
        let named = match &request.refresh_token {
            Some(presented) => store::refresh(&mut tx, &token::hash(&presented.0)).await?.map(|row| row.session),
            None => Some(caller.session),
        };
        let mut mine = Vec::new();
        if let Some(id) = named
            && store::session(&mut tx, id).await?.is_some_and(|s| s.user == caller.user)
        {
            store::revoke_session(&mut tx, id, now).await?;
            mine.push(id);
        }
        mine
    };
    caller.audit("user.logout", &caller.user.to_string()).write(&mut tx, now).await?;
    tx.commit().await?;
    for id in ended {
        inner.memory.revoke(id, caller.user, now);
    }
    Ok(())
}

/// What a creation is answered with.
pub(super) enum Outcome<T> {
    /// It was made now.
    Created(T),
    /// It was made before, by the same request.
    Replayed(Replay),
}

/// Makes an organization; its maker owns it.
pub(super) async fn create_org(
    identity: &Identity,
    caller: &Caller,
    named: Named,
    key: Option<Idempotency>,
) -> Result<Outcome<OrgView>> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin().await?;
    if let Some(key) = &key
        && let Some(replay) = key.replay(&mut tx, now).await?
    {
        return Ok(Outcome::Replayed(replay));
    }
    let org = new_org(&mut tx, &named, now).await?;
    store::insert_org(&mut tx, &org, caller.user, false).await?;
    Audit { org: Some(org.id), ..caller.audit("org.create", &org.id.to_string()) }.write(&mut tx, now).await?;
    let view = OrgView::from(&org);
    keep(key, &mut tx, now, &view.location(), &view).await?;
    tx.commit().await?;
    identity.inner.memory.forget_scopes();
    Ok(Outcome::Created(view))
}

/// Makes a project of an organization.
pub(super) async fn create_project(
    identity: &Identity,
    scope: &OrgScope,
    named: Named,
    key: Option<Idempotency>,
) -> Result<Outcome<ProjectView>> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin().await?;
    if let Some(key) = &key
        && let Some(replay) = key.replay(&mut tx, now).await?
    {
        return Ok(Outcome::Replayed(replay));
    }
    let project = new_project(&mut tx, scope.org, &named, now).await?;
    store::insert_project(&mut tx, &project, scope.caller.user).await?;
    let subject = project.id.to_string();
    Audit { project: Some(project.id), ..scope.audit("project.create", &subject) }.write(&mut tx, now).await?;
    let view = ProjectView::from(&project);
    keep(key, &mut tx, now, &view.location(scope.org), &view).await?;
    tx.commit().await?;
    identity.inner.memory.forget_scopes();
    Ok(Outcome::Created(view))
}

async fn keep(
    key: Option<Idempotency>,
    tx: &mut Tx,
    now: Timestamp,
    location: &str,
    view: &impl serde::Serialize,
) -> Result<()> {
    let Some(key) = key else { return Ok(()) };
    let body = serde_json::to_string(view).map_err(Error::internal)?;
    key.keep(tx, now, location, &body).await
}
