//! A host as administrators of the platform see it.

use std::collections::BTreeMap;

use berth_domain::Timestamp;
use berth_domain::host::gpu::{Device, Gpu, Kind, PciAddress};
use berth_domain::host::{Drain, Service};
use berth_domain::machine::Owner;
use serde::Serialize;
use utoipa::ToSchema;

use crate::db::machine_gpu::Held;
use crate::services::host::store::host::{HostRow, Things};

/// What machines run on.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HostResponse)]
pub struct HostView {
    /// Identifier: that of its data folder.
    #[schema(value_type = uuid::Uuid)]
    id: String,
    /// Its name: what an administrator calls it, or else what its machine calls itself.
    name: String,
    /// Regions that it belongs to.
    region_ids: Vec<String>,
    /// Where its service listens, or where it is asked.
    addresses: Vec<String>,
    /// Processors.
    cpus: i64,
    /// Memory for machines, in MiB: without what the host keeps for itself.
    memory_mb: i64,
    /// How often each MiB is promised: to VMs (`vm`) and to sandboxes (`sandbox`).
    memory_overcommit: BTreeMap<String, f64>,
    /// Its GPUs, and why some cannot be handed out.
    gpus: Vec<GpuView>,
    /// Stores of disks that it was asked about, and whether it reaches them.
    stores: Vec<StoreView>,
    /// Free pairs.
    labels: BTreeMap<String, String>,
    /// What becomes of its machines.
    #[schema(value_type = HostState)]
    state: &'static str,
    /// How VMs leave it while it is drained: `off`, those that are off, and those that run as they run; `all`, with a restart where that cannot be.
    #[schema(value_type = Option<HostDrain>)]
    drain: Option<&'static str>,
    /// What it has that is not deleted.
    holds: HoldsView,
    /// What machines hold of it.
    load: LoadView,
    /// Whether it joined and is asked over the network; else a service runs there.
    joined: bool,
    /// The service that runs there: the `active` one, or one that is in `standby`. Null where none does.
    #[schema(value_type = Option<HostService>)]
    service: Option<&'static str>,
    /// The version of Berth there.
    version: Option<String>,
    /// Why it cannot be asked now, or what keeps it from running machines.
    trouble: Option<String>,
    /// When its certificate ends, if it joined. It is renewed long before.
    #[schema(value_type = Option<String>, format = DateTime)]
    certificate_expires_at: Option<Timestamp>,
    /// When it was last there: looked at every ten seconds. Before it has joined, when it was added.
    #[schema(value_type = String, format = DateTime)]
    last_seen_at: Timestamp,
    /// When it was first there, or was added.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
}

/// A store of disks, as a host reaches it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HostStoreResponse)]
pub struct StoreView {
    /// Its name.
    name: String,
    /// Whether the host reaches it, so that disks of it can be had there.
    reached: bool,
    /// Why it does not.
    #[schema(required = true)]
    trouble: Option<String>,
}

/// What a host has that is not deleted.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HostHoldsResponse)]
pub struct HoldsView {
    /// Machines: of VMs, sandboxes and templates.
    machines: i64,
    /// Disks, and snapshots of disks.
    disks: i64,
    /// Images of projects.
    images: i64,
    /// Layers of disks of sandboxes, snapshots and templates, and captured memories, but for those of the platform's templates.
    layers: i64,
    /// Of these disks, those whose VM is on another host by now: they follow it.
    leaving: i64,
}

/// What machines hold of a host: those that run or are about to.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HostLoadResponse)]
pub struct LoadView {
    /// Virtual CPUs.
    vcpu: i64,
    /// Memory, in MiB.
    memory_mb: i64,
}

/// A change of a host; absent fields stay as they are.
#[derive(ToSchema)]
#[schema(as = UpdateHostRequest)]
#[expect(dead_code, reason = "describes `UpdateHost`")]
pub struct UpdateHostBody {
    /// What it is called from now on, whatever its machine calls itself.
    #[schema(min_length = 1, max_length = 100)]
    name: Option<String>,
    /// All labels that it has from now on.
    labels: Option<BTreeMap<String, String>>,
}

/// A GPU of a host.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HostGpuResponse)]
pub struct GpuView {
    /// Where it is on the host's buses.
    #[schema(value_type = String, example = "0000:01:00.0")]
    address: PciAddress,
    /// Its model: the id of the size of VMs that has it.
    model: String,
    /// Its model for people.
    name: String,
    /// Its IOMMU group. What is in one group is handed out together.
    iommu_group: Option<u32>,
    /// The node of memory and processors that it is nearest to.
    numa_node: Option<u32>,
    /// The VM that has it.
    #[schema(value_type = Option<uuid::Uuid>)]
    vm_id: Option<String>,
    /// The sandbox that has it.
    #[schema(value_type = Option<uuid::Uuid>)]
    sandbox_id: Option<String>,
    /// Why no machine can have it whole.
    unavailable: Option<String>,
    /// Kinds of parts that machines can have of it instead.
    kinds: Vec<KindView>,
    /// Parts of it that machines have.
    parts: Vec<PartView>,
}

/// A kind of parts of a GPU.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HostGpuKindResponse)]
pub struct KindView {
    /// Its model: the id of the size of VMs that has one.
    #[schema(example = "nvidia-a100-1-5c")]
    model: String,
    /// Its model for people.
    name: String,
    /// How many the driver would make now.
    free: u32,
    /// How many the GPU has room for in all, if it is divided into this kind alone.
    most: u32,
}

/// A part of a GPU that a machine has.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HostGpuPartResponse)]
pub struct PartView {
    /// The function that makes it, what its driver calls the kind, and its UUID if it is a mediated device.
    #[schema(example = "0000:41:00.4/1414")]
    part: String,
    /// Its model; none while the driver does not say it.
    model: Option<String>,
    /// The VM that has it.
    #[schema(value_type = Option<uuid::Uuid>)]
    vm_id: Option<String>,
    /// The sandbox that has it.
    #[schema(value_type = Option<uuid::Uuid>)]
    sandbox_id: Option<String>,
}

/// The ids of the VM and of the sandbox that has a device; one of them at most.
fn owners(held: Option<&Held>) -> (Option<String>, Option<String>) {
    match held.map(|held| held.owner) {
        Some(Owner::Vm(id)) => (Some(id.to_string()), None),
        Some(Owner::Sandbox(id)) => (None, Some(id.to_string())),
        Some(Owner::Template(_) | Owner::Warm(_)) | None => (None, None),
    }
}

/// What becomes of the machines of a host.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a word of the wire")]
pub(crate) enum HostState {
    /// Its service runs there, or ran there last.
    Ready,
    /// An administrator said that it takes no new machines; those that it has go on, and start there again.
    Cordoned,
    /// It takes no new machines, and VMs leave it.
    Draining,
    /// Another one has its database and its machines; or it joined and has not answered for half a minute.
    Lost,
    /// It was added and has not joined yet.
    Joining,
}

/// A service that runs on a host.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a word of the wire")]
pub(crate) enum HostService {
    /// It has the database and asks every host.
    Active,
    /// It takes the database where the active one is lost.
    Standby,
}

/// How VMs leave a host that is drained.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a word of the wire")]
pub(crate) enum HostDrain {
    /// Those that are off, and those that run while they run.
    Off,
    /// Those that cannot go as they run, too: each is shut down, and starts on another host.
    All,
}

impl HostView {
    /// Where it is.
    pub fn location(&self) -> String {
        format!("/api/v1/admin/hosts/{}", self.id)
    }

    /// A host, what it has, and what machines have of all hosts' GPUs.
    pub fn of(row: HostRow, things: Things, held: &[Held]) -> Self {
        let of_host = || held.iter().filter(|held| held.host == row.id);
        let view = |gpu: &Gpu| GpuView::of(gpu, of_host());
        Self {
            gpus: row.gpus.iter().map(view).collect(),
            stores: row.usable_stores().into_iter().map(StoreView::of).collect(),
            id: row.id.to_string(),
            name: row.name().to_owned(),
            state: row.state().as_str(),
            drain: row.drain.map(Drain::as_str),
            holds: HoldsView {
                machines: things.machines,
                disks: things.disks,
                images: things.images,
                layers: things.layers,
                leaving: things.leaving,
            },
            load: LoadView { vcpu: things.load.vcpu, memory_mb: things.load.memory_mb },
            joined: row.joined,
            service: row.service.map(Service::as_str),
            version: row.version,
            trouble: row.trouble,
            certificate_expires_at: row.certificate_until,
            region_ids: row.regions,
            addresses: row.addresses,
            cpus: row.capacity.cpus,
            memory_mb: row.capacity.memory_mb,
            memory_overcommit: row.overcommit,
            labels: row.labels,
            last_seen_at: row.last_seen,
            created_at: row.created_at,
        }
    }
}

impl StoreView {
    fn of((name, trouble): (String, Option<String>)) -> Self {
        Self { name, reached: trouble.is_none(), trouble }
    }
}

impl GpuView {
    /// A GPU, and what machines have of those of its host.
    fn of<'a>(gpu: &Gpu, held: impl Iterator<Item = &'a Held> + Clone) -> Self {
        let whole = Device::Function(gpu.address);
        let (vm_id, sandbox_id) = owners(held.clone().find(|held| held.device == whole));
        let is_here = |at: PciAddress| {
            let mut made = gpu.parts.iter().map(|part| part.at);
            at == gpu.address
                || made.any(|made| made == at)
                || gpu.kinds.iter().flat_map(|kind| &kind.places).any(|place| place.at == at)
        };
        let part = |held: &Held| {
            let part = held.device.part().filter(|part| is_here(part.at))?;
            let (vm_id, sandbox_id) = owners(Some(held));
            Some(PartView {
                part: part.to_string(),
                model: gpu.kinds.iter().find(|kind| kind.id == part.kind).map(|kind| kind.model.clone()),
                vm_id,
                sandbox_id,
            })
        };
        Self {
            address: gpu.address,
            model: gpu.model.clone(),
            name: gpu.name.clone(),
            iommu_group: gpu.group,
            numa_node: gpu.numa_node,
            vm_id,
            sandbox_id,
            unavailable: gpu.unavailable.clone(),
            kinds: gpu.kinds.iter().map(KindView::of).collect(),
            parts: held.filter_map(part).collect(),
        }
    }
}

impl KindView {
    fn of(kind: &Kind) -> Self {
        let free = kind.places.iter().map(|place| place.free).fold(0, u32::saturating_add);
        Self { model: kind.model.clone(), name: kind.name.clone(), free: free.min(kind.most), most: kind.most }
    }
}
