//! Making a VM, with all that a request refers to.

use std::net::IpAddr;

use berth_domain::firewall::Rules;
use berth_domain::ids::{DiskId, MachineId, VmId};
use berth_domain::machine::Owner;
use berth_domain::vm::disk_snapshot::Wanted;
use berth_domain::vm::inbound::Reached;
use berth_domain::vm::model::{KeysState, Want};
use berth_domain::vm::request::{CreateVm, NewDisk, RootDisk, RootSource};
use berth_domain::vm::shared_disk::on_attach;
use berth_domain::vm::{DiskKind, DiskStatus, DiskType, Extent, ImageStatus, Status};
use berth_domain::{Code, Error, Result, Timestamp};
use serde_json::json;
use uuid::Uuid;

use super::super::disk_snapshot;
use super::super::project_image;
use super::super::size;
use super::super::with_disks::VmWithDisks;
use crate::db::audit::Audit;
use crate::db::machine::Machine;
use crate::db::network::MembershipRow;
use crate::db::usage::Held;
use crate::db::{Signal, Tx, event};
use crate::http::auth::Scope;
use crate::http::idempotency::{Idempotency, Outcome};
use crate::services::vm::store::disk::DiskRow;
use crate::services::vm::store::disk_snapshot::DiskSnapshotRow;
use crate::services::vm::store::image::ImageRow;
use crate::services::vm::store::vm::VmRow;
use crate::services::vm::store::{self, Tenant};
use crate::services::vm::wire::vm::{MadeView, VmView};
use crate::services::vm::{Vms, told};
use crate::services::{chosen_key, membership, quota};

/// Records the wish for a VM, or for several: all of them or none.
pub async fn create(vms: &Vms, scope: &Scope, request: CreateVm, key: Idempotency) -> Result<Outcome<MadeView>> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    let mut plan = check(vms, &mut tx, scope, &request, now).await?;
    let mut places = std::mem::take(&mut plan.places).into_iter();
    let mut views = Vec::new();
    for name in request.names().map_err(Error::internal)? {
        let networks = places.next().unwrap_or_default();
        let made = write(&mut tx, scope, (&request, name.as_str()), (&plan, networks), now).await?;
        created(&mut tx, scope, &made.vm, now).await?;
        views.push(VmView::new(&made.vm, &made.disks));
    }
    let location = views.first().map(|view| view.location(scope)).unwrap_or_default();
    let view = MadeView::of(views, request.count.is_some()).ok_or_else(|| Error::internal("no VM was made"))?;
    let outcome = key.created(&mut tx, now, location, view).await?;
    tx.signal(Signal::Work("vms"));
    tx.commit().await?;
    Ok(outcome)
}

/// Audit record, event and operation of a new VM.
async fn created(tx: &mut Tx, scope: &Scope, vm: &VmRow, now: Timestamp) -> Result<()> {
    let subject = vm.id.to_string();
    let data = json!({"name": vm.name, "status": vm.status.as_str()});
    Audit { data: data.clone(), ..scope.audit("vm.create", &subject) }.write(tx, now).await?;
    event::emit(tx, scope.project, "vm.created", &subject, &data, now).await?;
    store::operation::begin(tx, vm.id, "create", scope.caller.actor(), now).await?;
    Ok(())
}

/// What the references of a request lead to.
struct Resolved {
    vcpu: i64,
    memory_mb: i64,
    image: Origin,
    root: Option<DiskRow>,
    attached: Vec<DiskRow>,
    /// For each VM its places in networks.
    places: Vec<Vec<MembershipRow>>,
    ssh_keys: Vec<String>,
    shared_address: Option<IpAddr>,
    /// The store that all its disks lie in, where they do not lie on its host.
    store: Option<String>,
}

/// Checks the references in the order of the contract: region, vm_config, plan, image, root disk, data
/// disks, networks, SSH keys; conflicts come last.
async fn check(vms: &Vms, tx: &mut Tx, scope: &Scope, request: &CreateVm, now: Timestamp) -> Result<Resolved> {
    let (vcpu, memory_mb) = check_catalog(vms, request)?;
    let tenant = Tenant::from(scope);
    // Where each snapshot lies that one of its disks is to be made of, the root disk's first.
    let mut sources = Vec::new();
    let (image, root) = match &request.root_disk {
        RootDisk::Create { size_gb, of, .. } => {
            let (origin, snapshot) = origin(tx, tenant, (of, *size_gb), &request.region_id).await?;
            sources.extend(snapshot);
            (origin, None)
        }
        RootDisk::Attach(id) => {
            let field = "root_disk.attach_disk_request.disk_id";
            let disk = reference(tx, tenant, *id, DiskKind::Root, &request.region_id, field).await?;
            (Origin::of(disk.image_id.clone(), disk.login_user.clone())?, Some(disk))
        }
    };
    let mut attached = Vec::new();
    for id in &request.attached_disks {
        let field = "data_disks.attached_disks";
        attached.push(reference(tx, tenant, *id, DiskKind::Data, &request.region_id, field).await?);
    }
    for (number, disk) in request.create_disks.iter().enumerate() {
        let object = format!("data_disks.create_disks[{number}].");
        sources.extend(disk_snapshot::source_of(tx, tenant, disk, &request.region_id, &object).await?);
    }
    let networks = membership::references(tx, tenant, &request.network_ids).await?;
    let ssh_keys = chosen_key::with_chosen(tx, scope, &request.ssh_keys, &request.ssh_key_ids).await?;
    for disk in root.iter().chain(&attached) {
        available(disk)?;
        disk_snapshot::not_copied(tx, disk).await?;
    }
    let store = store_of(vms, &request.region_id, (root.as_ref(), &attached), &sources)?;
    let count = usize::try_from(request.count.unwrap_or(1)).map_err(Error::internal)?;
    let places = membership::of_several(tx, &networks, count).await?;
    quota::admit(tx, scope, wanted(request, vcpu, memory_mb), now).await?;
    let shared_address = match vms.engine().network().reached {
        Reached::Shared(shared) => Some(shared.address),
        Reached::Pool(_) | Reached::Here => None,
    };
    Ok(Resolved { vcpu, memory_mb, image, root, attached, places, ssh_keys, shared_address, store })
}

/// The store that all disks of a VM lie in: that of its root disk where that is there, or else that of the first snapshot that one is
/// made of, and that of its region where none is. What is made of a snapshot lies where that does.
fn store_of(
    vms: &Vms,
    region: &str,
    (root, attached): (Option<&DiskRow>, &[DiskRow]),
    sources: &[DiskSnapshotRow],
) -> Result<Option<String>> {
    let store = match (root, sources.first()) {
        (Some(root), _) => root.store.as_deref(),
        (None, Some(snapshot)) => snapshot.lies_in(),
        (None, None) => vms.store_in(region),
    };
    let copied = sources.iter().map(DiskSnapshotRow::lies_in);
    for lies_in in attached.iter().map(|disk| disk.store.as_deref()).chain(copied) {
        on_attach(lies_in, store)?;
    }
    Ok(store.map(str::to_owned))
}

/// The image that a root disk was or will be cloned from. A volume keeps what it needs of it, so that it can be used
/// when the image is gone.
struct Origin {
    id: String,
    login_user: String,
}

impl Origin {
    fn of(image: Option<String>, login_user: Option<String>) -> Result<Self> {
        let whole = image.zip(login_user);
        let (id, login_user) = whole.ok_or_else(|| Error::internal("a root disk without an image"))?;
        Ok(Self { id, login_user })
    }
}

/// Where a new root disk of a size comes from: the image, or that of the disk that the snapshot is of, and that snapshot.
async fn origin(
    tx: &mut Tx,
    tenant: Tenant,
    (of, size_gb): (&RootSource, i64),
    region: &str,
) -> Result<(Origin, Option<DiskSnapshotRow>)> {
    let object = "root_disk.create_disk_request.";
    match of {
        RootSource::Image(id) => {
            let image = image(tx, tenant, id, region).await?;
            if size_gb.saturating_mul(1 << 30) < image.virtual_size {
                let rule = format!("must be at least {}, the size of the image", whole_gib(image.virtual_size));
                return Err(Error::field(format!("{object}size_gb"), rule));
            }
            Ok((Origin { id: image.id, login_user: image.login_user }, None))
        }
        RootSource::Snapshot(id) => {
            let of = (DiskKind::Root, DiskType::Block);
            let wanted = Wanted { of, size_gb, region, fields: ("snapshot_id", object) };
            let snapshot = disk_snapshot::source(tx, tenant, *id, wanted).await?;
            Ok((Origin::of(snapshot.image_id.clone(), snapshot.login_user.clone())?, Some(snapshot)))
        }
    }
}

/// What a creation adds to a project.
fn wanted(request: &CreateVm, vcpu: i64, memory_mb: i64) -> Held {
    let root = match &request.root_disk {
        RootDisk::Create { size_gb, .. } => Some(*size_gb),
        RootDisk::Attach(_) => None,
    };
    let sizes = request.create_disks.iter().map(|disk| disk.size_gb).chain(root);
    let (disks, disk_gb) = sizes.fold((0, 0), |(count, sum), size| (count + 1, sum + size));
    let vms = request.count.unwrap_or(1);
    Held {
        vms,
        vcpu: vms * vcpu,
        memory_mb: vms * memory_mb,
        gpus: vms * request.gpu_config_count,
        disks: vms * disks,
        disk_gb: vms * disk_gb,
        ..Held::default()
    }
}

fn check_catalog(vms: &Vms, request: &CreateVm) -> Result<(i64, i64)> {
    let catalog = vms.catalog();
    if catalog.region(&request.region_id).is_none() {
        return Err(Error::new(
            Code::RegionNotFound,
            format!("There is no region '{}'. GET /api/v1/regions lists them.", request.region_id),
        ));
    }
    let (region, plan) = (&request.region_id, &request.plan_id);
    let config = size::of(catalog, &request.vm_config_id, (region, plan), request.gpu_config_count)?;
    Ok((config.vcpu, config.memory_mb))
}

/// An image that can be cloned.
pub(in crate::services::vm::ops) struct Cloneable {
    /// Its id.
    pub(in crate::services::vm::ops) id: String,
    /// The user that SSH keys are installed for.
    pub(in crate::services::vm::ops) login_user: String,
    /// Size its disk has for a guest, in bytes.
    pub(in crate::services::vm::ops) virtual_size: i64,
}

/// An image that can be cloned in a region: one of the platform's, or of the project's own.
pub(in crate::services::vm::ops) async fn image(
    tx: &mut Tx,
    tenant: Tenant,
    id: &str,
    region: &str,
) -> Result<Cloneable> {
    let found = store::image::find(&mut *tx, id).await?.filter(|image| image.status == ImageStatus::Ready);
    if let Some(ImageRow { id, login_user, virtual_size, .. }) = found {
        return Ok(Cloneable { id, login_user, virtual_size });
    }
    let own = project_image::usable(tx, tenant, id).await?.ok_or_else(|| {
        let message =
            format!("There is no image '{id}' that is ready. GET /api/v1/images lists the platform's, and GET …/images lists the project's.");
        Error::new(Code::ImageNotFound, message)
    })?;
    if own.region_id != region {
        return Err(Error::field("image_id", format!("{id} lies in the region {}", own.region_id)));
    }
    Ok(Cloneable { id: own.id.to_string(), login_user: own.login_user, virtual_size: own.virtual_size })
}

/// A disk named in a request: it must exist in the project, be of the kind, and lie in the region.
async fn reference(
    tx: &mut Tx,
    tenant: Tenant,
    id: DiskId,
    kind: DiskKind,
    region: &str,
    field: &str,
) -> Result<DiskRow> {
    let disk = store::disk::find_any_in(tx, tenant, id).await?.ok_or_else(|| Error {
        code: Code::DiskNotFound,
        ..Error::field(field, format!("there is no disk {id} in this project"))
    })?;
    if disk.kind != kind {
        return Err(Error::field(field, format!("{id} is not a {kind} disk")));
    }
    if disk.region_id != region {
        return Err(Error::field(field, format!("{id} lies in the region {}", disk.region_id)));
    }
    if disk.vm.is_none() && disk.status != DiskStatus::Ready {
        return Err(Error::field(field, format!("{id} is {}, not ready", disk.status)));
    }
    Ok(disk)
}

/// Refuses a disk that a VM holds or reserves.
pub(in crate::services::vm::ops) fn available(disk: &DiskRow) -> Result<()> {
    match disk.vm {
        None => Ok(()),
        Some(vm) => Err(Error::new(
            Code::DiskInUse,
            format!("The disk {} is attached to the VM {vm}. Delete that VM or detach the disk first.", disk.id),
        )),
    }
}

async fn write(
    tx: &mut Tx,
    scope: &Scope,
    (request, name): (&CreateVm, &str),
    (found, networks): (&Resolved, Vec<MembershipRow>),
    now: Timestamp,
) -> Result<VmWithDisks> {
    let id = VmId(Uuid::now_v7());
    let region = request.region_id.clone();
    let root = match (&request.root_disk, found.root.clone()) {
        (RootDisk::Create { name, size_gb, of }, _) => DiskRow {
            kind: DiskKind::Root,
            image_id: Some(found.image.id.clone()),
            snapshot: match of {
                RootSource::Image(_) => None,
                RootSource::Snapshot(id) => Some(*id),
            },
            login_user: Some(found.image.login_user.clone()),
            plan_id: Some(request.plan_id.clone()),
            store: found.store.clone(),
            ..new_disk(scope, &region, name.as_str(), DiskType::Block, *size_gb, now)
        },
        (RootDisk::Attach(_), Some(disk)) => disk,
        (RootDisk::Attach(_), None) => {
            return Err(Error::internal("an attached root disk was not resolved"));
        }
    };
    let created = matches!(request.root_disk, RootDisk::Create { .. });
    let vm = new_vm(scope, id, (request, found), (root.id, created), now);
    let vm = VmRow { name: name.to_owned(), networks, ..vm };
    store::vm::insert(tx, &vm).await?;
    let fresh = request.create_disks.iter().map(|disk| data_disk(scope, (&region, &found.store), disk, now));
    let attached = found.attached.iter().cloned().map(|disk| (disk, false));
    let all = std::iter::once((root, created)).chain(attached).chain(fresh.map(|disk| (disk, true)));
    let mut disks = Vec::new();
    for (slot, (found, is_new)) in all.enumerate() {
        let slot = i64::try_from(slot).unwrap_or_default();
        let mut disk = DiskRow { vm: Some(id), slot, updated_at: now, ..found.clone() };
        if is_new {
            disk.created_with = Some(id);
            store::disk::insert(tx, &disk).await?;
        } else {
            store::disk::update(tx, &found, &disk).await?;
            told::disk(tx, &disk, now).await?;
        }
        disks.push(disk);
    }
    Ok(VmWithDisks { vm, disks })
}

fn new_vm(
    scope: &Scope,
    id: VmId,
    (request, found): (&CreateVm, &Resolved),
    (root_disk_id, root_disk_created): (DiskId, bool),
    now: Timestamp,
) -> VmRow {
    // The guest knows itself by its machine's id, and a VM stays one guest: the two are called the same.
    let machine = Machine::new(MachineId(id.0), Owner::Vm(id), found.vcpu, found.memory_mb);
    VmRow {
        id,
        org: scope.org,
        project: scope.project,
        name: request.name.as_str().to_owned(),
        region_id: request.region_id.clone(),
        vm_config_id: request.vm_config_id.clone(),
        vcpu: found.vcpu,
        memory_mb: found.memory_mb,
        gpu_config_count: request.gpu_config_count,
        plan_id: request.plan_id.clone(),
        image_id: found.image.id.clone(),
        login_user: found.image.login_user.clone(),
        root_disk_id,
        root_disk_created,
        delete_root_disk: request.delete_root_disk,
        ssh_keys: found.ssh_keys.clone(),
        keys_state: KeysState::NextBoot,
        given_keys: Vec::new(),
        exposed_ports: request.exposed_ports.clone(),
        rules: Rules::default(),
        applied_rules: Rules::default(),
        applied_ports: Vec::new(),
        ports_pending: false,
        user_data: request.user_data.clone(),
        labels: request.labels.clone(),
        restart_policy: request.restart_policy,
        expires_at: request.ttl_seconds.map(|seconds| now.plus_seconds(seconds)),
        want: Want::Run,
        status: Status::Pending,
        message: Some("waiting for a worker".into()),
        status_since: now,
        stop_reason: None,
        attempts: 0,
        deaths: 0,
        disk_places: 0,
        machine: Machine { shared_address: found.shared_address, ..machine },
        networks: Vec::new(),
        ending: false,
        leaves: false,
        start_after: None,
        power_off_at: None,
        pressed_at: None,
        has_memory: false,
        rescue_user: None,
        guest_ready: false,
        work_at: Some(now),
        created_at: now,
        updated_at: now,
        deleted_at: None,
    }
}

/// A new disk of a project, not yet made.
pub(in crate::services::vm::ops) fn new_disk(
    scope: &Scope,
    region: &str,
    name: &str,
    disk_type: DiskType,
    size_gb: i64,
    now: Timestamp,
) -> DiskRow {
    DiskRow {
        id: DiskId(Uuid::now_v7()),
        org: scope.org,
        project: scope.project,
        kind: DiskKind::Data,
        name: name.to_owned(),
        disk_type,
        extent: Extent::of(size_gb),
        region_id: region.to_owned(),
        store: None,
        host: None,
        to: None,
        stuck_since: None,
        image_id: None,
        snapshot: None,
        backup: None,
        login_user: None,
        plan_id: None,
        status: DiskStatus::Pending,
        anew: false,
        message: None,
        vm: None,
        moving: None,
        slot: 0,
        created_with: None,
        work_at: None,
        created_at: now,
        updated_at: now,
        deleted_at: None,
    }
}

fn data_disk(scope: &Scope, (region, store): (&str, &Option<String>), disk: &NewDisk, now: Timestamp) -> DiskRow {
    let made = new_disk(scope, region, disk.name.as_str(), disk.kind, disk.size_gb, now);
    DiskRow { snapshot: disk.snapshot_id, store: store.clone(), ..made }
}

/// As many GiB as so many bytes take.
pub(in crate::services::vm::ops) const fn whole_gib(bytes: i64) -> i64 {
    (bytes + (1 << 30) - 1) >> 30
}
