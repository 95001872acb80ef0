//! Rows of VMs.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use berth_domain::Timestamp;
use berth_domain::firewall::Rules;
use berth_domain::host::Aim;
use berth_domain::ids::{DiskId, HostId, MachineId, OrgId, Owner, ProjectId, VmId};
use berth_domain::resource_usage::{Kind, Measure};
use berth_domain::vm::inbound::SSH;
use berth_domain::vm::model::{KeysState, Want};
use berth_domain::vm::{ExposedPort, InboundPort, Protocol, Reach, RestartPolicy, Status};
use serde::{Deserialize, Serialize};

use super::Tenant;
use crate::db::listing::{Listed, Listing, Words};
use crate::db::machine::{self, Machine};
use crate::db::machine_gpu;
use crate::db::network::{self, MembershipRow};
use crate::db::owned::{self, Owned, OwnerFilter};
use crate::db::record::{self, Columns};
use crate::db::resource_usage::{self, Use};
use crate::db::{Db, DbError, FromRow, On, Query, Row, Tx, due, json, page_of, sql};
use crate::{columns, joined_networks, machine_columns, machine_join, with_machine};

/// The table.
const TABLE: &str = "vms";

/// VMs with their machines, and which.
macro_rules! select {
    ($which:literal) => {
        concat!(
            "SELECT vms.*, ",
            machine_columns!(),
            ", ",
            joined_networks!("vms", "vm"),
            " FROM ",
            with_machine!("vms", "vm"),
            $which
        )
    };
}

/// A VM as its row has it.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "a row has the columns it has")]
pub struct VmRow {
    /// Its id.
    pub id: VmId,
    /// The organization.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
    /// Its name.
    pub name: String,
    /// Region.
    pub region_id: String,
    /// Size.
    pub vm_config_id: String,
    /// Virtual CPUs at the time of creation.
    pub vcpu: i64,
    /// Memory at the time of creation, in MiB.
    pub memory_mb: i64,
    /// GPUs.
    pub gpu_config_count: i64,
    /// Plan.
    pub plan_id: String,
    /// Image of the root disk.
    pub image_id: String,
    /// The image's login user.
    pub login_user: String,
    /// Root disk.
    pub root_disk_id: DiskId,
    /// Whether the root disk was made with the VM.
    pub root_disk_created: bool,
    /// Whether deletion removes such a root disk.
    pub delete_root_disk: bool,
    /// Keys of the login user.
    pub ssh_keys: Vec<String>,
    /// Whether the guest has them.
    pub keys_state: KeysState,
    /// Those that its guest may have got from the platform so far.
    pub given_keys: Vec<String>,
    /// Inbound ports.
    pub exposed_ports: Vec<ExposedPort>,
    /// Firewall rules.
    pub rules: Rules,
    /// Those that its running machine was told.
    pub applied_rules: Rules,
    /// Inbound ports that the running machine has; while they are pending, all that it may have, SSH's among them.
    pub applied_ports: Vec<InboundPort>,
    /// Whether a change of the machine's ports has begun and is not recorded.
    pub ports_pending: bool,
    /// What cloud-init gets.
    pub user_data: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// What happens when it dies.
    pub restart_policy: RestartPolicy,
    /// When its time is over.
    pub expires_at: Option<Timestamp>,
    /// What is wanted.
    pub want: Want,
    /// Where it stands.
    pub status: Status,
    /// The step, or the reason of a failure.
    pub message: Option<String>,
    /// Since when it stands there.
    pub status_since: Timestamp,
    /// Why it stops, where its owner did not ask for that.
    pub stop_reason: Option<String>,
    /// How often the deadline of its status passed.
    pub attempts: i64,
    /// How often it died in a row.
    pub deaths: i64,
    /// For how many data disks its present machine has places.
    pub disk_places: i64,
    /// Its machine: what that holds, where it is reached, and how often it booted.
    pub machine: Machine,
    /// The networks that it belongs to, in the order in which its owner named them.
    pub networks: Vec<MembershipRow>,
    /// Whether the present machine has to end first.
    pub ending: bool,
    /// Whether it is to go onto another host, since its own is drained.
    pub leaves: bool,
    /// Not to be started before.
    pub start_after: Option<Timestamp>,
    /// When the power button was pressed first.
    pub power_off_at: Option<Timestamp>,
    /// When the power button was pressed last.
    pub pressed_at: Option<Timestamp>,
    /// Whether its memory is on the disk: it was suspended, and its next machine goes on with that.
    pub has_memory: bool,
    /// The login user of the rescue system that it runs, or is to run.
    pub rescue_user: Option<String>,
    /// Whether its first boot finished.
    pub guest_ready: bool,
    /// When the worker is to look again.
    pub work_at: Option<Timestamp>,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
    /// Deletion.
    pub deleted_at: Option<Timestamp>,
}

#[derive(Serialize, Deserialize)]
struct StoredPort {
    port: u16,
    protocol: String,
}

fn ports_to_json(ports: &[ExposedPort]) -> String {
    serde_json::to_string(&ports.iter().copied().map(StoredPort::from).collect::<Vec<_>>()).unwrap_or_default()
}

fn ports_from_row(row: &Row, column: &str) -> Result<Vec<ExposedPort>, DbError> {
    row.json::<Vec<StoredPort>>(column)?.into_iter().map(ExposedPort::try_from).collect()
}

impl From<ExposedPort> for StoredPort {
    fn from(port: ExposedPort) -> Self {
        Self { port: port.port, protocol: port.protocol.as_str().into() }
    }
}

impl TryFrom<StoredPort> for ExposedPort {
    type Error = DbError;

    fn try_from(stored: StoredPort) -> Result<Self, DbError> {
        let protocol = Protocol::parse(&stored.protocol).map_err(DbError::Other)?;
        Ok(Self { port: stored.port, protocol })
    }
}

/// A port that is open. An earlier version wrote no `at`, since each port answered at the machine's own address under its
/// own number, and it did not write SSH's.
#[derive(Serialize, Deserialize)]
struct StoredInboundPort {
    #[serde(flatten)]
    to: StoredPort,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at: Option<SocketAddr>,
}

fn open_to_json(ports: &[InboundPort]) -> String {
    let stored = |port: &InboundPort| StoredInboundPort { to: StoredPort::from(port.to), at: Some(port.at) };
    serde_json::to_string(&ports.iter().map(stored).collect::<Vec<_>>()).unwrap_or_default()
}

fn open_from_row(row: &Row, machine: &Machine) -> Result<Vec<InboundPort>, DbError> {
    let own = |port| Some(SocketAddr::from((machine.address?, port)));
    let stored: Vec<StoredInboundPort> = row.json("applied_ports")?;
    let is_older = stored.iter().any(|port| port.at.is_none());
    let ssh =
        machine.ssh_port.and_then(own).filter(|_| is_older || stored.is_empty()).map(|at| InboundPort { to: SSH, at });
    let port = |stored: StoredInboundPort| {
        let to = ExposedPort::try_from(stored.to)?;
        Ok(stored.at.or_else(|| own(to.port)).map(|at| InboundPort { to, at }))
    };
    let ports: Vec<_> = stored.into_iter().map(port).collect::<Result<_, DbError>>()?;
    Ok(ssh.into_iter().chain(ports.into_iter().flatten()).collect())
}

impl FromRow for VmRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        let machine = Machine::from_row(row)?;
        Ok(Self {
            id: row.parsed("id")?,
            org: row.parsed("org_id")?,
            project: row.parsed("project_id")?,
            name: row.text("name")?,
            region_id: row.text("region_id")?,
            vm_config_id: row.text("vm_config_id")?,
            vcpu: row.int("vcpu")?,
            memory_mb: row.int("memory_mb")?,
            gpu_config_count: row.int("gpu_config_count")?,
            plan_id: row.text("plan_id")?,
            image_id: row.text("image_id")?,
            login_user: row.text("login_user")?,
            root_disk_id: row.parsed("root_disk_id")?,
            root_disk_created: row.flag("root_disk_created")?,
            delete_root_disk: row.flag("delete_root_disk")?,
            ssh_keys: row.json("ssh_keys")?,
            keys_state: row.word("keys_state", KeysState::parse)?,
            given_keys: row.json("given_keys")?,
            exposed_ports: ports_from_row(row, "exposed_ports")?,
            rules: row.json("rules")?,
            applied_rules: row.json("applied_rules")?,
            applied_ports: open_from_row(row, &machine)?,
            ports_pending: row.flag("ports_pending")?,
            user_data: row.opt_text("user_data")?,
            labels: row.json("labels")?,
            restart_policy: row.word("restart_policy", RestartPolicy::parse)?,
            expires_at: row.opt_time("expires_at")?,
            want: row.word("want", Want::parse)?,
            status: row.word("status", Status::parse)?,
            message: row.opt_text("message")?,
            status_since: row.time("status_since")?,
            stop_reason: row.opt_text("stop_reason")?,
            attempts: row.int("attempts")?,
            deaths: row.int("deaths")?,
            disk_places: row.int("disk_places")?,
            machine,
            networks: MembershipRow::of(row)?,
            ending: row.flag("ending")?,
            leaves: row.flag("leaves")?,
            start_after: row.opt_time("start_after")?,
            power_off_at: row.opt_time("power_off_at")?,
            pressed_at: row.opt_time("pressed_at")?,
            has_memory: row.flag("has_memory")?,
            rescue_user: row.opt_text("rescue_user")?,
            guest_ready: row.flag("guest_ready")?,
            work_at: row.opt_time("work_at")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
            deleted_at: row.opt_time("deleted_at")?,
        })
    }
}

/// Every column stands here once: what a field of the row is set to is what the database has.
fn columns(vm: &VmRow) -> Columns {
    columns! {
        "id": vm.id, "org_id": vm.org, "project_id": vm.project, "name": &vm.name, "region_id": &vm.region_id,
        "vm_config_id": &vm.vm_config_id, "vcpu": vm.vcpu, "memory_mb": vm.memory_mb,
        "gpu_config_count": vm.gpu_config_count, "plan_id": &vm.plan_id, "image_id": &vm.image_id,
        "login_user": &vm.login_user, "root_disk_id": vm.root_disk_id, "root_disk_created": vm.root_disk_created,
        "delete_root_disk": vm.delete_root_disk, "ssh_keys": json::text(&vm.ssh_keys),
        "keys_state": vm.keys_state.as_str(), "given_keys": json::text(&vm.given_keys),
        "exposed_ports": ports_to_json(&vm.exposed_ports), "applied_ports": open_to_json(&vm.applied_ports),
        "ports_pending": vm.ports_pending, "rules": json::text(&vm.rules), "applied_rules": json::text(&vm.applied_rules),
        "disk_places": vm.disk_places,
        "user_data": vm.user_data.clone(), "labels": json::text(&vm.labels),
        "restart_policy": vm.restart_policy.as_str(), "expires_at": vm.expires_at, "want": vm.want.as_str(), "status": vm.status.as_str(),
        "message": vm.message.clone(), "stop_reason": vm.stop_reason.clone(), "status_since": vm.status_since,
        "attempts": vm.attempts, "deaths": vm.deaths, "ending": vm.ending, "leaves": vm.leaves, "start_after": vm.start_after, "power_off_at": vm.power_off_at,
        "pressed_at": vm.pressed_at, "guest_ready": vm.guest_ready, "has_memory": vm.has_memory,
        "rescue_user": vm.rescue_user.clone(),
        "work_at": vm.work_at, "created_at": vm.created_at, "updated_at": vm.updated_at, "deleted_at": vm.deleted_at,
    }
}

/// Writes a new row.
pub async fn insert(tx: &mut Tx, vm: &VmRow) -> Result<(), DbError> {
    record::insert(TABLE, columns(vm)).execute(&mut *tx).await?;
    machine::insert(tx, &vm.machine).await?;
    network::join(tx, vm.machine.owner, &vm.networks, vm.created_at).await
}

/// Writes a change of a row, and notes what it takes from then on, where that is not what it took before.
pub async fn update(tx: &mut Tx, before: &VmRow, after: &VmRow) -> Result<(), DbError> {
    record::update(tx, TABLE, &columns(before), columns(after)).await?;
    machine::update(tx, &before.machine, &after.machine).await?;
    if before.gpu_config_count > 0 && before.machine.reserved && !after.machine.reserved {
        machine_gpu::release(tx, after.machine.id).await?;
    }
    let networks = (before.networks.as_slice(), after.networks.as_slice());
    network::keep_up(tx, after.machine.owner, networks, after.is_another_member(before), after.updated_at).await?;
    let taken = after.takes();
    if taken != before.takes() {
        resource_usage::settle(tx, (Kind::Vm, after.id.0), taken.as_ref(), after.updated_at).await?;
    }
    Ok(())
}

/// VMs that are off on a host and could leave it, the oldest first.
pub async fn off_on(tx: &mut Tx, host: HostId) -> Result<Vec<VmRow>, DbError> {
    let off = sql(select!(
        " WHERE m.host_id = $1 AND vms.deleted_at IS NULL AND vms.leaves = 0 AND vms.has_memory = 0 \
         AND vms.status IN ('stopped', 'failed') ORDER BY vms.id"
    ));
    off.bind(host).fetch_all(tx).await
}

/// VMs that run on a host and could leave it, the oldest first. A rescue is left by its owner.
pub async fn running_on(tx: &mut Tx, host: HostId) -> Result<Vec<VmRow>, DbError> {
    let running = sql(select!(
        " WHERE m.host_id = $1 AND vms.deleted_at IS NULL AND vms.leaves = 0 AND vms.rescue_user IS NULL \
         AND vms.status = 'running' ORDER BY vms.id"
    ));
    running.bind(host).fetch_all(tx).await
}

/// VMs that run on a host and were asked to leave it, but for those that are on their way.
pub async fn asked_on(tx: &mut Tx, host: HostId) -> Result<Vec<VmRow>, DbError> {
    let asked = sql(select!(
        " WHERE m.host_id = $1 AND vms.deleted_at IS NULL AND vms.leaves = 1 AND vms.status = 'running' \
         AND NOT EXISTS (SELECT 1 FROM vm_migrations g WHERE g.vm_id = vms.id) ORDER BY vms.id"
    ));
    asked.bind(host).fetch_all(tx).await
}

/// VMs of a host that were asked to leave it.
pub async fn to_leave(tx: &mut Tx, host: HostId) -> Result<Vec<VmId>, DbError> {
    let asked = sql(concat!(
        "SELECT vms.id FROM ",
        with_machine!("vms", "vm"),
        " WHERE m.host_id = $1 AND vms.deleted_at IS NULL AND vms.leaves = 1"
    ));
    let rows: Vec<IdRow> = asked.bind(host).fetch_all(tx).await?;
    Ok(rows.into_iter().map(|row| row.0).collect())
}

/// How many VMs are on their way from a host to another one, or were asked to leave it.
pub async fn leaving(tx: &mut Tx, host: HostId) -> Result<i64, DbError> {
    sql("SELECT COUNT(*) FROM vms JOIN disks d ON d.id = vms.root_disk_id WHERE d.host_id = $1 AND vms.deleted_at IS NULL \
         AND (vms.status = 'restarting' OR (vms.status = 'running' AND vms.leaves = 1))")
    .bind(host)
    .fetch_one(tx)
    .await
}

/// VMs that are to leave a host that is not drained any more.
pub async fn leaving_for_nothing(on: impl On) -> Result<Vec<VmRow>, DbError> {
    let for_nothing = sql(select!(
        " WHERE vms.leaves = 1 AND vms.deleted_at IS NULL AND NOT EXISTS (SELECT 1 FROM hosts h \
         WHERE h.id = m.host_id AND h.removed_at IS NULL AND h.drain IS NOT NULL)"
    ));
    for_nothing.fetch_all(on).await
}

impl VmRow {
    /// How it is reached, as far as it has what it takes.
    pub fn reach(&self) -> Option<Reach> {
        let machine = &self.machine;
        if let Some(address) = machine.shared_address {
            return Some(Reach::Shared { address, first: machine.ssh_port? });
        }
        let address = machine.pool_address.or_else(|| machine.address.map(IpAddr::V4))?;
        Some(Reach::Own { address, ssh_port: machine.ssh_port.unwrap_or(SSH.port) })
    }

    /// Whether its networks are told of a change: it has another name or other labels, or its machine runs from now on.
    fn is_another_member(&self, before: &Self) -> bool {
        let runs = |vm: &Self| vm.status == Status::Running;
        self.name != before.name || self.labels != before.labels || (runs(self) && !runs(before))
    }

    /// What is counted of it: its size, while it holds the host's memory and processors.
    fn takes(&self) -> Option<Use> {
        let measure = Measure { vcpu: self.vcpu, memory_mb: self.memory_mb, gpus: self.gpu_config_count, bytes: 0 };
        (self.machine.reserved && self.deleted_at.is_none()).then(|| Use {
            org: self.org,
            project: self.project,
            kind: Kind::Vm,
            resource: self.id.0,
            name: self.name.clone(),
            size: Some(self.vm_config_id.clone()),
            measure,
            tariff: resource_usage::plan_tariff(&self.plan_id),
        })
    }
}

/// What all VMs take at present.
pub async fn taken(tx: &mut Tx) -> Result<Vec<Use>, DbError> {
    let rows: Vec<VmRow> = sql(select!(" WHERE m.reserved = 1 AND vms.deleted_at IS NULL")).fetch_all(tx).await?;
    Ok(rows.iter().filter_map(VmRow::takes).collect())
}

/// VMs whose machine began in another boot of its host, and so has ended.
pub async fn of_another_boot(tx: &mut Tx, host: HostId, boot: &str) -> Result<Vec<VmId>, DbError> {
    let ended = sql(concat!(
        "SELECT vms.id FROM ",
        with_machine!("vms", "vm"),
        " WHERE m.reserved = 1 AND m.host_boot <> $1 AND m.host_id = $2"
    ));
    let rows: Vec<IdRow> = ended.bind(boot).bind(host).fetch_all(tx).await?;
    Ok(rows.into_iter().map(|row| row.0).collect())
}

fn by_id(tenant: Tenant, id: VmId) -> Query {
    sql(select!(" WHERE vms.id = $1 AND vms.project_id = $2 AND vms.deleted_at IS NULL")).bind(id).bind(tenant.project)
}

/// A tenant's VM.
pub async fn find(db: &Db, tenant: Tenant, id: VmId) -> Result<Option<VmRow>, DbError> {
    by_id(tenant, id).fetch_optional(db).await
}

/// A tenant's VM, deleted ones too.
pub async fn find_ever(db: &Db, tenant: Tenant, id: VmId) -> Result<Option<VmRow>, DbError> {
    let ever = sql(select!(" WHERE vms.id = $1 AND vms.project_id = $2"));
    ever.bind(id).bind(tenant.project).fetch_optional(db).await
}

/// A tenant's VM within a transaction.
pub async fn find_in(tx: &mut Tx, tenant: Tenant, id: VmId) -> Result<Option<VmRow>, DbError> {
    by_id(tenant, id).fetch_optional(tx).await
}

/// Any VM: for the worker.
pub async fn load(tx: &mut Tx, id: VmId) -> Result<Option<VmRow>, DbError> {
    sql(select!(" WHERE vms.id = $1")).bind(id).fetch_optional(tx).await
}

/// Any VM, read only: for the worker.
pub async fn peek(on: impl On, id: VmId) -> Result<Option<VmRow>, DbError> {
    sql(select!(" WHERE vms.id = $1")).bind(id).fetch_optional(on).await
}

/// By what a list of VMs can be narrowed and ordered.
pub const LISTED: Listed = Listed {
    id: "vms.id",
    created: "vms.created_at",
    name: Some("vms.name"),
    status: Some(Words { param: "status", column: "vms.status", words: Status::WORDS }),
    labels: Some("vms.labels"),
};

/// A page of a tenant's VMs, and how many there are; deleted ones too, where that is asked for.
pub async fn list(
    db: &Db,
    tenant: Tenant,
    listing: &Listing,
    include_deleted: bool,
) -> Result<(Vec<VmRow>, i64), DbError> {
    let living = if include_deleted { "" } else { " AND vms.deleted_at IS NULL" };
    let from = format!("vms WHERE vms.project_id = $1{living}");
    let columns = concat!("vms.*, ", machine_columns!(), ", ", joined_networks!("vms", "vm"));
    let page = page_of(columns, from).joining(machine_join!("vms", "vm"));
    page.bind(tenant.project).list(db, &LISTED, listing).await
}

/// A page of everybody's VMs with their owners, and how many there are.
pub async fn list_all(db: &Db, whose: &OwnerFilter, listing: &Listing) -> Result<(Vec<Owned<VmRow>>, i64), DbError> {
    owned::list(db, owned::VMS, whose, &LISTED, listing).await
}

/// VMs that want work, organizations in turn, and when the next one does.
pub async fn due(db: &Db, now: Timestamp, limit: usize) -> Result<due::Due<VmId>, DbError> {
    due::of_projects(db, "vms", now, limit).await
}

/// Whose a VM is.
pub async fn owner(db: &Db, id: VmId) -> Result<Option<Owner>, DbError> {
    due::owner(db, "vms", id).await
}

struct IdRow(VmId);

impl FromRow for IdRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        row.parsed("id").map(Self)
    }
}

/// VMs that have, or should have, a machine: all, or those of an organization.
pub async fn with_machine(db: &Db, org: Option<OrgId>) -> Result<Vec<VmId>, DbError> {
    let rows: Vec<IdRow> = sql(
        "SELECT id FROM vms WHERE want = 'run' AND deleted_at IS NULL AND (CAST($1 AS TEXT) IS NULL OR org_id = $1)",
    )
    .bind(org)
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|r| r.0).collect())
}

/// VMs that should have a machine on a host, and where that is asked those that are on none yet.
pub async fn wanting(db: &Db, host: HostId, or_nowhere: bool) -> Result<Vec<VmId>, DbError> {
    let wanted = sql(concat!(
        "SELECT vms.id FROM ",
        with_machine!("vms", "vm"),
        " WHERE vms.want = 'run' AND vms.deleted_at IS NULL AND (m.host_id = $1 OR ($2 = 1 AND m.host_id IS NULL))"
    ));
    let rows: Vec<IdRow> = wanted.bind(host).bind(or_nowhere).fetch_all(db).await?;
    Ok(rows.into_iter().map(|row| row.0).collect())
}

/// The machines of a host whose VMs are off, or have failed.
pub async fn off(db: &Db, host: HostId) -> Result<Vec<Aim>, DbError> {
    let off = sql(concat!(
        "SELECT m.id, m.generation FROM ",
        with_machine!("vms", "vm"),
        " WHERE vms.status IN ('stopped', 'failed') AND vms.deleted_at IS NULL AND m.host_id = $1"
    ));
    machine::aims(off.bind(host), db).await
}

/// The machines that VMs have, or should have.
pub async fn machines(db: &Db) -> Result<Vec<(VmId, MachineId, Option<HostId>)>, DbError> {
    struct Found(VmId, MachineId, Option<HostId>);
    impl FromRow for Found {
        fn from_row(row: &Row) -> Result<Self, DbError> {
            Ok(Self(row.parsed("id")?, row.parsed("machine_id")?, row.opt_parsed("host_id")?))
        }
    }
    let wanted = sql(concat!(
        "SELECT vms.id, m.id AS machine_id, m.host_id FROM ",
        with_machine!("vms", "vm"),
        " WHERE vms.want = 'run' AND vms.deleted_at IS NULL"
    ));
    let found: Vec<Found> = wanted.fetch_all(db).await?;
    Ok(found.into_iter().map(|Found(vm, machine, host)| (vm, machine, host)).collect())
}

/// How many rows stand somewhere.
pub(super) struct StatusCount(pub String, pub i64);

impl FromRow for StatusCount {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self(row.text("status")?, row.int("n")?))
    }
}

/// How many VMs stand where.
pub async fn by_status(db: &Db) -> Result<Vec<(String, i64)>, DbError> {
    let rows: Vec<StatusCount> =
        sql("SELECT status, COUNT(*) AS n FROM vms WHERE deleted_at IS NULL GROUP BY status ORDER BY status")
            .fetch_all(db)
            .await?;
    Ok(rows.into_iter().map(|r| (r.0, r.1)).collect())
}

/// How many VMs of a host are stopping or being suspended.
pub async fn stopping_on(db: &Db, host: HostId) -> Result<i64, DbError> {
    let stopping = sql(concat!(
        "SELECT COUNT(*) FROM ",
        with_machine!("vms", "vm"),
        " WHERE vms.status IN ('stopping', 'suspending') AND vms.deleted_at IS NULL AND m.host_id = $1"
    ));
    stopping.bind(host).fetch_one(db).await
}

/// Whether a project has any.
pub async fn any(tx: &mut Tx, project: ProjectId) -> Result<bool, DbError> {
    let n: i64 = sql("SELECT COUNT(*) FROM vms WHERE project_id = $1 AND deleted_at IS NULL")
        .bind(project)
        .fetch_one(tx)
        .await?;
    Ok(n > 0)
}
