//! Sessions and their tokens.

use berth_domain::fields::{Fields, boolean, sized};
use berth_domain::ids::SessionId;
use berth_domain::{Error, Result, Timestamp};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::secret;
use super::user::UserView;
use crate::config::Secret;
use crate::http::client_address::ClientAddress;
use crate::services::identity::store::session::SessionRow;

/// A person who signs in.
pub struct Login {
    /// Address.
    pub email: String,
    /// Password.
    pub password: Secret,
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

/// What a session is made from.
pub struct Client {
    /// The program, as it calls itself.
    pub program: Option<String>,
    /// Where it is.
    pub address: ClientAddress,
}

/// Reads the refresh token of a body.
pub fn refresh_token(body: &Value) -> Result<Secret> {
    let mut f = Fields::of(body);
    let token = f.required("refresh_token", secret(1, 1000));
    f.finish(token)
}

/// A session that ends.
#[derive(Default)]
pub struct Logout {
    /// The refresh token whose session ends.
    pub refresh_token: Option<Secret>,
    /// Whether all sessions end.
    pub all: bool,
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

/// A session of the caller.
#[derive(Serialize, ToSchema)]
#[schema(as = SessionResponse)]
pub struct SessionView {
    #[schema(value_type = uuid::Uuid)]
    id: String,
    /// The program that signed in, as it calls itself.
    #[schema(required = true)]
    client: Option<String>,
    /// Where the sign-in came from.
    #[schema(required = true)]
    address: Option<String>,
    /// Whether it is the session of this request.
    current: bool,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// Last refresh.
    #[schema(value_type = String, format = DateTime)]
    last_used_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    expires_at: Timestamp,
}

impl SessionView {
    /// A session as somebody in one of theirs sees it.
    pub fn of(row: SessionRow, current: SessionId) -> Self {
        Self {
            id: row.id.to_string(),
            current: row.id == current,
            client: row.client,
            address: row.address,
            created_at: row.created_at,
            last_used_at: row.last_used_at,
            expires_at: row.expires_at,
        }
    }
}

/// A person who signs in.
#[derive(ToSchema)]
#[schema(as = LoginRequest)]
#[expect(dead_code, reason = "describes")]
pub struct LoginBody {
    #[schema(min_length = 1, max_length = 1000)]
    email: String,
    #[schema(min_length = 1, max_length = 4096)]
    password: String,
}

/// A refresh token.
#[derive(ToSchema)]
#[schema(as = RefreshRequest)]
#[expect(dead_code, reason = "describes")]
pub struct RefreshBody {
    #[schema(min_length = 1, max_length = 1000)]
    refresh_token: String,
}

/// What ends: the session of a refresh token, all sessions, or, by default, this one.
#[derive(ToSchema)]
#[schema(as = LogoutRequest)]
#[expect(dead_code, reason = "describes")]
pub struct LogoutBody {
    #[schema(min_length = 1, max_length = 1000)]
    refresh_token: Option<String>,
    all: Option<bool>,
}
