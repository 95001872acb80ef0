//! API keys of projects.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::transport::segment;
use crate::{Client, List, Page, ProjectClient, Result};

/// An API key, without its secret.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ApiKey {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// The beginning of the key, for recognizing it.
    pub prefix: String,
    /// `vm`, `sandbox`, `inference`.
    pub scopes: Vec<String>,
    /// `active`, `expired` or `revoked`.
    pub status: String,
    /// Id of its maker.
    pub created_by: String,
    /// Creation, RFC 3339.
    pub created_at: String,
    /// Last change, RFC 3339.
    pub updated_at: String,
    /// When it expires, RFC 3339.
    pub expires_at: Option<String>,
    /// Last use to the minute, RFC 3339.
    pub last_used_at: Option<String>,
    /// The address of its last use.
    #[serde(default)]
    pub last_used_address: Option<String>,
    /// Networks from which it may be used; empty means everywhere.
    #[serde(default)]
    pub source_networks: Vec<String>,
    /// Its maker.
    #[serde(default)]
    pub owner: Option<ApiKeyOwner>,
    /// Whether it lives longer than the organization now allows for new keys.
    #[serde(default)]
    pub exceeds_max_life: bool,
}

/// The maker of an API key.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ApiKeyOwner {
    /// Id.
    pub id: String,
    /// Address, if the account still exists.
    pub email: Option<String>,
}

/// An organization or a project, in the answer about an API key.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Named {
    /// Id.
    pub id: String,
    /// Name in paths.
    pub slug: String,
    /// Name.
    pub name: String,
}

/// What an API key may know of itself.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct OwnApiKey {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// The beginning of the key.
    pub prefix: String,
    /// `vm`, `sandbox`, `inference`.
    pub scopes: Vec<String>,
    /// When it expires, RFC 3339.
    pub expires_at: Option<String>,
    /// Networks from which it may be used; empty means everywhere.
    pub source_networks: Vec<String>,
    /// Its organization.
    pub organization: Named,
    /// Its project.
    pub project: Named,
}

impl Client {
    /// Describes the calling API key.
    pub async fn own_api_key(&self) -> Result<OwnApiKey> {
        self.get("/api/v1/key").await
    }
}

/// An API key to make.
#[derive(Clone, Debug, Serialize)]
pub struct NewApiKey {
    /// Name.
    pub name: String,
    /// `vm`, `sandbox`, `inference`.
    pub scopes: Vec<String>,
    /// When it expires, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// CIDRs and addresses from which it may be used; empty means everywhere.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub source_networks: Vec<String>,
}

/// A change of an API key; what is absent stays.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ChangeApiKey {
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// All scopes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<String>>,
    /// When it expires, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// All networks from which it may be used; an empty list means everywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_networks: Option<Vec<String>>,
}

/// A new API key; only this answer contains the key itself.
#[derive(Clone, Deserialize, Serialize)]
pub struct MadeApiKey {
    /// The key without its secret.
    #[serde(flatten)]
    pub api_key: ApiKey,
    /// The key itself.
    pub key: String,
}

impl ProjectClient {
    fn key_path(&self, id: &str) -> String {
        format!("{}/api_keys/{}", self.path, segment(id))
    }

    /// API keys, newest first.
    pub async fn api_keys(&self, page: Page) -> Result<List<ApiKey>> {
        self.client.list(&format!("{}/api_keys", self.path), &page).await
    }

    /// One API key.
    pub async fn api_key(&self, id: &str) -> Result<ApiKey> {
        self.client.get(&self.key_path(id)).await
    }

    /// Makes an API key.
    pub async fn create_api_key(&self, request: &NewApiKey) -> Result<MadeApiKey> {
        self.client.post(&format!("{}/api_keys", self.path), Some(request)).await
    }

    /// Changes an API key.
    pub async fn update_api_key(&self, id: &str, change: &ChangeApiKey) -> Result<ApiKey> {
        self.client.patch(&self.key_path(id), change).await
    }

    /// Revokes an API key, at once.
    pub async fn revoke_api_key(&self, id: &str) -> Result<()> {
        self.client.delete(&self.key_path(id)).await
    }

    /// Makes a successor of an API key; the old one ends after `overlap_seconds`.
    pub async fn rotate_api_key(&self, id: &str, overlap_seconds: u64) -> Result<MadeApiKey> {
        let body = json!({ "overlap_seconds": overlap_seconds });
        self.client.post(&format!("{}/rotate", self.key_path(id)), Some(&body)).await
    }
}
