//! Verbs on images of a project. Each is a wish: the owner of the disk copies it, and
//! [`reconcile::project_image`](crate::services::vm::reconcile::project_image) makes the image of the copy.

use berth_domain::ids::{DiskSnapshotId, ImageId};
use berth_domain::vm::project_image::{CreateProjectImage, FIELD, ProjectImageStatus, on_create};
use berth_domain::vm::{DiskKind, DiskStatus};
use berth_domain::{Code, Error, Result, Timestamp};
use uuid::Uuid;

use super::disk_snapshot;
use super::holder::wake_owner;
use crate::db::audit::Audit;
use crate::db::usage::Held;
use crate::db::{Signal, Tx, event};
use crate::http::auth::Scope;
use crate::http::idempotency::{Idempotency, Outcome};
use crate::services::quota;
use crate::services::vm::store::Tenant;
use crate::services::vm::store::disk::DiskRow;
use crate::services::vm::store::disk_snapshot::DiskSnapshotRow;
use crate::services::vm::store::project_image::ProjectImageRow;
use crate::services::vm::wire::project_image::ProjectImageView;
use crate::services::vm::{Vms, store, told};

/// The 404 of a project's image.
pub fn not_found() -> Error {
    Error::new(Code::ImageNotFound, "This project made no such image. GET …/images lists those that it did.")
}

/// Records the wish for an image of a root disk volume, and for the copy of the disk that it is made of.
pub async fn create(
    vms: &Vms,
    scope: &Scope,
    request: CreateProjectImage,
    key: Idempotency,
) -> Result<Outcome<ProjectImageView>> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    let disk = disk(&mut tx, scope, &request).await?;
    let wanted = Held { disks: 1, disk_gb: disk.extent.wanted_gb, ..Held::default() };
    quota::admit(&mut tx, scope, wanted, now).await?;
    let image = new_image(&disk, request.name, now)?;
    let copy = DiskSnapshotRow {
        id: image.snapshot,
        hidden: true,
        image: Some(image.id),
        ..super::disk_snapshot::new(&disk, "image", now)
    };
    store::project_image::insert(&mut tx, &image).await?;
    store::disk_snapshot::insert(&mut tx, &copy).await?;
    record(&mut tx, scope, &image, "create").await?;
    wake_owner(&mut tx, &disk, now).await?;
    let view = ProjectImageView::from(&image);
    let outcome = key.created(&mut tx, now, view.location(scope), view).await?;
    tx.commit().await?;
    Ok(outcome)
}

/// The root disk volume that a request names.
async fn disk(tx: &mut Tx, scope: &Scope, request: &CreateProjectImage) -> Result<DiskRow> {
    let id = request.disk;
    let disk = store::disk::find_any_in(tx, scope.into(), id).await?.ok_or_else(|| Error {
        code: Code::DiskNotFound,
        ..Error::field(FIELD, format!("there is no disk {id} in this project"))
    })?;
    if disk.kind != DiskKind::Root {
        return Err(Error::field(FIELD, format!("{id} is a {} disk", disk.kind)));
    }
    on_create(disk.status, id)?;
    Ok(disk)
}

fn new_image(disk: &DiskRow, name: String, now: Timestamp) -> Result<ProjectImageRow> {
    let origin = disk.image_id.clone().zip(disk.login_user.clone());
    let (image_id, login_user) = origin.ok_or_else(|| Error::internal("a root disk without an image"))?;
    Ok(ProjectImageRow {
        id: ImageId(Uuid::now_v7()),
        org: disk.org,
        project: disk.project,
        name,
        disk: disk.id,
        snapshot: DiskSnapshotId(Uuid::now_v7()),
        image_id,
        region_id: disk.region_id.clone(),
        host: None,
        size_gb: disk.extent.wanted_gb,
        os: String::new(),
        version: String::new(),
        virtual_size: 0,
        min_memory_mb: 0,
        login_user,
        status: ProjectImageStatus::Pending,
        message: Some("waiting for a copy of the disk".into()),
        placed_at: None,
        work_at: Some(now),
        created_at: now,
        updated_at: now,
        deleted_at: None,
    })
}

/// An image that a project can clone; none where it has no such image, or none that is ready.
pub(super) async fn usable(tx: &mut Tx, tenant: Tenant, id: &str) -> Result<Option<ProjectImageRow>> {
    let Ok(id) = id.parse::<ImageId>() else { return Ok(None) };
    let found = store::project_image::find(tx, tenant, id).await?;
    Ok(found.filter(|image| image.status == ProjectImageStatus::Ready))
}

/// Records the wish to delete an image. One that is being made is given up; what was cloned from it stays.
pub async fn delete(vms: &Vms, scope: &Scope, id: ImageId) -> Result<()> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    let before = store::project_image::find(&mut tx, scope.into(), id).await?.ok_or_else(not_found)?;
    if before.status == ProjectImageStatus::Deleting {
        return Ok(());
    }
    if store::backup::of_image(&mut tx, &id.to_string()).await? > 0 {
        let message = "Backups of root disks boot with this image once they are restored. Delete them first.";
        return Err(Error::new(Code::ImageInUse, message));
    }
    if let Some(disk) = store::disk::unmade_of_image(&mut tx, &id.to_string()).await? {
        let message = if disk.status == DiskStatus::Failed {
            format!("The disk {} is made of this image when its VM is started again. Delete the VM first.", disk.id)
        } else {
            format!("The disk {} is being made of this image. Wait until it is, or delete it.", disk.id)
        };
        return Err(Error::new(Code::ImageInUse, message));
    }
    disk_snapshot::drop_copy(&mut tx, before.snapshot, now).await?;
    let image = ProjectImageRow {
        status: ProjectImageStatus::Deleting,
        message: None,
        work_at: Some(now),
        updated_at: now,
        ..before.clone()
    };
    store::project_image::update(&mut tx, &before, &image).await?;
    record(&mut tx, scope, &image, "delete").await?;
    Ok(tx.commit().await?)
}

async fn record(tx: &mut Tx, scope: &Scope, image: &ProjectImageRow, action: &str) -> Result<()> {
    let (subject, data) = (image.id.to_string(), told::image_data(image));
    let audited = format!("project_image.{action}");
    Audit { data: data.clone(), ..scope.audit(&audited, &subject) }.write(tx, image.updated_at).await?;
    let kind = if action == "create" { "project_image.created" } else { "project_image.status" };
    event::emit(tx, scope.project, kind, &subject, &data, image.updated_at).await?;
    tx.signal(Signal::Work(store::project_image::TABLE));
    Ok(())
}
