//! A machine in which one stage of a template is built.
//!
//! It lies in `builds/<template>/<id>`, with its disk beside it, and belongs to its site: when that goes, so do the
//! process and the folder. What a service that died left there is thrown away by the next build, or by the search
//! for what no row owns.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use berth_domain::agent::control::{Boot, Identity};
use berth_domain::ids::LayerId;
use berth_domain::sandbox::network::Network;
use berth_qemu::host;
use berth_qemu::sandbox::{self, Layer};
use tokio::process::Command;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::captured::{About, agent_failed, begin};
use super::machine::{DISK, network, random};
use super::network::Link;
use super::places::layer_file;
use super::{MAC, QemuSandboxes, transient};
use crate::services::sandbox::agent;
use crate::services::sandbox::build::AgentSite;
use crate::services::sandbox::engine::{Build, Result};

/// How long a machine may take to answer, emulated on a busy host.
const PATIENCE: Duration = Duration::from_mins(1);
/// Features of new file systems: those of the platform's templates, which every guest knows.
const FEATURES: &str = "^orphan_file,^metadata_csum_seed";
/// Nothing is written that is known to be zero.
const ZEROED: &str = "lazy_itable_init=1,lazy_journal_init=1,root_owner=0:0,nodiscard";

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
            empty_disk(&dir.join("disk.raw"), &disk, wanted).await?;
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
        Ok(AgentSite::new(session, Some(self.bench_identity(build)?), bench))
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
        let below = below.iter().map(|id| Layer { path: self.places.layer(*id), id: id.0 });
        let spec = sandbox::Spec {
            id: bench.id,
            dir: bench.dir.clone(),
            vcpus: u32::try_from(build.vcpu).unwrap_or(1),
            memory_mb: u32::try_from(build.memory_mb).unwrap_or(256),
            disk: std::iter::once(own).chain(below).collect(),
            mac: MAC,
            begin: begin(&self.blank(&about).await?),
            accel: self.accel().await?,
            jail: Self::jail(build.slot),
            qemu: self.qemu()?,
        };
        Ok(sandbox::start(&spec, || Ok(())).await?)
    }

    fn bench_identity(&self, build: &Build) -> Result<Identity> {
        Ok(Identity {
            sandbox_id: build.id.to_string(),
            // Nobody learns it: only the host speaks to this machine.
            token: URL_SAFE_NO_PAD.encode(random::<32>()?),
            hostname: build.hostname.clone(),
            machine_id: random::<16>()?.iter().map(|b| format!("{b:02x}")).collect(),
            entropy: STANDARD.encode(random::<256>()?),
            unix_micros: self.clock.now().0,
            env: std::collections::BTreeMap::new(),
            network: Some(network()),
            thaw: true,
        })
    }
}

/// Makes a disk with an empty file system. Nothing of a user's is read or written here.
async fn empty_disk(raw: &Path, disk: &Path, bytes: u64) -> Result<()> {
    let file = tokio::fs::File::create(raw).await.map_err(transient)?;
    file.set_len(bytes).await.map_err(transient)?;
    let mut make = Command::new(tool("mke2fs", "e2fsprogs")?);
    make.args(["-q", "-t", "ext4", "-F", "-m", "1", "-O", FEATURES, "-E", ZEROED]).arg(raw);
    done(make).await?;
    let mut convert = Command::new(tool("qemu-img", "qemu-utils")?);
    convert.args(["convert", "-f", "raw", "-O", "qcow2"]).arg(raw).arg(disk);
    done(convert).await?;
    tokio::fs::remove_file(raw).await.map_err(transient)
}

fn tool(name: &str, package: &str) -> Result<PathBuf> {
    host::find(name).ok_or_else(|| transient(format!("{name} is missing on this host; install {package}")))
}

async fn done(mut command: Command) -> Result<()> {
    let made = command.kill_on_drop(true).output().await.map_err(transient)?;
    if made.status.success() { Ok(()) } else { Err(transient(String::from_utf8_lossy(&made.stderr))) }
}
