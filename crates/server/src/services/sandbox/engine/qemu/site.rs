//! A machine in which one stage of a template is built.
//!
//! It lies in `builds/<template>/<id>`, with its disk beside it, and belongs to its site: when that goes, so do the
//! process and the folder. What a service that died left there is thrown away by the next build, or by the search
//! for what no row owns.

use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_domain::agent::control::Boot;
use berth_domain::ids::LayerId;
use berth_domain::sandbox::network::Network;
use berth_qemu::sandbox::{self, Layer};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::captured::{About, agent_failed, begin};
use super::machine::{DISK, Part, identity_of};
use super::network::Link;
use super::places::layer_file;
use super::{QemuSandboxes, transient};
use crate::services::sandbox::agent;
use crate::services::sandbox::build::AgentSite;
use crate::services::sandbox::engine::{Build, Result};

/// How long a machine may take to answer, emulated on a busy host.
const PATIENCE: Duration = Duration::from_mins(1);

/// A machine, as long as its site.
pub(super) struct Workbench {
    id: Uuid,
    dir: PathBuf,
    parent: Option<LayerId>,
    bytes: u64,
    _link: Link,
    ended: TaskTracker,
}

/// A site in a machine of its own.
pub(super) type QemuSite = AgentSite<Workbench>;

impl Workbench {
    /// What its disk lies on.
    pub(super) fn parent(&self) -> Option<LayerId> {
        self.parent
    }

    /// The size of its disk.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Ends its process, and gives the file of its disk.
    pub(super) async fn finish(&self) -> Result<PathBuf> {
        sandbox::stop(&self.dir, self.id).await?;
        Ok(disk_of(&self.dir))
    }
}

impl Drop for Workbench {
    fn drop(&mut self) {
        let (id, dir) = (self.id, self.dir.clone());
        self.ended.spawn(async move {
            // What stays is thrown away with the build's folder.
            let _ = sandbox::stop(&dir, id).await;
            let _ = tokio::fs::remove_dir_all(&dir).await;
        });
    }
}

fn disk_of(dir: &Path) -> PathBuf {
    dir.join("disk.qcow2")
}

impl QemuSandboxes {
    /// Starts a machine with a disk on some layers, the top one first, or with an empty one.
    pub(super) async fn workbench(&self, build: &Build, below: &[LayerId], ended: &TaskTracker) -> Result<QemuSite> {
        let id = Uuid::now_v7();
        let dir = self.places.build(build.id).join(id.to_string());
        tokio::fs::create_dir_all(&dir).await.map_err(transient)?;
        let wanted = u64::try_from(build.disk_gb).unwrap_or(1) * super::GIB;
        let (parent, disk) = (below.first().copied(), disk_of(&dir));
        let bytes = if let Some(top) = parent {
            let bytes = sandbox::layer_size(&self.places.layer(top))?.max(wanted);
            sandbox::create_layer(&disk, &layer_file(top), bytes)?;
            bytes
        } else {
            sandbox::create_root(&disk, wanted).await?;
            wanted
        };
        // From here on it ends with its guard.
        let link = self.lives.link(&dir, Network::default());
        let bench = Workbench { id, dir, parent, bytes, _link: link, ended: ended.clone() };
        self.start_bench(build, below, &bench).await?;
        let stream = sandbox::connect_agent(&bench.dir).await?;
        let session = agent::connect(stream, PATIENCE).await.map_err(agent_failed)?;
        let root = Boot { root: DISK.into(), user: None, workspace: None, bare: true };
        session.boot(&root).await.map_err(agent_failed)?;
        let identity = identity_of(build.id, &build.hostname, self.clock.now().0)?;
        Ok(AgentSite::new(session, Some(identity), bench))
    }

    async fn start_bench(&self, build: &Build, below: &[LayerId], bench: &Workbench) -> Result<()> {
        let about = About {
            fingerprint: self.fingerprint().await?,
            vcpu: build.vcpu,
            memory_mb: build.memory_mb,
            disk_bytes: bench.bytes,
            layer: None,
        };
        let own = Layer { path: disk_of(&bench.dir), id: bench.id };
        let below = below.iter().map(|id| self.layer(*id));
        let disk = std::iter::once(own).chain(below).collect();
        let begin = begin(&self.blank(&about).await?);
        let part = Part { id: bench.id, dir: &bench.dir, disk, begin, slot: build.slot };
        Ok(sandbox::start(&self.machine_of(part, &about).await?, || Ok(())).await?)
    }
}
