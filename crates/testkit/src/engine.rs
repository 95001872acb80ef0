//! An engine that only remembers: for faults, and for hundreds of machines.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use berth_domain::host::aim::Act;
use berth_domain::ids::{DiskId, DiskSnapshotId, ImageId, MachineId};
use berth_domain::vm::InboundPort;
use berth_domain::vm::plan::Machine;
use berth_host::vm::{
    Aim, Arrival, BroughtDisk, Capacity, Channel, Console, Content, DataDisk, DiskSnapshotSpec, DiskSource, DiskSpec,
    Edition, Engine, ExportSource, Exported, Found, Gpu, GuestKeys, ImageFile, ImageImport, ImageInfo, ImageOfSnapshot,
    Likeness, MachineSpec, Open, Part, Reached, Started, Store, Usage, VmNetwork,
};
use berth_host::{EngineError, Result};
use tempfile::TempDir;
use tokio::sync::{broadcast, watch};
use uuid::Uuid;

use crate::exports;
use crate::generations::Generations;
use crate::gpus::Gpus;
use crate::migrations::Migrations;
use crate::refusals::Refusals;
use crate::shared_disks::{self, SharedDisks};
use crate::snapshots::Snapshots;
use crate::travels::{self, Travels};

/// What a picture of a screen is made of, and how many bytes it has: more than what is under way at a time.
const PICTURE: &[u8] = b"\x89PNG\r\n\x1a\n";
const PICTURE_BYTES: usize = 300_000;
/// How long a guest takes that does not let go of a disk.
const HOLDS_ON: Duration = Duration::from_millis(100);

/// The engine.
pub struct SimulatedEngine {
    world: Mutex<World>,
    events: broadcast::Sender<MachineId>,
    staging: TempDir,
    /// The call that is held back.
    held: watch::Sender<Option<String>>,
}

/// Numbers of hosts.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

struct World {
    /// Tells it from other hosts that reach the same stores.
    number: u64,
    images: HashMap<String, ImageInfo>,
    /// Images of projects.
    owned: HashMap<ImageId, ImageInfo>,
    /// How many files of disks were made.
    exports: u32,
    machines: HashMap<MachineId, (Machine, MachineSpec)>,
    open: HashMap<MachineId, HashSet<InboundPort>>,
    /// Machines whose memory is on the disk.
    memories: HashSet<MachineId>,
    /// Whether guests let go of disks.
    holds_on: bool,
    /// Whether guests have an agent.
    has_agent: bool,
    /// Whether guests take SSH keys at their first boot alone.
    takes_keys_once: bool,
    /// Disks with their sizes in GiB.
    disks: HashMap<DiskId, i64>,
    /// Disks that were made of files, with what those had, and as which image a root disk boots.
    brought: HashMap<DiskId, (Vec<u8>, Option<String>)>,
    /// What each root disk was cloned from, in order.
    clones: HashMap<DiskId, Vec<String>>,
    /// How often each disk was to be removed.
    removals: HashMap<DiskId, u32>,
    /// How often each machine was to end.
    ends: HashMap<MachineId, u32>,
    snapshots: Snapshots,
    shared_disks: Arc<Mutex<SharedDisks>>,
    /// Names of stores that it was told of.
    told_stores: BTreeSet<String>,
    refusals: Refusals,
    delay: Duration,
    stuck_gb: Option<i64>,
    capacity: Capacity,
    gpus: Arc<Mutex<Gpus>>,
    deaf: bool,
    unheard: u32,
    ssh_port: u16,
    network: VmNetwork,
    travels: Travels,
    migrations: Migrations,
    taken: HashSet<u16>,
    boot: u32,
    starts: u32,
    /// The generation of each machine that was acted on.
    generations: Generations,
    everything_runs: bool,
    looked_at: HashSet<MachineId>,
}

impl Default for SimulatedEngine {
    fn default() -> Self {
        let capacity = Capacity {
            vcpu: 100_000,
            memory_mb: 100_000_000,
            disk_gb: 100_000_000,
            disk_free: true,
            room_bytes: i64::MAX,
        };
        let image = |id: &str, gib: i64| (id.to_owned(), image(id, "1", gib << 30));
        let world = World {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            images: HashMap::from([image("micro", 20), image("large", 25)]),
            owned: HashMap::new(),
            exports: 0,
            machines: HashMap::new(),
            open: HashMap::new(),
            memories: HashSet::new(),
            holds_on: false,
            has_agent: false,
            takes_keys_once: false,
            disks: HashMap::new(),
            brought: HashMap::new(),
            clones: HashMap::new(),
            removals: HashMap::new(),
            ends: HashMap::new(),
            snapshots: Snapshots::default(),
            shared_disks: Arc::default(),
            told_stores: BTreeSet::new(),
            refusals: Refusals::default(),
            delay: Duration::ZERO,
            stuck_gb: None,
            capacity,
            gpus: Arc::default(),
            deaf: false,
            unheard: 0,
            ssh_port: 22,
            network: VmNetwork::default(),
            travels: Travels::default(),
            migrations: Migrations::default(),
            taken: HashSet::new(),
            boot: 1,
            starts: 0,
            generations: Generations::default(),
            everything_runs: false,
            looked_at: HashSet::new(),
        };
        let staging = tempfile::tempdir().expect("a folder");
        Self { world: Mutex::new(world), events: broadcast::channel(4096).0, staging, held: watch::Sender::new(None) }
    }
}

impl World {
    fn gpus(&self) -> MutexGuard<'_, Gpus> {
        self.gpus.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shared_disks(&self) -> MutexGuard<'_, SharedDisks> {
        self.shared_disks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SimulatedEngine {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on a call of this name is refused.
    pub fn refuse(&self, call: &str, error: EngineError) {
        self.world().refusals.refuse(call, error);
    }

    /// From now on a call of this name works again.
    pub fn allow(&self, call: &str) {
        self.world().refusals.allow(call);
    }

    /// Whether a VM's machine was ended, or a start of it called off, later than it was asked to start.
    pub fn has_ended(&self, vm: &str) -> bool {
        self.world().generations.has_ended(vm.parse().expect("an id"))
    }

    /// From now on whoever makes a call of this name waits until [`Self::let_go`].
    pub fn hold(&self, call: &str) {
        self.held.send_replace(Some(call.to_owned()));
    }

    /// How many wait for [`Self::let_go`].
    pub fn waiting(&self) -> usize {
        self.held.receiver_count()
    }

    /// Those that wait go on.
    pub fn let_go(&self) {
        self.held.send_replace(None);
    }

    /// How long each call takes.
    pub fn set_delay(&self, delay: Duration) {
        self.world().delay = delay;
    }

    /// Disks of this size are never finished.
    pub fn set_stuck_disks(&self, size_gb: i64) {
        self.world().stuck_gb = Some(size_gb);
    }

    /// What there is to give.
    pub fn set_capacity(&self, change: impl FnOnce(&mut Capacity)) {
        change(&mut self.world().capacity);
    }

    /// The GPUs of the host, which other engines of it are to share.
    pub(crate) fn gpus_of_host(&self) -> Arc<Mutex<Gpus>> {
        self.world().gpus.clone()
    }

    /// The host has these GPUs, each in a group and at a node of its own, all of one model.
    pub fn set_gpus(&self, addresses: &[&str]) {
        self.world().gpus().set(addresses);
    }

    /// The host has a GPU of which so many parts of each kind can be made, of one kind at a time.
    pub fn divide_gpu(&self, address: &str, kinds: &[(&str, u32)]) {
        self.world().gpus().divide(address, kinds);
    }

    /// Something of the host's GPUs is otherwise from now on.
    pub fn change_gpus(&self, change: impl FnOnce(&mut Vec<Gpu>)) {
        change(&mut self.world().gpus().found);
    }

    /// How often a machine was started with a device that another one had.
    pub fn clashes(&self) -> u32 {
        self.world().gpus().clashes
    }

    /// How many devices machines have.
    pub fn assigned(&self) -> usize {
        self.world().gpus().assigned.len()
    }

    /// Whether guests ignore the power button.
    pub fn set_deaf(&self, deaf: bool) {
        self.world().deaf = deaf;
    }

    /// Whether guests take SSH keys at their first boot alone from now on, as those of imported images do.
    pub fn set_takes_keys_once(&self, takes_keys_once: bool) {
        self.world().takes_keys_once = takes_keys_once;
    }

    /// Whether guests have an agent from now on, which takes SSH keys.
    pub fn set_has_agent(&self, has_agent: bool) {
        self.world().has_agent = has_agent;
    }

    /// Whether guests hold on to their disks.
    pub fn set_holds_on(&self, holds_on: bool) {
        self.world().holds_on = holds_on;
    }

    /// How often the power button is pressed before a guest hears it.
    pub fn set_unheard(&self, presses: u32) {
        self.world().unheard = presses;
    }

    /// Where machines' SSH can answer on this host.
    pub fn set_ssh_port(&self, port: u16) {
        self.world().ssh_port = port;
    }

    /// How VMs are reached on this host.
    pub fn set_network(&self, network: VmNetwork) {
        self.world().network = network;
    }

    /// From now on another program of the host has a port of every address.
    pub fn take_port(&self, port: u16) {
        self.world().taken.insert(port);
    }

    /// The other program is gone.
    pub fn free_port(&self, port: u16) {
        self.world().taken.remove(&port);
    }

    /// The image's files are moved away.
    pub fn lose_image(&self, id: &str) {
        self.world().images.remove(id);
    }

    /// Something happens to a machine from outside.
    pub fn happen(&self, vm: &str, machine: Machine) {
        let id: MachineId = vm.parse().expect("an id");
        self.world().machines.get_mut(&id).expect("a machine").0 = machine;
        self.world().let_go_of_shared(id, machine);
        let _ = self.events.send(id);
    }

    /// The same, if there is such a machine and it has a process.
    pub fn happen_if_there(&self, vm: &str, machine: Machine) {
        let id: MachineId = vm.parse().expect("an id");
        let is_there = self.world().machines.get(&id).is_some_and(|(now, _)| *now != Machine::Absent);
        if is_there {
            self.set(id, machine);
        }
    }

    /// The host starts anew: every machine has ended, and its folder is there.
    pub fn restart_host(&self) {
        let mut world = self.world();
        world.boot += 1;
        world.machines.values_mut().for_each(|(machine, _)| *machine = Machine::Absent);
        let ended: Vec<_> = world.machines.keys().copied().collect();
        ended.into_iter().for_each(|id| world.let_go_of_shared(id, Machine::Absent));
        world.gpus().assigned.clear();
    }

    /// Whether every machine that is looked at runs, known or not: what a service finds after its restart.
    pub fn run_everything(&self, yes: bool) {
        self.world().everything_runs = yes;
    }

    /// How many machines were looked at since then.
    pub fn looked_at(&self) -> usize {
        self.world().looked_at.len()
    }

    /// Machines that have a process, disks that exist, and starts so far.
    pub fn counts(&self) -> (usize, usize, u32) {
        let world = self.world();
        let machines = world.machines.values().filter(|(machine, _)| *machine != Machine::Absent).count();
        (machines, world.disks.len(), world.starts)
    }

    /// How often a running machine is looked at before a snapshot of its disk is whole.
    pub fn set_copying(&self, looks: u32) {
        self.world().snapshots.looks = looks;
    }

    /// How many snapshots there are, whole ones and others.
    pub fn snapshots(&self) -> (usize, usize) {
        self.world().snapshots.counts()
    }

    /// How large a disk is, in GiB.
    pub fn disk_gb(&self, disk: &str) -> Option<i64> {
        self.world().disks.get(&disk.parse().ok()?).copied()
    }

    /// From now on it reaches the stores of another host.
    pub fn share_stores(&self, other: &Self) {
        let shared = other.world().shared_disks.clone();
        self.world().shared_disks = shared;
    }

    /// The names of stores that it was told of, and so learned the keys of.
    pub fn told_stores(&self) -> Vec<String> {
        self.world().told_stores.iter().cloned().collect()
    }

    /// What machines did with disks of stores that only one may do at a time, in words.
    pub fn violations(&self) -> Vec<String> {
        self.world().shared_disks().violations()
    }

    /// How large a disk of a store is, in GiB.
    pub fn shared_disk_gb(&self, disk: &str) -> Option<i64> {
        self.world().shared_disks().size_gb(disk.parse().ok()?)
    }

    /// How many hosts the stores that it reaches refuse.
    pub fn shut_outs(&self) -> usize {
        self.world().shared_disks().shut_outs()
    }

    /// How many disks lie in the stores that it reaches.
    pub fn shared_disks(&self) -> usize {
        self.world().shared_disks().count()
    }

    /// How many snapshots of disks lie in stores.
    pub fn shared_snapshots(&self) -> usize {
        self.world().shared_disks().count_snapshots()
    }

    /// What the file had of which a disk was made, and as which image it boots.
    pub fn brought(&self, disk: &str) -> Option<(Vec<u8>, Option<String>)> {
        self.world().brought.get(&disk.parse().ok()?).cloned()
    }

    /// The images that a root disk was cloned from, one after another.
    pub fn clones(&self, disk: &str) -> Vec<String> {
        self.world().clones.get(&disk.parse().expect("an id")).cloned().unwrap_or_default()
    }

    /// How often a disk was to be removed, whether it was there or not.
    pub fn removals(&self, disk: &str) -> u32 {
        self.world().removals.get(&disk.parse().expect("an id")).copied().unwrap_or_default()
    }

    /// How often a machine was to end, whether it was there or not.
    pub fn ends(&self, vm: &str) -> u32 {
        self.world().ends.get(&vm.parse().expect("an id")).copied().unwrap_or_default()
    }

    /// What a machine was started with.
    pub fn spec(&self, vm: &str) -> Option<MachineSpec> {
        self.world().machines.get(&vm.parse().ok()?).map(|(_, spec)| spec.clone())
    }

    /// The ports at which a machine is reached, SSH's among them.
    pub fn open_ports(&self, vm: &str) -> Vec<u16> {
        let id: MachineId = vm.parse().expect("an id");
        let mut ports: Vec<u16> = self.world().open.get(&id).into_iter().flatten().map(|port| port.at.port()).collect();
        ports.sort_unstable();
        ports
    }

    /// Whether it has an image.
    pub fn has_image(&self, id: &str) -> bool {
        self.world().images.contains_key(id)
    }

    /// How many images of projects it has.
    pub fn owned_images(&self) -> usize {
        self.world().owned.len()
    }

    /// How often a file of a disk was asked for.
    pub fn exports(&self) -> u32 {
        self.world().exports
    }

    /// It has this image of the platform, of this version, made at this second.
    pub fn set_image(&self, id: &str, version: &str, second: i64) {
        let mut world = self.world();
        world.images.insert(id.into(), image(id, version, 20 << 30));
        world.travels.note(id, second);
    }

    /// The version of an image of the platform that it has.
    pub fn version(&self, id: &str) -> Option<String> {
        self.world().images.get(id).map(|image| image.version.clone())
    }

    /// The bytes of files that it sends of images are others than it says.
    pub fn spoil_files(&self, spoilt: bool) {
        self.world().travels.spoilt = spoilt;
    }

    /// From each file that it sends of an image only so many bytes come, and then the end; all, if none is said.
    pub fn break_files_off(&self, after: Option<usize>) {
        self.world().travels.after = after;
    }

    /// How many images are under way to it, of which something came.
    pub fn arriving(&self) -> usize {
        self.world().travels.arriving.len()
    }

    /// Names of what waits to be imported.
    pub fn staged(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.staging.path()).expect("a folder").flatten();
        entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
    }

    fn image_of(&self, edition: &Edition) -> Result<ImageInfo> {
        let found = self.world().images.get(&edition.id).filter(|image| image.version == edition.version).cloned();
        found.ok_or_else(|| EngineError::Transient("the host does not have that edition any more".into()))
    }

    async fn call(&self, name: &str) -> Result<()> {
        if self.held.borrow().as_deref() == Some(name) {
            // An error says that the engine is gone, and then nobody waits for the call.
            let _ = self.held.subscribe().wait_for(|held| held.as_deref() != Some(name)).await;
        }
        let delay = self.world().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        self.world().refusals.check(name)
    }

    /// From now on processors of machines are made so.
    pub fn set_processor(&self, processor: &str) {
        processor.clone_into(&mut self.world().migrations.processor);
    }

    /// How a machine is at this moment; none where there is no such machine.
    pub fn machine(&self, vm: &str) -> Option<Machine> {
        self.world().machines.get(&vm.parse().ok()?).map(|(machine, _)| *machine)
    }

    /// Somebody else has acted on this generation of a machine.
    pub fn overtake(&self, vm: &str, generation: i64) {
        self.world().generations.overtake(vm.parse().expect("an id"), generation);
    }

    /// Whether a VM's memory is on the disk.
    pub fn has_memory(&self, vm: &str) -> bool {
        self.world().memories.contains(&vm.parse().expect("an id"))
    }

    /// Loses the memory of a VM.
    pub fn lose_memory(&self, vm: &str) {
        self.world().memories.remove(&vm.parse().expect("an id"));
    }

    fn set(&self, id: MachineId, machine: Machine) {
        if let Some(entry) = self.world().machines.get_mut(&id) {
            entry.0 = machine;
        }
        self.world().let_go_of_shared(id, machine);
        let _ = self.events.send(id);
    }
}

impl World {
    /// The file of what is exported, if that stands still.
    fn flat(&self, of: &ExportSource) -> Result<Vec<u8>> {
        let gone = || EngineError::Permanent("it is not there any more".into());
        let is_there = match of {
            ExportSource::Disk { id, of } => {
                let runs = |id| self.machines.get(&id).is_some_and(|(machine, _)| *machine != Machine::Absent);
                if of.is_some_and(runs) {
                    return Err(EngineError::Transient("a machine has the disk that runs".into()));
                }
                self.disks.contains_key(id)
            }
            ExportSource::Snapshot(id) => self.snapshots.is_whole(*id),
            ExportSource::Image(id) => self.owned.contains_key(id),
        };
        if is_there { Ok(exports::file(of)) } else { Err(gone()) }
    }

    fn cloned(&mut self, disk: &DiskSpec) {
        if let DiskSource::Image(image) = &disk.source {
            self.clones.entry(disk.id).or_default().push(image.clone());
        }
    }

    /// A machine whose process is gone has no disks of stores any more.
    fn let_go_of_shared(&self, id: MachineId, machine: Machine) {
        if machine == Machine::Absent {
            self.shared_disks().ended((self.number, id));
        }
    }

    fn attach(&mut self, id: MachineId, disk: DiskId) {
        if let Some((_, spec)) = self.machines.get_mut(&id)
            && !spec.data_disks.iter().any(|has| has.id == disk)
        {
            spec.data_disks.push(DataDisk { id: disk, mount: None });
        }
    }

    fn started(&self, spec: &MachineSpec) -> Started {
        let taken = spec.ports.iter().filter(|port| self.taken.contains(&port.at.port()));
        let (taken_ports, takes_keys_once) = (taken.map(|port| port.to).collect(), self.takes_keys_once);
        Started { taken_ports, takes_keys_once, ..Started::default() }
    }
}

fn image(id: &str, version: &str, virtual_size: i64) -> ImageInfo {
    ImageInfo {
        id: id.into(),
        name: id.into(),
        os: "linux".into(),
        version: version.into(),
        login_user: "root".into(),
        virtual_size,
        min_memory_mb: 96,
    }
}

#[async_trait]
impl Engine for SimulatedEngine {
    fn ready(&self) -> std::result::Result<(), String> {
        self.world().refusals.check("ready").map_err(|error| error.to_string())
    }

    async fn capacity(&self) -> Result<Capacity> {
        self.call("capacity").await?;
        Ok(self.world().capacity)
    }

    async fn gpus(&self) -> Result<Vec<Gpu>> {
        self.call("gpus").await?;
        Ok(self.world().gpus().found.clone())
    }

    fn ssh_port(&self) -> u16 {
        self.world().ssh_port
    }

    fn network(&self) -> VmNetwork {
        self.world().network.clone()
    }

    async fn ports_free(&self, first: SocketAddr, count: u16) -> bool {
        let world = self.world();
        (0..count).all(|more| !world.taken.contains(&(first.port() + more)))
    }

    fn host_boot(&self) -> String {
        self.world().boot.to_string()
    }

    async fn make_disk(&self, disk: &DiskSpec) -> Result<()> {
        self.call("make_disk").await?;
        if self.world().stuck_gb == Some(disk.size_gb) {
            std::future::pending::<()>().await;
        }
        let mut world = self.world();
        if let DiskSource::Snapshot { id, .. } = &disk.source
            && !world.snapshots.is_whole(*id)
        {
            return Err(EngineError::Permanent("there is no such snapshot".into()));
        }
        if world.disks.insert(disk.id, disk.size_gb).is_none() {
            world.cloned(disk);
        }
        Ok(())
    }

    async fn bring_disk(&self, file: &Path, disk: &BroughtDisk) -> Result<()> {
        self.call("bring_disk").await?;
        let content = std::fs::read(file).map_err(|error| EngineError::Permanent(error.to_string()))?;
        let mut world = self.world();
        if world.disks.contains_key(&disk.id) {
            return Ok(());
        }
        world.disks.insert(disk.id, disk.size_gb);
        world.brought.insert(disk.id, (content, disk.image.clone()));
        Ok(())
    }

    async fn grow_disk(&self, id: DiskId, size_gb: i64, of: Option<Aim>) -> Result<()> {
        self.call("grow_disk").await?;
        let mut world = self.world();
        if let Some(aim) = of {
            world.generations.admit(aim, Act::Change)?;
        }
        let disk = world.disks.get_mut(&id).ok_or_else(|| EngineError::Permanent("there is no such disk".into()))?;
        *disk = size_gb.max(*disk);
        Ok(())
    }

    async fn remove_disk(&self, id: DiskId) -> Result<()> {
        self.call("remove_disk").await?;
        let mut world = self.world();
        *world.removals.entry(id).or_default() += 1;
        world.disks.remove(&id);
        world.brought.remove(&id);
        Ok(())
    }

    async fn set_aside_disk(&self, id: DiskId, into: &Path) -> Result<()> {
        self.call("remove_disk").await?;
        if self.world().disks.remove(&id).is_some() {
            std::fs::write(into.join(id.to_string()), "").expect("a file");
        }
        Ok(())
    }

    async fn reach_store(&self, store: &Store) -> Result<Reached> {
        self.world().told_stores.insert(store.name.clone());
        self.call("reach_store").await?;
        Ok(Reached { addresses: vec![shared_disks::address(self.world().number)] })
    }

    async fn shut_out(&self, _: &Store, addresses: &[IpAddr]) -> Result<()> {
        self.call("shut_out").await?;
        addresses.iter().for_each(|address| self.world().shared_disks().shut_out(*address));
        // It may be so, and not be told.
        self.call("shut_out told").await
    }

    async fn refuses(&self, _: &Store, addresses: &[IpAddr]) -> Result<bool> {
        self.call("refuses").await?;
        Ok(addresses.iter().any(|address| self.world().shared_disks().is_shut_out(*address)))
    }

    async fn let_in(&self, _: &Store, addresses: &[IpAddr]) -> Result<()> {
        self.call("let_in").await?;
        addresses.iter().for_each(|address| self.world().shared_disks().let_in(*address));
        // It may be so, and not be told.
        self.call("let_in told").await
    }

    async fn openers(&self, _: &Store, disk: DiskId) -> Result<Vec<IpAddr>> {
        self.call("openers").await?;
        Ok(self.world().shared_disks().opener(disk).into_iter().collect())
    }

    async fn make_shared_disk(&self, disk: &DiskSpec, store: &Store) -> Result<()> {
        self.call("make_shared_disk").await?;
        let mut world = self.world();
        let is_made = world.shared_disks().find(disk.id, store).is_ok();
        world.shared_disks().make(disk, store)?;
        if !is_made {
            world.cloned(disk);
        }
        Ok(())
    }

    async fn grow_shared_disk(&self, id: DiskId, size_gb: i64, store: &Store) -> Result<()> {
        self.call("grow_shared_disk").await?;
        self.world().shared_disks().grow(id, size_gb, store)
    }

    async fn remove_shared_disk(&self, id: DiskId, store: &Store) -> Result<()> {
        self.call("remove_shared_disk").await?;
        let mut world = self.world();
        *world.removals.entry(id).or_default() += 1;
        world.shared_disks().remove(id, store);
        Ok(())
    }

    async fn attach_shared_disk(&self, aim: Aim, disk: DiskId, store: &Store) -> Result<()> {
        self.call("attach_shared_disk").await?;
        let mut world = self.world();
        world.generations.admit(aim, Act::Change)?;
        world.shared_disks().find(disk, store)?;
        if world.machines.get(&aim.id).is_some_and(|(machine, _)| *machine != Machine::Absent) {
            world.shared_disks().open(disk, (world.number, aim.id), store)?;
        }
        world.attach(aim.id, disk);
        Ok(())
    }

    async fn snapshot_shared_disk(&self, snapshot: &DiskSnapshotSpec, of: Option<Aim>, store: &Store) -> Result<u64> {
        self.call("snapshot_shared_disk").await?;
        let mut world = self.world();
        if let Some(aim) = of {
            world.generations.admit(aim, Act::Change)?;
        }
        world.shared_disks().snapshot(snapshot, store)?;
        Ok(1 << 20)
    }

    async fn copy_shared_disk(&self, snapshot: &DiskSnapshotSpec, of: Option<Aim>, store: &Store) -> Result<u64> {
        self.call("copy_shared_disk").await?;
        let mut world = self.world();
        if let Some(aim) = of {
            world.generations.admit(aim, Act::Change)?;
        }
        world.shared_disks().find(snapshot.disk, store)?;
        world.snapshots.make(snapshot.id, false).ok_or_else(|| EngineError::Transient("it is being copied".into()))
    }

    async fn restore_shared_disk(&self, disk: &DiskSpec, store: &Store) -> Result<()> {
        self.call("restore_shared_disk").await?;
        self.world().shared_disks().restore(disk, store)
    }

    async fn remove_shared_snapshot(&self, snapshot: &DiskSnapshotSpec, store: &Store) -> Result<()> {
        self.call("remove_shared_snapshot").await?;
        let mut world = self.world();
        world.shared_disks().remove_snapshot(snapshot.id, store);
        world.snapshots.remove(snapshot.id);
        Ok(())
    }

    async fn snapshot_disk(&self, snapshot: &DiskSnapshotSpec, of: Option<Aim>) -> Result<Option<u64>> {
        self.call("snapshot_disk").await?;
        let mut world = self.world();
        if let Some(aim) = of {
            world.generations.admit(aim, Act::Change)?;
        }
        if !world.disks.contains_key(&snapshot.disk) {
            return Err(EngineError::Permanent("there is no such disk".into()));
        }
        let runs = of.is_some_and(|aim| world.machines.get(&aim.id).is_some_and(|(now, _)| *now != Machine::Absent));
        Ok(world.snapshots.make(snapshot.id, runs))
    }

    async fn remove_snapshot(&self, id: DiskSnapshotId, of: Option<Aim>) -> Result<()> {
        self.call("remove_snapshot").await?;
        let mut world = self.world();
        if let Some(aim) = of {
            world.generations.admit(aim, Act::Change)?;
        }
        world.snapshots.remove(id);
        Ok(())
    }

    async fn set_aside_snapshot(&self, id: DiskSnapshotId, into: &Path) -> Result<()> {
        self.call("remove_snapshot").await?;
        if self.world().snapshots.remove(id) {
            std::fs::write(into.join(id.to_string()), "").expect("a file");
        }
        Ok(())
    }

    async fn export(&self, of: &ExportSource) -> Result<Exported> {
        self.call("export").await?;
        if let ExportSource::Disk { id, .. } = of {
            self.call(&format!("export {id}")).await?;
        }
        let mut world = self.world();
        world.exports += 1;
        Ok(exports::about(&world.flat(of)?))
    }

    async fn exported(&self, of: &ExportSource, sha256: &str, part: Part) -> Result<Box<dyn Content>> {
        self.call("exported").await?;
        let file = self.world().flat(of)?;
        Ok(Box::new(std::io::Cursor::new(exports::part(&file, sha256, part)?)))
    }

    async fn observe(&self, id: MachineId) -> Result<Machine> {
        self.call("observe").await?;
        let mut world = self.world();
        if world.everything_runs {
            world.looked_at.insert(id);
        }
        let unknown = if world.everything_runs { Machine::Running } else { Machine::Absent };
        Ok(world.machines.get(&id).map_or(unknown, |(machine, _)| *machine))
    }

    async fn guest_ready(&self, id: MachineId) -> bool {
        self.world().machines.contains_key(&id)
    }

    async fn has_network(&self, _: MachineId) -> bool {
        true
    }

    async fn start(&self, spec: &MachineSpec) -> Result<Option<Started>> {
        self.call("start").await?;
        self.world().generations.admit(spec.aim(), Act::Start)?;
        let mut world = self.world();
        if let Some(store) = &spec.store {
            let disks = spec.data_disks.iter().map(|data| data.id).chain([spec.root_disk]);
            disks.into_iter().try_for_each(|disk| world.shared_disks().open(disk, (world.number, spec.id), store))?;
        }
        world.starts += 1;
        world.gpus().start(spec.id, &spec.gpus);
        world.open.insert(spec.id, spec.ports.iter().copied().collect());
        world.machines.insert(spec.id, (Machine::Running, spec.clone()));
        let was_saved = world.memories.remove(&spec.id);
        let unloadable = (spec.goes_on && !was_saved).then(|| "it is not there any more".to_owned());
        Ok(Some(Started { unloadable, ..world.started(spec) }))
    }

    async fn suspend(&self, spec: &MachineSpec) -> Result<()> {
        let aim = spec.aim();
        self.call("suspend").await?;
        self.world().generations.admit(aim, Act::Change)?;
        let mut world = self.world();
        let runs = world.machines.get(&aim.id).is_some_and(|entry| entry.0 != Machine::Absent);
        if !runs && !world.memories.contains(&aim.id) {
            return Err(EngineError::Permanent("the machine ended before its memory was on the disk".into()));
        }
        world.memories.insert(aim.id);
        drop(world);
        if runs {
            self.set(aim.id, Machine::Paused);
        }
        Ok(())
    }

    async fn forget_memory(&self, aim: Aim) -> Result<()> {
        self.call("forget_memory").await?;
        self.world().generations.admit(aim, Act::Change)?;
        self.world().memories.remove(&aim.id);
        Ok(())
    }

    async fn resume(&self, aim: Aim) -> Result<()> {
        self.call("resume").await?;
        self.world().memories.remove(&aim.id);
        self.world().generations.admit(aim, Act::Change)?;
        let id = aim.id;
        self.set(id, Machine::Running);
        Ok(())
    }

    async fn press_power(&self, aim: Aim) -> Result<()> {
        self.call("press_power").await?;
        self.world().generations.admit(aim, Act::Change)?;
        let id = aim.id;
        let heard = {
            let mut world = self.world();
            let unheard = world.unheard;
            world.unheard = unheard.saturating_sub(1);
            unheard == 0 && !world.deaf
        };
        if heard {
            self.set(id, Machine::PoweredOff);
        }
        Ok(())
    }

    async fn power_off(&self, aim: Aim) -> Result<()> {
        self.call("power_off").await?;
        self.world().generations.admit(aim, Act::End)?;
        let id = aim.id;
        *self.world().ends.entry(id).or_default() += 1;
        self.set(id, Machine::Absent);
        self.world().gpus().end(id);
        Ok(())
    }

    async fn discard(&self, aim: Aim) -> Result<()> {
        self.call("discard").await?;
        self.world().generations.admit(aim, Act::End)?;
        let id = aim.id;
        let mut world = self.world();
        world.let_go_of_shared(id, Machine::Absent);
        world.machines.remove(&id);
        world.memories.remove(&id);
        world.gpus().end(id);
        Ok(())
    }

    async fn set_ports(&self, spec: &MachineSpec, before: Open) -> Result<Started> {
        self.world().generations.admit(spec.aim(), Act::Change)?;
        let (shut, add) = before.until(&spec.ports);
        let refused = self.call("set_ports").await;
        let mut world = self.world();
        let open = world.open.entry(spec.id).or_default();
        open.extend(add);
        // One that fails did the half of it.
        refused?;
        open.retain(|port| !shut.contains(port));
        if let Some(entry) = world.machines.get_mut(&spec.id) {
            entry.1 = spec.clone();
        }
        Ok(world.started(spec))
    }

    async fn set_keys(&self, aim: Aim, keys: &GuestKeys) -> Result<bool> {
        self.call("set_keys").await?;
        let mut world = self.world();
        world.generations.admit(aim, Act::Change)?;
        let has_agent = world.has_agent;
        let Some((_, spec)) = world.machines.get_mut(&aim.id).filter(|_| has_agent) else { return Ok(false) };
        spec.ssh_keys.retain(|key| !keys.former.contains(key) && !keys.keys.contains(key));
        spec.ssh_keys.extend(keys.keys.iter().cloned());
        Ok(true)
    }

    async fn attach_disk(&self, aim: Aim, disk: DiskId) -> Result<()> {
        self.call("attach_disk").await?;
        let mut world = self.world();
        world.generations.admit(aim, Act::Change)?;
        let known = world.disks.contains_key(&disk);
        if !known {
            return Err(EngineError::Permanent("there is no such disk".into()));
        }
        world.attach(aim.id, disk);
        Ok(())
    }

    async fn detach_disk(&self, aim: Aim, disk: DiskId) -> Result<bool> {
        self.call("detach_disk").await?;
        if self.world().holds_on {
            // A guest takes its time.
            tokio::time::sleep(HOLDS_ON).await;
        }
        let mut world = self.world();
        world.generations.admit(aim, Act::Change)?;
        let holds_on = world.holds_on;
        let Some((_, spec)) = world.machines.get_mut(&aim.id) else { return Ok(true) };
        if holds_on && spec.data_disks.iter().any(|has| has.id == disk) {
            return Ok(false);
        }
        spec.data_disks.retain(|has| has.id != disk);
        world.shared_disks().close(disk, (world.number, aim.id));
        Ok(true)
    }

    async fn likeness(&self, spec: &MachineSpec) -> Result<Likeness> {
        self.call("likeness").await?;
        let world = self.world();
        match world.machines.get(&spec.id) {
            Some((Machine::Running, spec)) if spec.gpus.is_empty() && spec.networks.is_empty() => {
                Ok(world.migrations.likeness(spec, &world.disks))
            }
            Some((Machine::Running, _)) => Err(EngineError::Permanent("it has a GPU, or is in a network".into())),
            _ => Err(EngineError::Transient("it does not run".into())),
        }
    }

    async fn expect_machine(&self, spec: &MachineSpec, likeness: &Likeness) -> Result<Started> {
        self.call("expect_machine").await?;
        let mut world = self.world();
        world.generations.admit(spec.aim(), Act::Start)?;
        world.migrations.compare(likeness)?;
        if world.machines.get(&spec.id).is_some_and(|(machine, _)| *machine == Machine::Running) {
            return Err(EngineError::Permanent("it runs here".into()));
        }
        for (id, bytes) in &likeness.disks {
            world.disks.insert(*id, i64::try_from(bytes >> 30).expect("a size"));
        }
        world.open.insert(spec.id, spec.ports.iter().copied().collect());
        world.machines.insert(spec.id, (Machine::Paused, spec.clone()));
        Ok(world.started(spec))
    }

    async fn send_machine(&self, aim: Aim, channel: Channel) -> Result<Box<dyn Console>> {
        self.call("send_machine").await?;
        let mut world = self.world();
        world.generations.admit(aim, Act::Change)?;
        world.migrations.send(aim.id, channel)
    }

    async fn fill_machine(&self, aim: Aim, channel: Channel) -> Result<Box<dyn Console>> {
        self.call("fill_machine").await?;
        let mut world = self.world();
        world.generations.admit(aim, Act::Change)?;
        Ok(world.migrations.fill(aim.id, channel))
    }

    async fn mirrored(&self, aim: Aim) -> Result<()> {
        self.call("mirrored").await?;
        self.world().generations.admit(aim, Act::Change)
    }

    async fn hand_over(&self, aim: Aim) -> Result<()> {
        self.call("hand_over").await?;
        self.world().generations.admit(aim, Act::Change)?;
        self.world().migrations.sent(aim.id)?;
        self.set(aim.id, Machine::Paused);
        Ok(())
    }

    async fn taken(&self, aim: Aim) -> Result<()> {
        self.call("taken").await?;
        self.world().generations.admit(aim, Act::Change)?;
        let arriving = self.world().migrations.arriving(aim.id);
        let Some(arriving) = arriving else { return Err(EngineError::Permanent("nothing of it came".into())) };
        arriving.all().await
    }

    async fn call_off(&self, aim: Aim) -> Result<()> {
        self.call("call_off").await?;
        self.world().generations.admit(aim, Act::Change)?;
        self.world().migrations.forget(aim.id);
        let stands = self.world().machines.get(&aim.id).is_some_and(|(machine, _)| *machine == Machine::Paused);
        if stands {
            self.set(aim.id, Machine::Running);
        }
        Ok(())
    }

    async fn remake_disk(&self, aim: Aim, disk: &DiskSpec) -> Result<()> {
        self.call("remake_disk").await?;
        let mut world = self.world();
        world.generations.admit(aim, Act::Change)?;
        if world.machines.get(&aim.id).is_some_and(|(machine, _)| *machine != Machine::Absent) {
            return Err(EngineError::Transient("the machine that has the disk has not ended yet".into()));
        }
        world.memories.remove(&aim.id);
        world.disks.insert(disk.id, disk.size_gb);
        world.cloned(disk);
        Ok(())
    }

    async fn console_log(&self, _: MachineId, bytes: usize) -> Result<Vec<u8>> {
        Ok(b"login: ".iter().copied().take(bytes).collect())
    }

    async fn console(&self, _: MachineId) -> Result<Box<dyn Console>> {
        // Says back what is typed.
        let (ours, theirs) = tokio::io::duplex(1024);
        let (mut read, mut write) = tokio::io::split(theirs);
        tokio::spawn(async move { tokio::io::copy(&mut read, &mut write).await });
        Ok(Box::new(ours))
    }

    async fn screen(&self, id: MachineId) -> Result<Box<dyn Console>> {
        self.call("screen").await?;
        self.console(id).await
    }

    async fn picture(&self, _: MachineId) -> Result<Vec<u8>> {
        self.call("picture").await?;
        Ok(PICTURE.iter().copied().cycle().take(PICTURE_BYTES).collect())
    }

    async fn usage(&self, _: MachineId) -> Option<Usage> {
        Some(Usage { cpu_seconds: 1.0, memory_bytes: 1 << 20 })
    }

    async fn images(&self) -> Result<Vec<ImageInfo>> {
        self.call("images").await?;
        Ok(self.world().images.values().cloned().collect())
    }

    async fn image(&self, id: &str) -> Result<Option<ImageInfo>> {
        self.call("images").await?;
        Ok(self.world().images.get(id).cloned())
    }

    async fn editions(&self) -> Result<Vec<Edition>> {
        self.call("editions").await?;
        let world = self.world();
        Ok(world.images.values().map(|image| world.travels.edition(image)).collect())
    }

    async fn image_files(&self, edition: &Edition) -> Result<Vec<ImageFile>> {
        self.call("image_files").await?;
        Ok(travels::files(&self.image_of(edition)?))
    }

    async fn image_file(&self, edition: &Edition, file: &ImageFile) -> Result<Box<dyn Content>> {
        self.call("image_file").await?;
        let image = self.image_of(edition)?;
        Ok(Box::new(std::io::Cursor::new(self.world().travels.send(&image, file)?)))
    }

    async fn expect_image(&self, arrival: &Arrival) -> Result<()> {
        arrival.check().map_err(EngineError::Permanent)?;
        self.call("expect_image").await?;
        let mut world = self.world();
        if i64::try_from(arrival.bytes()).is_ok_and(|bytes| bytes > world.capacity.room_bytes) {
            return Err(EngineError::NoCapacity("the host's disk has no room for the image".into()));
        }
        world.travels.expect(arrival);
        Ok(())
    }

    async fn take_image_file(
        &self,
        travel: Uuid,
        image: &str,
        file: &ImageFile,
        content: Box<dyn Content>,
    ) -> Result<()> {
        self.call("take_image_file").await?;
        let bytes = travels::receive(file, content).await?;
        self.world().travels.take((travel, image), file, bytes)
    }

    async fn adopt_image(&self, arrival: &Arrival) -> Result<()> {
        self.call("adopt_image").await?;
        let mut world = self.world();
        let known = world.images.get(&arrival.edition.id).map(|image| world.travels.edition(image));
        if let Some(image) = world.travels.adopt(arrival, known)? {
            world.images.insert(image.id.clone(), image);
        }
        Ok(())
    }

    async fn staging(&self) -> Result<PathBuf> {
        Ok(self.staging.path().to_owned())
    }

    async fn import_image(&self, file: &Path, import: &ImageImport) -> Result<ImageInfo> {
        self.call("import_image").await?;
        let content = std::fs::read(file).map_err(|e| EngineError::Permanent(e.to_string()))?;
        let size = i64::try_from(content.len()).expect("a size");
        let taken = ImageInfo { login_user: import.login_user.clone(), ..image(&import.id, "imported", size) };
        self.world().images.insert(import.id.clone(), taken.clone());
        Ok(taken)
    }

    async fn remove_image(&self, id: &str) -> Result<()> {
        self.call("remove_image").await?;
        let mut world = self.world();
        world.images.remove(id);
        if let Ok(id) = id.parse() {
            world.owned.remove(&id);
        }
        Ok(())
    }

    async fn make_image(&self, image: &ImageOfSnapshot) -> Result<ImageInfo> {
        self.call("make_image").await?;
        let mut world = self.world();
        if !world.snapshots.is_whole(image.snapshot) {
            return Err(EngineError::Permanent("there is no such snapshot".into()));
        }
        let made = ImageInfo { name: image.name.clone(), ..self::image(&image.id.to_string(), "made", 20 << 30) };
        Ok(world.owned.entry(image.id).or_insert(made).clone())
    }

    async fn set_aside_image(&self, id: ImageId, into: &Path) -> Result<()> {
        self.call("remove_image").await?;
        if self.world().owned.remove(&id).is_some() {
            std::fs::write(into.join(id.to_string()), "").expect("a file");
        }
        Ok(())
    }

    async fn scan(&self) -> Result<Found> {
        let world = self.world();
        Ok(Found {
            machines: world.machines.keys().copied().collect(),
            disks: world.disks.keys().copied().collect(),
            snapshots: world.snapshots.all(),
            images: world.owned.keys().copied().collect(),
        })
    }

    fn watch(&self) -> broadcast::Receiver<MachineId> {
        self.events.subscribe()
    }
}
