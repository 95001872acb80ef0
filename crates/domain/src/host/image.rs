//! Images of VMs, as a host has them and takes them in.

use serde::{Deserialize, Serialize};

use crate::ids::{DiskSnapshotId, ImageId};
use crate::vm::image::Import;

/// An image as the engine has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInfo {
    /// Its id.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// Operating system.
    pub os: String,
    /// Content hash of what it was made from.
    pub version: String,
    /// The user that SSH keys are installed for.
    pub login_user: String,
    /// Size its disk has for a guest, in bytes.
    pub virtual_size: i64,
    /// Least memory it boots with, in MiB.
    pub min_memory_mb: i64,
}

/// A foreign image to take in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImageImport {
    /// The id it gets.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// The user that SSH keys are installed for.
    pub login_user: String,
    /// What its content has to hash to, in hexadecimal.
    pub sha256: Option<String>,
    /// Whether it boots by UEFI rather than BIOS.
    pub uefi: bool,
    /// The slot of its conversion, from 0.
    pub conversion: u32,
}

/// A project's image to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageOfSnapshot {
    /// Its id: what it is called on the host.
    pub id: ImageId,
    /// Name for people.
    pub name: String,
    /// The snapshot of a root disk that it is made of.
    pub snapshot: DiskSnapshotId,
}

impl ImageImport {
    /// What is asked for, converted in this slot.
    pub fn of(import: &Import, conversion: u32) -> Self {
        Self {
            id: import.id.clone(),
            name: import.name.clone(),
            login_user: import.login_user.clone(),
            sha256: import.sha256.clone(),
            uefi: import.uefi,
            conversion,
        }
    }
}
