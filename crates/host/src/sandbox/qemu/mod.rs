//! QEMU on this machine.
//!
//! Everything lies in the folder `sandbox` of the data folder ([`places`]) and is named after its row's id.
//! A machine is a process that outlives the service; [`live`] is how the service finds it again.

mod account;
mod build;
mod captured;
mod checkpoint;
mod findings;
mod guest;
mod guest_travel;
mod layer_travel;
mod live;
mod logs;
mod machine;
mod memory_travel;
mod network;
mod places;
mod provisioner;
mod settings;
mod stage_machine;
mod stalled;
mod start_slots;
mod template;
mod travelling;
mod warm;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use async_trait::async_trait;
use berth_domain::host::aim::Act;
use berth_domain::host::gpu::Gpu;
use berth_domain::ids::{LayerId, MachineId, MemoryId, TemplateId, UploadId};
use berth_domain::sandbox::network_policy::NetworkPolicy;
use berth_oci::Registries;
use berth_qemu::machine::Accel;
use berth_qemu::seed::Mac;
use berth_qemu::{accel, host};
use tokio::sync::{OnceCell, broadcast};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    Activity, Aim, Build, Built, Capacity, Checkpoint, CheckpointDone, Found, GuestArrival, ImageFile, Kept, Observed,
    Paused, PlatformTemplate, Sample, SandboxEngine, StartSpec, Started, Warming,
};
use crate::clock::Clock;
use crate::error::{qemu_failed, transient};
use crate::generation::{self, Generations};
use crate::gpu::Gpus;
use crate::network::Switches;
use crate::sandbox::agent::{ANSWER, Connection};
use crate::vm::Content;
use crate::{Result, lost};
use captured::agent_failed;
use guest::{Guest, Guests};
use live::{Incarnation, Lives};
use network::Links;
use places::Places;
pub use settings::Settings;
use stalled::Stalled;
use start_slots::StartSlots;

/// The first release of QEMU that maps a file privately which it can only read (`rom=off`).
const READS_MEMORY: (u32, u32) = (8, 2);
/// Bytes of a GiB.
const GIB: u64 = 1 << 30;
/// The card of every machine. Each is alone on its link, so that nobody sees two of them, and a copy has nothing
/// to change.
const MAC: Mac = Mac([0x52, 0x54, 0x00, 0xbe, 0x47, 0x01]);
/// Machines that are started at the same time for each core: all at once take longer, and none is ready before the end.
const STARTS_PER_CORE: usize = 2;
/// Events kept for a slow watcher before it has to look at every machine.
const EVENTS: usize = 1024;

/// The engine of this machine.
pub struct QemuSandboxes {
    places: Places,
    settings: Settings,
    clock: Clock,
    registries: Registries,
    lives: Lives,
    switches: Arc<Switches>,
    gpus: Gpus,
    most_warm: usize,
    making_boot_snapshot: tokio::sync::Mutex<()>,
    starting: StartSlots,
    guests: Guests,
    host: OnceCell<Host>,
    stalled: Stalled,
    generations: Generations,
}

/// What is found out about the host once.
#[derive(Clone, Debug)]
struct Host {
    accel: Accel,
    qemu: String,
    /// Whether its QEMU maps a memory that it cannot write to.
    reads_memory: bool,
}

impl QemuSandboxes {
    /// The engine over a data folder. What is missing on the host is told by [`SandboxEngine::ready`].
    pub fn open(settings: Settings, clock: Clock, switches: Arc<Switches>) -> Self {
        Self {
            switches: switches.clone(),
            gpus: Gpus::of_this_host(&settings.host.data).of_sandboxes(),
            generations: Generations::new(Places::new(&settings.host.data).machines()),
            places: Places::new(&settings.host.data),
            guests: Guests::new(Places::new(&settings.host.data).guest()),
            clock: clock.clone(),
            registries: Registries::default().trusting(&settings.registries, &settings.plain_registries),
            lives: Lives::new(
                clock,
                Links::new(settings.host.machines, settings.unlock.clone(), switches),
                broadcast::channel(EVENTS).0,
            ),
            most_warm: settings.warm_machines.unwrap_or_else(|| warm::fitting(host::memory_mb())),
            settings,
            making_boot_snapshot: tokio::sync::Mutex::default(),
            starting: StartSlots::new(usize::try_from(host::cores()).unwrap_or(1).max(1), STARTS_PER_CORE),
            host: OnceCell::new(),
            stalled: Stalled::default(),
        }
    }

    /// The same, with the GPUs that another engine of this host hands out, too.
    #[must_use]
    pub fn sharing(self, gpus: &Gpus) -> Self {
        Self { gpus: gpus.of_sandboxes(), ..self }
    }

    /// What machines boot that start now.
    fn guest(&self) -> Result<Arc<Guest>> {
        self.guests.now()
    }

    async fn host(&self) -> Result<&Host> {
        self.host
            .get_or_try_init(|| async {
                let (guest, qemu) = (self.guest()?, self.settings.host.find_qemu()?);
                let probe = accel::Probe { kernel: guest.kernel(), initrd: guest.initrd() };
                let decision = self.settings.host.decide_acceleration(Some(&probe), &qemu).await;
                let version = host::qemu_version(&qemu).await.map_err(qemu_failed)?;
                Ok(Host { accel: decision.accel, reads_memory: host::release(&version) >= READS_MEMORY, qemu: version })
            })
            .await
    }

    async fn accel(&self) -> Result<Accel> {
        Ok(self.host().await?.accel)
    }

    /// Names the machines of today: what was captured on others does not load.
    async fn fingerprint(&self) -> Result<String> {
        let host = self.host().await?;
        Ok(self.guest()?.fingerprint(host.accel, &host.qemu))
    }

    fn layers_found(&self) -> Result<Vec<LayerId>> {
        names(&self.places.layers(), |name| name.strip_suffix(".qcow2")?.parse().ok())
    }
}

/// What the names in a folder stand for; nothing where there is no folder.
fn names<T>(dir: &Path, parse: impl Fn(&str) -> Option<T>) -> Result<Vec<T>> {
    match std::fs::read_dir(dir) {
        Ok(entries) => Ok(entries.flatten().filter_map(|entry| parse(entry.file_name().to_str()?)).collect()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(transient(error)),
    }
}

fn ids<T: FromStr>(dir: &Path) -> Result<Vec<T>> {
    names(dir, |name| name.parse().ok())
}

/// Removes a file or a folder; fine where there is none.
async fn remove(path: &Path) -> Result<()> {
    let removed = match tokio::fs::symlink_metadata(path).await {
        Ok(meta) if meta.is_dir() => tokio::fs::remove_dir_all(path).await,
        Ok(_) => tokio::fs::remove_file(path).await,
        Err(error) => Err(error),
    };
    match removed {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(transient(e)),
        _ => Ok(()),
    }
}

impl QemuSandboxes {
    /// Acts on a machine, if that was not decided too early.
    async fn act<T>(&self, aim: Aim, act: Act, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.generations.act(aim, act, work).await
    }

    async fn change_network(&self, id: MachineId, network: &NetworkPolicy) -> Result<()> {
        let dir = self.places.machine(id);
        let (Some(live), Some(known)) = (self.live(id), Incarnation::read(&dir)) else {
            return Ok(());
        };
        Incarnation { network: network.clone(), ..known }.write(&dir).map_err(transient)?;
        live.link().set(network.clone()).await.map_err(transient)
    }
}

#[async_trait]
impl SandboxEngine for QemuSandboxes {
    fn ready(&self) -> std::result::Result<(), String> {
        // A host where nobody built them runs none, and is ready for everything else.
        let is_wanted = self.places.guest().exists();
        let ready =
            self.settings.host.find_qemu().and_then(|_| if is_wanted { self.guest().map(drop) } else { Ok(()) });
        ready.map_err(|error| error.to_string())
    }

    async fn capacity(&self) -> Result<Capacity> {
        let (_, free) = host::disk(&self.settings.host.data).map_err(qemu_failed)?;
        let reserve = self.settings.disk_reserve_gb.saturating_mul(1 << 30);
        let memory = i64::try_from(host::memory_mb()).unwrap_or(i64::MAX) - self.settings.host.memory_reserve_mb;
        Ok(Capacity {
            memory_mb: memory.max(0),
            disk_bytes: i64::try_from(free).unwrap_or(i64::MAX) - reserve,
            has_guest: self.places.guest().exists(),
        })
    }

    async fn gpus(&self) -> Result<Vec<Gpu>> {
        let gpus = self.gpus.clone();
        tokio::task::spawn_blocking(move || gpus.inventory()).await.map_err(transient)
    }

    fn host_boot(&self) -> String {
        host::boot_id()
    }

    async fn guest(&self) -> Result<Option<String>> {
        // One that is damaged is told of where it is read, and as good as none: another one may take its place.
        Ok(self.guests.now().ok().map(|guest| guest.hash().to_owned()))
    }

    async fn guest_files(&self, version: &str) -> Result<Vec<ImageFile>> {
        self.files_of_guest(version)
    }

    async fn guest_file(&self, version: &str, file: &ImageFile) -> Result<Box<dyn Content>> {
        self.open_guest_file(version, &file.name).await
    }

    async fn expect_guest(&self, arrival: &GuestArrival) -> Result<()> {
        self.make_room_for_guest(arrival).await
    }

    async fn take_guest_file(&self, travel: Uuid, file: &ImageFile, content: Box<dyn Content>) -> Result<()> {
        self.receive_guest_file(travel, file, content).await
    }

    async fn adopt_guest(&self, arrival: &GuestArrival) -> Result<()> {
        self.place_guest(arrival).await
    }

    async fn templates(&self) -> Result<Vec<PlatformTemplate>> {
        self.platform_templates()
    }

    async fn adopt_template(&self, name: &str, layer: LayerId) -> Result<()> {
        self.adopt(name, layer).await
    }

    async fn make_layer(&self, id: LayerId, parent: LayerId) -> Result<()> {
        self.make_layer_file(id, parent)
    }

    async fn remove_layer(&self, id: LayerId) -> Result<()> {
        remove(&self.places.layer(id)).await
    }

    async fn layer_bytes(&self, id: LayerId) -> Result<i64> {
        Ok(checkpoint::taken(&self.places.layer(id)))
    }

    async fn layer_file(&self, id: LayerId) -> Result<ImageFile> {
        self.file_of_layer(id).await
    }

    async fn read_layer(&self, id: LayerId, _: &ImageFile) -> Result<Box<dyn Content>> {
        Ok(Box::new(tokio::fs::File::open(self.places.layer(id)).await.map_err(transient)?))
    }

    async fn expect_layer(&self, id: LayerId, file: &ImageFile) -> Result<bool> {
        self.make_room_for_layer(id, file).await
    }

    async fn take_layer(&self, id: LayerId, file: &ImageFile, content: Box<dyn Content>) -> Result<()> {
        self.receive_layer(id, file, content).await
    }

    async fn remove_memory(&self, id: MemoryId) -> Result<()> {
        remove(&self.places.memory(id).dir).await
    }

    async fn memory_file(&self, id: MemoryId) -> Result<ImageFile> {
        self.file_of_memory(id).await
    }

    async fn read_memory(&self, id: MemoryId, _: &ImageFile) -> Result<Box<dyn Content>> {
        self.pack_memory(id).await
    }

    async fn expect_memory(&self, id: MemoryId, file: &ImageFile) -> Result<bool> {
        self.make_room_for_memory(id, file).await
    }

    async fn take_memory(&self, id: MemoryId, file: &ImageFile, content: Box<dyn Content>) -> Result<()> {
        self.receive_memory(id, file, content).await
    }

    async fn set_aside(&self, kept: Kept, into: &Path) -> Result<()> {
        let file = match kept {
            Kept::Layer(id) => self.places.layer(id),
            Kept::Memory(id) => self.places.memory(id).dir,
            Kept::Upload(id) => self.places.upload(id),
        };
        lost::put(&file, into).await.map_err(transient)
    }

    async fn observe(&self, id: MachineId) -> Result<Observed> {
        Ok(self.observe_machine(id))
    }

    async fn start(&self, spec: &StartSpec) -> Result<Started> {
        self.act(spec.aim(), Act::Start, Box::pin(self.start_machine(spec))).await
    }

    async fn checkpoint(&self, checkpoint: &Checkpoint) -> Result<CheckpointDone> {
        self.act(checkpoint.aim(), Act::Change, self.checkpoint_live(checkpoint)).await
    }

    async fn checkpoint_cold(&self, checkpoint: &Checkpoint) -> Result<CheckpointDone> {
        self.act(checkpoint.aim(), Act::Change, self.checkpoint_without_machine(checkpoint)).await
    }

    async fn pause(&self, aim: Aim, memory: Option<MemoryId>) -> Result<Paused> {
        self.act(aim, Act::End, self.pause_machine(aim.id, memory)).await
    }

    async fn end(&self, aim: Aim) -> Result<()> {
        self.act(aim, Act::End, self.end_machine(aim.id)).await
    }

    async fn discard(&self, aim: Aim) -> Result<()> {
        let removed = async {
            self.end_machine(aim.id).await?;
            generation::remove_folder(&self.places.machine(aim.id)).await.map_err(transient)
        };
        self.act(aim, Act::End, removed).await
    }

    async fn set_network(&self, aim: Aim, network: &NetworkPolicy) -> Result<()> {
        self.act(aim, Act::Change, self.change_network(aim.id, network)).await
    }

    async fn upload(&self, id: UploadId) -> Result<PathBuf> {
        tokio::fs::create_dir_all(self.places.uploads()).await.map_err(transient)?;
        Ok(self.places.upload(id))
    }

    async fn remove_upload(&self, id: UploadId) -> Result<()> {
        remove(&self.places.upload(id)).await
    }

    async fn clear_build(&self, id: TemplateId) -> Result<()> {
        self.throw_away(id).await
    }

    async fn build_template(&self, build: &Build) -> Result<Built> {
        self.build(build).await
    }

    async fn warm_template(&self, warming: &Warming) -> Result<i64> {
        self.act(warming.machine.aim(), Act::Start, Box::pin(self.warm(warming))).await
    }

    async fn connect(&self, id: MachineId) -> Result<Connection> {
        let live = self.live(id).ok_or_else(|| transient("the machine is gone"))?;
        Ok(Connection {
            session: live.session().await.map_err(agent_failed)?,
            authorization: live.authorization(),
            since: live.since(),
            patience: ANSWER,
            in_use: Arc::new(live.begin_use()),
        })
    }

    fn activity(&self, id: MachineId) -> Activity {
        let Some(live) = self.live(id) else {
            return Activity { running: Some(0), ..Activity::default() };
        };
        let (open, last_used) = live.used();
        Activity { open, running: live.running(), last_used: Some(last_used) }
    }

    async fn sample(&self, id: MachineId) -> Option<Sample> {
        let live = self.live(id)?;
        let metrics = self.stalled.unless(live.metrics().await)?;
        let (rx_bytes, tx_bytes) = live.link().bytes().await;
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        Some(Sample {
            cpu_seconds: metrics.cpu_seconds,
            memory_bytes: whole(metrics.memory_bytes),
            disk_bytes: whole(metrics.disk_bytes),
            rx_bytes: whole(rx_bytes),
            tx_bytes: whole(tx_bytes),
            processes: whole(metrics.processes),
        })
    }

    fn unlimited(&self) -> u64 {
        berth_qemu::groups::unlimited()
    }

    async fn scan(&self) -> Result<Found> {
        self.forget_boot_snapshots().await;
        self.forget_guest_travels();
        self.forget_layer_travels();
        self.forget_memory_travels();
        self.generations.forget();
        let (found, builds) = (ids(&self.places.machines())?, ids(&self.places.builds())?);
        // Whoever has nothing else may still have a GPU.
        let machines: HashSet<_> = found.into_iter().chain(self.gpus.holders()).collect();
        let machines = machines.into_iter().collect();
        let (layers, memories) = (self.layers_found()?, ids(&self.places.memories())?);
        Ok(Found { machines, builds, layers, memories, uploads: ids(&self.places.uploads())? })
    }

    fn most_warm(&self) -> usize {
        self.most_warm
    }

    async fn warm_up(&self, spec: &StartSpec) -> Result<()> {
        self.act(spec.aim(), Act::Start, Box::pin(self.make_warm(spec))).await
    }

    async fn is_warm(&self, id: MachineId) -> Result<bool> {
        Ok(self.is_nobodys(id))
    }

    async fn tend(&self, stop: CancellationToken) {
        tokio::join!(self.keep_going(stop.clone()), self.bound_logs(stop));
    }

    fn watch(&self) -> broadcast::Receiver<MachineId> {
        self.lives.events.subscribe()
    }
}
