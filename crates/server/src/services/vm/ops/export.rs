//! What may be exported, by its row: the host makes the file and sends it.

use berth_domain::ids::{DiskId, DiskSnapshotId, HostId, ImageId};
use berth_domain::vm::export::{not_ready, of_disk};
use berth_domain::vm::shared_disk::Refused;
use berth_domain::vm::{DiskKind, DiskSnapshotStatus, ProjectImageStatus};
use berth_domain::{Code, Error, Result};
use berth_host::EngineError;
use berth_host::vm::{ExportSource, Exported};
use serde_json::json;

use super::volume_not_found;
use super::{disk_snapshot, project_image};
use crate::db::audit::Audit;
use crate::http::auth::Scope;
use crate::services::vm::{Vms, store};

/// What is exported, and what it is called.
pub struct Subject {
    /// The host that has it.
    pub host: Option<HostId>,
    /// What the host knows it by.
    pub of: ExportSource,
    /// Its name.
    pub name: String,
    /// What audit records call it, and its id.
    pub what: (&'static str, String),
}

/// A disk of a kind.
pub async fn disk(vms: &Vms, scope: &Scope, kind: DiskKind, id: DiskId) -> Result<Subject> {
    let disk = store::disk::find(vms.db(), scope.into(), kind, id).await?.ok_or_else(volume_not_found)?;
    Refused::Export.check(disk.store.as_deref())?;
    let holder = match disk.vm {
        Some(vm) => store::vm::find(vms.db(), scope.into(), vm).await?,
        None => None,
    };
    of_disk(id, disk.status, holder.as_ref().map(|vm| (vm.id, vm.status)))?;
    let of = ExportSource::Disk { id, of: holder.map(|vm| vm.machine.id) };
    let what = if kind == DiskKind::Root { "root_disk.export" } else { "disk.export" };
    Ok(Subject { host: disk.host, of, name: disk.name, what: (what, id.to_string()) })
}

/// A snapshot of a disk.
pub async fn snapshot(vms: &Vms, scope: &Scope, id: DiskSnapshotId) -> Result<Subject> {
    let found = store::disk_snapshot::find(vms.db(), scope.into(), id).await?;
    let snapshot = found.ok_or_else(disk_snapshot::not_found)?;
    if snapshot.status != DiskSnapshotStatus::Ready {
        return Err(not_ready(Code::SnapshotNotReady, ("snapshot", id), snapshot.status.as_str()));
    }
    Refused::ExportSnapshot.check(snapshot.lies_in())?;
    let what = ("disk_snapshot.export", id.to_string());
    Ok(Subject { host: snapshot.host, of: ExportSource::Snapshot(id), name: snapshot.name, what })
}

/// An image of the project.
pub async fn image(vms: &Vms, scope: &Scope, id: ImageId) -> Result<Subject> {
    let found = store::project_image::find(vms.db(), scope.into(), id).await?;
    let image = found.ok_or_else(project_image::not_found)?;
    if image.status != ProjectImageStatus::Ready {
        return Err(not_ready(Code::Conflict, ("image", id), image.status.as_str()));
    }
    let what = ("project_image.export", id.to_string());
    Ok(Subject { host: image.host, of: ExportSource::Image(id), name: image.name, what })
}

/// Notes that somebody takes it, or a part of it.
pub async fn record(vms: &Vms, scope: &Scope, subject: &Subject, about: &Exported) -> Result<()> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    let data = json!({"name": subject.name, "bytes": about.bytes, "sha256": about.sha256});
    Audit { data, ..scope.audit(subject.what.0, &subject.what.1) }.write(&mut tx, now).await?;
    Ok(tx.commit().await?)
}

/// What a host says that does not export something.
pub fn refused(error: EngineError) -> Error {
    let mut sentence = error.to_string();
    if let Some(first) = sentence.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    match error {
        EngineError::Permanent(_) => Error::new(Code::NotSupported, format!("{sentence}.")),
        EngineError::NoCapacity(missing) => {
            Error::new(Code::NoSpace, format!("There is no room for the export: {missing}. Try again later."))
        }
        error => Error::unavailable(error),
    }
}
