//! Sessions and their tokens.

use berth_domain::Timestamp;
use berth_domain::ids::SessionId;
use serde::Serialize;
use utoipa::ToSchema;

use super::user::UserView;
use crate::http::client_address::ClientAddress;
use crate::services::identity::store::session::SessionRow;

/// What a session is made from.
pub struct Client {
    /// The program, as it calls itself.
    pub program: Option<String>,
    /// Where it is.
    pub address: ClientAddress,
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
