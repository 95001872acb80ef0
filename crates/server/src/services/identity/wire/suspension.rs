//! What administrators of the platform see and say.

use berth_domain::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::user::UserView;
use crate::services::identity::store::user::UserRow;

/// A person as administrators see them.
#[derive(Serialize, ToSchema)]
#[schema(as = AdminUserResponse)]
pub struct AdminUserView {
    /// The person.
    #[serde(flatten)]
    user: UserView,
    /// When the account was suspended.
    #[schema(value_type = Option<String>, format = DateTime, required = true)]
    suspended_at: Option<Timestamp>,
}

impl From<&UserRow> for AdminUserView {
    fn from(row: &UserRow) -> Self {
        Self { user: UserView::from(row), suspended_at: row.suspended_at }
    }
}

/// Why.
#[derive(ToSchema)]
#[schema(as = SuspendRequest)]
#[expect(dead_code, reason = "describes")]
pub struct SuspendBody {
    #[schema(min_length = 1, max_length = 500)]
    reason: Option<String>,
}
