//! What administrators of the platform say about people and see of projects.

use berth_domain::fields::{Fields, boolean};
use berth_domain::{Error, Result};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::project::ProjectView;
use super::{email, secret, title};
use crate::config::Secret;
use crate::db::owned::Owned;
use crate::services::identity::store::project::ProjectRow;

/// A person to be made.
pub struct NewUser {
    /// Address.
    pub email: String,
    /// Name.
    pub name: Option<String>,
    /// Password; a mail has a link that chooses one where it is absent.
    pub password: Option<Secret>,
    /// Whether they administer the platform.
    pub administrator: bool,
}

impl TryFrom<&Value> for NewUser {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let email = f.required("email", email);
        let name = f.optional("name", title);
        let password = f.optional("password", secret(1, 4096));
        let administrator = f.optional("administrator", boolean).unwrap_or(false);
        f.finish(email.map(|email| Self { email, name, password, administrator }))
    }
}

/// Reads whether a person is to administer the platform.
pub fn administrator(body: &Value) -> Result<bool> {
    let mut f = Fields::of(body);
    let administrator = f.required("administrator", boolean);
    f.finish(administrator)
}

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
