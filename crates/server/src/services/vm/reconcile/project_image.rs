//! Makes and removes images of projects.
//!
//! The owner of the disk copies it into the snapshot that belongs to the image ([`super::disk_snapshot`]), and wakes the image
//! when that is over. The image's own worker has the host make the image of it; in the transaction that says that the image
//! is there, or is not to come, the snapshot goes.

use berth_domain::ids::{HostId, ImageId, Owner};
use berth_domain::vm::DiskSnapshotStatus;
use berth_domain::vm::project_image::{LOOK_MILLIS, Next, ProjectImageStatus, ProjectImageStep, next};
use berth_domain::{Result, Timestamp};
use berth_host::EngineError;
use berth_host::vm::{ImageInfo, ImageOfSnapshot};

use super::capacity::shortage_of_disk;
use super::wanted::unwanted;
use super::{StepError, fault};
use crate::db::{Signal, Tx};
use crate::services::vm::ops::disk_snapshot::drop_copy;
use crate::services::vm::store::disk_snapshot::DiskSnapshotRow;
use crate::services::vm::store::project_image::{ProjectImageRow, TABLE};
use crate::services::vm::{Vms, store, told};
use crate::work::Due;
use crate::work::lifecycle::{self, Life};

/// The lives of projects' images.
pub struct ProjectImageLife {
    vms: Vms,
}

/// One look at an image: its row, and the snapshot that it is made of.
pub struct Seen {
    image: ProjectImageRow,
    copy: Option<DiskSnapshotRow>,
}

impl Life for ProjectImageLife {
    type Key = ImageId;
    type Seen = Seen;
    type Step = ProjectImageStep;
    const TABLE: &'static str = TABLE;
    const KIND: &'static str = "project_image";
    /// A copy may take hours; one that is dropped half way begins anew at the next start.
    const DROPPED_BY_A_STOP: bool = true;

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Due<ImageId>> {
        Ok(store::project_image::due(self.vms.db(), now, limit).await?)
    }

    async fn owner(&self, id: &ImageId) -> Option<Owner> {
        store::project_image::owner(self.vms.db(), *id).await.ok().flatten()
    }

    async fn look(&self, id: &ImageId) -> Result<Option<Seen>, StepError> {
        let Some(image) = store::project_image::load(self.vms.db(), *id).await? else { return Ok(None) };
        let copy = store::disk_snapshot::load(self.vms.db(), image.snapshot).await?;
        Ok(Some(Seen { image, copy }))
    }

    async fn plan(&self, Seen { image, copy }: &Seen) -> Result<lifecycle::Next<ProjectImageStep>, StepError> {
        Ok(match next(image.status, copy.as_ref().map(|copy| copy.status)) {
            Next::Take(step) => lifecycle::Next::Take(step),
            Next::Wait => lifecycle::Next::Rest(Some(self.vms.clock().now().plus_millis(LOOK_MILLIS))),
            Next::Rest => lifecycle::Next::Rest(None),
        })
    }

    fn name(step: &ProjectImageStep) -> &'static str {
        step.as_str()
    }

    async fn take(&self, Seen { image, copy }: &Seen, step: ProjectImageStep) -> Result<(), StepError> {
        match step {
            ProjectImageStep::Make => self.make(image, copy.as_ref()).await,
            ProjectImageStep::Fail => {
                let why = copy.as_ref().filter(|copy| copy.status == DiskSnapshotStatus::Failed);
                let why = why.and_then(|copy| copy.message.clone());
                self.fail(image, why.unwrap_or_else(|| "its disk is gone".into())).await
            }
            ProjectImageStep::Remove => {
                self.vms.engine_of(image.host)?.remove_image(&image.id.to_string()).await?;
                fault("project_image", "remove", "done").await?;
                record(&self.vms, image.id, async |_, image, now| {
                    image.status = ProjectImageStatus::Deleted;
                    (image.deleted_at, image.work_at, image.placed_at) = (Some(now), None, None);
                    Ok(())
                })
                .await
            }
        }
    }

    async fn rest(&self, Seen { image, copy }: &Seen, until: Option<Timestamp>) -> Result<(), StepError> {
        let mut tx = self.vms.db().begin().await?;
        let Some(now) = store::project_image::load(&mut tx, image.id).await? else { return Ok(()) };
        let of = store::disk_snapshot::load(&mut tx, image.snapshot).await?;
        // What changed meanwhile wants another look.
        let is_same = now.status == image.status && of.map(|of| of.status) == copy.as_ref().map(|copy| copy.status);
        if is_same && now.work_at != until {
            let rested = ProjectImageRow { work_at: until, ..now.clone() };
            store::project_image::update(&mut tx, &now, &rested).await?;
            tx.commit().await?;
        }
        Ok(())
    }

    async fn postpone(&self, seen: &Seen, until: Timestamp) -> Result<(), StepError> {
        record(&self.vms, seen.image.id, async |_, image, _| {
            image.work_at = Some(until);
            Ok(())
        })
        .await
    }

    /// What is to be removed is never given up.
    async fn give_up(&self, seen: &Seen, error: &EngineError) -> Result<bool, StepError> {
        if seen.image.status != ProjectImageStatus::Pending {
            return Ok(false);
        }
        self.fail(&seen.image, error.to_string()).await?;
        Ok(true)
    }
}

impl ProjectImageLife {
    /// The lives of the service's images of projects.
    pub const fn new(vms: Vms) -> Self {
        Self { vms }
    }

    async fn make(&self, image: &ProjectImageRow, copy: Option<&DiskSnapshotRow>) -> Result<(), StepError> {
        let host = copy.and_then(|copy| copy.host).unwrap_or_else(|| self.vms.host());
        if !self.place(image, host).await? {
            return Ok(());
        }
        let engine = self.vms.engine_of(Some(host))?;
        fault("project_image", "make", "placed").await?;
        let wanted = ImageOfSnapshot { id: image.id, name: image.name.clone(), snapshot: image.snapshot };
        let load = || store::project_image::load(self.vms.db(), image.id);
        let made = tokio::select! {
            made = engine.make_image(&wanted) => made?,
            // Whoever deletes it does not wait for it.
            () = unwanted(load, |row: &ProjectImageRow| row.status == ProjectImageStatus::Pending) => return Ok(()),
        };
        fault("project_image", "make", "done").await?;
        self.ready(image.id, made).await
    }

    /// Notes that something of an image may be on the host from now on, if there is a place for it; one that has none fails.
    async fn place(&self, image: &ProjectImageRow, host: HostId) -> Result<bool, StepError> {
        let capacity = self.vms.engine_of(Some(host))?.capacity().await?;
        let mut tx = self.vms.db().begin().await?;
        let found = store::project_image::load(&mut tx, image.id).await?;
        let Some(before) = found.filter(|image| image.status == ProjectImageStatus::Pending) else { return Ok(false) };
        if before.placed_at.is_some() {
            return Ok(true);
        }
        if let Some(missing) = shortage_of_disk(&mut tx, host, before.size_gb, capacity).await? {
            return Err(EngineError::NoCapacity(missing).into());
        }
        let now = self.vms.clock().now();
        let message = Some("making an image of the copy".to_owned());
        let placed =
            ProjectImageRow { host: Some(host), placed_at: Some(now), message, updated_at: now, ..before.clone() };
        write(&mut tx, &before, placed).await?;
        tx.commit().await?;
        Ok(true)
    }

    async fn ready(&self, id: ImageId, made: ImageInfo) -> Result<(), StepError> {
        record(&self.vms, id, async |tx, image, now| {
            if image.status != ProjectImageStatus::Pending {
                return Ok(());
            }
            (image.os, image.version) = (made.os, made.version);
            (image.virtual_size, image.min_memory_mb) = (made.virtual_size, made.min_memory_mb);
            image.status = ProjectImageStatus::Ready;
            (image.message, image.work_at, image.updated_at) = (None, None, now);
            Ok(drop_copy(tx, image.snapshot, now).await?)
        })
        .await
    }

    async fn fail(&self, image: &ProjectImageRow, why: String) -> Result<(), StepError> {
        let placed = store::project_image::load(self.vms.db(), image.id).await?;
        let host = placed.and_then(|placed| placed.host);
        self.vms.engine_of(host)?.remove_image(&image.id.to_string()).await?;
        record(&self.vms, image.id, async |tx, image, now| {
            if image.status != ProjectImageStatus::Pending {
                return Ok(());
            }
            image.status = ProjectImageStatus::Failed;
            (image.message, image.work_at, image.placed_at) = (Some(why), None, None);
            Ok(drop_copy(tx, image.snapshot, now).await?)
        })
        .await
    }
}

async fn record(
    vms: &Vms,
    id: ImageId,
    change: impl AsyncFnOnce(&mut Tx, &mut ProjectImageRow, Timestamp) -> Result<(), StepError>,
) -> Result<(), StepError> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin().await?;
    let Some(before) = store::project_image::load(&mut tx, id).await? else { return Ok(()) };
    let mut image = before.clone();
    change(&mut tx, &mut image, now).await?;
    if image.status != before.status {
        image.updated_at = now;
    }
    write(&mut tx, &before, image).await?;
    Ok(tx.commit().await?)
}

/// Writes a row; tells of what its owner sees another way.
async fn write(tx: &mut Tx, before: &ProjectImageRow, image: ProjectImageRow) -> Result<(), StepError> {
    if image.status != before.status {
        told::image(tx, &image, image.updated_at).await?;
    }
    store::project_image::update(tx, before, &image).await?;
    if image.work_at.is_some() {
        tx.signal(Signal::Work(TABLE));
    }
    Ok(())
}
