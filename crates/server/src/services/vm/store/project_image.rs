//! Rows of images that projects made.

use berth_domain::Timestamp;
use berth_domain::ids::{DiskId, DiskSnapshotId, HostId, ImageId, OrgId, Owner, ProjectId};
use berth_domain::resource_usage::{Kind, Measure};
use berth_domain::vm::project_image::ProjectImageStatus;

use super::Tenant;
use crate::columns;
use crate::db::listing::{Listed, Listing, Words};
use crate::db::record::{self, Columns};
use crate::db::resource_usage::{self, Use};
use crate::db::{Db, DbError, FromRow, On, Row, Signal, Tx, due, home, page_of, sql};

/// The table.
pub const TABLE: &str = "project_images";
/// Those that are not gone, and may be on a host.
const LIVING: &str = "SELECT id FROM project_images WHERE deleted_at IS NULL AND (host_id IS NULL OR host_id = $1)";

/// A project's image as its row has it.
#[derive(Clone, Debug)]
pub struct ProjectImageRow {
    /// Its id.
    pub id: ImageId,
    /// The organization.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
    /// Name for people.
    pub name: String,
    /// The disk that it is made of, which may be gone.
    pub disk: DiskId,
    /// The snapshot that it is made of, which goes once it is there.
    pub snapshot: DiskSnapshotId,
    /// The image that the disk was cloned from.
    pub image_id: String,
    /// Region.
    pub region_id: String,
    /// The host that it has its place on, once it has one: that of its snapshot.
    pub host: Option<HostId>,
    /// How large the disk was, in GiB.
    pub size_gb: i64,
    /// Operating system, once it is ready.
    pub os: String,
    /// What its content hashes to, once it is ready.
    pub version: String,
    /// Size its disk has for a guest, in bytes, once it is ready.
    pub virtual_size: i64,
    /// Least memory it boots with, in MiB, once it is ready.
    pub min_memory_mb: i64,
    /// The user that SSH keys are installed for.
    pub login_user: String,
    /// Where it stands.
    pub status: ProjectImageStatus,
    /// The step under way, or the reason of a failure.
    pub message: Option<String>,
    /// Since when something of it may be on the host.
    pub placed_at: Option<Timestamp>,
    /// When the worker is to look at it.
    pub work_at: Option<Timestamp>,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
    /// Deletion.
    pub deleted_at: Option<Timestamp>,
}

impl FromRow for ProjectImageRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            org: row.parsed("org_id")?,
            project: row.parsed("project_id")?,
            name: row.text("name")?,
            disk: row.parsed("disk_id")?,
            snapshot: row.parsed("snapshot_id")?,
            image_id: row.text("image_id")?,
            region_id: row.text("region_id")?,
            host: row.opt_parsed("host_id")?,
            size_gb: row.int("size_gb")?,
            os: row.text("os")?,
            version: row.text("version")?,
            virtual_size: row.int("virtual_size")?,
            min_memory_mb: row.int("min_memory_mb")?,
            login_user: row.text("login_user")?,
            status: row.word("status", ProjectImageStatus::parse)?,
            message: row.opt_text("message")?,
            placed_at: row.opt_time("placed_at")?,
            work_at: row.opt_time("work_at")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
            deleted_at: row.opt_time("deleted_at")?,
        })
    }
}

fn columns(image: &ProjectImageRow) -> Columns {
    columns! {
        "id": image.id, "org_id": image.org, "project_id": image.project, "name": &image.name, "disk_id": image.disk,
        "snapshot_id": image.snapshot, "image_id": &image.image_id, "region_id": &image.region_id, "host_id": image.host,
        "size_gb": image.size_gb, "os": &image.os, "version": &image.version, "virtual_size": image.virtual_size,
        "min_memory_mb": image.min_memory_mb, "login_user": &image.login_user, "status": image.status.as_str(),
        "message": image.message.clone(), "placed_at": image.placed_at, "work_at": image.work_at,
        "created_at": image.created_at, "updated_at": image.updated_at, "deleted_at": image.deleted_at,
    }
}

/// Writes a new row, of an image that is not made yet.
pub async fn insert(tx: &mut Tx, image: &ProjectImageRow) -> Result<(), DbError> {
    record::insert(TABLE, columns(image)).execute(tx).await.map(drop)
}

/// Writes a change of a row, and notes what it takes from then on, where that is not what it took before.
pub async fn update(tx: &mut Tx, before: &ProjectImageRow, after: &ProjectImageRow) -> Result<(), DbError> {
    record::update(tx, TABLE, &columns(before), columns(after)).await?;
    let taken = after.takes();
    if taken != before.takes() {
        resource_usage::settle(tx, (Kind::Image, after.id.0), taken.as_ref(), after.updated_at).await?;
    }
    Ok(())
}

impl ProjectImageRow {
    /// What is counted of it: the whole size of its disk, from when it is ready until its owner has it deleted.
    fn takes(&self) -> Option<Use> {
        (self.status == ProjectImageStatus::Ready && self.deleted_at.is_none()).then(|| Use {
            org: self.org,
            project: self.project,
            kind: Kind::Image,
            resource: self.id.0,
            name: self.name.clone(),
            size: None,
            measure: Measure { bytes: self.size_gb << 30, ..Measure::default() },
            tariff: resource_usage::DISK.to_owned(),
        })
    }
}

/// What all images of projects take at present.
pub async fn taken(tx: &mut Tx) -> Result<Vec<Use>, DbError> {
    let rows: Vec<ProjectImageRow> = sql("SELECT * FROM project_images WHERE deleted_at IS NULL").fetch_all(tx).await?;
    Ok(rows.iter().filter_map(ProjectImageRow::takes).collect())
}

/// A tenant's image.
pub async fn find(on: impl On, tenant: Tenant, id: ImageId) -> Result<Option<ProjectImageRow>, DbError> {
    sql("SELECT * FROM project_images WHERE id = $1 AND project_id = $2 AND deleted_at IS NULL")
        .bind(id)
        .bind(tenant.project)
        .fetch_optional(on)
        .await
}

/// Any image of a project: for the worker.
pub async fn load(on: impl On, id: ImageId) -> Result<Option<ProjectImageRow>, DbError> {
    sql("SELECT * FROM project_images WHERE id = $1").bind(id).fetch_optional(on).await
}

/// By what a list of a project's images can be narrowed and ordered.
pub const LISTED: Listed = Listed {
    id: "project_images.id",
    created: "project_images.created_at",
    name: Some("project_images.name"),
    status: Some(Words {
        param: "status",
        column: "project_images.status",
        words: &["pending", "ready", "failed", "deleting"],
    }),
    labels: None,
};

/// A page of a tenant's images, and how many there are.
pub async fn list(db: &Db, tenant: Tenant, listing: &Listing) -> Result<(Vec<ProjectImageRow>, i64), DbError> {
    let of = "project_images WHERE project_id = $1 AND deleted_at IS NULL";
    page_of("*", of).bind(tenant.project).list(db, &LISTED, listing).await
}

/// Has the worker look at an image whose snapshot has come or failed.
pub async fn wake(tx: &mut Tx, id: ImageId, now: Timestamp) -> Result<(), DbError> {
    sql("UPDATE project_images SET work_at = $1 WHERE id = $2 AND deleted_at IS NULL")
        .bind(now)
        .bind(id)
        .execute(tx)
        .await?;
    tx.signal(Signal::Work(TABLE));
    Ok(())
}

/// Images that want work, organizations in turn, and when the next one does.
pub async fn due(db: &Db, now: Timestamp, limit: usize) -> Result<due::Due<ImageId>, DbError> {
    due::of_projects(db, TABLE, now, limit).await
}

/// Whose an image is.
pub async fn owner(db: &Db, id: ImageId) -> Result<Option<Owner>, DbError> {
    due::owner(db, TABLE, id).await
}

/// The sizes of images of projects that have a place on a host, summed, in GiB.
pub async fn placed_gb(tx: &mut Tx, host: HostId) -> Result<i64, DbError> {
    sql("SELECT CAST(COALESCE(SUM(size_gb), 0) AS BIGINT) AS gb FROM project_images \
         WHERE host_id = $1 AND deleted_at IS NULL AND placed_at IS NOT NULL")
    .bind(host)
    .fetch_one(tx)
    .await
}

struct IdRow(ImageId);

impl FromRow for IdRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        row.parsed("id").map(Self)
    }
}

/// Images that are not gone, and may be on a host.
pub async fn living(db: &Db, host: HostId) -> Result<Vec<ImageId>, DbError> {
    let rows: Vec<IdRow> = sql(LIVING).bind(host).fetch_all(db).await?;
    Ok(rows.into_iter().map(|r| r.0).collect())
}

/// Has those be on a service's own host that lie in its folder.
pub async fn bring_home(tx: &mut Tx, host: HostId) -> Result<(), DbError> {
    home::bring(tx, TABLE, "placed_at IS NOT NULL", host).await
}

/// Whether a project has any.
pub async fn any(tx: &mut Tx, project: ProjectId) -> Result<bool, DbError> {
    let n: i64 = sql("SELECT COUNT(*) FROM project_images WHERE project_id = $1 AND deleted_at IS NULL")
        .bind(project)
        .fetch_one(tx)
        .await?;
    Ok(n > 0)
}
