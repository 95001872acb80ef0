//! Organizations.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::transport::segment;
use crate::{Client, List, Page, Result};

/// An organization.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Organization {
    /// Id.
    pub id: String,
    /// Name in paths.
    pub slug: String,
    /// Name.
    pub name: String,
    /// The caller's role: `owner`, `admin` or `member`.
    pub role: Option<String>,
    /// When it was suspended, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended_at: Option<String>,
    /// The longest life of an API key made now, in seconds.
    #[serde(default)]
    pub max_key_seconds: Option<u64>,
    /// Creation, RFC 3339.
    pub created_at: String,
    /// Last change, RFC 3339.
    pub updated_at: String,
}

/// A change of an organization; what is absent stays.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ChangeOrganization {
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Name in paths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slug: Option<String>,
    /// The longest life of an API key made from now on, in seconds; 0 means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_key_seconds: Option<u64>,
}

/// A change of a project; what is absent stays.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Rename {
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Name in paths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slug: Option<String>,
}

pub(crate) fn org_path(org: &str) -> String {
    format!("/api/v1/orgs/{}", segment(org))
}

impl Client {
    /// Organizations of the caller, newest first.
    pub async fn organizations(&self, page: Page) -> Result<List<Organization>> {
        self.list("/api/v1/orgs", &page).await
    }

    /// One organization, by id or slug.
    pub async fn organization(&self, org: &str) -> Result<Organization> {
        self.get(&org_path(org)).await
    }

    /// Makes an organization.
    pub async fn create_organization(&self, name: &str, slug: Option<&str>) -> Result<Organization> {
        self.post("/api/v1/orgs", Some(&json!({ "name": name, "slug": slug }))).await
    }

    /// Changes an organization.
    pub async fn update_organization(&self, org: &str, change: &ChangeOrganization) -> Result<Organization> {
        self.patch(&org_path(org), change).await
    }

    /// Deletes an empty organization.
    pub async fn delete_organization(&self, org: &str) -> Result<()> {
        self.delete(&org_path(org)).await
    }
}
