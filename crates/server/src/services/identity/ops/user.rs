//! People: the first administrator, signing up, changing and deleting oneself.

use berth_domain::ids::UserId;
use berth_domain::{Code, Error, Result, Timestamp};
use uuid::Uuid;

use super::{by_themselves, invalid_token, invitation, org, project, referral};
use crate::config::{Config, Secret};
use crate::db::audit::Audit;
use crate::db::{DbError, Tx};
use crate::http::auth::Person;
use crate::http::envelope::RequestId;
use crate::services::identity::store::org::OrgRow;
use crate::services::identity::store::project::ProjectRow;
use crate::services::identity::store::user::UserRow;
use crate::services::identity::wire::org::OrgView;
use crate::services::identity::wire::project::ProjectView;
use crate::services::identity::wire::user::{ChangeMe, Named, SignUp, SignUpView, UserView};
use crate::services::identity::{Identity, mail, not_found, password, store, token};

/// Makes the first administrator, where there is nobody yet; its login if the password was made up.
pub(in crate::services::identity) async fn first_administrator(
    identity: &Identity,
    config: &Config,
) -> Result<Option<(String, Secret)>> {
    let mut tx = identity.inner.db.begin().await?;
    if store::user::count(&mut tx).await? > 0 {
        return Ok(None);
    }
    let made_up = config.admin_password.0.is_empty();
    let password = if made_up { token::new_password()? } else { config.admin_password.0.clone() };
    let now = identity.inner.clock.now();
    let hash = identity.inner.hasher.hash(password.clone()).await?;
    let mut user = new_user(config.admin_email.clone(), hash, now);
    user.name = Some("Administrator".into());
    user.is_admin = true;
    user.email_verified_at = Some(now);
    found(&mut tx, &user, &RequestId::default(), now).await?;
    tx.commit().await?;
    Ok(made_up.then_some((user.email, Secret(password))))
}

fn new_user(email: String, password_hash: String, now: Timestamp) -> UserRow {
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
    let title = user.name.clone().unwrap_or_else(|| user.email.split('@').next().unwrap_or("personal").to_owned());
    let org = org::new(tx, &Named { name: title, slug: None }, now).await?;
    let project = project::new(tx, org.id, &Named { name: "default".into(), slug: None }, now).await?;
    Ok((org, project))
}

/// Writes a person with an organization and a project of their own.
async fn found(tx: &mut Tx, user: &UserRow, request: &RequestId, now: Timestamp) -> Result<(OrgRow, ProjectRow)> {
    let (org, project) = own(tx, user, now).await?;
    store::user::insert(tx, user).await?;
    org::write(tx, &org, user.id, true).await?;
    project::write(tx, &project, user.id).await?;
    let subject = user.id.to_string();
    Audit { org: Some(org.id), ..by_themselves(user.id, request, "user.signup", &subject) }.write(tx, now).await?;
    Ok((org, project))
}

/// Signs a person up.
pub(in crate::services::identity) async fn sign_up(
    identity: &Identity,
    request: SignUp,
    id: &RequestId,
) -> Result<SignUpView> {
    let inner = &identity.inner;
    password::check(&request.password.0, &request.email, &inner.config)
        .map_err(|rule| Error::field("password", rule))?;
    let hash = inner.hasher.hash(request.password.0.clone()).await?;
    let now = inner.clock.now();
    let user = UserRow {
        name: request.name.clone(),
        phone: request.phone.clone(),
        ..new_user(request.email.clone(), hash, now)
    };
    let mut tx = inner.db.begin().await?;
    let taken = store::user::by_email(&mut tx, &user.email).await?.is_some();
    let (user, org, project) = if !taken {
        let (org, project) = found(&mut tx, &user, id, now).await?;
        (welcome(&mut tx, &request, user, id, now).await?, org, project)
    } else if inner.config.require_verified_email && !invited(&mut tx, &request, now).await? {
        // Only who reads the mail learns that there is an account.
        let (org, project) = own(&mut tx, &user, now).await?;
        store::outbox::put(&mut tx, mail::EMAIL_TAKEN, &user.email, None, now).await?;
        (user, org, project)
    } else {
        return Err(email_taken());
    };
    tx.commit().await.map_err(|e| if matches!(e, DbError::Unique(_)) { email_taken() } else { e.into() })?;
    Ok(SignUpView {
        verification_required: inner.config.require_verified_email,
        user: UserView::from(&user),
        organization: OrgView::from(&org),
        project: ProjectView::from(&project),
    })
}

/// Whether who signs up holds an invitation of the address, and so reads its mail: nothing is hidden from them.
async fn invited(tx: &mut Tx, request: &SignUp, now: Timestamp) -> Result<bool> {
    match &request.invitation_token {
        Some(token) => Ok(invitation::open_by(tx, &token.0, &request.email, now).await?.is_some()),
        None => Ok(false),
    }
}

/// What a new account brings with it: an invitation, a referral, a mail that verifies the address.
async fn welcome(tx: &mut Tx, request: &SignUp, mut user: UserRow, id: &RequestId, now: Timestamp) -> Result<UserRow> {
    if let Some(code) = &request.referral_code {
        referral::record(tx, code, &user, now).await?;
    }
    match &request.invitation_token {
        Some(token) => {
            invitation::take(tx, &token.0, &mut user, &id.0, now).await?;
        }
        None => store::outbox::put(tx, mail::VERIFY_EMAIL, &user.email, None, now).await?,
    }
    Ok(user)
}

fn email_taken() -> Error {
    Error::new(Code::EmailTaken, "There is an account with this address. Sign in, or reset its password.")
}

/// Changes one's name, phone number or address. Another address needs the password, and is not verified yet.
pub(in crate::services::identity) async fn change(
    identity: &Identity,
    person: &Person,
    change: ChangeMe,
) -> Result<UserView> {
    let inner = &identity.inner;
    if change.email.is_some() {
        super::password::confirm(identity, person, change.current_password).await?;
    }
    let now = inner.clock.now();
    let mut tx = inner.db.begin().await?;
    let mut user = store::user::find(&mut tx, person.user).await?.ok_or_else(|| not_found("person"))?;
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
    }
    user.updated_at = now;
    store::user::update(&mut tx, &user).await?;
    person.caller.audit("user.update", &user.id.to_string()).write(&mut tx, now).await?;
    tx.commit().await?;
    Ok(UserView::from(&user))
}

/// Deletes oneself, with the organizations that are nobody else's and empty.
pub(in crate::services::identity) async fn delete(identity: &Identity, person: &Person) -> Result<()> {
    let inner = &identity.inner;
    let now = inner.clock.now();
    let mut tx = inner.db.begin().await?;
    if person.is_admin && store::user::administrators(&mut tx).await? == 1 {
        return Err(Error::new(Code::LastOwner, "You are the last administrator of this platform."));
    }
    for org in store::org::solely_owned(&mut tx, person.user).await? {
        let others = store::member::count(&mut tx, org.id).await? > 1;
        if others || org::holds(identity, &mut tx, org.id).await? {
            return Err(Error::new(
                Code::LastOwner,
                format!(
                    "You are the last owner of '{}', which has other members or resources. Give it away, or delete what it holds.",
                    org.slug
                ),
            ));
        }
        org::remove(&mut tx, org.id, now).await?;
    }
    let ended = store::session::revoke_all(&mut tx, person.user, None, now).await?;
    store::member::remove_all(&mut tx, person.user).await?;
    store::referral::advance(&mut tx, person.user, ["pending", "qualified"], "void", now).await?;
    invalidate_tokens(&mut tx, person.user, now).await?;
    store::user::forget(&mut tx, person.user, now).await?;
    person.caller.audit("user.delete", &person.user.to_string()).write(&mut tx, now).await?;
    tx.commit().await?;
    for id in ended {
        inner.memory.revoke(id, person.user, now);
    }
    inner.memory.forget_people();
    Ok(())
}

async fn invalidate_tokens(tx: &mut Tx, user: UserId, now: Timestamp) -> Result<()> {
    for purpose in [mail::VERIFY_EMAIL, mail::VERIFY_PHONE, mail::RESET_PASSWORD] {
        store::one_time::end(tx, purpose, &user.to_string(), now).await?;
    }
    Ok(())
}

/// A person by a link's subject; the link is worth nothing without one.
pub(super) async fn of_subject(tx: &mut Tx, subject: &str) -> Result<UserRow> {
    let id: UserId = subject.parse().map_err(Error::internal)?;
    store::user::find(tx, id).await?.ok_or_else(invalid_token)
}
