//! An engine of sandboxes that only remembers: layers with what was written to them, memories, machines.
//!
//! It notes whatever no engine may be asked for: to remove a layer that something builds on, to start a machine on
//! a layer that is not there, to write to a frozen one. A platform that ends asserts that nothing was noted.

mod guest;
mod layer;
mod steer;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use berth_domain::agent::control::Identity;
use berth_domain::host::aim::Act;
use berth_domain::ids::{LayerId, MachineId, MemoryId, TemplateId, UploadId};
use berth_domain::sandbox::network_policy::NetworkPolicy;
use berth_host::sandbox::agent::{self, Connection};
use berth_host::sandbox::{
    Activity, Aim, Build, Built, Capacity, Checkpoint, CheckpointDone, Found, From, Gpu, GuestArrival, ImageFile, Kept,
    Named, Observed, Paused, PlatformTemplate, Sample, SandboxEngine, StartSpec, Started, Warming,
};
use berth_host::vm::Content;
use berth_host::{EngineError, Result};
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::sync::broadcast;
use uuid::Uuid;

use crate::exports;
use crate::generations::Generations;
use crate::gpus::Gpus;
use crate::refusals::Refusals;
use crate::travels;
use layer::Layer;

/// What an agent is asked with.
const AGENT_TOKEN: &str = "a-simulated-token";
/// How long an agent may take to greet.
const AGENT_PATIENCE: Duration = Duration::from_secs(60);
/// How long it may take until it begins to answer, so that no test depends on how busy its host is.
const AGENT_ANSWER: Duration = Duration::from_mins(10);

/// The engine.
pub struct SimulatedSandboxes {
    world: Mutex<World>,
    /// The host's GPUs, which VMs have of, too.
    gpus: Mutex<Arc<Mutex<Gpus>>>,
    events: broadcast::Sender<MachineId>,
    uploads: TempDir,
}

struct Machine {
    spec: StartSpec,
    top: LayerId,
    alive: bool,
    from_memory: bool,
    /// Whether it is somebody's.
    identified: bool,
}

struct World {
    guests: guest::Guests,
    travels: layer::Travels,
    layers: HashMap<LayerId, Layer>,
    memories: HashSet<MemoryId>,
    machines: HashMap<MachineId, Machine>,
    refusals: Refusals,
    /// By the sandboxes.
    activity: HashMap<String, Activity>,
    /// How often it was asked what runs, and did not know.
    questions: u32,
    capacity: Capacity,
    delay: Duration,
    agent: Option<PathBuf>,
    /// When sandboxes began: long ago.
    since: Instant,
    /// How long an agent may take until it begins to answer.
    answer: Duration,
    boot: u32,
    starts: u32,
    /// The generation of each machine that was acted on.
    generations: Generations,
    loads_memory: bool,
    version: u32,
    /// One more of the platform's templates, whose sandboxes find a program running.
    serves: Option<String>,
    /// Whether builds last until they are called off.
    builds_last: bool,
    /// Whether the programs of templates hang.
    templates_hang: bool,
    /// Templates that are being booted.
    warming: HashSet<MachineId>,
    /// Builds that began.
    builds: u32,
    /// How many machines it keeps that nobody owns yet.
    most_warm: usize,
    violations: Vec<String>,
}

impl Default for SimulatedSandboxes {
    fn default() -> Self {
        let world = World {
            guests: guest::Guests::default(),
            travels: layer::Travels::default(),
            layers: HashMap::new(),
            memories: HashSet::new(),
            machines: HashMap::new(),
            refusals: Refusals::default(),
            activity: HashMap::new(),
            questions: 0,
            capacity: Capacity { memory_mb: 1_000_000, disk_bytes: 1 << 40, has_guest: true },
            delay: Duration::ZERO,
            agent: None,
            since: Instant::now().checked_sub(Duration::from_mins(1)).unwrap_or_else(Instant::now),
            answer: AGENT_ANSWER,
            boot: 1,
            starts: 0,
            generations: Generations::default(),
            loads_memory: true,
            version: 1,
            serves: None,
            builds_last: false,
            templates_hang: false,
            warming: HashSet::new(),
            builds: 0,
            most_warm: 0,
            violations: Vec::new(),
        };
        let uploads = TempDir::new().expect("a folder");
        Self { world: Mutex::new(world), gpus: Mutex::default(), events: broadcast::channel(4096).0, uploads }
    }
}

impl World {
    fn require(&mut self, good: bool, what: impl FnOnce() -> String) {
        if !good {
            self.violations.push(what());
        }
    }

    /// What is sent of a memory.
    fn memory(&self, id: MemoryId) -> Result<Vec<u8>> {
        let missing = || EngineError::Transient("there is no such memory".into());
        self.memories.contains(&id).then(|| exports::file(&id)).ok_or_else(missing)
    }

    fn chain(&self, top: LayerId) -> Vec<LayerId> {
        std::iter::successors(Some(top), |id| self.layers.get(id)?.parent).collect()
    }
}

impl SimulatedSandboxes {
    /// Uploads that are on the host.
    fn sent(&self) -> Vec<UploadId> {
        let entries = std::fs::read_dir(self.uploads.path()).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// Has its machines have of GPUs that those of another engine of the host have, too.
    pub(crate) fn share(&self, gpus: Arc<Mutex<Gpus>>) {
        *self.gpus.lock().unwrap_or_else(PoisonError::into_inner) = gpus;
    }

    fn with_gpus<T>(&self, act: impl FnOnce(&mut Gpus) -> T) -> T {
        let shared = self.gpus.lock().unwrap_or_else(PoisonError::into_inner).clone();
        act(&mut shared.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn call(&self, name: &str) -> Result<()> {
        let delay = self.world().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        self.world().refusals.check(name)
    }

    /// The rest of a checkpoint, of a machine or without one.
    fn advance(&self, checkpoint: &Checkpoint) -> CheckpointDone {
        let mut world = self.world();
        world
            .layers
            .entry(checkpoint.next)
            .or_insert_with(|| Layer { parent: Some(checkpoint.top), ..Layer::default() });
        let known = world.layers.contains_key(&checkpoint.top);
        world.require(known, || format!("{} is checkpointed at a layer that is not there", checkpoint.machine));
        if let Some(top) = world.layers.get_mut(&checkpoint.top) {
            top.frozen = true;
        }
        if let Some(machine) = world.machines.get_mut(&checkpoint.machine) {
            machine.top = checkpoint.next;
        }
        let memory_bytes = checkpoint.memory.map(|memory| {
            world.memories.insert(memory);
            1 << 20
        });
        CheckpointDone { disk_bytes: 1 << 10, memory_bytes }
    }
}

impl World {
    /// The machine of a sandbox, if one was ever started.
    fn machine_of(&self, sandbox: &str) -> Option<MachineId> {
        self.machines.values().find(|machine| machine.spec.guest == sandbox).map(|machine| machine.spec.id)
    }
}

/// What a host calls a memory that it sends: by that the other one knows whether its machines can load it.
fn label(id: MemoryId) -> String {
    format!("machines-of.{id}")
}

#[async_trait]
impl SandboxEngine for SimulatedSandboxes {
    fn ready(&self) -> std::result::Result<(), String> {
        self.world().refusals.check("ready").map_err(|error| error.to_string())
    }

    async fn capacity(&self) -> Result<Capacity> {
        self.call("capacity").await?;
        let world = self.world();
        Ok(Capacity { has_guest: world.guests.here.is_some(), ..world.capacity })
    }

    fn host_boot(&self) -> String {
        self.world().boot.to_string()
    }

    async fn gpus(&self) -> Result<Vec<Gpu>> {
        self.call("gpus").await?;
        Ok(self.with_gpus(|gpus| gpus.found.clone()))
    }

    async fn guest(&self) -> Result<Option<String>> {
        self.call("guest").await?;
        Ok(self.world().guests.hash())
    }

    async fn guest_files(&self, version: &str) -> Result<Vec<ImageFile>> {
        self.call("guest_files").await?;
        self.world().guests.files(version)
    }

    async fn guest_file(&self, version: &str, file: &ImageFile) -> Result<Box<dyn Content>> {
        self.call("guest_file").await?;
        Ok(Box::new(std::io::Cursor::new(self.world().guests.send(version, file)?)))
    }

    async fn expect_guest(&self, arrival: &GuestArrival) -> Result<()> {
        arrival.check().map_err(EngineError::Permanent)?;
        self.call("expect_guest").await?;
        let mut world = self.world();
        if i64::try_from(arrival.bytes()).is_ok_and(|bytes| bytes > world.capacity.disk_bytes) {
            return Err(EngineError::NoCapacity("the host's disk has no room for what sandboxes boot".into()));
        }
        world.guests.arriving = Some((arrival.travel, HashMap::new()));
        Ok(())
    }

    async fn take_guest_file(&self, travel: Uuid, file: &ImageFile, content: Box<dyn Content>) -> Result<()> {
        self.call("take_guest_file").await?;
        let bytes = travels::receive(file, content).await?;
        self.world().guests.take(travel, file, bytes)
    }

    async fn adopt_guest(&self, arrival: &GuestArrival) -> Result<()> {
        self.call("adopt_guest").await?;
        self.world().guests.adopt(arrival)
    }

    async fn templates(&self) -> Result<Vec<PlatformTemplate>> {
        let world = self.world();
        let base = PlatformTemplate {
            name: "base".into(),
            version: world.version.to_string(),
            vcpu: 1,
            memory_mb: 512,
            disk_gb: 10,
            user: "user".into(),
            start_command: None,
            ready_command: None,
        };
        let another = world.serves.clone().map(|name| {
            let (start_command, ready_command) = (Some("serve".into()), Some("true".into()));
            PlatformTemplate { name, start_command, ready_command, ..base.clone() }
        });
        Ok([base].into_iter().chain(another).collect())
    }

    async fn adopt_template(&self, _: &str, layer: LayerId) -> Result<()> {
        self.call("adopt_template").await?;
        self.world().layers.entry(layer).or_default();
        Ok(())
    }

    async fn make_layer(&self, id: LayerId, parent: LayerId) -> Result<()> {
        self.call("make_layer").await?;
        let mut world = self.world();
        let known = world.layers.contains_key(&parent);
        world.require(known, || format!("the layer {id} is made on one that is not there"));
        world.layers.entry(id).or_insert_with(|| Layer { parent: Some(parent), ..Layer::default() });
        Ok(())
    }

    async fn remove_layer(&self, id: LayerId) -> Result<()> {
        self.call("remove_layer").await?;
        let mut world = self.world();
        let built_on = world.layers.values().any(|layer| layer.parent == Some(id));
        world.require(!built_on, || format!("the layer {id} is removed, and others build on it"));
        let used = world.machines.values().any(|m| m.alive && m.top == id);
        world.require(!used, || format!("the layer {id} is removed, and a machine writes to it"));
        world.layers.remove(&id);
        Ok(())
    }

    async fn layer_bytes(&self, _: LayerId) -> Result<i64> {
        Ok(1 << 10)
    }

    async fn layer_file(&self, id: LayerId) -> Result<ImageFile> {
        self.call("layer_file").await?;
        let world = self.world();
        let found = world.layers.get(&id).ok_or_else(|| EngineError::Transient("there is no such layer".into()))?;
        Ok(layer::file(id, &layer::bytes(id, found)))
    }

    async fn read_layer(&self, id: LayerId, _: &ImageFile) -> Result<Box<dyn Content>> {
        self.call("read_layer").await?;
        let world = self.world();
        let found = world.layers.get(&id).ok_or_else(|| EngineError::Transient("there is no such layer".into()))?;
        let mut bytes = layer::bytes(id, found);
        if world.travels.spoilt {
            bytes[0] ^= 1;
        }
        bytes.truncate(world.travels.after.unwrap_or(bytes.len()));
        Ok(Box::new(std::io::Cursor::new(bytes)))
    }

    async fn expect_layer(&self, id: LayerId, file: &ImageFile) -> Result<bool> {
        self.call("expect_layer").await?;
        let world = self.world();
        if world.layers.contains_key(&id) {
            return Ok(false);
        }
        if i64::try_from(file.bytes).is_ok_and(|bytes| bytes > world.capacity.disk_bytes) {
            return Err(EngineError::NoCapacity(berth_host::sandbox::DISK_FULL.into()));
        }
        Ok(true)
    }

    async fn take_layer(&self, id: LayerId, file: &ImageFile, content: Box<dyn Content>) -> Result<()> {
        let (coming, most) = self.world().travels.coming;
        self.world().travels.coming = (coming + 1, most.max(coming + 1));
        let taken = async {
            self.call("take_layer").await?;
            layer::read(&travels::receive(file, content).await?)
        };
        let taken = taken.await;
        let mut world = self.world();
        world.travels.coming.0 -= 1;
        world.layers.insert(id, taken?);
        world.travels.brought += 1;
        Ok(())
    }

    async fn remove_memory(&self, id: MemoryId) -> Result<()> {
        self.call("remove_memory").await?;
        self.world().memories.remove(&id);
        Ok(())
    }

    async fn memory_file(&self, id: MemoryId) -> Result<ImageFile> {
        self.call("memory_file").await?;
        self.world().memory(id).map(|bytes| layer::said(label(id), &bytes))
    }

    async fn read_memory(&self, id: MemoryId, _: &ImageFile) -> Result<Box<dyn Content>> {
        self.call("read_memory").await?;
        let world = self.world();
        let mut bytes = world.memory(id)?;
        bytes.truncate(world.travels.after.unwrap_or(bytes.len()));
        Ok(Box::new(std::io::Cursor::new(bytes)))
    }

    async fn expect_memory(&self, id: MemoryId, file: &ImageFile) -> Result<bool> {
        self.call("expect_memory").await?;
        if file.name != label(id) {
            return Err(EngineError::Permanent("it was captured of other machines".into()));
        }
        let world = self.world();
        if world.memories.contains(&id) {
            return Ok(false);
        }
        if i64::try_from(file.bytes).is_ok_and(|bytes| bytes > world.capacity.disk_bytes) {
            return Err(EngineError::NoCapacity(berth_host::sandbox::DISK_FULL.into()));
        }
        Ok(true)
    }

    async fn take_memory(&self, id: MemoryId, file: &ImageFile, content: Box<dyn Content>) -> Result<()> {
        self.call("take_memory").await?;
        travels::receive(file, content).await?;
        let mut world = self.world();
        if !world.loads_memory {
            return Err(EngineError::Permanent("the other host has another processor".into()));
        }
        world.memories.insert(id);
        Ok(())
    }

    async fn set_aside(&self, kept: Kept, into: &Path) -> Result<()> {
        let (id, was_there) = match kept {
            Kept::Layer(id) => (id.to_string(), self.world().layers.remove(&id).is_some()),
            Kept::Memory(id) => (id.to_string(), self.world().memories.remove(&id)),
            Kept::Upload(id) => {
                (id.to_string(), std::fs::remove_file(self.uploads.path().join(id.to_string())).is_ok())
            }
        };
        if was_there {
            std::fs::write(into.join(id), "").expect("a file");
        }
        Ok(())
    }

    async fn observe(&self, id: MachineId) -> Result<Observed> {
        self.call("observe").await?;
        Ok(match self.world().machines.get(&id) {
            None => Observed::Absent,
            Some(machine) if !machine.identified => Observed::Absent,
            Some(machine) if machine.alive => Observed::Running { generation: machine.spec.generation },
            Some(_) => Observed::Ended,
        })
    }

    async fn start(&self, spec: &StartSpec) -> Result<Started> {
        self.call("start").await?;
        self.world().generations.admit(spec.aim(), Act::Start)?;
        let mut world = self.world();
        if let Some(machine) = world.machines.get_mut(&spec.id).filter(|m| m.alive) {
            let from_memory = machine.from_memory;
            let same = machine.spec.generation == spec.generation && machine.spec.layers == spec.layers;
            (machine.spec, machine.identified) = (spec.clone(), true);
            world.require(same, || format!("{} is started over another machine", spec.id));
            return Ok(Started { from_memory, ..Started::default() });
        }
        if world.guests.here.is_none() {
            return Err(EngineError::Permanent("this host has not built what sandboxes boot".into()));
        }
        let top = spec.layers[0];
        let whole = world.layers.contains_key(&top) && world.chain(top) == spec.layers;
        world.require(whole, || format!("{} is started on a disk that is not there", spec.id));
        let frozen = world.layers.get(&top).is_some_and(|layer| layer.frozen);
        world.require(!frozen, || format!("{} is started on a frozen layer", spec.id));
        let shared = world.machines.values().any(|m| m.alive && m.top == top);
        world.require(!shared, || format!("{} is started on a layer that another writes to", spec.id));
        // A memory that ran on a disk does not go on there a second time.
        let has_run = world.machines.get(&spec.id).is_some_and(|machine| machine.from_memory && machine.top == top);
        let (from_memory, unloadable) = match spec.from {
            From::Memory(memory) => {
                let loads = world.memories.contains(&memory) && world.loads_memory;
                (loads && !has_run, !loads && !has_run)
            }
            From::Disk => (false, false),
        };
        world.starts += 1;
        world.require(spec.gpus.is_empty() || !from_memory, || format!("{} with a GPU loads a memory", spec.id));
        self.with_gpus(|gpus| gpus.start(spec.id, &spec.gpus));
        world.machines.insert(spec.id, Machine { spec: spec.clone(), top, alive: true, from_memory, identified: true });
        Ok(Started { from_memory, unloadable, note: None })
    }

    fn most_warm(&self) -> usize {
        self.world().most_warm
    }

    async fn warm_up(&self, spec: &StartSpec) -> Result<()> {
        self.call("warm_up").await?;
        let mut world = self.world();
        let top = spec.layers[0];
        let whole = world.layers.contains_key(&top) && world.chain(top) == spec.layers;
        world.require(whole, || format!("{} is started on a disk that is not there", spec.id));
        let machine = Machine { spec: spec.clone(), top, alive: true, from_memory: true, identified: false };
        world.machines.insert(spec.id, machine);
        Ok(())
    }

    async fn is_warm(&self, id: MachineId) -> Result<bool> {
        Ok(self.world().machines.get(&id).is_some_and(|machine| machine.alive && !machine.identified))
    }

    async fn checkpoint(&self, checkpoint: &Checkpoint) -> Result<CheckpointDone> {
        self.call("checkpoint").await?;
        self.world().generations.admit(checkpoint.aim(), Act::Change)?;
        if !self.world().machines.get(&checkpoint.machine).is_some_and(|m| m.alive) {
            return Err(EngineError::Transient("there is no machine".into()));
        }
        Ok(self.advance(checkpoint))
    }

    async fn checkpoint_cold(&self, checkpoint: &Checkpoint) -> Result<CheckpointDone> {
        self.call("checkpoint_cold").await?;
        self.world().generations.admit(checkpoint.aim(), Act::Change)?;
        Ok(CheckpointDone { memory_bytes: None, ..self.advance(&Checkpoint { memory: None, ..checkpoint.clone() }) })
    }

    async fn pause(&self, aim: Aim, memory: Option<MemoryId>) -> Result<Paused> {
        self.call("pause").await?;
        self.world().generations.admit(aim, Act::End)?;
        let id = aim.id;
        let mut world = self.world();
        let ran = world.machines.remove(&id).is_some_and(|m| m.alive);
        self.with_gpus(|gpus| gpus.end(id));
        if let Some(memory) = memory.filter(|_| ran) {
            world.memories.insert(memory);
        }
        let kept = memory.filter(|memory| world.memories.contains(memory));
        Ok(Paused { memory_bytes: kept.map(|_| 1 << 20) })
    }

    async fn end(&self, aim: Aim) -> Result<()> {
        self.call("end").await?;
        self.world().generations.admit(aim, Act::End)?;
        let id = aim.id;
        let mut world = self.world();
        world.machines.remove(&id);
        self.with_gpus(|gpus| gpus.end(id));
        world.warming.remove(&id);
        Ok(())
    }

    async fn discard(&self, aim: Aim) -> Result<()> {
        self.call("discard").await?;
        self.world().generations.admit(aim, Act::End)?;
        let id = aim.id;
        let mut world = self.world();
        let runs = world.machines.remove(&id).is_some_and(|m| m.alive);
        self.with_gpus(|gpus| gpus.end(id));
        world.require(!runs, || format!("{id} is discarded while it runs"));
        Ok(())
    }

    async fn set_network(&self, aim: Aim, network: &NetworkPolicy) -> Result<()> {
        self.call("set_network").await?;
        self.world().generations.admit(aim, Act::Change)?;
        let id = aim.id;
        if let Some(machine) = self.world().machines.get_mut(&id) {
            machine.spec.network = network.clone();
        }
        Ok(())
    }

    async fn upload(&self, id: UploadId) -> Result<PathBuf> {
        self.call("upload").await?;
        Ok(self.uploads.path().join(id.to_string()))
    }

    async fn remove_upload(&self, id: UploadId) -> Result<()> {
        self.call("remove_upload").await?;
        let _ = std::fs::remove_file(self.uploads.path().join(id.to_string()));
        Ok(())
    }

    async fn clear_build(&self, _: TemplateId) -> Result<()> {
        Ok(())
    }

    async fn build_template(&self, build: &Build) -> Result<Built> {
        self.call("build_template").await?;
        build.log.line("simulated");
        let (last, parent) = {
            let mut world = self.world();
            world.builds += 1;
            let below = build.spec.images.values().find_map(|named| match named {
                Named::Template { layers, .. } => layers.first().copied(),
                Named::Upload(_) => None,
            });
            let there = below.is_none_or(|below| world.layers.contains_key(&below));
            world.require(there, || format!("{} is built on a layer that is not there", build.spec.id));
            (world.builds_last, below)
        };
        if last {
            build.cancel.cancelled().await;
            return Err(EngineError::Transient("called off".into()));
        }
        self.world().layers.entry(build.spec.layer).or_default().parent = parent;
        Ok(Built {
            env: [("FROM_IMAGE".to_owned(), "1".to_owned())].into(),
            user: "user".into(),
            workdir: None,
            start_command: None,
            parent,
            disk_gb: build.spec.disk_gb,
        })
    }

    async fn warm_template(&self, warming: &Warming) -> Result<i64> {
        self.call("warm_template").await?;
        if self.world().templates_hang {
            self.world().warming.insert(warming.machine.id);
            std::future::pending::<()>().await;
        }
        self.world().memories.insert(warming.memory);
        Ok(1 << 20)
    }

    async fn connect(&self, _: MachineId) -> Result<Connection> {
        let Some(socket) = self.world().agent.clone() else {
            return Err(EngineError::Transient("a simulated machine has no agent".into()));
        };
        let gone = |error: String| EngineError::Transient(error);
        let stream = UnixStream::connect(socket).await.map_err(|e| gone(e.to_string()))?;
        let session = agent::connect(stream, AGENT_PATIENCE).await.map_err(|e| gone(e.to_string()))?;
        session.identify(&identity()).await.map_err(|e| gone(e.to_string()))?;
        let authorization = format!("Bearer {AGENT_TOKEN}");
        let world = self.world();
        Ok(Connection { session, authorization, since: world.since, patience: world.answer, in_use: Arc::new(()) })
    }

    fn activity(&self, id: MachineId) -> Activity {
        let mut world = self.world();
        let guest = world.machines.get(&id).map(|machine| machine.spec.guest.clone()).unwrap_or_default();
        let known = world.activity.get(&guest).copied();
        let activity = known.unwrap_or(Activity { running: Some(0), ..Activity::default() });
        world.questions += u32::from(activity.running.is_none());
        activity
    }

    async fn sample(&self, id: MachineId) -> Option<Sample> {
        let runs = self.world().machines.get(&id).is_some_and(|m| m.alive);
        let sample =
            Sample { cpu_seconds: 1.0, memory_bytes: 1 << 20, disk_bytes: 1, rx_bytes: 2, tx_bytes: 3, processes: 4 };
        runs.then_some(sample)
    }

    async fn scan(&self) -> Result<Found> {
        let world = self.world();
        Ok(Found {
            machines: world.machines.keys().copied().collect(),
            builds: Vec::new(),
            layers: world.layers.keys().copied().collect(),
            memories: world.memories.iter().copied().collect(),
            uploads: self.sent(),
        })
    }

    fn watch(&self) -> broadcast::Receiver<MachineId> {
        self.events.subscribe()
    }
}

fn identity() -> Identity {
    Identity {
        sandbox_id: "simulated".into(),
        token: AGENT_TOKEN.into(),
        hostname: "simulated".into(),
        machine_id: "0123456789abcdef0123456789abcdef".into(),
        entropy: "AAAAAAAAAAAAAAAAAAAAAA==".into(),
        unix_micros: 0,
        env: std::collections::BTreeMap::new(),
        network: None,
        thaw: false,
    }
}
