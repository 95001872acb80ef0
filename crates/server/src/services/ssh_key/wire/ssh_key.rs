//! A stored key as its owner sees it, and the request for one. The domain parses that; see [`berth_domain::ssh_key`].

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use berth_domain::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use crate::services::ssh_key::store::ssh_key::SshKeyRow;

/// A stored SSH key.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SshKeyResponse)]
pub struct SshKeyView {
    /// Identifier.
    #[schema(value_type = uuid::Uuid)]
    pub id: String,
    /// Its name.
    name: String,
    /// The key, as it was given.
    public_key: String,
    /// Its fingerprint as `ssh-keygen -l` prints it; none where the key is no base64, which no SSH server takes.
    #[schema(required = true, pattern = "^SHA256:[A-Za-z0-9+/]{43}$")]
    fingerprint: Option<String>,
    /// Creation.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
}

impl SshKeyView {
    /// What records and events say of it.
    pub fn told(&self) -> Value {
        json!({"name": self.name, "fingerprint": self.fingerprint})
    }
}

impl From<&SshKeyRow> for SshKeyView {
    fn from(row: &SshKeyRow) -> Self {
        Self {
            id: row.id.to_string(),
            name: row.name.clone(),
            public_key: row.public_key.clone(),
            fingerprint: fingerprint(&row.bare_key),
            created_at: row.created_at,
        }
    }
}

/// The SHA-256 of a key's blob, as ssh-keygen(1) prints it.
fn fingerprint(bare: &str) -> Option<String> {
    let blob = STANDARD.decode(bare.split(' ').nth(1)?).ok()?;
    Some(format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(blob))))
}

/// A key to store.
#[derive(ToSchema)]
#[schema(as = CreateSshKeyRequest)]
#[expect(dead_code, reason = "this type describes; the domain parses")]
pub struct CreateSshKeyBody {
    /// Unique among those of its owner; not like a UUID.
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 63)]
    name: String,
    /// A public key in OpenSSH's format, one line.
    #[schema(
        pattern = r"^(ssh-rsa|ssh-ed25519)\s+[A-Za-z0-9+/]+[=]{0,2}(\s+.*)?$",
        min_length = 50,
        max_length = 2000
    )]
    public_key: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by ssh-keygen, which prints these fingerprints of them.
    #[test]
    fn fingerprints_are_those_of_ssh_keygen() {
        let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOkvXqWhmrNwsKUVRjPMWzZ0pE7gNRQnxVbQkG4HmCrf";
        assert_eq!(fingerprint(key).as_deref(), Some("SHA256:zT2ghIEGfGNkaEqSw9m1gSK5cT2R9ZL8SxGhVA4DFu4"));
        assert_eq!(fingerprint("ssh-ed25519 AAAAC"), None);
    }
}
