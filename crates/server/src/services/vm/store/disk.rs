//! Rows of disks: root disk volumes and data disks.

use berth_domain::Timestamp;
use berth_domain::ids::{BackupId, DiskId, DiskSnapshotId, HostId, OrgId, Owner, ProjectId, VmId};
use berth_domain::resource_usage::{Kind, Measure};
use berth_domain::vm::disk::Move;
use berth_domain::vm::{DiskChange, DiskKind, DiskStatus, DiskType, Extent, disk};

use super::Tenant;
use crate::columns;
use crate::db::listing::{Listed, Listing, Words};
use crate::db::record::{self, Columns};
use crate::db::resource_usage::{self, Use};
use crate::db::{Db, DbError, FromRow, On, Query, Row, Tx, due, home, marks, page_of, sql};

/// The table.
const TABLE: &str = "disks";
/// Those that are not gone, and may be on a host, or on their way to it.
const LIVING: &str = "SELECT id FROM disks WHERE deleted_at IS NULL AND (host_id IS NULL OR host_id = $1 \
     OR vm_id IN (SELECT owner_id FROM machines WHERE owner_kind = 'vm' AND host_id = $1) \
     OR vm_id IN (SELECT vm_id FROM vm_migrations WHERE host_id = $1))";

/// A disk as its row has it.
#[derive(Clone, Debug)]
pub struct DiskRow {
    /// Its id.
    pub id: DiskId,
    /// The organization.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
    /// Root or data.
    pub kind: DiskKind,
    /// Its name.
    pub name: String,
    /// How it is handed to the guest.
    pub disk_type: DiskType,
    /// How large it is to be, has its place for, and is.
    pub extent: Extent,
    /// Region.
    pub region_id: String,
    /// The store of several hosts that it lies in, for ever; none of one that lies on its host.
    pub store: Option<String>,
    /// The host that it has its place on, once it has one. Of one in a store, the host that acts on it.
    pub host: Option<HostId>,
    /// The host that it has a place on, too, since it is brought there.
    pub to: Option<HostId>,
    /// Since when it cannot be brought, for the reason that its message says.
    pub stuck_since: Option<Timestamp>,
    /// The image a root disk was cloned from.
    pub image_id: Option<String>,
    /// The user that this image installs SSH keys for: a volume outlives its image.
    pub login_user: Option<String>,
    /// The snapshot that it is made of, which may be gone once it is.
    pub snapshot: Option<DiskSnapshotId>,
    /// The backup that it is made of, which may be gone once it is.
    pub backup: Option<BackupId>,
    /// Plan of a root disk.
    pub plan_id: Option<String>,
    /// Where it stands.
    pub status: DiskStatus,
    /// Whether what is there of it goes once it is made: its VM is reinstalled.
    pub anew: bool,
    /// The step, or the reason of a failure.
    pub message: Option<String>,
    /// The VM it is attached to or reserved by.
    pub vm: Option<VmId>,
    /// Whether it comes to the VM's machine or leaves it while that runs, and since when.
    pub moving: Option<(Move, Timestamp)>,
    /// Its place in the guest.
    pub slot: i64,
    /// The VM it was created with.
    pub created_with: Option<VmId>,
    /// When the worker is to look at it.
    pub work_at: Option<Timestamp>,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
    /// Deletion.
    pub deleted_at: Option<Timestamp>,
}

impl FromRow for DiskRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        let wanted_gb = row.int("size_gb")?;
        Ok(Self {
            id: row.parsed("id")?,
            org: row.parsed("org_id")?,
            project: row.parsed("project_id")?,
            kind: row.word("kind", DiskKind::parse)?,
            name: row.text("name")?,
            disk_type: row.word("type", DiskType::parse)?,
            extent: Extent {
                wanted_gb,
                placed_gb: row.opt_int("placed_gb")?.unwrap_or(wanted_gb),
                made_gb: row.opt_int("made_gb")?.unwrap_or(wanted_gb),
            },
            region_id: row.text("region_id")?,
            store: row.opt_text("store")?,
            host: row.opt_parsed("host_id")?,
            to: row.opt_parsed("to_host_id")?,
            stuck_since: row.opt_time("stuck_since")?,
            image_id: row.opt_text("image_id")?,
            login_user: row.opt_text("login_user")?,
            snapshot: row.opt_parsed("snapshot_id")?,
            backup: row.opt_parsed("backup_id")?,
            plan_id: row.opt_text("plan_id")?,
            status: row.word("status", DiskStatus::parse)?,
            anew: row.flag("anew")?,
            message: row.opt_text("message")?,
            vm: row.opt_parsed("vm_id")?,
            moving: moving(row)?,
            slot: row.opt_int("slot")?.unwrap_or_default(),
            created_with: row.opt_parsed("created_with")?,
            work_at: row.opt_time("work_at")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
            deleted_at: row.opt_time("deleted_at")?,
        })
    }
}

fn moving(row: &Row) -> Result<Option<(Move, Timestamp)>, DbError> {
    Ok(row.opt_word("moving", Move::parse)?.zip(row.opt_time("moving_since")?))
}

fn columns(disk: &DiskRow) -> Columns {
    columns! {
        "id": disk.id, "org_id": disk.org, "project_id": disk.project, "kind": disk.kind.as_str(),
        "name": &disk.name, "type": disk.disk_type.as_str(), "size_gb": disk.extent.wanted_gb,
        "placed_gb": disk.extent.placed_gb, "made_gb": disk.extent.made_gb, "region_id": &disk.region_id,
        "store": disk.store.clone(), "host_id": disk.host, "to_host_id": disk.to, "stuck_since": disk.stuck_since,
        "image_id": disk.image_id.clone(), "snapshot_id": disk.snapshot, "backup_id": disk.backup, "login_user": disk.login_user.clone(), "plan_id": disk.plan_id.clone(),
        "status": disk.status.as_str(), "anew": disk.anew, "message": disk.message.clone(), "vm_id": disk.vm, "slot": disk.slot,
        "moving": disk.moving.map(|(way, _)| way.as_str()), "moving_since": disk.moving.map(|(_, since)| since),
        "created_with": disk.created_with, "work_at": disk.work_at, "created_at": disk.created_at,
        "updated_at": disk.updated_at, "deleted_at": disk.deleted_at,
    }
}

/// Writes a new row, of a disk that is not made yet.
pub async fn insert(tx: &mut Tx, disk: &DiskRow) -> Result<(), DbError> {
    record::insert(TABLE, columns(disk)).execute(tx).await.map(drop)
}

/// Writes a change of a row, and notes what it takes from then on, where that is not what it took before.
pub async fn update(tx: &mut Tx, before: &DiskRow, after: &DiskRow) -> Result<(), DbError> {
    record::update(tx, TABLE, &columns(before), columns(after)).await?;
    let taken = after.takes();
    if taken != before.takes() {
        let resource = (after.counted_as(), after.id.0);
        resource_usage::settle(tx, resource, taken.as_ref(), after.updated_at).await?;
    }
    Ok(())
}

impl DiskRow {
    /// Whether it is ready, and smaller than it is to be.
    pub fn grows(&self) -> bool {
        self.status == DiskStatus::Ready && self.extent.grows()
    }

    /// Whether it has its place on another host than this one, which its VM's machine is on.
    pub fn is_elsewhere(&self, machine: Option<HostId>) -> bool {
        self.host.zip(machine).is_some_and(|(disk, machine)| disk != machine)
    }

    /// Whether it has a place on a host that it is brought to, since its VM's machine is there.
    pub fn has_place_on(&self, host: HostId, machine: Option<HostId>) -> bool {
        self.to == Some(host) && machine == Some(host) && self.status == DiskStatus::Ready
    }

    /// Is no VM's any more. What its VM did for it, its own worker goes on with.
    pub fn release(&mut self, now: Timestamp) {
        (self.vm, self.moving, self.updated_at, self.work_at) = (None, None, now, Some(now));
        (self.to, self.stuck_since) = (None, None);
    }

    /// What is under way for it, if it is ready.
    pub fn change(&self) -> Option<DiskChange> {
        let moving = self.moving.filter(|_| self.status == DiskStatus::Ready).map(|(way, _)| match way {
            Move::In => DiskChange::Attaching,
            Move::Out => DiskChange::Detaching,
        });
        moving.or_else(|| self.grows().then_some(DiskChange::Growing))
    }

    const fn counted_as(&self) -> Kind {
        match self.kind {
            DiskKind::Root => Kind::RootDisk,
            DiskKind::Data => Kind::Disk,
        }
    }

    /// What is counted of it: its whole size, from when it was made so large until its owner has it deleted.
    fn takes(&self) -> Option<Use> {
        (self.status == DiskStatus::Ready && self.deleted_at.is_none()).then(|| Use {
            org: self.org,
            project: self.project,
            kind: self.counted_as(),
            resource: self.id.0,
            name: self.name.clone(),
            size: None,
            measure: Measure { bytes: self.extent.made_gb << 30, ..Measure::default() },
            tariff: resource_usage::DISK.to_owned(),
        })
    }
}

/// What all disks take at present.
pub async fn taken(tx: &mut Tx) -> Result<Vec<Use>, DbError> {
    let rows: Vec<DiskRow> = sql("SELECT * FROM disks WHERE deleted_at IS NULL").fetch_all(tx).await?;
    Ok(rows.iter().filter_map(DiskRow::takes).collect())
}

/// Where the file systems of a VM's data disks, in the order of their slots, are mounted; none for raw ones.
pub fn mount_points(data: &[&DiskRow]) -> Vec<Option<String>> {
    let mounted = |disk: &DiskRow| disk.disk_type == DiskType::Filesystem;
    let names: Vec<_> = data.iter().filter(|disk| mounted(disk)).map(|disk| disk.name.as_str()).collect();
    let mut places = disk::mount_points(&names).into_iter();
    data.iter().map(|disk| if mounted(disk) { places.next() } else { None }).collect()
}

fn by_id(tenant: Tenant, kind: DiskKind, id: DiskId) -> Query {
    sql("SELECT * FROM disks WHERE id = $1 AND project_id = $2 AND kind = $3 AND deleted_at IS NULL")
        .bind(id)
        .bind(tenant.project)
        .bind(kind.as_str())
}

/// A tenant's disk of this kind.
pub async fn find(db: &Db, tenant: Tenant, kind: DiskKind, id: DiskId) -> Result<Option<DiskRow>, DbError> {
    by_id(tenant, kind, id).fetch_optional(db).await
}

/// A tenant's disk of this kind within a transaction.
pub async fn find_in(tx: &mut Tx, tenant: Tenant, kind: DiskKind, id: DiskId) -> Result<Option<DiskRow>, DbError> {
    by_id(tenant, kind, id).fetch_optional(tx).await
}

/// A tenant's disk of any kind within a transaction.
pub async fn find_any_in(tx: &mut Tx, tenant: Tenant, id: DiskId) -> Result<Option<DiskRow>, DbError> {
    sql("SELECT * FROM disks WHERE id = $1 AND project_id = $2 AND deleted_at IS NULL")
        .bind(id)
        .bind(tenant.project)
        .fetch_optional(tx)
        .await
}

/// Any disk: for the worker.
pub async fn load(on: impl On, id: DiskId) -> Result<Option<DiskRow>, DbError> {
    sql("SELECT * FROM disks WHERE id = $1").bind(id).fetch_optional(on).await
}

/// By what a list of disks can be narrowed and ordered.
pub const LISTED: Listed = Listed {
    id: "disks.id",
    created: "disks.created_at",
    name: Some("disks.name"),
    status: Some(Words {
        param: "status",
        column: "disks.status",
        words: &["pending", "provisioning", "ready", "failed", "deleting"],
    }),
    labels: None,
};

/// A page of a tenant's disks of a kind, and how many there are.
pub async fn list(db: &Db, tenant: Tenant, kind: DiskKind, listing: &Listing) -> Result<(Vec<DiskRow>, i64), DbError> {
    page_of("*", "disks WHERE project_id = $1 AND kind = $2 AND deleted_at IS NULL")
        .bind(tenant.project)
        .bind(kind.as_str())
        .list(db, &LISTED, listing)
        .await
}

/// The disks of a VM, root first.
pub async fn of_vm(tx: &mut Tx, vm: VmId) -> Result<Vec<DiskRow>, DbError> {
    of_vm_query(vm).fetch_all(tx).await
}

/// The disks of a VM, root first, outside of a transaction.
pub async fn peek_of_vm(on: impl On, vm: VmId) -> Result<Vec<DiskRow>, DbError> {
    of_vm_query(vm).fetch_all(on).await
}

fn of_vm_query(vm: VmId) -> Query {
    sql("SELECT * FROM disks WHERE vm_id = $1 AND deleted_at IS NULL ORDER BY slot, id").bind(vm)
}

/// The disks of several VMs, in the order of their slots.
pub async fn of_vms(db: &Db, vms: &[VmId]) -> Result<Vec<DiskRow>, DbError> {
    if vms.is_empty() {
        return Ok(Vec::new());
    }
    let marks = marks(vms.len());
    let text = format!("SELECT * FROM disks WHERE vm_id IN ({marks}) AND deleted_at IS NULL ORDER BY slot, id");
    sql(text).bind_all(vms.iter().copied()).fetch_all(db).await
}

/// Disks that want work, organizations in turn, and when the next one does.
pub async fn due(db: &Db, now: Timestamp, limit: usize) -> Result<due::Due<DiskId>, DbError> {
    due::of_projects(db, "disks", now, limit).await
}

/// Whose a disk is.
pub async fn owner(db: &Db, id: DiskId) -> Result<Option<Owner>, DbError> {
    due::owner(db, "disks", id).await
}

/// How many disks lie in each store, and snapshots of such.
pub async fn count_in_stores(on: impl On) -> Result<Vec<(String, i64)>, DbError> {
    let counted = sql("SELECT store, COUNT(*) AS disks FROM (\
         SELECT store FROM disks WHERE store IS NOT NULL AND deleted_at IS NULL \
         UNION ALL SELECT store FROM disk_snapshots WHERE store IS NOT NULL AND deleted_at IS NULL) named \
         GROUP BY store ORDER BY store");
    Ok(counted.fetch_all::<InStore>(on).await?.into_iter().map(|InStore(store, disks)| (store, disks)).collect())
}

struct InStore(String, i64);

impl FromRow for InStore {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self(row.text("store")?, row.int("disks")?))
    }
}

/// The sizes of disks that have a place on a host, and in no store, summed, in GiB: those that are there or being made,
/// those that could not be made anew, of which what was there is still, and those that come there to their VM, or with it.
pub async fn placed_gb(tx: &mut Tx, host: HostId) -> Result<i64, DbError> {
    sql("SELECT CAST(COALESCE(SUM(gb), 0) AS BIGINT) AS gb FROM (\
         SELECT COALESCE(placed_gb, size_gb) AS gb FROM disks WHERE deleted_at IS NULL AND host_id = $1 AND store IS NULL \
         AND (status NOT IN ('pending', 'failed') OR (status = 'failed' AND anew <> 0)) \
         UNION ALL SELECT COALESCE(placed_gb, size_gb) AS gb FROM disks WHERE deleted_at IS NULL AND to_host_id = $1 \
         AND host_id <> $1 AND store IS NULL AND status = 'ready' \
         AND vm_id IN (SELECT owner_id FROM machines WHERE owner_kind = 'vm' AND host_id = $1) \
         UNION ALL SELECT COALESCE(placed_gb, size_gb) AS gb FROM disks WHERE deleted_at IS NULL AND host_id <> $1 AND store IS NULL \
         AND vm_id IN (SELECT vm_id FROM vm_migrations WHERE host_id = $1)) placed")
    .bind(host)
    .fetch_one(tx)
    .await
}

/// How many disks were cloned from an image.
pub async fn of_image(tx: &mut Tx, image: &str) -> Result<i64, DbError> {
    sql("SELECT COUNT(*) FROM disks WHERE image_id = $1 AND deleted_at IS NULL").bind(image).fetch_one(tx).await
}

/// A disk that is yet to be made of a snapshot, or that its VM tries to make again when it is started.
pub async fn unmade_of(tx: &mut Tx, snapshot: DiskSnapshotId) -> Result<Option<DiskRow>, DbError> {
    sql("SELECT * FROM disks WHERE snapshot_id = $1 AND deleted_at IS NULL \
         AND (status IN ('pending', 'provisioning') OR (status = 'failed' AND vm_id IS NOT NULL)) ORDER BY id LIMIT 1")
    .bind(snapshot)
    .fetch_optional(tx)
    .await
}

/// A disk that is yet to be made of a project's image, or that its VM tries to make again when it is started.
pub async fn unmade_of_image(tx: &mut Tx, image: &str) -> Result<Option<DiskRow>, DbError> {
    sql("SELECT * FROM disks WHERE image_id = $1 AND snapshot_id IS NULL AND deleted_at IS NULL \
         AND (status IN ('pending', 'provisioning') OR (status = 'failed' AND vm_id IS NOT NULL)) ORDER BY id LIMIT 1")
    .bind(image)
    .fetch_optional(tx)
    .await
}

/// The id of a disk's row.
pub(super) struct IdRow(pub DiskId);

impl FromRow for IdRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        row.parsed("id").map(Self)
    }
}

/// Disks that are not gone, and may be on a host.
pub async fn living(db: &Db, host: HostId) -> Result<Vec<DiskId>, DbError> {
    let rows: Vec<IdRow> = sql(LIVING).bind(host).fetch_all(db).await?;
    Ok(rows.into_iter().map(|r| r.0).collect())
}

/// Has those be on a service's own host that lie in its folder.
pub async fn bring_home(tx: &mut Tx, host: HostId) -> Result<(), DbError> {
    home::bring(tx, TABLE, "status <> 'pending'", host).await
}

/// Whether a project has any.
pub async fn any(tx: &mut Tx, project: ProjectId) -> Result<bool, DbError> {
    let n: i64 = sql("SELECT COUNT(*) FROM disks WHERE project_id = $1 AND deleted_at IS NULL")
        .bind(project)
        .fetch_one(tx)
        .await?;
    Ok(n > 0)
}
