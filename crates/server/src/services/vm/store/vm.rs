//! Rows of VMs.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use berth_domain::Timestamp;
use berth_domain::ids::{DiskId, OrgId, ProjectId, VmId};
use berth_domain::page::Page;
use berth_domain::vm::model::Want;
use berth_domain::vm::{ExposedPort, Protocol, RestartPolicy, Status};
use serde::{Deserialize, Serialize};

use super::Tenant;
use crate::db::{Db, DbError, FromRow, On, PageQuery, Query, Row, Tx, json, page_of, sql};

/// A VM as its row has it.
#[derive(Clone, Debug)]
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
    /// Inbound ports.
    pub exposed_ports: Vec<ExposedPort>,
    /// Inbound ports that the running machine has.
    pub applied_ports: Vec<ExposedPort>,
    /// What cloud-init gets.
    pub user_data: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// What happens when it dies.
    pub restart_policy: RestartPolicy,
    /// What is wanted.
    pub want: Want,
    /// Where it stands.
    pub status: Status,
    /// The step, or the reason of a failure.
    pub message: Option<String>,
    /// Since when it stands there.
    pub status_since: Timestamp,
    /// How often a deadline passed or it died in a row.
    pub attempts: i64,
    /// Whether processors and memory are reserved.
    pub reserved: bool,
    /// Its address.
    pub address: Option<Ipv4Addr>,
    /// Where SSH answers on it.
    pub ssh_port: Option<u16>,
    /// Boots so far.
    pub boot: i64,
    /// Whether the present machine has to end first.
    pub ending: bool,
    /// Not to be started before.
    pub start_after: Option<Timestamp>,
    /// When the power button was pressed.
    pub power_off_at: Option<Timestamp>,
    /// The host's boot it was started in.
    pub host_boot: Option<String>,
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
    let stored: Vec<_> =
        ports.iter().map(|p| StoredPort { port: p.port, protocol: p.protocol.as_str().into() }).collect();
    serde_json::to_string(&stored).unwrap_or_default()
}

fn ports_from_row(row: &Row, column: &str) -> Result<Vec<ExposedPort>, DbError> {
    row.json::<Vec<StoredPort>>(column)?
        .into_iter()
        .map(|p| {
            let protocol = Protocol::parse(&p.protocol).map_err(DbError::Other)?;
            Ok(ExposedPort { port: p.port, protocol })
        })
        .collect()
}

impl FromRow for VmRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
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
            exposed_ports: ports_from_row(row, "exposed_ports")?,
            applied_ports: ports_from_row(row, "applied_ports")?,
            user_data: row.opt_text("user_data")?,
            labels: row.json("labels")?,
            restart_policy: row.word("restart_policy", RestartPolicy::parse)?,
            want: row.word("want", Want::parse)?,
            status: row.word("status", Status::parse)?,
            message: row.opt_text("message")?,
            status_since: row.time("status_since")?,
            attempts: row.int("attempts")?,
            reserved: row.flag("reserved")?,
            address: row.opt_parsed("address")?,
            ssh_port: row.opt_int("ssh_port")?.and_then(|p| u16::try_from(p).ok()),
            boot: row.int("boot")?,
            ending: row.flag("ending")?,
            start_after: row.opt_time("start_after")?,
            power_off_at: row.opt_time("power_off_at")?,
            host_boot: row.opt_text("host_boot")?,
            guest_ready: row.flag("guest_ready")?,
            work_at: row.opt_time("work_at")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
            deleted_at: row.opt_time("deleted_at")?,
        })
    }
}

/// Writes a new row.
pub async fn insert(tx: &mut Tx, vm: &VmRow) -> Result<(), DbError> {
    sql("INSERT INTO vms (id, org_id, project_id, name, region_id, vm_config_id, vcpu, memory_mb, \
         gpu_config_count, plan_id, image_id, root_disk_id, root_disk_created, delete_root_disk, ssh_keys, \
         exposed_ports, user_data, labels, restart_policy, want, status, message, status_since, work_at, \
         created_at, updated_at, login_user, applied_ports) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, \
         $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28)")
    .bind(vm.id)
    .bind(vm.org)
    .bind(vm.project)
    .bind(&vm.name)
    .bind(&vm.region_id)
    .bind(&vm.vm_config_id)
    .bind(vm.vcpu)
    .bind(vm.memory_mb)
    .bind(vm.gpu_config_count)
    .bind(&vm.plan_id)
    .bind(&vm.image_id)
    .bind(vm.root_disk_id)
    .bind(vm.root_disk_created)
    .bind(vm.delete_root_disk)
    .bind(json::text(&vm.ssh_keys))
    .bind(ports_to_json(&vm.exposed_ports))
    .bind(vm.user_data.clone())
    .bind(json::text(&vm.labels))
    .bind(vm.restart_policy.as_str())
    .bind(vm.want.as_str())
    .bind(vm.status.as_str())
    .bind(vm.message.clone())
    .bind(vm.status_since)
    .bind(vm.work_at)
    .bind(vm.created_at)
    .bind(vm.updated_at)
    .bind(&vm.login_user)
    .bind(ports_to_json(&vm.applied_ports))
    .execute(tx)
    .await
    .map(drop)
}

/// Writes everything of a row that changes during its life.
pub async fn update(tx: &mut Tx, vm: &VmRow) -> Result<(), DbError> {
    sql("UPDATE vms SET name = $2, exposed_ports = $3, labels = $4, restart_policy = $5, want = $6, status = $7, \
         message = $8, status_since = $9, attempts = $10, reserved = $11, address = $12, ssh_port = $13, boot = $14, \
         ending = $15, start_after = $16, power_off_at = $17, host_boot = $18, guest_ready = $19, work_at = $20, \
         updated_at = $21, deleted_at = $22, applied_ports = $23 WHERE id = $1")
    .bind(vm.id)
    .bind(&vm.name)
    .bind(ports_to_json(&vm.exposed_ports))
    .bind(json::text(&vm.labels))
    .bind(vm.restart_policy.as_str())
    .bind(vm.want.as_str())
    .bind(vm.status.as_str())
    .bind(vm.message.clone())
    .bind(vm.status_since)
    .bind(vm.attempts)
    .bind(vm.reserved)
    .bind(vm.address.map(|a| a.to_string()))
    .bind(vm.ssh_port.map(i64::from))
    .bind(vm.boot)
    .bind(vm.ending)
    .bind(vm.start_after)
    .bind(vm.power_off_at)
    .bind(vm.host_boot.clone())
    .bind(vm.guest_ready)
    .bind(vm.work_at)
    .bind(vm.updated_at)
    .bind(vm.deleted_at)
    .bind(ports_to_json(&vm.applied_ports))
    .execute(tx)
    .await
    .map(drop)
}

fn by_id(tenant: Tenant, id: VmId) -> Query {
    sql("SELECT * FROM vms WHERE id = $1 AND project_id = $2 AND deleted_at IS NULL").bind(id).bind(tenant.project)
}

/// A tenant's VM.
pub async fn find(db: &Db, tenant: Tenant, id: VmId) -> Result<Option<VmRow>, DbError> {
    by_id(tenant, id).fetch_optional(db).await
}

/// A tenant's VM, deleted ones too.
pub async fn find_ever(db: &Db, tenant: Tenant, id: VmId) -> Result<Option<VmRow>, DbError> {
    sql("SELECT * FROM vms WHERE id = $1 AND project_id = $2").bind(id).bind(tenant.project).fetch_optional(db).await
}

/// A tenant's VM within a transaction.
pub async fn find_in(tx: &mut Tx, tenant: Tenant, id: VmId) -> Result<Option<VmRow>, DbError> {
    by_id(tenant, id).fetch_optional(tx).await
}

/// Any VM: for the worker.
pub async fn load(tx: &mut Tx, id: VmId) -> Result<Option<VmRow>, DbError> {
    sql("SELECT * FROM vms WHERE id = $1").bind(id).fetch_optional(tx).await
}

/// Any VM, read only: for the worker.
pub async fn peek(db: &Db, id: VmId) -> Result<Option<VmRow>, DbError> {
    sql("SELECT * FROM vms WHERE id = $1").bind(id).fetch_optional(db).await
}

/// What a list is narrowed to.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only this status.
    pub status: Option<Status>,
    /// Only this name.
    pub name: Option<String>,
    /// Only those with this label, and with this value where one is given.
    pub label: Option<(String, Option<String>)>,
    /// Deleted ones too.
    pub include_deleted: bool,
    /// The order.
    pub sort: Sort,
}

/// The order of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Newest first.
    #[default]
    Newest,
    /// Oldest first.
    Oldest,
    /// By name.
    Name,
    /// By name, backwards.
    NameDescending,
}

impl Sort {
    /// Parses `created_at`, `-created_at`, `name` or `-name`.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "-created_at" => Ok(Self::Newest),
            "created_at" => Ok(Self::Oldest),
            "name" => Ok(Self::Name),
            "-name" => Ok(Self::NameDescending),
            _ => Err("must be one of: created_at -created_at name -name".into()),
        }
    }

    const fn order(self) -> &'static str {
        match self {
            Self::Newest => "created_at DESC, id DESC",
            Self::Oldest => "created_at, id",
            Self::Name => "name, created_at DESC, id DESC",
            Self::NameDescending => "name DESC, created_at DESC, id DESC",
        }
    }
}

/// `WHERE …` of a list, and what its parameters are bound to.
fn condition(tenant: Tenant, filter: &Filter) -> (String, Vec<crate::db::Value>) {
    let mut text = String::from("project_id = $1");
    let mut args: Vec<crate::db::Value> = vec![tenant.project.into()];
    if !filter.include_deleted {
        text.push_str(" AND deleted_at IS NULL");
    }
    let mut and = |clause: &str, value: crate::db::Value| {
        args.push(value);
        text.push_str(&clause.replace('?', &format!("${}", args.len())));
    };
    if let Some(status) = filter.status {
        and(" AND status = ?", status.as_str().into());
    }
    if let Some(name) = &filter.name {
        and(" AND name = ?", name.into());
    }
    if let Some((key, value)) = &filter.label {
        let clause = json::has_pair("labels", key, value.as_deref(), &mut args);
        text.push_str(&format!(" AND {clause}"));
    }
    (text, args)
}

/// A page of a tenant's VMs, and how many there are.
pub async fn list(db: &Db, tenant: Tenant, filter: &Filter, page: Page) -> Result<(Vec<VmRow>, i64), DbError> {
    let (condition, args) = condition(tenant, filter);
    let query = page_of("*", format!("vms WHERE {condition}"), filter.sort.order());
    args.into_iter().fold(query, PageQuery::bind).fetch(db, page).await
}

/// VMs that want work, in order, with the time.
pub async fn with_work(db: &Db, limit: usize) -> Result<Vec<(VmId, Timestamp)>, DbError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    sql("SELECT id, work_at FROM vms WHERE work_at IS NOT NULL ORDER BY work_at LIMIT $1")
        .bind(limit)
        .fetch_all(db)
        .await
}

struct IdRow(VmId);

impl FromRow for IdRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        row.parsed("id").map(Self)
    }
}

/// VMs of a region that are not gone.
pub async fn living(db: &Db) -> Result<Vec<VmId>, DbError> {
    let rows: Vec<IdRow> = sql("SELECT id FROM vms WHERE deleted_at IS NULL").fetch_all(db).await?;
    Ok(rows.into_iter().map(|r| r.0).collect())
}

/// VMs that have, or should have, a machine.
pub async fn with_machine(db: &Db) -> Result<Vec<VmId>, DbError> {
    let rows: Vec<IdRow> = sql("SELECT id FROM vms WHERE want = 'run' AND deleted_at IS NULL").fetch_all(db).await?;
    Ok(rows.into_iter().map(|r| r.0).collect())
}

/// Sums over what is reserved in a region.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reserved {
    /// Virtual CPUs.
    pub vcpu: i64,
    /// Memory, in MiB.
    pub memory_mb: i64,
}

impl FromRow for Reserved {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self { vcpu: row.int("vcpu")?, memory_mb: row.int("memory_mb")? })
    }
}

/// What is reserved in a region.
pub async fn reserved(tx: &mut Tx, region: &str) -> Result<Reserved, DbError> {
    sql("SELECT CAST(COALESCE(SUM(vcpu), 0) AS BIGINT) AS vcpu, \
         CAST(COALESCE(SUM(memory_mb), 0) AS BIGINT) AS memory_mb \
         FROM vms WHERE region_id = $1 AND reserved = 1")
    .bind(region)
    .fetch_one(tx)
    .await
}

/// Whether an address is held.
pub async fn address_is_held(tx: &mut Tx, address: Ipv4Addr) -> Result<bool, DbError> {
    let held: i64 = sql("SELECT COUNT(*) FROM vms WHERE address = $1").bind(address.to_string()).fetch_one(tx).await?;
    Ok(held > 0)
}

/// What a project has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// VMs.
    pub vms: i64,
    /// Virtual CPUs of them.
    pub vcpu: i64,
    /// Memory of them, in MiB.
    pub memory_mb: i64,
}

impl FromRow for Totals {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self { vms: row.int("vms")?, vcpu: row.int("vcpu")?, memory_mb: row.int("memory_mb")? })
    }
}

/// What a project has.
pub async fn totals(on: impl On, tenant: Tenant) -> Result<Totals, DbError> {
    sql("SELECT COUNT(*) AS vms, CAST(COALESCE(SUM(vcpu), 0) AS BIGINT) AS vcpu, \
         CAST(COALESCE(SUM(memory_mb), 0) AS BIGINT) AS memory_mb \
         FROM vms WHERE project_id = $1 AND deleted_at IS NULL")
    .bind(tenant.project)
    .fetch_one(on)
    .await
}

struct StatusCount(String, i64);

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

/// Whether a project has any.
pub async fn any(tx: &mut Tx, project: ProjectId) -> Result<bool, DbError> {
    let n: i64 = sql("SELECT COUNT(*) FROM vms WHERE project_id = $1 AND deleted_at IS NULL")
        .bind(project)
        .fetch_one(tx)
        .await?;
    Ok(n > 0)
}
