//! Makes disks of what is brought: of backups, and of files that were sent.
//!
//! Such a disk has a row of its own until it is made: its bytes may take hours to come, or to be read, for which no worker of
//! other disks waits. Until that row has ended nobody else touches the disk ([`super::disk`]). What a backup has is fetched into
//! `staging/`, and anew after a death, which has it swept at the start; a file that was sent stays there until the row ends.

use std::path::PathBuf;

use berth_domain::ids::{DiskId, Owner};
use berth_domain::vm::brought_disk::{BroughtStep, Facts, Origin, is_late, last_moment, next, room_pause};
use berth_domain::vm::{BackupStatus, DiskKind, DiskStatus};
use berth_domain::{Error, Result, Timestamp};
use berth_host::EngineError;
use berth_host::vm::BroughtDisk;

use super::backup::{AWAY, at_hand};
use super::disk::{hand_over, place, say, settle};
use super::transfer::{Failed, fetch};
use super::wanted::{late, unwanted};
use super::{StepError, fault};
use crate::services::vm::slots::{Slot, Work};
use crate::services::vm::store::backup::BackupRow;
use crate::services::vm::store::brought_disk::{BroughtDiskRow, TABLE};
use crate::services::vm::store::disk::DiskRow;
use crate::services::vm::{Vms, store};
use crate::work::Due;
use crate::work::lifecycle::{Life, Next};

/// Seconds until it is looked again whether a disk's turn has come. Each look of one that waits writes a row.
const TURN: i64 = 5;
/// What is told of a disk that waits for its turn.
const WAITING: &str = "waiting for its turn to be made";
/// And of one that waits for room, before what is missing.
const NO_ROOM: &str = "waiting for room on the host: ";

/// Before the first request: what an earlier service was sent does not come any more, and counts no longer.
pub async fn prepare(vms: &Vms) -> Result<()> {
    let mut tx = vms.db().begin().await?;
    store::brought_disk::release_all(&mut tx).await?;
    Ok(tx.commit().await?)
}

/// The lives of disks that are brought, until they are made.
pub struct BroughtDiskLife {
    vms: Vms,
}

/// One look: what is under way, its disk, and what that is made of; none where that is gone.
pub struct Seen {
    brought: BroughtDiskRow,
    disk: Option<DiskRow>,
    source: Option<Source>,
}

/// What a disk is made of.
enum Source {
    Backup(BackupRow),
    File(PathBuf),
}

/// A step, with the turn of a disk that is made.
pub struct Planned {
    step: BroughtStep,
    turn: Option<Turn>,
}

/// A turn among those of the same origin that are made.
enum Turn {
    Restoring { _slot: Slot },
    Converting(Slot),
}

impl Seen {
    /// Until when it waits that is to be tried again.
    fn until(&self, now: Timestamp) -> Option<Timestamp> {
        self.brought.work_at.filter(|at| *at > now)
    }

    /// Why its disk cannot be made any more: what was told of it where it waited for room to the last.
    fn why_not(&self, disk: &DiskRow) -> String {
        let told = disk.message.as_deref().unwrap_or_default();
        let why = self.brought.origin.why_not(self.source.is_none());
        if self.source.is_some() && told.starts_with(NO_ROOM) {
            return EngineError::NoCapacity(format!("the host had no room for the disk; {why}")).to_string();
        }
        why
    }

    fn facts(&self, now: Timestamp, has_turn: bool) -> Facts {
        Facts {
            disk: self.disk.as_ref().map(|disk| disk.status),
            is_late: is_late(self.brought.created_at, now),
            is_early: self.until(now).is_some(),
            is_gone: self.source.is_none(),
            has_turn,
        }
    }
}

impl Life for BroughtDiskLife {
    type Key = DiskId;
    type Seen = Seen;
    type Step = Planned;
    const TABLE: &'static str = TABLE;
    const KIND: &'static str = "brought_disk";
    /// It may take hours, and begins anew at the next start.
    const DROPPED_BY_A_STOP: bool = true;

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Due<DiskId>> {
        Ok(store::brought_disk::due(self.vms.db(), now, limit).await?)
    }

    async fn owner(&self, id: &DiskId) -> Option<Owner> {
        store::brought_disk::owner(self.vms.db(), *id).await.ok().flatten()
    }

    async fn look(&self, id: &DiskId) -> Result<Option<Seen>, StepError> {
        let Some(brought) = store::brought_disk::find(self.vms.db(), *id).await? else { return Ok(None) };
        let disk = store::disk::load(self.vms.db(), *id).await?;
        let source = self.source(&brought).await?;
        Ok(Some(Seen { brought, disk, source }))
    }

    async fn plan(&self, seen: &Seen) -> Result<Next<Planned>, StepError> {
        let now = self.vms.clock().now();
        let would_make = next(seen.facts(now, true)) == Some(BroughtStep::Make);
        let turn = if would_make { self.turn(&seen.brought, now) } else { None };
        Ok(match next(seen.facts(now, turn.is_some())) {
            Some(step) => Next::Take(Planned { step, turn }),
            None => Next::Rest(Some(seen.until(now).unwrap_or(now.plus_seconds(TURN)))),
        })
    }

    fn name(planned: &Planned) -> &'static str {
        planned.step.as_str()
    }

    async fn take(&self, seen: &Seen, Planned { step, turn }: Planned) -> Result<(), StepError> {
        match (step, &seen.disk) {
            (BroughtStep::Place, Some(disk)) => place(&self.vms, disk).await,
            (BroughtStep::Make, Some(disk)) => self.make(seen, disk, turn.as_ref()).await,
            (BroughtStep::Fail, Some(disk)) => settle(&self.vms, disk, Some(seen.why_not(disk))).await,
            (BroughtStep::End, _) => self.end(seen.brought.id).await,
            (_, None) => Ok(()),
        }
    }

    async fn rest(&self, seen: &Seen, until: Option<Timestamp>) -> Result<(), StepError> {
        let Some(until) = until.filter(|until| seen.brought.work_at != Some(*until)) else { return Ok(()) };
        let told = seen.disk.as_ref().map(|disk| disk.message.as_deref().unwrap_or_default());
        if told.is_some_and(|told| told != WAITING) {
            say(&self.vms, seen.brought.id, WAITING).await?;
        }
        self.postpone(seen, until).await
    }

    async fn postpone(&self, seen: &Seen, until: Timestamp) -> Result<(), StepError> {
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = store::brought_disk::find(&mut tx, seen.brought.id).await? else { return Ok(()) };
        let row = BroughtDiskRow { work_at: Some(until), ..before.clone() };
        store::brought_disk::update(&mut tx, &before, &row).await?;
        Ok(tx.commit().await?)
    }

    async fn give_up(&self, Seen { disk, .. }: &Seen, error: &EngineError) -> Result<bool, StepError> {
        let Some(disk) = disk.as_ref().filter(|disk| disk.status != DiskStatus::Deleting) else { return Ok(false) };
        settle(&self.vms, disk, Some(error.to_string())).await?;
        self.end(disk.id).await?;
        Ok(true)
    }
}

impl BroughtDiskLife {
    /// The lives of the service's disks that are brought.
    pub const fn new(vms: Vms) -> Self {
        Self { vms }
    }

    /// What a disk is made of; none where that is gone.
    async fn source(&self, brought: &BroughtDiskRow) -> Result<Option<Source>, StepError> {
        match brought.origin {
            Origin::Backup(id) => {
                let backup = store::backup::load(self.vms.db(), id).await?;
                Ok(backup.filter(|backup| backup.status == BackupStatus::Ready).map(Source::Backup))
            }
            Origin::File => {
                let file = self.staged(brought).await?;
                let found = tokio::fs::try_exists(&file).await;
                let is_there = found.map_err(|error| EngineError::Transient(error.to_string()))?;
                Ok(is_there.then_some(Source::File(file)))
            }
        }
    }

    /// A disk's turn, if it has come.
    fn turn(&self, brought: &BroughtDiskRow, now: Timestamp) -> Option<Turn> {
        let (owner, work) = (Some((brought.org, brought.project)), Work::Disk(brought.id));
        match brought.origin {
            Origin::Backup(_) => {
                self.vms.restoring().ask(owner, &work, now).map(|slot| Turn::Restoring { _slot: slot })
            }
            Origin::File => self.vms.converting().ask(owner, &work, now).map(Turn::Converting),
        }
    }

    /// Has the disk made in its turn, or gives that up where nobody wants it any more.
    async fn make(&self, seen: &Seen, disk: &DiskRow, turn: Option<&Turn>) -> Result<(), StepError> {
        let load = || store::disk::load(self.vms.db(), disk.id);
        let made = tokio::select! {
            made = self.bring(seen, disk, turn) => made,
            () = unwanted(load, |row: &DiskRow| row.status == DiskStatus::Provisioning) => return Ok(()),
            () = late(self.vms.clock(), last_moment(seen.brought.created_at)) => {
                Err(EngineError::Permanent(seen.brought.origin.why_not(false)).into())
            }
        };
        fault(Self::KIND, "make", "done").await?;
        match made {
            Err(StepError::Engine(EngineError::NoCapacity(missing))) if seen.brought.origin.waits_for_room() => {
                self.wait_for_room(seen, &missing).await
            }
            Err(StepError::Engine(error)) if error.is_final() => settle(&self.vms, disk, Some(error.to_string())).await,
            Err(error) => Err(error),
            Ok(()) => settle(&self.vms, disk, None).await,
        }
    }

    /// Has a disk tried again for which the host has no room now.
    async fn wait_for_room(&self, seen: &Seen, missing: &str) -> Result<(), StepError> {
        let BroughtDiskRow { id, project, created_at, .. } = seen.brought;
        let now = self.vms.clock().now();
        let pause = room_pause(created_at, now);
        tracing::warn!(disk = %id, %project, missing, seconds = pause, "a disk waits for room on the host");
        let again = format!("{NO_ROOM}{missing}; it is tried again {} min later, unless you delete it", pause / 60);
        say(&self.vms, id, &again).await?;
        self.postpone(seen, now.plus_seconds(pause).min(last_moment(created_at))).await
    }

    async fn bring(&self, seen: &Seen, disk: &DiskRow, turn: Option<&Turn>) -> Result<(), StepError> {
        let (file, conversion) = match (&seen.source, turn) {
            (Some(Source::Backup(backup)), Some(_)) => (self.fetched(&seen.brought, backup).await?, None),
            (Some(Source::File(file)), Some(Turn::Converting(slot))) => (file.clone(), Some(slot.number())),
            _ => return Err(Error::internal("a disk is made of nothing, or out of its turn").into()),
        };
        say(&self.vms, disk.id, "checking and converting").await?;
        let image = disk.image_id.clone().filter(|_| disk.kind == DiskKind::Root);
        let brought = BroughtDisk { id: disk.id, size_gb: disk.extent.wanted_gb, image, conversion };
        Ok(self.vms.engine_of(disk.host)?.bring_disk(&file, &brought).await?)
    }

    /// Fetches what the store has of a backup.
    async fn fetched(&self, brought: &BroughtDiskRow, backup: &BackupRow) -> Result<PathBuf, StepError> {
        let depot = at_hand(&self.vms, backup, |away| say(&self.vms, brought.id, away)).await?;
        self.require_room(backup).await?;
        let file = self.staged(brought).await?;
        let told = |message: String| async move {
            // Only for who looks on; the next word comes in a moment.
            let _ = say(&self.vms, brought.id, &message).await;
        };
        if let Err(failed) = fetch(depot, backup, &file, told).await {
            // It is fetched anew, and takes no room until then.
            let _ = tokio::fs::remove_file(&file).await;
            if let Failed::Depot(error) = &failed {
                tracing::warn!(backup = %backup.id, %error, "the store of backups cannot be used; trying again");
                say(&self.vms, brought.id, AWAY).await?;
            }
            return Err(failed.into());
        }
        fault(Self::KIND, "make", "fetched").await?;
        Ok(file)
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
    async fn staged(&self, brought: &BroughtDiskRow) -> Result<PathBuf, StepError> {
        Ok(self.vms.engine().staging().await?.join(brought.origin.staged(brought.id)))
    }

    /// Removes what was fetched or sent, and hands the disk to its own worker.
    async fn end(&self, id: DiskId) -> Result<(), StepError> {
        let Some(ended) = store::brought_disk::find(self.vms.db(), id).await? else { return Ok(()) };
        for slots in [self.vms.converting(), self.vms.restoring()] {
            slots.forget(&Work::Disk(id));
        }
        // What stays is swept at the next start.
        let _ = tokio::fs::remove_file(self.staged(&ended).await?).await;
        fault(Self::KIND, "end", "swept").await?;
        let now = self.vms.clock().now();
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = store::brought_disk::find(&mut tx, id).await? else { return Ok(()) };
        let row = BroughtDiskRow { work_at: None, deleted_at: Some(now), ..before.clone() };
        store::brought_disk::update(&mut tx, &before, &row).await?;
        if let Origin::Backup(backup) = before.origin {
            // Its schedule may have waited for that.
            let backup = store::backup::load(&mut tx, backup).await?;
            if let Some(schedule) = backup.and_then(|backup| backup.schedule) {
                store::backup_schedule::wake(&mut tx, schedule, now).await?;
            }
        }
        hand_over(&mut tx, id, now).await?;
        Ok(tx.commit().await?)
    }
}
