//! Rows of snapshots of disks.

use berth_domain::Timestamp;
use berth_domain::ids::{DiskId, DiskSnapshotId, HostId, ImageId, OrgId, Owner, ProjectId, VmId};
use berth_domain::resource_usage::{Kind, Measure};
use berth_domain::vm::disk_snapshot::{Open, Source, is_open};
use berth_domain::vm::{DiskKind, DiskSnapshotStatus, DiskType};

use super::Tenant;
use crate::columns;
use crate::db::listing::{Listed, Listing, Words};
use crate::db::record::{self, Columns};
use crate::db::resource_usage::{self, Use};
use crate::db::{Db, DbError, FromRow, On, Query, Row, Tx, due, home, page_of, sql};

/// The table.
const TABLE: &str = "disk_snapshots";
/// Those that are not gone, and may be on a host.
const LIVING: &str = "SELECT id FROM disk_snapshots WHERE deleted_at IS NULL AND (host_id IS NULL OR host_id = $1)";

/// Snapshots that the owner of their disk has to do something about, as [`is_open`] says.
macro_rules! open {
    ($of:literal) => {
        concat!(
            "SELECT s.* FROM disk_snapshots s ",
            $of,
            " AND s.deleted_at IS NULL AND (s.status = 'pending' OR (s.status = 'deleting' AND s.begun_at IS NOT NULL)) \
             ORDER BY s.created_at, s.id"
        )
    };
}

/// A snapshot of a disk as its row has it.
#[derive(Clone, Debug)]
pub struct DiskSnapshotRow {
    /// Its id.
    pub id: DiskSnapshotId,
    /// The organization.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
    /// Whether it is the platform's own, which nobody sees or pays for: something is made from it.
    pub hidden: bool,
    /// Its name.
    pub name: String,
    /// The disk that it is of, which may be gone.
    pub disk: DiskId,
    /// Of a root or a data disk.
    pub kind: DiskKind,
    /// How that disk is handed to a guest.
    pub disk_type: DiskType,
    /// How large the disk was, in GiB.
    pub size_gb: i64,
    /// What it takes on the host, or in its store, in bytes, once it is ready.
    pub bytes: Option<i64>,
    /// Region.
    pub region_id: String,
    /// The store of several hosts that its disk lies in, for ever; none of one of a disk that lies on a host.
    pub store: Option<String>,
    /// The host that it has its place on, once it has one: that of its disk. None for good where it lies in a store.
    pub host: Option<HostId>,
    /// The image that a root disk was cloned from.
    pub image_id: Option<String>,
    /// The user that this image installs SSH keys for.
    pub login_user: Option<String>,
    /// The project's image that it is made for, which alone sees it.
    pub image: Option<ImageId>,
    /// Where it stands.
    pub status: DiskSnapshotStatus,
    /// The reason of a failure.
    pub message: Option<String>,
    /// Since when something of it may be on the host that is not whole.
    pub begun_at: Option<Timestamp>,
    /// When to look again how far it is.
    pub look_at: Option<Timestamp>,
    /// When the worker is to look at it.
    pub work_at: Option<Timestamp>,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
    /// Deletion.
    pub deleted_at: Option<Timestamp>,
}

impl FromRow for DiskSnapshotRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            org: row.parsed("org_id")?,
            project: row.parsed("project_id")?,
            hidden: row.flag("hidden")?,
            name: row.text("name")?,
            disk: row.parsed("disk_id")?,
            kind: row.word("kind", DiskKind::parse)?,
            disk_type: row.word("type", DiskType::parse)?,
            size_gb: row.int("size_gb")?,
            bytes: row.opt_int("bytes")?,
            region_id: row.text("region_id")?,
            store: row.opt_text("store")?,
            host: row.opt_parsed("host_id")?,
            image_id: row.opt_text("image_id")?,
            login_user: row.opt_text("login_user")?,
            image: row.opt_parsed("project_image_id")?,
            status: row.word("status", DiskSnapshotStatus::parse)?,
            message: row.opt_text("message")?,
            begun_at: row.opt_time("begun_at")?,
            look_at: row.opt_time("look_at")?,
            work_at: row.opt_time("work_at")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
            deleted_at: row.opt_time("deleted_at")?,
        })
    }
}

fn columns(snapshot: &DiskSnapshotRow) -> Columns {
    columns! {
        "id": snapshot.id, "org_id": snapshot.org, "project_id": snapshot.project, "hidden": snapshot.hidden, "name": &snapshot.name,
        "disk_id": snapshot.disk, "kind": snapshot.kind.as_str(), "type": snapshot.disk_type.as_str(),
        "size_gb": snapshot.size_gb, "bytes": snapshot.bytes, "region_id": &snapshot.region_id, "store": snapshot.store.clone(),
        "host_id": snapshot.host,
        "image_id": snapshot.image_id.clone(), "login_user": snapshot.login_user.clone(),
        "project_image_id": snapshot.image,
        "status": snapshot.status.as_str(), "message": snapshot.message.clone(), "begun_at": snapshot.begun_at,
        "look_at": snapshot.look_at, "work_at": snapshot.work_at, "created_at": snapshot.created_at,
        "updated_at": snapshot.updated_at, "deleted_at": snapshot.deleted_at,
    }
}

/// Writes a new row, of a snapshot that is not made yet.
pub async fn insert(tx: &mut Tx, snapshot: &DiskSnapshotRow) -> Result<(), DbError> {
    record::insert(TABLE, columns(snapshot)).execute(tx).await.map(drop)
}

/// Writes a change of a row, and notes what it takes from then on, where that is not what it took before.
pub async fn update(tx: &mut Tx, before: &DiskSnapshotRow, after: &DiskSnapshotRow) -> Result<(), DbError> {
    record::update(tx, TABLE, &columns(before), columns(after)).await?;
    let taken = after.takes();
    if taken != before.takes() {
        resource_usage::settle(tx, (Kind::DiskSnapshot, after.id.0), taken.as_ref(), after.updated_at).await?;
    }
    Ok(())
}

impl DiskSnapshotRow {
    /// The store that it lies in itself: that of its disk, unless something else is made from it, which needs a file on a host.
    pub fn lies_in(&self) -> Option<&str> {
        self.store.as_deref().filter(|_| !self.hidden)
    }

    /// Whether the owner of its disk has to do something about it.
    pub const fn is_open(&self) -> bool {
        is_open(self.status, self.begun_at.is_some())
    }

    /// What its disk's owner has to do something about.
    pub const fn open(&self) -> Open {
        Open { id: self.id, after: self.look_at }
    }

    /// What a disk that is made of it has to know.
    pub fn source(&self) -> Source<'_> {
        let of = (self.kind, self.disk_type);
        Source { id: self.id, status: self.status, of, size_gb: self.size_gb, region: &self.region_id }
    }

    /// What is counted of it: the whole size of its disk, from when it is ready until its owner has it deleted. One from
    /// which something else is made is the platform's own.
    fn takes(&self) -> Option<Use> {
        let is_there = self.status == DiskSnapshotStatus::Ready && self.deleted_at.is_none();
        (is_there && !self.hidden).then(|| Use {
            org: self.org,
            project: self.project,
            kind: Kind::DiskSnapshot,
            resource: self.id.0,
            name: self.name.clone(),
            size: None,
            measure: Measure { bytes: self.size_gb << 30, ..Measure::default() },
            tariff: resource_usage::DISK.to_owned(),
        })
    }
}

/// What all snapshots take at present.
pub async fn taken(tx: &mut Tx) -> Result<Vec<Use>, DbError> {
    let rows: Vec<DiskSnapshotRow> = sql("SELECT * FROM disk_snapshots WHERE deleted_at IS NULL").fetch_all(tx).await?;
    Ok(rows.iter().filter_map(DiskSnapshotRow::takes).collect())
}

fn by_id(tenant: Tenant, id: DiskSnapshotId) -> Query {
    sql("SELECT * FROM disk_snapshots WHERE id = $1 AND project_id = $2 AND deleted_at IS NULL AND hidden = 0")
        .bind(id)
        .bind(tenant.project)
}

/// A tenant's snapshot. One from which something else is made is nobody's to see.
pub async fn find(on: impl On, tenant: Tenant, id: DiskSnapshotId) -> Result<Option<DiskSnapshotRow>, DbError> {
    by_id(tenant, id).fetch_optional(on).await
}

/// Any snapshot: for the worker.
pub async fn load(on: impl On, id: DiskSnapshotId) -> Result<Option<DiskSnapshotRow>, DbError> {
    sql("SELECT * FROM disk_snapshots WHERE id = $1").bind(id).fetch_optional(on).await
}

/// By what a list of snapshots can be narrowed and ordered.
pub const LISTED: Listed = Listed {
    id: "disk_snapshots.id",
    created: "disk_snapshots.created_at",
    name: Some("disk_snapshots.name"),
    status: Some(Words {
        param: "status",
        column: "disk_snapshots.status",
        words: &["pending", "ready", "failed", "deleting"],
    }),
    labels: None,
};

/// A page of a tenant's snapshots, of all disks or of one, and how many there are.
pub async fn list(
    db: &Db,
    tenant: Tenant,
    disk: Option<DiskId>,
    listing: &Listing,
) -> Result<(Vec<DiskSnapshotRow>, i64), DbError> {
    let of = "disk_snapshots WHERE project_id = $1 AND deleted_at IS NULL AND hidden = 0 \
              AND (CAST($2 AS TEXT) IS NULL OR disk_id = $2)";
    page_of("*", of).bind(tenant.project).bind(disk).list(db, &LISTED, listing).await
}

/// Those of a disk that its owner has to do something about, oldest first.
pub async fn open_of_disk(on: impl On, disk: DiskId) -> Result<Vec<DiskSnapshotRow>, DbError> {
    sql(open!("WHERE s.disk_id = $1")).bind(disk).fetch_all(on).await
}

/// Those of a VM's disks that it has to do something about, oldest first.
pub async fn open_of_vm(on: impl On, vm: VmId) -> Result<Vec<DiskSnapshotRow>, DbError> {
    sql(open!("JOIN disks d ON d.id = s.disk_id WHERE d.vm_id = $1 AND d.deleted_at IS NULL"))
        .bind(vm)
        .fetch_all(on)
        .await
}

/// Snapshots that want work, organizations in turn, and when the next one does.
pub async fn due(db: &Db, now: Timestamp, limit: usize) -> Result<due::Due<DiskSnapshotId>, DbError> {
    due::of_projects(db, TABLE, now, limit).await
}

/// Whose a snapshot is.
pub async fn owner(db: &Db, id: DiskSnapshotId) -> Result<Option<Owner>, DbError> {
    due::owner(db, TABLE, id).await
}

/// The sizes of snapshots that have a place on a host, summed, in GiB.
pub async fn placed_gb(tx: &mut Tx, host: HostId) -> Result<i64, DbError> {
    sql("SELECT CAST(COALESCE(SUM(size_gb), 0) AS BIGINT) AS gb FROM disk_snapshots \
         WHERE host_id = $1 AND deleted_at IS NULL AND status <> 'failed' \
         AND (status <> 'pending' OR begun_at IS NOT NULL)")
    .bind(host)
    .fetch_one(tx)
    .await
}

struct IdRow(DiskSnapshotId);

impl FromRow for IdRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        row.parsed("id").map(Self)
    }
}

/// Snapshots that are not gone, and may be on a host.
pub async fn living(db: &Db, host: HostId) -> Result<Vec<DiskSnapshotId>, DbError> {
    let rows: Vec<IdRow> = sql(LIVING).bind(host).fetch_all(db).await?;
    Ok(rows.into_iter().map(|r| r.0).collect())
}

/// Has those be on a service's own host that lie in its folder. What lies in a store is on no host.
pub async fn bring_home(tx: &mut Tx, host: HostId) -> Result<(), DbError> {
    let has_place = "(begun_at IS NOT NULL OR status NOT IN ('pending', 'failed')) AND store IS NULL";
    home::bring(tx, TABLE, has_place, host).await
}

/// Whether a project has any.
pub async fn any(tx: &mut Tx, project: ProjectId) -> Result<bool, DbError> {
    let n: i64 = sql("SELECT COUNT(*) FROM disk_snapshots WHERE project_id = $1 AND deleted_at IS NULL")
        .bind(project)
        .fetch_one(tx)
        .await?;
    Ok(n > 0)
}
