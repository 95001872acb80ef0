//! QEMU on this machine.
//!
//! Everything lies below the data folder and is named after its row's id:
//!
//! ```text
//! images/<image id>/            what can be cloned now
//! bases/<image id>-<version>/   what was cloned from: hard links, so that a rebuilt image changes nothing
//! bases/<snapshot id>/          the same of a root disk's snapshot; `below` names the base that its file lies on
//! bases/<disk id>/              the same of a root disk that was made of a file, or lies in a store
//! bases/<snapshot id>.boot/     what a root disk of a store booted with of which the snapshot is a copy; it has no disk
//! disks/<disk id>.qcow2|.raw    root and data disks; <disk id>.base names a root disk's base, <disk id>.coming the machine
//!                               with which one comes from another host that does not go on here yet
//! snapshots/<id>.qcow2          snapshots of disks; <id>.base names the base of a root disk's
//! exports/                      disks as stand-alone files, for a while
//! machines/<machine id>/             process, seed, console
//! served/<disk id>/, <disk id>.of    what serves a disk of a store to a machine, and which
//! ```
//!
//! A root disk keeps the kernel it was cloned with, because the modules on it belong to that kernel.

mod bases;
mod begin;
mod boots;
mod bridged;
mod brought;
mod capacity;
mod disks;
mod exports;
mod findings;
mod flat;
mod guest;
mod images;
mod memory;
mod migration;
mod network;
mod notes;
mod rescue;
mod room;
mod screen;
mod served;
mod serving;
mod settings;
mod shared;
mod shared_boots;
mod shared_snapshots;
mod snapshots;
mod start;
mod travels;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use berth_domain::host::aim::Act;
use berth_domain::ids::{DiskId, DiskSnapshotId, ImageId, MachineId};
use berth_domain::vm::inbound::SSH;
use berth_domain::vm::plan::Machine;
use berth_egress::program::process::Executable;
use berth_qemu::machine::{self, Observed, Watch};
use berth_qemu::{accel, host};
use tokio::sync::{OnceCell, broadcast};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use self::settings::{CapturedBoots, Settings};

use self::boots::Boots;
use self::exports::Exports;
use self::network::Programs;
use self::screen::Screens;
use self::serving::Serving;
use super::integrity::Integrity;
use super::{
    Aim, Arrival, BroughtDisk, Capacity, Channel, Console, Content, DiskSnapshotSpec, DiskSpec, Edition, Engine,
    ExportSource, Exported, Found, Gpu, GuestKeys, ImageFile, ImageImport, ImageInfo, ImageOfSnapshot, Likeness,
    MachineSpec, Open, Part, Reached, Started, Store, Usage, VmNetwork,
};
use crate::bridge::Bridges;
use crate::clock::Clock;
use crate::error::{qemu_failed, transient};
use crate::generation::{self, Generations};
use crate::gpu::Gpus;
use crate::network::Switches;
use crate::turns::Turns;
use crate::{Result, lost};

/// Bytes of a GiB.
const GIB: u64 = 1 << 30;
/// Where what was brought lies, below the data folder.
const STAGING: &str = "staging";
/// Port of SSH outside where 22 may not be bound.
const HIGH_SSH: u16 = 2222;
/// How long a process may take to end once it has left its sockets.
const ENDING: Duration = Duration::from_secs(30);
/// Between two looks at logs and at the room on the disk.
const TEND: Duration = Duration::from_secs(5);
/// Events kept for a slow watcher before it has to look at every machine.
const EVENTS: usize = 1024;

/// The engine of this machine.
pub struct QemuEngine {
    settings: Settings,
    clock: Clock,
    ssh_port: u16,
    events: broadcast::Sender<MachineId>,
    watched: Arc<Mutex<HashSet<MachineId>>>,
    programs: Programs,
    bridges: Arc<Bridges>,
    gpus: Gpus,
    boots: Boots,
    generations: Generations,
    probed: OnceCell<accel::Decision>,
    integrity: Integrity,
    /// Whether the disk was full, so that machines may stand still.
    full: AtomicBool,
    /// Bytes of the memories that are being written.
    saving: Mutex<u64>,
    /// Who makes a base of a snapshot has this.
    making_bases: tokio::sync::Mutex<()>,
    /// Who makes or removes a snapshot of a disk of a store has its turn.
    shared_snapshots: Turns<DiskSnapshotId>,
    /// Who has a guest stand still has its turn.
    stills: Turns<MachineId>,
    screens: Screens,
    exports: Arc<Exports>,
    serving: Serving,
}

impl QemuEngine {
    /// The GPUs of this host, which whoever else runs machines on it is to share.
    pub fn gpus_of_host(&self) -> Gpus {
        self.gpus.clone()
    }

    /// The engine over a data folder. What is missing on the host is told by [`Engine::ready`].
    pub fn open(settings: Settings, clock: Clock, switches: Arc<Switches>) -> Self {
        let events = broadcast::channel(EVENTS).0;
        let folder = settings.host.data.join("machines");
        let generations = Generations::new(folder.clone());
        Self {
            gpus: Gpus::of_this_host(&settings.host.data),
            boots: Boots::new(&settings.host.data),
            exports: Arc::new(Exports::new(&settings.host.data)),
            bridges: Bridges::none(&settings.host.data),
            programs: Programs::new(folder, settings.host.machines, events.clone(), switches),
            settings,
            clock,
            ssh_port: if host::can_bind_low_ports() { SSH.port } else { HIGH_SSH },
            events,
            watched: Arc::default(),
            generations,
            probed: OnceCell::new(),
            integrity: Integrity::default(),
            full: AtomicBool::new(false),
            saving: Mutex::default(),
            making_bases: tokio::sync::Mutex::default(),
            shared_snapshots: Turns::default(),
            stills: Turns::default(),
            screens: Screens::default(),
            serving: Serving::default(),
        }
    }

    /// The same with a bridge for the networks of its machines.
    #[must_use]
    pub fn with_bridges(self, bridges: Arc<Bridges>) -> Self {
        Self { bridges, ..self }
    }

    /// The same with another program for the networks of its machines.
    #[must_use]
    pub fn with_program(self, executable: Executable) -> Self {
        Self { programs: self.programs.with(executable), ..self }
    }

    fn machine(&self, id: MachineId) -> PathBuf {
        self.settings.host.data.join("machines").join(id.to_string())
    }

    fn images_dir(&self) -> PathBuf {
        self.settings.host.data.join("images")
    }

    /// Keeps logs within their bounds, and has machines looked at that stood still while the disk was full.
    async fn tend_machines(&self) {
        let has_room_again = self.has_room_again();
        for found in machine::scan(&self.settings.host.data.join("machines")) {
            if has_room_again {
                // Nobody listening is fine: whoever comes looks at the machine itself.
                let _ = self.events.send(MachineId(found.id));
            }
            if let Err(error) = machine::bound_logs(&found.dir) {
                tracing::debug!(%error, "a machine's logs cannot be bounded now");
            }
            self.thaw_forgotten(MachineId(found.id)).await;
        }
    }

    /// Acts on a machine, if that was not decided too early.
    async fn act<T>(&self, aim: Aim, act: Act, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.generations.act(aim, act, work).await
    }

    async fn start_machine(&self, spec: &MachineSpec) -> Result<Option<Started>> {
        let dir = self.machine(spec.id);
        std::fs::create_dir_all(&dir).map_err(transient)?;
        let started = match machine::find(&dir, spec.id.0) {
            Some(_) => None,
            None => Some(self.start_anew(spec).await?),
        };
        self.attend(spec.id);
        Ok(started)
    }

    async fn end_machine(&self, id: MachineId) -> Result<()> {
        machine::end(&self.machine(id), id.0).await.map_err(qemu_failed)?;
        self.end_rescue(id).await?;
        self.end_served_to(id).await?;
        self.programs.end(id).await?;
        self.bridges.remove(id).await?;
        self.gpus.give_back(id).await
    }

    async fn remove_machine(&self, id: MachineId) -> Result<()> {
        self.programs.end(id).await?;
        self.bridges.let_go(id).await?;
        if machine::find(&self.machine(id), id.0).is_none() {
            self.gpus.give_back(id).await?;
            self.end_served_to(id).await?;
        }
        generation::remove_folder(&self.machine(id)).await.map_err(transient)
    }

    /// Watches a machine that runs, once.
    fn attend(&self, id: MachineId) {
        if !self.watched.lock().unwrap_or_else(PoisonError::into_inner).insert(id) {
            return;
        }
        let (dir, events, watched) = (self.machine(id), self.events.clone(), self.watched.clone());
        let bridges = self.bridges.clone();
        tokio::spawn(async move {
            if let Ok(mut watch) = Watch::begin(&dir).await {
                while watch.next().await {
                    // Nobody listening is fine: whoever comes looks at the machine itself.
                    let _ = events.send(id);
                }
            }
            watched.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
            let _ = events.send(id);
            // A machine that ends leaves its sockets first, and who looks at it then still sees it run.
            let _ = tokio::time::timeout(ENDING, machine::ended(&dir, id.0)).await;
            let _ = events.send(id);
            // What is left of it now, the next look takes.
            let _ = bridges.let_go(id).await;
        });
    }
}

fn gib(size_gb: i64) -> u64 {
    u64::try_from(size_gb).unwrap_or_default() * GIB
}

/// What files of a folder are named after: ids, with anything behind a dot.
fn named<T: std::str::FromStr + Eq + std::hash::Hash>(folder: &Path) -> HashSet<T> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.split('.').next()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests;

#[async_trait]
impl Engine for QemuEngine {
    fn ready(&self) -> std::result::Result<(), String> {
        self.settings.host.find_qemu().map(drop).map_err(|e| e.to_string())
    }

    async fn capacity(&self) -> Result<Capacity> {
        self.left()
    }

    async fn gpus(&self) -> Result<Vec<Gpu>> {
        let gpus = self.gpus.clone();
        tokio::task::spawn_blocking(move || gpus.inventory()).await.map_err(transient)
    }

    fn ssh_port(&self) -> u16 {
        self.ssh_port
    }

    fn network(&self) -> VmNetwork {
        self.settings.network.clone()
    }

    async fn ports_free(&self, first: SocketAddr, count: u16) -> bool {
        let end = first.port().checked_add(count);
        !self.bridges.leads_from(first, count).await
            && end.is_some_and(|end| (first.port()..end).all(|port| TcpListener::bind((first.ip(), port)).is_ok()))
    }

    fn host_boot(&self) -> String {
        host::boot_id()
    }

    async fn make_disk(&self, spec: &DiskSpec) -> Result<()> {
        self.make(spec).await
    }

    async fn bring_disk(&self, file: &Path, disk: &BroughtDisk) -> Result<()> {
        match &disk.image {
            Some(image) => self.make_root_of_file(file, disk, image).await,
            None => self.make_data_of_file(file, disk).await,
        }
    }

    async fn grow_disk(&self, id: DiskId, size_gb: i64, of: Option<Aim>) -> Result<()> {
        match of {
            Some(aim) => self.act(aim, Act::Change, self.grow(id, size_gb, Some(aim.id))).await,
            None => self.grow(id, size_gb, None).await,
        }
    }

    async fn remove_disk(&self, id: DiskId) -> Result<()> {
        self.forget_disk(id).await
    }

    async fn set_aside_disk(&self, id: DiskId, into: &Path) -> Result<()> {
        for file in self.files_of_disk(id) {
            lost::put(&file, into).await.map_err(transient)?;
        }
        Ok(())
    }

    async fn reach_store(&self, store: &Store) -> Result<Reached> {
        self.reach(store).await
    }

    async fn shut_out(&self, store: &Store, addresses: &[IpAddr]) -> Result<()> {
        shared::pool_of(store)?.shut_out(addresses).await.map_err(shared::for_operator)
    }

    async fn refuses(&self, store: &Store, addresses: &[IpAddr]) -> Result<bool> {
        shared::pool_of(store)?.refuses(addresses).await.map_err(shared::for_operator)
    }

    async fn let_in(&self, store: &Store, addresses: &[IpAddr]) -> Result<()> {
        shared::pool_of(store)?.let_in(addresses).await.map_err(shared::for_operator)
    }

    async fn openers(&self, store: &Store, disk: DiskId) -> Result<Vec<IpAddr>> {
        shared::pool_of(store)?.openers(&disk.to_string()).await.map_err(shared::for_operator)
    }

    async fn make_shared_disk(&self, disk: &DiskSpec, store: &Store) -> Result<()> {
        self.make_shared(disk, store).await
    }

    async fn grow_shared_disk(&self, id: DiskId, size_gb: i64, store: &Store) -> Result<()> {
        self.grow_shared(id, size_gb, store).await
    }

    async fn remove_shared_disk(&self, id: DiskId, store: &Store) -> Result<()> {
        self.forget_shared(id, store).await
    }

    async fn attach_shared_disk(&self, aim: Aim, disk: DiskId, store: &Store) -> Result<()> {
        self.act(aim, Act::Change, self.plug_shared(aim.id, disk, store)).await
    }

    async fn snapshot_shared_disk(&self, snapshot: &DiskSnapshotSpec, of: Option<Aim>, store: &Store) -> Result<u64> {
        self.snapshot_shared(snapshot, of, store).await
    }

    async fn copy_shared_disk(&self, snapshot: &DiskSnapshotSpec, of: Option<Aim>, store: &Store) -> Result<u64> {
        self.copy_shared(snapshot, of, store).await
    }

    async fn restore_shared_disk(&self, disk: &DiskSpec, store: &Store) -> Result<()> {
        self.restore_shared(disk, store).await
    }

    async fn remove_shared_snapshot(&self, snapshot: &DiskSnapshotSpec, store: &Store) -> Result<()> {
        self.forget_shared_snapshot(snapshot, store).await
    }

    async fn snapshot_disk(&self, snapshot: &DiskSnapshotSpec, of: Option<Aim>) -> Result<Option<u64>> {
        match of {
            Some(aim) => self.act(aim, Act::Change, self.snapshot(snapshot, Some(aim.id))).await,
            None => self.snapshot(snapshot, None).await,
        }
    }

    async fn remove_snapshot(&self, id: DiskSnapshotId, of: Option<Aim>) -> Result<()> {
        match of {
            Some(aim) => self.act(aim, Act::Change, self.forget_snapshot(id, Some(aim.id))).await,
            None => self.forget_snapshot(id, None).await,
        }
    }

    async fn set_aside_snapshot(&self, id: DiskSnapshotId, into: &Path) -> Result<()> {
        self.set_aside_files(id, into).await
    }

    async fn export(&self, of: &ExportSource) -> Result<Exported> {
        self.flat(of).await
    }

    async fn exported(&self, of: &ExportSource, sha256: &str, part: Part) -> Result<Box<dyn Content>> {
        self.open_flat(of, sha256, part).await
    }

    async fn observe(&self, id: MachineId) -> Result<Machine> {
        let seen = machine::observe(&self.machine(id), id.0).await;
        if seen == Observed::Stalled {
            self.full.store(true, Ordering::Relaxed);
        }
        if seen != Observed::Absent {
            self.attend(id);
            self.programs.attend(id);
        }
        Ok(match seen {
            Observed::Absent => Machine::Absent,
            Observed::Running => Machine::Running,
            Observed::Paused => Machine::Paused,
            Observed::Stalled => Machine::Stalled,
            Observed::PoweredOff => Machine::PoweredOff,
            Observed::Panicked => Machine::Panicked,
            Observed::Unresponsive => Machine::Unresponsive,
        })
    }

    async fn guest_ready(&self, id: MachineId) -> bool {
        machine::is_ready(&self.machine(id), id.0)
    }

    async fn has_network(&self, id: MachineId) -> bool {
        if self.is_bridged(id) { self.bridges.has(id).await } else { self.programs.is_carried(id) }
    }

    async fn start(&self, spec: &MachineSpec) -> Result<Option<Started>> {
        Box::pin(self.act(spec.aim(), Act::Start, self.start_machine(spec))).await
    }

    async fn suspend(&self, spec: &MachineSpec) -> Result<()> {
        self.act(spec.aim(), Act::Change, self.save_memory(spec)).await
    }

    async fn forget_memory(&self, aim: Aim) -> Result<()> {
        self.act(aim, Act::Change, async { self.remove_memory(aim.id) }).await
    }

    async fn resume(&self, aim: Aim) -> Result<()> {
        self.act(aim, Act::Change, self.go_on(aim.id)).await
    }

    async fn press_power(&self, aim: Aim) -> Result<()> {
        let dir = self.machine(aim.id);
        let press = async {
            // A guest whose file systems are frozen cannot end its work.
            self.thaw(aim.id).await;
            machine::press_power(&dir).await.map_err(qemu_failed)
        };
        self.act(aim, Act::Change, press).await
    }

    async fn power_off(&self, aim: Aim) -> Result<()> {
        self.act(aim, Act::End, self.end_machine(aim.id)).await
    }

    async fn likeness(&self, spec: &MachineSpec) -> Result<Likeness> {
        self.describe_machine(spec).await
    }

    async fn expect_machine(&self, spec: &MachineSpec, likeness: &Likeness) -> Result<Started> {
        Box::pin(self.act(spec.aim(), Act::Start, self.begin_to_wait(spec, likeness))).await
    }

    async fn send_machine(&self, aim: Aim, channel: Channel) -> Result<Box<dyn Console>> {
        self.act(aim, Act::Change, self.begin_to_send(aim.id, channel)).await
    }

    async fn fill_machine(&self, aim: Aim, channel: Channel) -> Result<Box<dyn Console>> {
        self.act(aim, Act::Change, self.begin_to_fill(aim.id, channel)).await
    }

    async fn mirrored(&self, aim: Aim) -> Result<()> {
        self.act(aim, Act::Change, self.wait_mirrored(aim.id)).await
    }

    async fn hand_over(&self, aim: Aim) -> Result<()> {
        self.act(aim, Act::Change, self.hand_machine_over(aim.id)).await
    }

    async fn taken(&self, aim: Aim) -> Result<()> {
        self.act(aim, Act::Change, self.take_machine(aim.id)).await
    }

    async fn call_off(&self, aim: Aim) -> Result<()> {
        self.act(aim, Act::Change, self.keep_machine(aim.id)).await
    }

    async fn discard(&self, aim: Aim) -> Result<()> {
        self.act(aim, Act::End, self.remove_machine(aim.id)).await
    }

    async fn set_ports(&self, spec: &MachineSpec, before: Open) -> Result<Started> {
        self.act(spec.aim(), Act::Change, self.change_ports(spec, before)).await
    }

    async fn set_keys(&self, aim: Aim, keys: &GuestKeys) -> Result<bool> {
        self.act(aim, Act::Change, self.set_guest_keys(aim.id, keys)).await
    }

    async fn attach_disk(&self, aim: Aim, disk: DiskId) -> Result<()> {
        self.act(aim, Act::Change, self.plug(aim.id, disk)).await
    }

    async fn detach_disk(&self, aim: Aim, disk: DiskId) -> Result<bool> {
        self.act(aim, Act::Change, self.unplug(aim.id, disk)).await
    }

    async fn remake_disk(&self, aim: Aim, disk: &DiskSpec) -> Result<()> {
        self.act(aim, Act::Change, self.remake(aim.id, disk)).await
    }

    async fn console_log(&self, id: MachineId, bytes: usize) -> Result<Vec<u8>> {
        machine::console_tail(&self.machine(id), bytes).map_err(qemu_failed)
    }

    async fn console(&self, id: MachineId) -> Result<Box<dyn Console>> {
        Ok(Box::new(machine::console_connect(&self.machine(id)).await.map_err(qemu_failed)?))
    }

    async fn screen(&self, id: MachineId) -> Result<Box<dyn Console>> {
        Ok(Box::new(self.screens.view(id, &self.machine(id)).await?))
    }

    async fn picture(&self, id: MachineId) -> Result<Vec<u8>> {
        self.screens.show(id, &self.machine(id)).await
    }

    async fn usage(&self, id: MachineId) -> Option<Usage> {
        let usage = machine::usage(&self.machine(id), id.0)?;
        Some(Usage { cpu_seconds: usage.cpu_seconds, memory_bytes: usage.rss_bytes })
    }

    async fn images(&self) -> Result<Vec<ImageInfo>> {
        Ok(self.platforms_images())
    }

    async fn image(&self, id: &str) -> Result<Option<ImageInfo>> {
        Ok(self.whole_image(id).await)
    }

    async fn editions(&self) -> Result<Vec<Edition>> {
        Ok(self.platforms_editions())
    }

    async fn image_files(&self, edition: &Edition) -> Result<Vec<ImageFile>> {
        self.files_of_image(edition).await
    }

    async fn image_file(&self, edition: &Edition, file: &ImageFile) -> Result<Box<dyn Content>> {
        self.open_image_file(edition, &file.name).await
    }

    async fn expect_image(&self, arrival: &Arrival) -> Result<()> {
        self.make_room_for(arrival).await
    }

    async fn take_image_file(
        &self,
        travel: Uuid,
        image: &str,
        file: &ImageFile,
        content: Box<dyn Content>,
    ) -> Result<()> {
        self.receive_image_file((travel, image), file, content).await
    }

    async fn adopt_image(&self, arrival: &Arrival) -> Result<()> {
        self.adopt(arrival).await
    }

    async fn staging(&self) -> Result<PathBuf> {
        let dir = self.settings.host.data.join(STAGING);
        tokio::fs::create_dir_all(&dir).await.map_err(transient)?;
        Ok(dir)
    }

    async fn import_image(&self, file: &Path, import: &ImageImport) -> Result<ImageInfo> {
        self.take_in(file, import).await
    }

    async fn remove_image(&self, id: &str) -> Result<()> {
        self.forget_image(id).await
    }

    async fn make_image(&self, image: &ImageOfSnapshot) -> Result<ImageInfo> {
        self.make_image_of(image).await
    }

    async fn set_aside_image(&self, id: ImageId, into: &Path) -> Result<()> {
        self.set_image_aside(id, into).await
    }

    async fn scan(&self) -> Result<Found> {
        self.forget_bases();
        self.forget_travels();
        self.generations.forget();
        self.tend_served().await;
        let machines = machine::scan(&self.settings.host.data.join("machines"));
        let (disks, snapshots): (HashSet<DiskId>, HashSet<_>) = (named(&self.disks()), named(&self.snapshots()));
        let machines = machines.into_iter().map(|found| MachineId(found.id));
        // Whoever has nothing else may still have a GPU.
        let machines: HashSet<_> = machines.chain(self.gpus.holders()).collect();
        Ok(Found {
            machines: machines.into_iter().collect(),
            disks: disks.into_iter().collect(),
            snapshots: snapshots.into_iter().collect(),
            images: self.owned_images(),
        })
    }

    async fn tend(&self, stop: CancellationToken) {
        let machines = async {
            while stop.run_until_cancelled(tokio::time::sleep(TEND)).await.is_some() {
                self.tend_machines().await;
                self.tend_served().await;
                self.exports.sweep(exports::KEPT);
                self.bridges.tend().await;
            }
        };
        tokio::join!(machines, self.tend_boots(&stop));
    }

    fn watch(&self) -> broadcast::Receiver<MachineId> {
        self.events.subscribe()
    }
}
