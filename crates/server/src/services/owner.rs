//! Whose something is, as administrators of the platform see it in their lists.

use berth_domain::query::short;
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use crate::db::owned::{Owned, OwnerFilter};
use crate::http::list::Params;

/// Longest id or slug.
const LONGEST: usize = 100;

/// The owner of something.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OwnerResponse)]
pub struct OwnerView {
    /// The organization.
    #[schema(value_type = uuid::Uuid)]
    org_id: String,
    /// Its slug.
    org: String,
    /// The project.
    #[schema(value_type = uuid::Uuid)]
    project_id: String,
    /// Its slug.
    project: String,
}

impl<T> From<&Owned<T>> for OwnerView {
    fn from(owned: &Owned<T>) -> Self {
        Self {
            org_id: owned.org.to_string(),
            org: owned.org_slug.clone(),
            project_id: owned.project.to_string(),
            project: owned.project_slug.clone(),
        }
    }
}

/// Whose things are listed, for the document.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes the query; `whose` reads it")]
pub struct OwnerParams {
    /// Only those of an organization, by id or slug.
    #[param(min_length = 1, max_length = 100)]
    org: Option<String>,
    /// Only those of a project, by id or slug.
    #[param(min_length = 1, max_length = 100)]
    project: Option<String>,
}

/// Reads whose things are listed.
pub fn whose(params: &mut Params) -> OwnerFilter {
    let mut name = |field: &str| params.read(field, short(LONGEST));
    OwnerFilter { org: name("org"), project: name("project") }
}
