//! What identity is told and what it shows.

use berth_domain::fields::{Fields, Parsed, boolean, sized, text};
use berth_domain::ids::OrgId;
use berth_domain::names::Slug;
use berth_domain::{Error, Result, Timestamp};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::store::{OrgRow, ProjectRow, UserRow};
use crate::config::Secret;

/// A person who signs up.
pub struct SignUp {
    /// Address.
    pub email: String,
    /// Password; its rules are checked against the configuration.
    pub password: Secret,
    /// Name.
    pub name: Option<String>,
    /// Phone number.
    pub phone: Option<String>,
    /// Invitation that is accepted by signing up.
    pub invitation_token: Option<String>,
}

/// A person who signs in.
pub struct Login {
    /// Address.
    pub email: String,
    /// Password.
    pub password: Secret,
}

/// A session that ends.
#[derive(Default)]
pub struct Logout {
    /// The refresh token whose session ends.
    pub refresh_token: Option<Secret>,
    /// Whether all sessions end.
    pub all: bool,
}

/// A name and perhaps a slug: what organizations and projects are made from.
pub struct Named {
    /// Name.
    pub name: String,
    /// Slug, made from the name where it is absent.
    pub slug: Option<Slug>,
}

fn secret(least: usize, most: usize) -> impl Fn(&Value) -> Parsed<Secret> {
    move |value| sized(least, most)(value).map(Secret)
}

/// An address: one `@`, something on both sides, a dot in the domain, no white space; at most 254 bytes.
fn email(value: &Value) -> Parsed<String> {
    let text = text(value)?;
    let (local, domain) = text.split_once('@').unwrap_or_default();
    let label = |l: &str| {
        !l.is_empty()
            && l.len() <= 63
            && !l.starts_with('-')
            && !l.ends_with('-')
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~.".contains(&b);
    let dots = !local.starts_with('.') && !local.ends_with('.') && !local.contains("..");
    let good = (1..=64).contains(&local.len())
        && local.bytes().all(plain)
        && dots
        && domain.contains('.')
        && domain.split('.').all(label)
        && text.len() <= 254;
    if good { Ok(text.to_owned()) } else { Err("must be an e-mail address".into()) }
}

/// A phone number in E.164: `+` and 8 to 15 digits.
fn phone(value: &Value) -> Parsed<String> {
    let text = text(value)?;
    let digits = text.strip_prefix('+').unwrap_or_default();
    let good =
        (8..=15).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
    if good { Ok(text.to_owned()) } else { Err("must be a phone number like +4915112345678".into()) }
}

/// A name for people: 1 to 100 characters, none of them a control character, not only white space.
fn title(value: &Value) -> Parsed<String> {
    let text = sized(1, 100)(value)?;
    if text.trim().is_empty() || text.chars().any(char::is_control) {
        return Err("must have 1 to 100 characters, not only white space, and no control characters".into());
    }
    Ok(text)
}

impl TryFrom<&Value> for SignUp {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let email = f.required("email", email);
        let password = f.required("password", secret(1, 4096));
        let name = f.optional("name", title);
        let phone = f.optional("phone", phone);
        f.optional("referral_code", sized(1, 100));
        let invitation_token = f.optional("invitation_token", sized(1, 1000));
        let parsed = email.zip(password);
        f.finish(parsed.map(|(email, password)| Self { email, password, name, phone, invitation_token }))
    }
}

impl TryFrom<&Value> for Login {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let email = f.required("email", sized(1, 1000));
        let password = f.required("password", secret(1, 4096));
        f.finish(email.zip(password).map(|(email, password)| Self { email, password }))
    }
}

/// Reads the refresh token of a body.
pub fn refresh_token(body: &Value) -> Result<Secret> {
    let mut f = Fields::of(body);
    let token = f.required("refresh_token", secret(1, 1000));
    f.finish(token)
}

impl TryFrom<&Value> for Logout {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let refresh_token = f.optional("refresh_token", secret(1, 1000));
        let all = f.optional("all", boolean).unwrap_or(false);
        f.finish(Some(Self { refresh_token, all }))
    }
}

impl TryFrom<&Value> for Named {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let name = f.required("name", title);
        let slug = f.optional("slug", |v| Slug::parse(text(v)?));
        f.finish(name.map(|name| Self { name, slug }))
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
            phone_verified: false,
            is_admin: row.is_admin,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

/// An organization, as the caller belongs to it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OrganizationResponse)]
pub struct OrgView {
    #[schema(value_type = uuid::Uuid)]
    id: String,
    slug: String,
    name: String,
    /// The caller's role: `owner`, `admin` or `member`.
    role: &'static str,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

impl From<&OrgRow> for OrgView {
    fn from(row: &OrgRow) -> Self {
        Self {
            id: row.id.to_string(),
            slug: row.slug.clone(),
            name: row.name.clone(),
            role: row.role.as_str(),
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

impl OrgView {
    /// The path of the organization.
    pub fn location(&self) -> String {
        format!("/api/v1/orgs/{}", self.id)
    }
}

/// A project, as the caller belongs to it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ProjectResponse)]
pub struct ProjectView {
    #[schema(value_type = uuid::Uuid)]
    id: String,
    #[schema(value_type = uuid::Uuid)]
    org_id: String,
    slug: String,
    name: String,
    /// The caller's role in the project itself: `admin`, `editor`, `viewer`, or `null`.
    #[schema(required = true)]
    role: Option<&'static str>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

impl From<&ProjectRow> for ProjectView {
    fn from(row: &ProjectRow) -> Self {
        Self {
            id: row.id.to_string(),
            org_id: row.org.to_string(),
            slug: row.slug.clone(),
            name: row.name.clone(),
            role: row.role.map(berth_domain::identity::ProjectRole::as_str),
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

impl ProjectView {
    /// The path of the project.
    pub fn location(&self, org: OrgId) -> String {
        format!("/api/v1/orgs/{org}/projects/{}", self.id)
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

/// Tokens of a session.
#[derive(Serialize, ToSchema)]
#[schema(as = TokenResponse)]
pub struct TokensView {
    /// For `Authorization: Bearer`.
    pub access_token: String,
    /// `Bearer`.
    pub token_type: &'static str,
    /// Seconds until the access token ends.
    pub expires_in: i64,
    /// For `POST /auth/refresh`, once.
    pub refresh_token: String,
    /// Seconds until the refresh token ends.
    pub refresh_expires_in: i64,
    /// The person.
    pub user: UserView,
}

/// Bodies of requests as the document describes them; the types above parse them.
pub mod requests {
    #![expect(dead_code, reason = "these types describe")]

    use utoipa::ToSchema;

    /// A person who signs up.
    #[derive(ToSchema)]
    #[schema(as = SignUpRequest)]
    pub struct SignUpBody {
        #[schema(format = Email, max_length = 254)]
        email: String,
        #[schema(min_length = 12, max_length = 128)]
        password: String,
        #[schema(min_length = 1, max_length = 100)]
        name: Option<String>,
        #[schema(pattern = r"^\+[1-9][0-9]{7,14}$")]
        phone: Option<String>,
        #[schema(min_length = 1, max_length = 100)]
        referral_code: Option<String>,
        #[schema(min_length = 1, max_length = 1000)]
        invitation_token: Option<String>,
    }

    /// A person who signs in.
    #[derive(ToSchema)]
    #[schema(as = LoginRequest)]
    pub struct LoginBody {
        #[schema(min_length = 1, max_length = 1000)]
        email: String,
        #[schema(min_length = 1, max_length = 4096)]
        password: String,
    }

    /// A refresh token.
    #[derive(ToSchema)]
    #[schema(as = RefreshRequest)]
    pub struct RefreshBody {
        #[schema(min_length = 1, max_length = 1000)]
        refresh_token: String,
    }

    /// What ends: the session of a refresh token, all sessions, or, by default, this one.
    #[derive(ToSchema)]
    #[schema(as = LogoutRequest)]
    pub struct LogoutBody {
        #[schema(min_length = 1, max_length = 1000)]
        refresh_token: Option<String>,
        all: Option<bool>,
    }

    /// A name, and a slug for paths.
    #[derive(ToSchema)]
    #[schema(as = NamedRequest)]
    pub struct NamedBody {
        #[schema(min_length = 1, max_length = 100)]
        name: String,
        #[schema(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 40)]
        slug: Option<String>,
    }
}
