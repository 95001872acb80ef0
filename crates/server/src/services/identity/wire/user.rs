//! People.

use berth_domain::fields::{Fields, Parsed, sized, text};
use berth_domain::names::Slug;
use berth_domain::{Error, Result, Timestamp};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::org::OrgView;
use super::project::ProjectView;
use super::{chosen, email, phone, public_name, secret, title};
use crate::config::Secret;
use crate::services::identity::store::user::UserRow;

/// A person who signs up.
pub struct SignUp {
    /// Address.
    pub email: String,
    /// Password.
    pub password: Secret,
    /// Name.
    pub name: Option<String>,
    /// Phone number.
    pub phone: Option<String>,
    /// The code of who brought them.
    pub referral_code: Option<String>,
    /// Invitation that is accepted by signing up.
    pub invitation_token: Option<Secret>,
}

impl SignUp {
    /// Reads a sign-up. The rules tell what is wrong with a password for an address.
    pub fn read(body: &Value, rules: impl Fn(&str, &str) -> Parsed<()>) -> Result<Self> {
        let mut f = Fields::of(body);
        let email = f.required("email", email);
        let address = email.as_deref().unwrap_or_default();
        let password = f.required("password", |value| chosen(value, |password| rules(password, address)));
        let name = f.optional("name", public_name);
        let phone = f.optional("phone", phone);
        let referral_code = f.optional("referral_code", sized(1, 100));
        let invitation_token = f.optional("invitation_token", secret(1, 1000));
        let parsed = email.zip(password);
        f.finish(parsed.map(|(email, password)| Self { email, password, name, phone, referral_code, invitation_token }))
    }
}

/// What a person changes of themselves.
pub struct ChangeMe {
    /// Name.
    pub name: Option<String>,
    /// Phone number.
    pub phone: Option<String>,
    /// Address.
    pub email: Option<String>,
    /// The password, which another address needs.
    pub current_password: Option<Secret>,
}

impl TryFrom<&Value> for ChangeMe {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let name = f.optional("name", public_name);
        let phone = f.optional("phone", phone);
        let email = f.optional("email", email);
        let current_password = f.optional("current_password", secret(1, 4096));
        f.finish(Some(Self { name, phone, email, current_password }))
    }
}

/// A name and perhaps a slug: what organizations and projects are made from.
pub struct Named {
    /// Name.
    pub name: String,
    /// Slug, made from the name where it is absent.
    pub slug: Option<Slug>,
}

impl TryFrom<&Value> for Named {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        Self::read(body, title)
    }
}

impl Named {
    /// Reads those of an organization, whose name stands in mails to strangers.
    pub fn of_org(body: &Value) -> Result<Self> {
        Self::read(body, public_name)
    }

    fn read(body: &Value, rule: impl FnOnce(&Value) -> Parsed<String>) -> Result<Self> {
        let mut f = Fields::of(body);
        let name = f.required("name", rule);
        let slug = f.optional("slug", |v| Slug::parse(text(v)?));
        f.finish(name.map(|name| Self { name, slug }))
    }
}

/// Another name or slug.
pub struct Renamed {
    /// Name.
    pub name: Option<String>,
    /// Slug.
    pub slug: Option<Slug>,
}

impl TryFrom<&Value> for Renamed {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let name = f.optional("name", title);
        let slug = f.optional("slug", |v| Slug::parse(text(v)?));
        f.finish(Some(Self { name, slug }))
    }
}

/// A person.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = UserResponse)]
pub struct UserView {
    #[schema(value_type = uuid::Uuid)]
    id: String,
    email: String,
    #[schema(required = true)]
    name: Option<String>,
    #[schema(required = true)]
    phone: Option<String>,
    email_verified: bool,
    phone_verified: bool,
    is_admin: bool,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

impl From<&UserRow> for UserView {
    fn from(row: &UserRow) -> Self {
        Self {
            id: row.id.to_string(),
            email: row.email.clone(),
            name: row.name.clone(),
            phone: row.phone.clone(),
            email_verified: row.email_verified_at.is_some(),
            phone_verified: row.phone_verified_at.is_some(),
            is_admin: row.is_admin,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

/// What a sign-up made.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SignUpResponse)]
pub struct SignUpView {
    /// The person.
    pub user: UserView,
    /// Their own organization.
    pub organization: OrgView,
    /// Its first project.
    pub project: ProjectView,
    /// Whether the address must be verified before signing in.
    pub verification_required: bool,
}

/// A person who signs up.
#[derive(ToSchema)]
#[schema(as = SignUpRequest)]
#[expect(dead_code, reason = "describes")]
pub struct SignUpBody {
    #[schema(format = Email, max_length = 254)]
    email: String,
    #[schema(min_length = 12, max_length = 128)]
    password: String,
    #[schema(min_length = 1, max_length = 100)]
    name: Option<String>,
    #[schema(pattern = r"^\+[1-9][0-9]{7,14}$")]
    phone: Option<String>,
    /// The code of who brought them.
    #[schema(min_length = 1, max_length = 100)]
    referral_code: Option<String>,
    /// From the link of an invitation; the address must be the invited one.
    #[schema(min_length = 1, max_length = 1000)]
    invitation_token: Option<String>,
}

/// What changes; another address needs `current_password` and is to be verified anew.
#[derive(ToSchema)]
#[schema(as = UpdateUserRequest)]
#[expect(dead_code, reason = "describes")]
pub struct ChangeMeBody {
    #[schema(min_length = 1, max_length = 100)]
    name: Option<String>,
    #[schema(pattern = r"^\+[1-9][0-9]{7,14}$")]
    phone: Option<String>,
    #[schema(format = Email, max_length = 254)]
    email: Option<String>,
    #[schema(min_length = 1, max_length = 4096)]
    current_password: Option<String>,
}

/// A name, and a slug for paths.
#[derive(ToSchema)]
#[schema(as = NamedRequest)]
#[expect(dead_code, reason = "describes")]
pub struct NamedBody {
    #[schema(min_length = 1, max_length = 100)]
    name: String,
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 40)]
    slug: Option<String>,
}

/// Another name or slug.
#[derive(ToSchema)]
#[schema(as = RenamedRequest)]
#[expect(dead_code, reason = "describes")]
pub struct RenamedBody {
    #[schema(min_length = 1, max_length = 100)]
    name: Option<String>,
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 40)]
    slug: Option<String>,
}

/// Reads the password that confirms a deletion, if there is one.
pub fn confirmation(body: &Value) -> Result<Option<Secret>> {
    let mut f = Fields::of(body);
    let current = f.optional("current_password", secret(1, 4096));
    f.finish(Some(current))
}

/// The end of an account. The password may be left out for ten minutes after a sign-in.
#[derive(ToSchema)]
#[schema(as = DeleteUserRequest)]
#[expect(dead_code, reason = "describes")]
pub struct DeleteMeBody {
    #[schema(min_length = 1, max_length = 4096)]
    current_password: Option<String>,
}
