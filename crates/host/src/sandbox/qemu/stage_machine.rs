//! A machine in which one stage of a template is built.
//!
//! It lies in `builds/<template>/<id>`, with its disk beside it, and belongs to its machine: when that goes, so do the
//! process and the folder. What a service that died left there is thrown away by the next build, or by the search
//! for what no row owns.

use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_domain::agent::control::Boot;
use berth_domain::ids::{LayerId, MachineId};
use berth_domain::sandbox::network_policy::NetworkPolicy;
use berth_process::folder;
use berth_qemu::machine::Assigned;
use berth_qemu::sandbox::{self, Layer};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::QemuSandboxes;
use super::captured::{About, agent_failed, begin};
use super::machine::{DISK, Part, identity_of};
use super::network::Link;
use super::places::layer_file;
use crate::Result;
use crate::error::{qemu_failed, transient};
use crate::sandbox::agent;
use crate::sandbox::build::AgentMachine;
use crate::sandbox::{Build, Stage};

/// How long a machine may take to answer, emulated on a busy host.
const PATIENCE: Duration = Duration::from_mins(1);

/// A build's machines that no stage has: each works for one stage at a time, and for the next one when that has ended.
#[derive(Clone)]
pub(super) struct Free(watch::Sender<Vec<Stage>>);

impl Free {
    /// All of them.
    pub(super) fn new(machines: &[Stage]) -> Self {
        Self(watch::Sender::new(machines.to_vec()))
    }

    /// One of them, as soon as there is one.
    pub(super) async fn take(&self) -> Taken {
        let mut free = self.0.subscribe();
        loop {
            let mut stage = None;
            self.0.send_if_modified(|free| {
                stage = free.pop();
                stage.is_some()
            });
            if let Some(stage) = stage {
                return Taken { stage, free: self.clone() };
            }
            // The sender lives as long as this.
            let _ = free.wait_for(|free| !free.is_empty()).await;
        }
    }
}

/// A machine of a build, until it is free again.
pub(super) struct Taken {
    stage: Stage,
    free: Free,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.free.0.send_modify(|free| free.push(self.stage));
    }
}

/// The machine of a stage, with the disk that is built in it.
pub(super) struct StageMachine {
    /// The machine; none once it is being ended.
    taken: Option<Taken>,
    id: Uuid,
    dir: PathBuf,
    parent: Option<LayerId>,
    bytes: u64,
    _link: Link,
    ended: TaskTracker,
}

/// That machine, reached through its agent.
pub(super) type QemuBuildMachine = AgentMachine<StageMachine>;

impl StageMachine {
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
        sandbox::stop(&self.dir, self.id).await.map_err(qemu_failed)?;
        // Others are to have it: no name that leads elsewhere.
        folder::open(&disk_of(&self.dir)).map_err(transient)?;
        Ok(disk_of(&self.dir))
    }
}

impl Drop for StageMachine {
    fn drop(&mut self) {
        let (id, dir, taken) = (self.id, self.dir.clone(), self.taken.take());
        self.ended.spawn(async move {
            let _until_then = taken;
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
    pub(super) async fn stage_machine(
        &self,
        build: &Build,
        below: &[LayerId],
        taken: Taken,
        ended: &TaskTracker,
    ) -> Result<QemuBuildMachine> {
        let Stage { machine: MachineId(id), slot } = taken.stage;
        let dir = self.places.build(build.spec.id).join(id.to_string());
        tokio::fs::create_dir_all(&dir).await.map_err(transient)?;
        let wanted = u64::try_from(build.spec.disk_gb).unwrap_or(1) * super::GIB;
        let (parent, disk) = (below.first().copied(), disk_of(&dir));
        let bytes = if let Some(top) = parent {
            let bytes = sandbox::layer_size(&self.places.layer(top)).map_err(qemu_failed)?.max(wanted);
            sandbox::create_layer(&disk, &layer_file(top), bytes).map_err(qemu_failed)?;
            bytes
        } else {
            sandbox::create_root(&disk, wanted).await.map_err(qemu_failed)?;
            wanted
        };
        // From here on it ends with its guard.
        let link = self.lives.link(id, &dir, slot, NetworkPolicy::default());
        let machine = StageMachine { taken: Some(taken), id, dir, parent, bytes, _link: link, ended: ended.clone() };
        self.start_stage_machine(build, below, &machine, slot).await?;
        let stream = sandbox::connect_agent(&machine.dir).await.map_err(qemu_failed)?;
        let session = agent::connect(stream, PATIENCE).await.map_err(agent_failed)?;
        let root = Boot { root: DISK.into(), user: None, workspace: None, bare: true };
        session.boot(&root).await.map_err(agent_failed)?;
        let identity = identity_of(&build.spec.id.to_string(), &build.spec.hostname, self.clock.now().0)?;
        Ok(AgentMachine::new(session, Some(identity), machine))
    }

    async fn start_stage_machine(
        &self,
        build: &Build,
        below: &[LayerId],
        machine: &StageMachine,
        slot: i64,
    ) -> Result<()> {
        let about = About {
            fingerprint: self.fingerprint().await?,
            vcpu: build.spec.vcpu,
            memory_mb: build.spec.memory_mb,
            disk_bytes: machine.bytes,
            layer: None,
        };
        let own = Layer { path: disk_of(&machine.dir), id: machine.id };
        let below = below.iter().map(|id| self.layer(*id));
        let disk = std::iter::once(own).chain(below).collect();
        let begin = begin(&self.boot_snapshot(&about).await?);
        let part = Part { id: machine.id, dir: &machine.dir, disk, begin, assigned: Assigned::default(), slot };
        sandbox::start(&self.machine_of(part, &about).await?, || Ok(())).await.map_err(qemu_failed)
    }
}
