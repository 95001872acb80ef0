//! Templates of sandboxes, as a host is told to make them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::sandbox::StartSpec;
use crate::ids::{LayerId, MachineId, MemoryId, TemplateId, UploadId};
use crate::sandbox::dockerfile::{Dockerfile, ImageConfig};

/// A template that the platform brings along.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlatformTemplate {
    /// Its name, such as `base`.
    pub name: String,
    /// What it was made from: another one needs another layer.
    pub version: String,
    /// Virtual CPUs of its sandboxes.
    pub vcpu: i64,
    /// Memory of its sandboxes, in MiB.
    pub memory_mb: i64,
    /// Size of its disk, in GiB.
    pub disk_gb: i64,
    /// Who its commands run as.
    pub user: String,
    /// What its sandboxes find running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_command: Option<String>,
    /// What succeeds when that is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_command: Option<String>,
}

/// A template that is to be kept in memory: booted once, its start command run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Warming {
    /// The machine that does it. Its disk's top layer becomes the template's.
    pub machine: StartSpec,
    /// Where the memory goes.
    pub memory: MemoryId,
    /// What its sandboxes find running.
    pub start_command: Option<String>,
    /// What succeeds when that is ready.
    pub ready_command: Option<String>,
    /// How long it may take from its boot until that is so.
    pub patience: Duration,
}

/// A template to be built from an image or a Dockerfile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BuildSpec {
    /// What its folder is called on the host.
    pub id: TemplateId,
    /// Host name of its machines.
    pub hostname: String,
    /// Virtual CPUs of its machines.
    pub vcpu: i64,
    /// Memory of its machines, in MiB.
    pub memory_mb: i64,
    /// The machines that it may have: as many at a time.
    pub machines: Vec<Stage>,
    /// What to do.
    pub dockerfile: Dockerfile,
    /// What the images in it mean; one that is not here is a registry's.
    pub images: BTreeMap<String, Named>,
    /// The files that were sent with it.
    pub context: Option<UploadId>,
    /// The layer that it becomes.
    pub layer: LayerId,
    /// Size of its disk, in GiB. It is as large as its beginning at least.
    pub disk_gb: i64,
    /// How long it may take.
    pub patience: Duration,
}

impl BuildSpec {
    /// The uploads that it needs.
    pub fn uploads(&self) -> impl Iterator<Item = UploadId> {
        let named = self.images.values().filter_map(|named| match named {
            Named::Upload(id) => Some(*id),
            Named::Template { .. } => None,
        });
        self.context.into_iter().chain(named)
    }
}

/// A machine that builds stages, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// The machine.
    pub machine: MachineId,
    /// A small number that no other machine of the host has: its user there.
    pub slot: i64,
}

/// What an image in a Dockerfile means.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Named {
    /// A template.
    Template {
        /// Its disk, the top layer first.
        layers: Vec<LayerId>,
        /// What it says about its programs.
        config: ImageConfig,
        /// Who commands of its sandboxes run as.
        user: String,
    },
    /// An archive that was sent.
    Upload(UploadId),
}

/// What a build came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Built {
    /// Environment of the image.
    pub env: BTreeMap<String, String>,
    /// Who its commands run as.
    pub user: String,
    /// Its working directory.
    pub workdir: Option<String>,
    /// What it runs when nobody says otherwise.
    pub start_command: Option<String>,
    /// What the layer lies on.
    pub parent: Option<LayerId>,
    /// Size of its disk, in GiB.
    pub disk_gb: i64,
}
