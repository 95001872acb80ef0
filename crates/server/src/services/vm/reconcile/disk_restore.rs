//! Makes disks of backups.
//!
//! A disk that is made of a backup has a row of its own until it is: its bytes come from the store and may take hours, for
//! which no worker of other disks waits. Until that row has ended nobody else touches the disk ([`super::disk`]). A file that
//! a death leaves in `staging/` is swept at the start, and fetched anew.

use std::path::PathBuf;

use berth_domain::ids::{DiskId, Owner};
use berth_domain::vm::backup::{LONGEST, RestoreStep, next_of_restore};
use berth_domain::vm::{BackupStatus, DiskKind, DiskStatus};
use berth_domain::{Result, Timestamp};
use berth_host::EngineError;
use berth_host::vm::BroughtDisk;

use super::backup::{AWAY, TURN, at_hand};
use super::disk::{hand_over, place, say, settle};
use super::transfer::{Failed, fetch};
use super::wanted::{late, unwanted};
use super::{StepError, fault};
use crate::services::vm::depot::Depot;
use crate::services::vm::store::backup::BackupRow;
use crate::services::vm::store::disk::DiskRow;
use crate::services::vm::store::disk_restore::DiskRestoreRow;
use crate::services::vm::{Vms, store};
use crate::work::Due;
use crate::work::lifecycle::{Life, Next};

/// The lives of disks that are made of backups, until they are.
pub struct DiskRestoreLife {
    vms: Vms,
}

/// One look: the restore, and its disk.
pub struct Seen {
    restore: DiskRestoreRow,
    disk: Option<DiskRow>,
}

/// When a disk is given up that is not made by then.
fn last_moment(restore: &DiskRestoreRow) -> Timestamp {
    restore.created_at.plus_seconds(LONGEST)
}

fn too_late() -> EngineError {
    let hours = LONGEST / 3600;
    EngineError::Permanent(format!("it took longer than {hours} hours; delete this disk, and restore the backup again"))
}

impl Life for DiskRestoreLife {
    type Key = DiskId;
    type Seen = Seen;
    type Step = RestoreStep;
    const TABLE: &'static str = store::disk_restore::TABLE;
    const KIND: &'static str = "disk_restore";
    /// It may take hours, and begins anew at the next start.
    const DROPPED_BY_A_STOP: bool = true;

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Due<DiskId>> {
        Ok(store::disk_restore::due(self.vms.db(), now, limit).await?)
    }

    async fn owner(&self, id: &DiskId) -> Option<Owner> {
        store::disk_restore::owner(self.vms.db(), *id).await.ok().flatten()
    }

    async fn look(&self, id: &DiskId) -> Result<Option<Seen>, StepError> {
        let Some(restore) = store::disk_restore::find(self.vms.db(), *id).await? else { return Ok(None) };
        Ok(Some(Seen { restore, disk: store::disk::load(self.vms.db(), *id).await? }))
    }

    async fn plan(&self, seen: &Seen) -> Result<Next<RestoreStep>, StepError> {
        let step = next_of_restore(seen.disk.as_ref().map(|disk| disk.status));
        let now = self.vms.clock().now();
        if step == RestoreStep::Fetch
            && now < last_moment(&seen.restore)
            && self.vms.restoring().available_permits() == 0
        {
            return Ok(Next::Rest(Some(now.plus_seconds(TURN))));
        }
        Ok(Next::Take(step))
    }

    fn name(step: &RestoreStep) -> &'static str {
        step.as_str()
    }

    async fn take(&self, seen: &Seen, step: RestoreStep) -> Result<(), StepError> {
        match (step, &seen.disk) {
            (RestoreStep::Place, Some(disk)) => place(&self.vms, disk).await,
            (RestoreStep::Fetch, Some(disk)) => self.fetch(&seen.restore, disk).await,
            (RestoreStep::End, _) => self.end(seen.restore.id).await,
            (_, None) => Ok(()),
        }
    }

    async fn rest(&self, seen: &Seen, until: Option<Timestamp>) -> Result<(), StepError> {
        match until {
            Some(until) => self.postpone(seen, until).await,
            None => Ok(()),
        }
    }

    async fn postpone(&self, seen: &Seen, until: Timestamp) -> Result<(), StepError> {
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = store::disk_restore::find(&mut tx, seen.restore.id).await? else { return Ok(()) };
        let row = DiskRestoreRow { work_at: Some(until), ..before.clone() };
        store::disk_restore::update(&mut tx, &before, &row).await?;
        Ok(tx.commit().await?)
    }

    async fn give_up(&self, Seen { disk, .. }: &Seen, error: &EngineError) -> Result<bool, StepError> {
        let Some(disk) = disk.as_ref().filter(|disk| disk.status != DiskStatus::Deleting) else { return Ok(false) };
        settle(&self.vms, disk, Some(error.to_string())).await?;
        self.end(disk.id).await?;
        Ok(true)
    }
}

impl DiskRestoreLife {
    /// The lives of the service's disks that are made of backups.
    pub const fn new(vms: Vms) -> Self {
        Self { vms }
    }

    /// Has the disk made of what the store has, or gives that up where nobody wants it any more.
    async fn fetch(&self, restore: &DiskRestoreRow, disk: &DiskRow) -> Result<(), StepError> {
        let backup = store::backup::load(self.vms.db(), restore.backup).await?;
        let Some(backup) = backup.filter(|backup| backup.status == BackupStatus::Ready) else {
            return Err(EngineError::Permanent("the backup is not there any more".into()).into());
        };
        let last = last_moment(restore);
        if self.vms.clock().now() >= last {
            return settle(&self.vms, disk, Some(too_late().to_string())).await;
        }
        let depot = at_hand(&self.vms, &backup, |away| say(&self.vms, disk.id, away)).await?;
        let Ok(_turn) = self.vms.restoring().try_acquire() else { return Ok(()) };
        let load = || store::disk::load(self.vms.db(), disk.id);
        let made = tokio::select! {
            made = self.bring(depot, &backup, disk) => made,
            () = unwanted(load, |row: &DiskRow| row.status == DiskStatus::Provisioning) => return Ok(()),
            () = late(self.vms.clock(), last) => Err(too_late().into()),
        };
        fault("disk_restore", "fetch", "done").await?;
        match made {
            Err(StepError::Engine(error)) if error.is_final() => settle(&self.vms, disk, Some(error.to_string())).await,
            Err(error) => Err(error),
            Ok(()) => settle(&self.vms, disk, None).await,
        }
    }

    async fn bring(&self, depot: &Depot, backup: &BackupRow, disk: &DiskRow) -> Result<(), StepError> {
        self.require_room(backup).await?;
        let file = self.file(disk.id).await?;
        let told = |message: String| async move {
            // Only for who looks on; the next word comes in a moment.
            let _ = say(&self.vms, disk.id, &message).await;
        };
        if let Err(failed) = fetch(depot, backup, &file, told).await {
            // It is fetched anew, and takes no room until then.
            let _ = tokio::fs::remove_file(&file).await;
            if let Failed::Depot(error) = &failed {
                tracing::warn!(backup = %backup.id, %error, "the store of backups cannot be used; trying again");
                say(&self.vms, disk.id, AWAY).await?;
            }
            return Err(failed.into());
        }
        fault("disk_restore", "fetch", "fetched").await?;
        say(&self.vms, disk.id, "checking and converting").await?;
        let image = disk.image_id.clone().filter(|_| disk.kind == DiskKind::Root);
        let brought = BroughtDisk { id: disk.id, size_gb: disk.extent.wanted_gb, image, is_foreign: false };
        Ok(self.vms.engine().bring_disk(&file, &brought).await?)
    }

    /// Refuses to fetch what the host has no room for at this moment: the file, and the disk that is made of it.
    async fn require_room(&self, backup: &BackupRow) -> Result<(), StepError> {
        let needed = backup.size_bytes.unwrap_or_default().saturating_mul(2);
        if self.vms.engine().capacity().await?.room_bytes >= needed {
            return Ok(());
        }
        let gib = (needed + (1 << 30) - 1) >> 30;
        let missing = format!("the host's disk has no room for the backup and the disk made of it, {gib} GiB in all");
        Err(EngineError::NoCapacity(missing).into())
    }

    /// Where the bytes of a disk are until the host has it.
    async fn file(&self, id: DiskId) -> Result<PathBuf, StepError> {
        Ok(self.vms.engine().staging().await?.join(format!("{id}.restored")))
    }

    /// Removes what was fetched, and hands the disk to its own worker.
    async fn end(&self, id: DiskId) -> Result<(), StepError> {
        // What stays is swept at the next start.
        let _ = tokio::fs::remove_file(self.file(id).await?).await;
        fault("disk_restore", "end", "swept").await?;
        let now = self.vms.clock().now();
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = store::disk_restore::find(&mut tx, id).await? else { return Ok(()) };
        let row = DiskRestoreRow { work_at: None, deleted_at: Some(now), ..before.clone() };
        store::disk_restore::update(&mut tx, &before, &row).await?;
        // Its schedule may have waited for that.
        let backup = store::backup::load(&mut tx, before.backup).await?;
        if let Some(schedule) = backup.and_then(|backup| backup.schedule) {
            store::backup_schedule::wake(&mut tx, schedule, now).await?;
        }
        hand_over(&mut tx, id, now).await?;
        Ok(tx.commit().await?)
    }
}
