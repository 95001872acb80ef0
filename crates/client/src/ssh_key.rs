//! SSH keys that people and projects store.

use serde::{Deserialize, Serialize};

use crate::transport::segment;
use crate::{Client, List, Page, ProjectClient, Result};

/// A stored SSH key.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SshKey {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// The key in OpenSSH's format.
    pub public_key: String,
    /// Its fingerprint as `ssh-keygen -l` prints it, if it has one.
    pub fingerprint: Option<String>,
    /// Creation, RFC 3339.
    pub created_at: String,
}

/// A key to store.
#[derive(Clone, Debug, Serialize)]
pub struct NewSshKey {
    /// Name, unique among those of its owner.
    pub name: String,
    /// The key in OpenSSH's format.
    pub public_key: String,
}

/// The caller's own keys.
const OWN: &str = "/api/v1/users/me/ssh_keys";

impl Client {
    /// The caller's own SSH keys, newest first.
    pub async fn own_ssh_keys(&self, page: Page) -> Result<List<SshKey>> {
        self.list(OWN, &page).await
    }

    /// Stores an SSH key of the caller.
    pub async fn create_own_ssh_key(&self, request: &NewSshKey) -> Result<SshKey> {
        self.post(OWN, Some(request)).await
    }

    /// Forgets an SSH key of the caller.
    pub async fn delete_own_ssh_key(&self, id: &str) -> Result<()> {
        self.delete(&format!("{OWN}/{}", segment(id))).await
    }
}

impl ProjectClient {
    /// The project's SSH keys, newest first.
    pub async fn ssh_keys(&self, page: Page) -> Result<List<SshKey>> {
        self.client.list(&format!("{}/ssh_keys", self.path), &page).await
    }

    /// Stores an SSH key of the project.
    pub async fn create_ssh_key(&self, request: &NewSshKey) -> Result<SshKey> {
        self.client.post(&format!("{}/ssh_keys", self.path), Some(request)).await
    }

    /// Forgets an SSH key of the project.
    pub async fn delete_ssh_key(&self, id: &str) -> Result<()> {
        self.client.delete(&format!("{}/ssh_keys/{}", self.path, segment(id))).await
    }
}
