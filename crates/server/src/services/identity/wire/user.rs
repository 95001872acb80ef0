//! People.

use berth_domain::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::org::OrgView;
use super::project::ProjectView;
use crate::services::identity::store::user::UserRow;

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

/// The end of an account. The password may be left out for ten minutes after a sign-in.
#[derive(ToSchema)]
#[schema(as = DeleteUserRequest)]
#[expect(dead_code, reason = "describes")]
pub struct DeleteMeBody {
    #[schema(min_length = 1, max_length = 4096)]
    current_password: Option<String>,
}
