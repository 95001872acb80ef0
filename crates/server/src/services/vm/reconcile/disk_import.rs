//! Makes disks of files that were sent.
//!
//! A disk that is made of a file has a row of its own until it is: reading all of the file takes a while, for which no worker of
//! other disks waits. Until that row has ended nobody else touches the disk ([`super::disk`]), and the file stays in `staging/`.

use std::path::PathBuf;

use berth_domain::ids::{DiskId, Owner};
use berth_domain::vm::DiskStatus;
use berth_domain::vm::disk_import::{ImportStep, LONGEST, file_of, next};
use berth_domain::{Result, Timestamp};
use berth_host::EngineError;
use berth_host::vm::BroughtDisk;

use super::disk::{hand_over, place, say, settle};
use super::wanted::{late, unwanted};
use super::{StepError, fault};
use crate::services::vm::store::disk::DiskRow;
use crate::services::vm::store::disk_import::{DiskImportRow, TABLE};
use crate::services::vm::{Vms, store};
use crate::work::Due;
use crate::work::lifecycle::{Life, Next};

/// Seconds until it is looked again whether an import's turn has come.
const TURN: i64 = 1;

/// The lives of disks that are made of files, until they are.
pub struct DiskImportLife {
    vms: Vms,
}

/// One look: the import, and its disk.
pub struct Seen {
    import: DiskImportRow,
    disk: Option<DiskRow>,
}

/// When a disk is given up that is not made by then.
fn last_moment(import: &DiskImportRow) -> Timestamp {
    import.created_at.plus_seconds(LONGEST)
}

fn too_late() -> EngineError {
    let hours = LONGEST / 3600;
    EngineError::Permanent(format!("it took longer than {hours} hours; delete this disk, and send the file again"))
}

impl Life for DiskImportLife {
    type Key = DiskId;
    type Seen = Seen;
    type Step = ImportStep;
    const TABLE: &'static str = TABLE;
    const KIND: &'static str = "disk_import";
    /// What is dropped half way begins anew at the next start.
    const DROPPED_BY_A_STOP: bool = true;

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Due<DiskId>> {
        Ok(store::disk_import::due(self.vms.db(), now, limit).await?)
    }

    async fn owner(&self, id: &DiskId) -> Option<Owner> {
        store::disk_import::owner(self.vms.db(), *id).await.ok().flatten()
    }

    async fn look(&self, id: &DiskId) -> Result<Option<Seen>, StepError> {
        let Some(import) = store::disk_import::find(self.vms.db(), *id).await? else { return Ok(None) };
        Ok(Some(Seen { import, disk: store::disk::load(self.vms.db(), *id).await? }))
    }

    async fn plan(&self, seen: &Seen) -> Result<Next<ImportStep>, StepError> {
        let step = next(seen.disk.as_ref().map(|disk| disk.status));
        let now = self.vms.clock().now();
        let is_in_time = now < last_moment(&seen.import);
        if step == ImportStep::Make && is_in_time && self.vms.converting().available_permits() == 0 {
            return Ok(Next::Rest(Some(now.plus_seconds(TURN))));
        }
        Ok(Next::Take(step))
    }

    fn name(step: &ImportStep) -> &'static str {
        step.as_str()
    }

    async fn take(&self, seen: &Seen, step: ImportStep) -> Result<(), StepError> {
        match (step, &seen.disk) {
            (ImportStep::Place, Some(disk)) => place(&self.vms, disk).await,
            (ImportStep::Make, Some(disk)) => self.make(&seen.import, disk).await,
            (ImportStep::End, _) => self.end(seen.import.id).await,
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
        let Some(before) = store::disk_import::find(&mut tx, seen.import.id).await? else { return Ok(()) };
        let row = DiskImportRow { work_at: Some(until), ..before.clone() };
        store::disk_import::update(&mut tx, &before, &row).await?;
        Ok(tx.commit().await?)
    }

    async fn give_up(&self, Seen { disk, .. }: &Seen, error: &EngineError) -> Result<bool, StepError> {
        let Some(disk) = disk.as_ref().filter(|disk| disk.status != DiskStatus::Deleting) else { return Ok(false) };
        settle(&self.vms, disk, Some(error.to_string())).await?;
        self.end(disk.id).await?;
        Ok(true)
    }
}

impl DiskImportLife {
    /// The lives of the service's disks that are made of files.
    pub const fn new(vms: Vms) -> Self {
        Self { vms }
    }

    /// Has the disk made of the file, or gives that up where nobody wants it any more.
    async fn make(&self, import: &DiskImportRow, disk: &DiskRow) -> Result<(), StepError> {
        let last = last_moment(import);
        if self.vms.clock().now() >= last {
            return Err(too_late().into());
        }
        let Ok(_turn) = self.vms.converting().try_acquire() else { return Ok(()) };
        say(&self.vms, disk.id, "checking and converting").await?;
        let file = self.file(disk.id).await?;
        if !tokio::fs::try_exists(&file).await.map_err(|error| EngineError::Transient(error.to_string()))? {
            let gone = "the file is gone; delete this disk, and send the file again";
            return Err(EngineError::Permanent(gone.into()).into());
        }
        let brought = BroughtDisk { id: disk.id, size_gb: disk.extent.wanted_gb, image: None, is_foreign: true };
        let load = || store::disk::load(self.vms.db(), disk.id);
        let made = tokio::select! {
            made = self.vms.engine().bring_disk(&file, &brought) => made,
            () = unwanted(load, |row: &DiskRow| row.status == DiskStatus::Provisioning) => return Ok(()),
            () = late(self.vms.clock(), last) => Err(too_late()),
        };
        fault("disk_import", "make", "done").await?;
        match made {
            Err(error) if !error.is_final() => Err(error.into()),
            made => settle(&self.vms, disk, made.err().map(|error| error.to_string())).await,
        }
    }

    /// Where the file is.
    async fn file(&self, id: DiskId) -> Result<PathBuf, StepError> {
        Ok(self.vms.engine().staging().await?.join(file_of(id)))
    }

    /// Removes the file, and hands the disk to its own worker.
    async fn end(&self, id: DiskId) -> Result<(), StepError> {
        // What stays is swept at the next start.
        let _ = tokio::fs::remove_file(self.file(id).await?).await;
        fault("disk_import", "end", "swept").await?;
        let now = self.vms.clock().now();
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = store::disk_import::find(&mut tx, id).await? else { return Ok(()) };
        let row = DiskImportRow { work_at: None, deleted_at: Some(now), ..before.clone() };
        store::disk_import::update(&mut tx, &before, &row).await?;
        hand_over(&mut tx, id, now).await?;
        Ok(tx.commit().await?)
    }
}
