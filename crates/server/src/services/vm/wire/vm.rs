//! A VM as its owner sees it.

use std::collections::BTreeMap;

use berth_domain::Timestamp;
use berth_domain::vm::{DiskKind, ExposedPort, Status};
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::auth::{Caller, Scope};
use crate::services::fleet::told;
use crate::services::membership::MembershipView;
use crate::services::vm::store::disk::{DiskRow, mount_points};
use crate::services::vm::store::operation::OperationRow;
use crate::services::vm::store::vm::VmRow;
use crate::services::vm::told::message;

/// A virtual machine.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = VMResponse)]
pub struct VmView {
    /// Identifier.
    #[schema(value_type = uuid::Uuid)]
    id: String,
    /// Name chosen by its owner.
    name: String,
    /// Region it runs in.
    region_id: String,
    /// Host that it is on, once it is on one; administrators of the platform alone see it.
    #[schema(value_type = Option<uuid::Uuid>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    host_id: Option<String>,
    /// Where it stands.
    #[schema(value_type = VmStatus)]
    status: &'static str,
    /// The step under way, or the reason of a failure.
    #[schema(required = true)]
    message: Option<String>,
    /// Size.
    vm_config_id: String,
    /// GPUs.
    gpu_config_count: i64,
    /// Pricing plan.
    plan_id: String,
    /// Image its root disk was cloned from.
    image_id: String,
    /// Whether deletion removes the root disk that was created with it.
    delete_root_disk: bool,
    /// Its root disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    root_disk: Option<AttachedDiskView>,
    /// Its data disks.
    data_disks: Vec<AttachedDiskView>,
    /// Its address, once it has one.
    #[schema(required = true)]
    public_ip: Option<String>,
    /// Inbound ports on its address.
    exposed_ports: Vec<ExposedPortView>,
    /// Where SSH answers while it is up or on its way there.
    #[schema(required = true)]
    ssh: Option<SshView>,
    /// Networks of the project that it belongs to.
    networks: Vec<MembershipView>,
    /// Whether it runs the rescue system, or is about to; a restart leaves it.
    rescue: bool,
    /// Whether the guest that runs finished its boot.
    guest_ready: bool,
    /// Whether its guest has the SSH keys that were put last: they are `applied`; `pending`, because the platform is about to
    /// give them to the guest's agent; or there from the `next_boot` on.
    #[schema(value_type = KeysStateWord)]
    ssh_keys_state: &'static str,
    /// Labels.
    labels: BTreeMap<String, String>,
    /// What happens when it dies.
    #[schema(value_type = RestartPolicyWord)]
    restart_policy: &'static str,
    /// When it is deleted; `null` without `ttl_seconds`.
    #[schema(value_type = Option<String>, format = DateTime, required = true)]
    expires_at: Option<Timestamp>,
    /// Creation.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// Last change.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

/// What a creation made: a VM, or where the request has a `count`, that many.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CreatedVMs)]
#[serde(untagged)]
pub enum MadeView {
    /// The one.
    One(Box<VmView>),
    /// As many as were asked for.
    Several {
        /// The VMs, in the order of their numbers.
        data: Vec<VmView>,
    },
}

impl MadeView {
    /// The answer with these VMs, as a list or alone; none where there is nothing to show.
    pub fn of(mut made: Vec<VmView>, is_list: bool) -> Option<Self> {
        if is_list { Some(Self::Several { data: made }) } else { made.pop().map(|vm| Self::One(Box::new(vm))) }
    }
}

/// Where SSH answers.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SshEndpoint)]
pub struct SshView {
    host: String,
    port: u16,
    /// The login user, in rescue that of the rescue system.
    user: String,
}

/// A disk of a VM.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DiskResponse)]
pub struct AttachedDiskView {
    /// Identifier.
    #[schema(value_type = uuid::Uuid)]
    id: String,
    /// Its name.
    name: String,
    /// How it is handed to the guest.
    #[serde(rename = "type")]
    #[schema(value_type = DiskTypeWord)]
    kind: &'static str,
    /// Size in GiB; while it grows, what it grows to.
    size_gb: i64,
    /// Where a data disk's file system is mounted in the guest: `/mnt/<name>`, with a number behind it where another
    /// disk of the VM has the same name.
    #[schema(required = true)]
    mount_path: Option<String>,
    /// The store of several hosts that it lies in. Null where it lies on a host.
    #[schema(required = true)]
    store: Option<String>,
}

/// An inbound port, and where it is reached.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ExposedPort)]
pub struct ExposedPortView {
    /// Port inside the VM.
    #[schema(minimum = 1, maximum = 65535)]
    port: u16,
    /// Layer-4 protocol.
    #[schema(value_type = ProtocolWord)]
    protocol: &'static str,
    /// The address it is reached at, once the VM has one.
    #[schema(required = true)]
    host: Option<String>,
    /// The port it is reached at: the same, or where VMs share an address, another one, which it keeps for as long as it is
    /// exposed; none before the VM has its ports there.
    #[schema(minimum = 1, maximum = 65535, required = true)]
    public_port: Option<u16>,
}

/// An operation on a VM.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OperationResponse)]
pub struct OperationView {
    #[schema(value_type = uuid::Uuid)]
    id: String,
    /// `create`, `start`, `stop`, `restart`, `resize`, `suspend`, `resume`, `reinstall`, `rescue` or `delete`.
    verb: String,
    /// Who asked.
    #[schema(value_type = Option<uuid::Uuid>, required = true)]
    actor: Option<String>,
    /// `running`, `done` or `failed`.
    status: String,
    /// Why it failed.
    #[schema(required = true)]
    message: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime, required = true)]
    finished_at: Option<Timestamp>,
}

macro_rules! word_schema {
    ($($(#[$doc:meta])* $name:ident { $($(#[$rename:meta])* $word:ident),* })*) => {$(
        $(#[$doc])*
        #[derive(ToSchema)]
        #[serde(rename_all = "snake_case")]
        #[expect(dead_code, reason = "describes a word of the wire")]
        pub(crate) enum $name { $($(#[$rename])* $word),* }
    )*};
}

word_schema! {
    /// Where a VM stands.
    VmStatus {
        Pending, Provisioning, Starting, Running, Stopping, Stopped, Suspending, Suspended, Restarting, Deleting, Deleted, Failed
    }
    /// How a disk is handed to the guest.
    DiskTypeWord { Block, Filesystem }
    /// A layer-4 protocol.
    ProtocolWord { Tcp, Udp }
    /// Whether a guest has the SSH keys that were put last.
    KeysStateWord { Applied, Pending, NextBoot }
    /// What happens to a machine that died.
    RestartPolicyWord { Never, #[serde(rename = "on-failure")] OnFailure, Always }
}

impl VmView {
    /// The view of a VM and its disks for a caller.
    pub fn for_caller(caller: &Caller, vm: &VmRow, disks: &[DiskRow]) -> Self {
        let host = vm.machine.host.filter(|_| caller.is_administrator());
        Self { host_id: host.map(|host| host.to_string()), ..Self::new(vm, disks) }
    }

    /// The view of a VM and its disks for its owner.
    pub fn new(vm: &VmRow, disks: &[DiskRow]) -> Self {
        let root = disks.iter().find(|d| d.kind == DiskKind::Root);
        let data: Vec<_> = disks.iter().filter(|d| d.kind == DiskKind::Data).collect();
        let mounts = mount_points(&data);
        let public_ip = vm.reach().map(|reach| reach.address().to_string());
        let up = matches!(vm.status, Status::Starting | Status::Running | Status::Restarting);
        Self {
            id: vm.id.to_string(),
            name: vm.name.clone(),
            region_id: vm.region_id.clone(),
            host_id: None,
            status: vm.status.as_str(),
            message: told(vm.machine.host_is_lost, message(vm).as_deref()),
            vm_config_id: vm.vm_config_id.clone(),
            gpu_config_count: vm.gpu_config_count,
            plan_id: vm.plan_id.clone(),
            image_id: vm.image_id.clone(),
            delete_root_disk: vm.delete_root_disk,
            root_disk: root.map(|disk| AttachedDiskView::new(disk, None)),
            data_disks: data.iter().zip(mounts).map(|(disk, mount)| AttachedDiskView::new(disk, mount)).collect(),
            exposed_ports: exposed(vm),
            ssh: vm.machine.ssh_port.zip(public_ip.clone()).filter(|_| up).map(|(port, host)| SshView {
                host,
                port,
                user: vm.rescue_user.clone().unwrap_or_else(|| vm.login_user.clone()),
            }),
            public_ip,
            networks: vm.networks.iter().map(MembershipView::from).collect(),
            rescue: vm.rescue_user.is_some(),
            guest_ready: vm.guest_ready && vm.status == Status::Running,
            ssh_keys_state: vm.keys_state.as_str(),
            labels: vm.labels.clone(),
            restart_policy: vm.restart_policy.as_str(),
            expires_at: vm.expires_at,
            created_at: vm.created_at,
            updated_at: vm.updated_at,
        }
    }

    /// The path of the VM.
    pub fn location(&self, scope: &Scope) -> String {
        format!("/api/v1/orgs/{}/projects/{}/vms/{}", scope.org, scope.project, self.id)
    }
}

/// What a VM exposes, in its owner's order.
fn exposed(vm: &VmRow) -> Vec<ExposedPortView> {
    let view = |to: ExposedPort, host: Option<String>, public_port: Option<u16>| ExposedPortView {
        port: to.port,
        protocol: to.protocol.as_str(),
        host,
        public_port,
    };
    let Some(reach) = vm.reach() else {
        let itself = |port: &ExposedPort| vm.machine.shared_address.is_none().then_some(port.port);
        return vm.exposed_ports.iter().map(|port| view(*port, None, itself(port))).collect();
    };
    let ports = reach.ports(&vm.exposed_ports, &vm.applied_ports).into_iter().skip(1);
    ports.map(|port| view(port.to, Some(port.at.ip().to_string()), Some(port.at.port()))).collect()
}

impl AttachedDiskView {
    fn new(disk: &DiskRow, mount_path: Option<String>) -> Self {
        Self {
            id: disk.id.to_string(),
            name: disk.name.clone(),
            kind: disk.disk_type.as_str(),
            size_gb: disk.extent.wanted_gb,
            mount_path,
            store: disk.store.clone(),
        }
    }
}

impl From<OperationRow> for OperationView {
    fn from(row: OperationRow) -> Self {
        Self {
            id: row.id.to_string(),
            verb: row.verb,
            actor: row.actor,
            status: row.status,
            message: row.message,
            created_at: row.created_at,
            finished_at: row.finished_at,
        }
    }
}
