//! People: the first administrator, signing up, changing and deleting oneself.

use std::path::{Path, PathBuf};

use anyhow::Context;
use berth_domain::identity::ReferralStatus;
use berth_domain::identity::contact::title_of;
use berth_domain::identity::org::NewOrg;
use berth_domain::identity::project::NewProject;
use berth_domain::identity::user::{ChangeMe, SignUp};
use berth_domain::ids::{OrgId, SessionId, UserId};
use berth_domain::{Code, Error, Result, Secret, Timestamp};
use uuid::Uuid;

use super::{api_key, by_themselves, invitation, member, org, project, quota, referral};
use crate::config::{Config, SignUpMode, VerifiedEmail};
use crate::db::Tx;
use crate::db::audit::Audit;
use crate::db::ssh_key::{self, KeyOwner};
use crate::db::tenant::Whose;
use crate::http::auth::{Person, unauthorized};
use crate::http::client_address::ClientNetwork;
use crate::http::envelope::RequestId;
use crate::http::idempotency::{Idempotency, Outcome};
use crate::private_file;
use crate::services::identity::absence::not_found;
use crate::services::identity::cache::AuthCache;
use crate::services::identity::limits::Door;
use crate::services::identity::password::Asker;
use crate::services::identity::store::org::OrgRow;
use crate::services::identity::store::project::ProjectRow;
use crate::services::identity::store::user::UserRow;
use crate::services::identity::wire::org::OrgView;
use crate::services::identity::wire::project::ProjectView;
use crate::services::identity::wire::user::{SignUpView, UserView};
use crate::services::identity::{Identity, mail, store, token};

/// The first administrator, whose password was made up.
#[derive(Clone, Debug)]
pub struct FirstLogin {
    /// The address to sign in with.
    pub email: String,
    /// The file with the address and the password, each in a line.
    pub file: PathBuf,
}

/// Makes the first administrator, where there is nobody yet. A password that is made up lies in a file before the
/// account is there, and nowhere else.
pub(in crate::services::identity) async fn first_administrator(
    identity: &Identity,
    config: &Config,
) -> anyhow::Result<Option<FirstLogin>> {
    let mut tx = identity.inner.db.begin().await?;
    let made_up = config.admin_password.0.is_empty();
    if store::user::count(&mut tx).await? > 0 {
        if !made_up {
            tracing::warn!(
                "BERTH_ADMIN_PASSWORD counts at the first start only and was ignored; to change a password type: \
                 berth account password"
            );
        }
        return Ok(None);
    }
    let (file, left) = login_file(&config.data_dir, &config.admin_email);
    let password = match left {
        _ if !made_up => config.admin_password.0.clone(),
        Some(password) => password,
        None => token::new_password()?,
    };
    let now = identity.inner.clock.now();
    let hash = identity.inner.hasher.hash(Asker::Account, password.clone()).await?;
    let mut user = new_user(config.admin_email.clone(), hash, now);
    user.name = Some("Administrator".into());
    user.is_admin = true;
    user.email_verified_at = Some(now);
    found(&mut tx, &user, &RequestId::default(), now).await?;
    let login = made_up.then_some(FirstLogin { email: user.email, file });
    if let Some(login) = &login {
        private_file::write(&login.file, format!("{}\n{password}\n", login.email).as_bytes())
            .with_context(|| format!("the first login cannot be written to {}", login.file.display()))?;
    }
    tx.commit().await?;
    Ok(login)
}

/// The file for the login of an address, and the password in it: one that an earlier start left, for this database or
/// another, stays as it is and stays true. Another address has another file.
fn login_file(folder: &Path, email: &str) -> (PathBuf, Option<String>) {
    let mut file = folder.join("administrator");
    for number in 2_u64.. {
        match std::fs::read_to_string(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => break,
            Ok(text) if text.lines().next() == Some(email) => {
                return (file, text.lines().nth(1).map(str::to_owned));
            }
            _ => file = folder.join(format!("administrator-{number}")),
        }
    }
    (file, None)
}

pub(super) fn new_user(email: String, password_hash: String, now: Timestamp) -> UserRow {
    UserRow {
        id: UserId(Uuid::now_v7()),
        email,
        name: None,
        phone: None,
        password_hash,
        is_admin: false,
        email_verified_at: None,
        phone_verified_at: None,
        suspended_at: None,
        referral_code: None,
        created_at: now,
        updated_at: now,
    }
}

/// The organization and the first project of a person's own, not written yet.
async fn own(tx: &mut Tx, user: &UserRow, now: Timestamp) -> Result<(OrgRow, ProjectRow)> {
    let title = user.name.clone().unwrap_or_else(|| title_of(&user.email));
    let org = org::new(tx, &NewOrg { name: title, slug: None }, now).await?;
    let project = project::new(tx, org.id, &NewProject { name: "default".into(), slug: None }, now).await?;
    Ok((org, project))
}

/// Writes a person with an organization and a project of their own.
pub(super) async fn settle(tx: &mut Tx, user: &UserRow, now: Timestamp) -> Result<(OrgRow, ProjectRow)> {
    let (org, project) = own(tx, user, now).await?;
    store::user::insert(tx, user).await?;
    org::write(tx, &org, user.id, true).await?;
    project::write(tx, &project, user.id).await?;
    Ok((org, project))
}

/// Writes a person who signs up.
async fn found(tx: &mut Tx, user: &UserRow, request: &RequestId, now: Timestamp) -> Result<(OrgRow, ProjectRow)> {
    let (org, project) = settle(tx, user, now).await?;
    let subject = user.id.to_string();
    Audit { org: Some(org.id), ..by_themselves(user.id, request, "user.signup", &subject) }.write(tx, now).await?;
    Ok((org, project))
}

/// Refuses everybody, where nobody signs up.
pub(in crate::services::identity) fn refuse_closed(identity: &Identity) -> Result<()> {
    let message = "Nobody signs up here. Ask the operator of this platform for an account.";
    match identity.inner.sign_up {
        SignUpMode::Closed => Err(Error::new(Code::SignupClosed, message)),
        SignUpMode::Open | SignUpMode::Invited => Ok(()),
    }
}

/// Refuses what can be refused before the password is hashed, which takes the most.
async fn admit(identity: &Identity, request: &SignUp, from: ClientNetwork) -> Result<()> {
    let inner = &identity.inner;
    let now = inner.clock.now();
    match (&request.invitation_token, inner.sign_up) {
        (Some(token), _) => invitation::open_by(&inner.db, &token.0, &request.email, now).await.map(drop)?,
        (None, SignUpMode::Invited) => {
            let message = "Only who was invited signs up here: send the token of the invitation's link as \
                           'invitation_token'. Owners and admins of an organization invite.";
            return Err(Error::new(Code::InvitationRequired, message));
        }
        (None, SignUpMode::Open | SignUpMode::Closed) => {}
    }
    inner.limits.recipient(Door::SignUp, &request.email, from, now)?;
    // Where it is a secret whether there is an account, everybody's password is hashed.
    if !is_secret(identity, request) && store::user::by_email(&inner.db, &request.email).await?.is_some() {
        return Err(email_taken());
    }
    Ok(())
}

/// Whether only the address's mail may tell that there is an account. Who holds an invitation of it reads its mail.
fn is_secret(identity: &Identity, request: &SignUp) -> bool {
    let required = identity.inner.config.require_verified_email == VerifiedEmail::SignIn;
    required && request.invitation_token.is_none()
}

/// Signs a person up.
pub(in crate::services::identity) async fn sign_up(
    identity: &Identity,
    request: SignUp,
    id: &RequestId,
    key: Idempotency,
) -> Result<Outcome<SignUpView>> {
    let inner = &identity.inner;
    if key.is_given() {
        // Before the address is found to be taken, by the first of these requests.
        let mut tx = inner.db.begin_for_request().await?;
        if let Some(replayed) = key.replay(&mut tx, inner.clock.now()).await? {
            return Ok(replayed);
        }
    }
    admit(identity, &request, id.from.into()).await?;
    let hash = inner.hasher.hash(Asker::Newcomer, request.password.0.clone()).await?;
    let now = inner.clock.now();
    let user = UserRow {
        name: request.name.clone(),
        phone: request.phone.clone(),
        ..new_user(request.email.clone(), hash, now)
    };
    let required = inner.config.require_verified_email == VerifiedEmail::SignIn;
    let mut tx = inner.db.begin_for_request().await?;
    let taken = store::user::by_email(&mut tx, &user.email).await?.is_some();
    let (user, org, project) = if !taken {
        let (org, project) = found(&mut tx, &user, id, now).await?;
        quota::begin(identity, &mut tx, Whose::Org(org.id), now).await?;
        quota::begin(identity, &mut tx, Whose::Project(project.id), now).await?;
        (welcome(identity, &mut tx, &request, user, id, now).await?, org, project)
    } else if is_secret(identity, &request) {
        // Only who reads the mail learns that there is an account.
        let (org, project) = own(&mut tx, &user, now).await?;
        store::outbox::put(&mut tx, mail::EMAIL_TAKEN, &user.email, None, now).await?;
        (user, org, project)
    } else {
        return Err(email_taken());
    };
    let view = SignUpView {
        verification_required: required,
        user: UserView::from(&user),
        organization: OrgView::from(&org),
        project: ProjectView::from(&project),
    };
    // Also where there is an account: an answer that could not be repeated would tell.
    let created = key.created(&mut tx, now, "/api/v1/users/me".into(), view).await?;
    tx.commit().await?;
    Ok(created)
}

/// What a new account brings with it: an invitation, a referral, a mail that verifies the address.
async fn welcome(
    identity: &Identity,
    tx: &mut Tx,
    request: &SignUp,
    mut user: UserRow,
    id: &RequestId,
    now: Timestamp,
) -> Result<UserRow> {
    if let Some(code) = &request.referral_code {
        referral::record(tx, code, &user, now).await?;
    }
    match &request.invitation_token {
        Some(token) => {
            invitation::take(identity, tx, &token.0, &mut user, id, now).await?;
        }
        None => store::outbox::put(tx, mail::VERIFY_EMAIL, &user.email, None, now).await?,
    }
    Ok(user)
}

pub(super) fn email_taken() -> Error {
    Error::new(Code::EmailTaken, "There is an account with this address. Sign in, or reset its password.")
}

/// Changes one's name, phone number or address. Another address needs the password, and is not verified yet.
pub(in crate::services::identity) async fn change(
    identity: &Identity,
    person: &Person,
    network: ClientNetwork,
    change: ChangeMe,
) -> Result<UserView> {
    let inner = &identity.inner;
    let now = inner.clock.now();
    if change.email.is_some() {
        super::password::confirm(identity, person, network, change.current_password).await?;
        inner.limits.change(person.user, now)?;
    }
    let mut tx = inner.db.begin_as(person).await?;
    let before = store::user::find(&mut tx, person.user).await?.ok_or_else(|| not_found("person"))?;
    let mut user = before.clone();
    if let Some(name) = change.name {
        user.name = Some(name);
    }
    if let Some(phone) = change.phone.filter(|phone| user.phone.as_ref() != Some(phone)) {
        user.phone = Some(phone);
        user.phone_verified_at = None;
    }
    if let Some(email) = change.email.filter(|email| *email != user.email) {
        if store::user::by_email(&mut tx, &email).await?.is_some_and(|other| other.id != user.id) {
            return Err(email_taken());
        }
        store::outbox::put(&mut tx, mail::EMAIL_CHANGED, &user.email, None, now).await?;
        store::outbox::put(&mut tx, mail::VERIFY_EMAIL, &email, None, now).await?;
        user.email = email;
        user.email_verified_at = None;
        // What was sent to the old address opens nothing any more.
        for purpose in [mail::RESET_PASSWORD, mail::VERIFY_EMAIL] {
            store::one_time::end(&mut tx, purpose, &user.id.to_string(), now).await?;
        }
    }
    if user == before {
        return Ok(UserView::from(&user));
    }
    user.updated_at = now;
    store::user::update(&mut tx, &user).await?;
    person.caller.audit("user.update", &user.id.to_string()).write(&mut tx, now).await?;
    tx.commit().await?;
    Ok(UserView::from(&user))
}

/// Seconds after a sign-in in which its session shows by itself that who acts knows the password.
const FRESH: i64 = 600;

/// Deletes oneself, with the organizations that are nobody else's and empty, and the keys one made.
pub(in crate::services::identity) async fn delete(
    identity: &Identity,
    person: &Person,
    network: ClientNetwork,
    current_password: Option<Secret>,
) -> Result<()> {
    let inner = &identity.inner;
    match current_password {
        Some(password) => super::password::confirm(identity, person, network, Some(password)).await?,
        None => require_fresh(identity, person).await?,
    }
    let now = inner.clock.now();
    let mut tx = inner.db.begin_as(person).await?;
    if person.is_admin && store::user::administrators(&mut tx).await? == 1 {
        return Err(Error::new(Code::LastOwner, "You are the last administrator of this platform."));
    }
    let left = leave(identity, &mut tx, person.user, "You are", now).await?;
    person.caller.audit("user.delete", &person.user.to_string()).write(&mut tx, now).await?;
    let user = person.user;
    identity.once_committed(&mut tx, move |inner| left.forget(&inner.cache, user, now));
    Ok(tx.commit().await?)
}

/// Refuses a session whose sign-in is long ago: its token may be somebody else's by now.
async fn require_fresh(identity: &Identity, person: &Person) -> Result<()> {
    let (db, now) = (&identity.inner.db, identity.inner.clock.now());
    let session = store::session::find(db, person.session).await?.ok_or_else(unauthorized)?;
    if session.created_at.plus_seconds(FRESH) > now {
        return Ok(());
    }
    Err(Error::field("current_password", "is required, because this sign-in is more than ten minutes old"))
}

/// What ended with a person.
pub(super) struct Left {
    sessions: Vec<SessionId>,
    orgs: Vec<OrgId>,
}

impl Left {
    /// Takes it out of the cache, once it is committed.
    pub(super) fn forget(self, cache: &AuthCache, user: UserId, now: Timestamp) {
        cache.revoke(self.sessions, user, now);
        cache.forget_person(user);
        for org in self.orgs {
            cache.forget_org(org);
        }
    }
}

/// Takes a person out of everything, with the organizations that are nobody else's and empty, and the keys they made.
pub(super) async fn leave(
    identity: &Identity,
    tx: &mut Tx,
    user: UserId,
    who_is: &str,
    now: Timestamp,
) -> Result<Left> {
    let mut orgs = Vec::new();
    for org in store::org::solely_owned(&mut *tx, user).await? {
        let others = store::member::count(&mut *tx, org.id).await? > 1;
        if others || org::holds(identity, tx, org.id).await? {
            let slug = &org.slug;
            let message = format!(
                "{who_is} the last owner of '{slug}', which has other members or resources. Give it away, or delete \
                 what it holds."
            );
            return Err(Error::new(Code::LastOwner, message));
        }
        org::remove(tx, org.id, now).await?;
        orgs.push(org.id);
    }
    let sessions = store::session::revoke_all(tx, user, None, now).await?;
    let left = store::member::remove_all(tx, user).await?;
    member::tell_left(tx, &left, user, now).await?;
    api_key::end_all(tx, user, now).await?;
    ssh_key::forget(tx, KeyOwner::User(user)).await?;
    store::invitation::end_of(tx, user, None, now).await?;
    store::referral::advance(tx, user, [ReferralStatus::Pending, ReferralStatus::Qualified], ReferralStatus::Void, now)
        .await?;
    invalidate_tokens(tx, user, now).await?;
    store::user::forget(tx, user, now).await?;
    Ok(Left { sessions, orgs })
}

async fn invalidate_tokens(tx: &mut Tx, user: UserId, now: Timestamp) -> Result<()> {
    for purpose in [mail::VERIFY_EMAIL, mail::VERIFY_PHONE, mail::RESET_PASSWORD] {
        store::one_time::end(tx, purpose, &user.to_string(), now).await?;
    }
    Ok(())
}
