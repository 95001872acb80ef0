//! Where things of sandboxes lie, below the data folder.
//!
//! ```text
//! sandbox/guest/                what every machine boots: kernel, and an initrd with the agent
//! sandbox/.guest.<travel>.travelling/  what has come so far of one that another host has
//! sandbox/templates/<name>/     disks of the platform's templates, as they were built
//! sandbox/layers/<id>.qcow2     layers of disks
//! sandbox/layers/.<id>.<try>.travelling  what has come so far of one that another host has
//! sandbox/memories/<id>/        captured memories: memory, state, about.json
//! sandbox/memories/.<id>.<try>.travelling  what has come so far of one that another host has
//! sandbox/blanks/<key>/         captured machines that have booted and know no disk yet
//! sandbox/machines/<id>/        process, sockets, incarnation.json
//! sandbox/builds/<template>/<id>/  a build: machines and disks of its stages, images that were pulled
//! sandbox/uploads/<id>          archives to build templates of
//! ```

use std::path::{Path, PathBuf};

use berth_domain::ids::{LayerId, MachineId, MemoryId, TemplateId, UploadId};

/// The folders of sandboxes.
#[derive(Clone, Debug)]
pub(super) struct Places {
    root: PathBuf,
}

/// A captured machine in its folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Captured {
    /// The folder.
    pub dir: PathBuf,
}

impl Captured {
    pub(super) fn memory(&self) -> PathBuf {
        self.dir.join("memory")
    }

    pub(super) fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// What it was captured with; written last, so that where it is, the rest is whole.
    pub(super) fn about(&self) -> PathBuf {
        self.dir.join("about.json")
    }
}

impl Places {
    pub(super) fn new(data: &Path) -> Self {
        Self { root: data.join("sandbox") }
    }

    pub(super) fn guest(&self) -> PathBuf {
        self.root.join("guest")
    }

    /// The folder of guests, and of those that come.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn templates(&self) -> PathBuf {
        self.root.join("templates")
    }

    pub(super) fn layers(&self) -> PathBuf {
        self.root.join("layers")
    }

    pub(super) fn layer(&self, id: LayerId) -> PathBuf {
        self.layers().join(layer_file(id))
    }

    pub(super) fn memories(&self) -> PathBuf {
        self.root.join("memories")
    }

    pub(super) fn memory(&self, id: MemoryId) -> Captured {
        Captured { dir: self.memories().join(id.to_string()) }
    }

    pub(super) fn boot_snapshots(&self) -> PathBuf {
        self.root.join("blanks")
    }

    pub(super) fn boot_snapshot(&self, key: &str) -> Captured {
        Captured { dir: self.boot_snapshots().join(key) }
    }

    pub(super) fn machines(&self) -> PathBuf {
        self.root.join("machines")
    }

    pub(super) fn builds(&self) -> PathBuf {
        self.root.join("builds")
    }

    pub(super) fn build(&self, id: TemplateId) -> PathBuf {
        self.builds().join(id.to_string())
    }

    pub(super) fn uploads(&self) -> PathBuf {
        self.root.join("uploads")
    }

    pub(super) fn upload(&self, id: UploadId) -> PathBuf {
        self.uploads().join(id.to_string())
    }

    pub(super) fn machine(&self, id: MachineId) -> PathBuf {
        self.machines().join(id.to_string())
    }
}

/// The name of a layer's file.
pub(super) fn layer_file(id: LayerId) -> String {
    format!("{id}.qcow2")
}
