//! What administrators of the platform say about people and see of projects.

use serde::Serialize;
use utoipa::ToSchema;

use super::project::ProjectView;
use crate::db::owned::Owned;
use crate::services::identity::store::project::ProjectRow;

/// A person to be made, for the document.
#[derive(ToSchema)]
#[schema(as = CreateUserRequest)]
#[expect(dead_code, reason = "describes")]
pub struct NewUserBody {
    #[schema(format = Email, max_length = 254)]
    email: String,
    #[schema(min_length = 1, max_length = 100)]
    name: Option<String>,
    /// Without it a mail has a link that chooses one.
    #[schema(format = Password)]
    password: Option<String>,
    /// Whether they administer the platform.
    #[schema(default = false)]
    administrator: Option<bool>,
}

/// Whether a person administers the platform, for the document.
#[derive(ToSchema)]
#[schema(as = AdministratorRequest)]
#[expect(dead_code, reason = "describes")]
pub struct AdministratorBody {
    administrator: bool,
}

/// A project as administrators see it.
#[derive(Serialize, ToSchema)]
#[schema(as = AdminProjectResponse)]
pub struct AdminProjectView {
    /// The project.
    #[serde(flatten)]
    project: ProjectView,
    /// Slug of its organization.
    org: String,
}

impl From<&Owned<ProjectRow>> for AdminProjectView {
    fn from(owned: &Owned<ProjectRow>) -> Self {
        Self { project: ProjectView::from(&owned.row), org: owned.org_slug.clone() }
    }
}
