//! Makes and removes backups.
//!
//! A backup waits for its hidden snapshot, which the owner of its disk makes. Then it writes down that the store may have
//! something of it, brings the snapshot there in parts, and reads all of it back: only what came back as it was sent is
//! `ready`. Whatever dies in between goes on from what is there. One that failed or goes lets
//! go of its snapshot first, which takes room on the host, and has the store cleared then, which may be away.

use std::collections::HashSet;

use async_trait::async_trait;
use berth_domain::ids::{BackupId, Owner};
use berth_domain::vm::backup::{BackupStep, Facts, LONGEST, next};
use berth_domain::vm::{BackupStatus, DiskSnapshotStatus};
use berth_domain::{Result, Timestamp};
use berth_host::EngineError;
use tokio_util::sync::CancellationToken;

use super::transfer::{self, Stored};
use super::wanted::{late, unwanted};
use super::{StepError, fault};
use crate::db::{DbError, Tx};
use crate::services::depot::search::{Keeps, Searcher};
use crate::services::depot::{Depot, DepotError, Id, Standing};
use crate::services::vm::ops::disk_snapshot::drop_copy;
use crate::services::vm::store::backup::BackupRow;
use crate::services::vm::store::disk_snapshot::DiskSnapshotRow;
use crate::services::vm::{Vms, store, told};
use crate::work::Due;
use crate::work::lifecycle::{Life, Next};

/// Seconds until it is looked again whether somebody's turn has come.
const TURN: i64 = 5;
/// Seconds until it is looked again for a store that is not configured.
const LONG: i64 = 3600;
/// What an owner is told where a backup lies in another store than the configured one.
const ELSEWHERE: &str = "it lies in another store than the one that the platform has now; its operator brings that back, or \
                         has this backup forgotten";
/// What an owner is told where the store cannot be used at the moment. Why is the operator's to know.
pub(super) const AWAY: &str = "the store of backups cannot be used at the moment; trying again";

/// The lives of backups.
pub struct BackupLife {
    vms: Vms,
}

/// One look at a backup: its row, and the snapshot that it is made from.
pub struct Seen {
    backup: BackupRow,
    snapshot: Option<DiskSnapshotRow>,
    /// Whether the configured store is the one that has it, or is to have it.
    is_here: bool,
}

impl Seen {
    fn facts(&self, now: Timestamp) -> Facts {
        Facts {
            status: self.backup.status,
            is_begun: self.backup.begun_at.is_some(),
            snapshot: self.snapshot.as_ref().map(|snapshot| snapshot.status),
            names_snapshot: self.backup.snapshot.is_some(),
            is_late: now >= last_moment(&self.backup) && !self.waits(),
        }
    }
}

impl Seen {
    /// Whether nothing but its turn is missing.
    fn waits(&self) -> bool {
        let is_copied = self.snapshot.as_ref().is_some_and(|snapshot| snapshot.status == DiskSnapshotStatus::Ready);
        self.is_here && is_copied && self.backup.begun_at.is_none()
    }
}

/// When a backup is given up that is not made by then: what waits for its turn does not use up its time.
fn last_moment(backup: &BackupRow) -> Timestamp {
    backup.begun_at.unwrap_or(backup.created_at).plus_seconds(LONGEST)
}

impl Life for BackupLife {
    type Key = BackupId;
    type Seen = Seen;
    type Step = BackupStep;
    const TABLE: &'static str = store::backup::TABLE;
    const KIND: &'static str = "backup";
    /// It may take hours, and begins anew at the next start.
    const DROPPED_BY_A_STOP: bool = true;

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Due<BackupId>> {
        Ok(store::backup::due(self.vms.db(), now, limit).await?)
    }

    async fn owner(&self, id: &BackupId) -> Option<Owner> {
        store::backup::owner(self.vms.db(), *id).await.ok().flatten()
    }

    async fn look(&self, id: &BackupId) -> Result<Option<Seen>, StepError> {
        let Some(backup) = store::backup::load(self.vms.db(), *id).await? else { return Ok(None) };
        let snapshot = match backup.snapshot {
            Some(id) => store::disk_snapshot::load(self.vms.db(), id).await?,
            None => None,
        };
        let has = self.vms.depot().map(Depot::name);
        let is_here = has.is_some_and(|has| backup.store.as_deref().is_none_or(|wanted| wanted == has));
        Ok(Some(Seen { backup, snapshot, is_here }))
    }

    async fn plan(&self, seen: &Seen) -> Result<Next<BackupStep>, StepError> {
        let now = self.vms.clock().now();
        let is_unmade = matches!(seen.backup.status, BackupStatus::Pending | BackupStatus::Running);
        match next(seen.facts(now)) {
            Some(BackupStep::Store | BackupStep::Clear) if !seen.is_here => {
                let later = now.plus_seconds(LONG);
                Ok(Next::Rest(Some(if is_unmade { later.min(last_moment(&seen.backup)) } else { later })))
            }
            Some(BackupStep::Store) if self.vms.storing().available_permits() == 0 => {
                Ok(Next::Rest(Some(now.plus_seconds(TURN))))
            }
            Some(step) => Ok(Next::Take(step)),
            None => Ok(Next::Rest(is_unmade.then(|| last_moment(&seen.backup)))),
        }
    }

    fn name(step: &BackupStep) -> &'static str {
        step.as_str()
    }

    async fn take(&self, seen: &Seen, step: BackupStep) -> Result<(), StepError> {
        match step {
            BackupStep::Store => self.store(&seen.backup).await,
            BackupStep::Fail => self.fail(seen.backup.id, reason(seen)).await,
            BackupStep::Clear => self.clear(&seen.backup).await,
            BackupStep::LetGo => self.let_go(seen.backup.id).await,
            BackupStep::End => {
                record(&self.vms, seen.backup.id, |backup, now| {
                    backup.status = BackupStatus::Deleted;
                    (backup.deleted_at, backup.work_at) = (Some(now), None);
                })
                .await
            }
        }
    }

    async fn rest(&self, seen: &Seen, until: Option<Timestamp>) -> Result<(), StepError> {
        let backup = &seen.backup;
        if backup.work_at == until {
            return Ok(());
        }
        let needs_store =
            matches!(next(seen.facts(self.vms.clock().now())), Some(BackupStep::Store | BackupStep::Clear));
        if needs_store && !seen.is_here {
            let (wanted, has) = (backup.store.as_deref(), self.vms.depot().map(Depot::name));
            tracing::warn!(backup = %backup.id, wanted, has, "no such store of backups is configured; looking again in an hour");
            say(&self.vms, backup.id, ELSEWHERE.to_owned()).await?;
        }
        record(&self.vms, backup.id, |now, _| {
            // What changed meanwhile, its snapshot too, wants another look.
            if (now.status, now.work_at) == (backup.status, backup.work_at) {
                now.work_at = until;
            }
        })
        .await
    }

    async fn postpone(&self, Seen { backup, .. }: &Seen, until: Timestamp) -> Result<(), StepError> {
        record(&self.vms, backup.id, |now, _| {
            if now.status == backup.status || now.status == BackupStatus::Running {
                now.work_at = Some(until);
            }
        })
        .await
    }

    /// What is to be removed is never given up.
    async fn give_up(&self, Seen { backup, .. }: &Seen, error: &EngineError) -> Result<bool, StepError> {
        if !matches!(backup.status, BackupStatus::Pending | BackupStatus::Running) {
            return Ok(false);
        }
        self.fail(backup.id, error.to_string()).await?;
        Ok(true)
    }
}

/// Why a backup cannot be made.
fn reason(seen: &Seen) -> String {
    let said = seen.snapshot.as_ref().and_then(|snapshot| snapshot.message.clone());
    let is_whole = seen.snapshot.as_ref().is_some_and(|snapshot| !snapshot.is_open());
    said.unwrap_or_else(|| match &seen.snapshot {
        Some(_) if is_whole => format!("it took longer than {} hours; make another one", LONGEST / 3600),
        Some(_) => "its disk was not copied in time; make another one".into(),
        None => "the copy of its disk is gone; make another one".into(),
    })
}

impl BackupLife {
    /// The lives of the service's backups.
    pub const fn new(vms: Vms) -> Self {
        Self { vms }
    }

    /// Brings a backup to the store and reads it back, or gives that up where nobody wants it any more.
    async fn store(&self, backup: &BackupRow) -> Result<(), StepError> {
        let Ok(_turn) = self.vms.storing().try_acquire() else { return Ok(()) };
        let Some(backup) = self.begin(backup.id, self.configured()?).await? else { return Ok(()) };
        fault("backup", "store", "begun").await?;
        let depot = self.depot(&backup).await?;
        let told = |message: String| async {
            // Only for who looks on; the next word comes in a moment.
            let _ = say(&self.vms, backup.id, message).await;
        };
        let load = || store::backup::load(self.vms.db(), backup.id);
        let stored = tokio::select! {
            stored = transfer::store(&self.vms, depot, &backup, told) => stored,
            () = unwanted(load, |row: &BackupRow| row.status == BackupStatus::Running) => return Ok(()),
            () = late(self.vms.clock(), last_moment(&backup)) => return Ok(()),
        };
        if let Err(transfer::Failed::Depot(error)) = &stored {
            self.away(backup.id, error).await?;
        }
        let Stored { parts, size_bytes, sha256 } = stored.map_err(StepError::from)?;
        record(&self.vms, backup.id, |backup, now| {
            if backup.status == BackupStatus::Running {
                backup.status = BackupStatus::Ready;
                backup.message = None;
                (backup.parts, backup.size_bytes, backup.sha256) = (Some(parts), Some(size_bytes), Some(sha256));
                backup.work_at = Some(now);
            }
        })
        .await
    }

    /// The store, of which the plan has seen that it is the right one.
    fn configured(&self) -> Result<&Depot<BackupId>, StepError> {
        let none = || EngineError::Transient("the store of the backup is not configured".into());
        Ok(self.vms.depot().ok_or_else(none)?)
    }

    /// The same, in its place.
    async fn depot(&self, backup: &BackupRow) -> Result<&Depot<BackupId>, StepError> {
        at_hand(&self.vms, backup, |away| say(&self.vms, backup.id, away.to_owned())).await
    }

    /// Writes down that the store may have something of a backup from now on. None where it is not wanted any more.
    async fn begin(&self, id: BackupId, depot: &Depot<BackupId>) -> Result<Option<BackupRow>, StepError> {
        let now = self.vms.clock().now();
        let mut tx = self.vms.db().begin().await?;
        let found = store::backup::load(&mut tx, id).await?;
        let is_unmade = |row: &BackupRow| matches!(row.status, BackupStatus::Pending | BackupStatus::Running);
        let Some(before) = found.filter(is_unmade) else { return Ok(None) };
        let backup = BackupRow {
            status: BackupStatus::Running,
            store: Some(depot.name().to_owned()),
            begun_at: before.begun_at.or(Some(now)),
            message: Some("making one file of the copy".into()),
            ..before.clone()
        };
        let backup = write(&mut tx, &before, backup, now).await?;
        tx.commit().await?;
        Ok(Some(backup))
    }

    async fn fail(&self, id: BackupId, reason: String) -> Result<(), StepError> {
        tracing::warn!(backup = %id, reason, "a backup failed");
        record(&self.vms, id, |backup, now| {
            if matches!(backup.status, BackupStatus::Pending | BackupStatus::Running) {
                self.vms.count_failed_backup();
                backup.status = BackupStatus::Failed;
                (backup.message, backup.work_at) = (Some(reason), Some(now));
            }
        })
        .await
    }

    async fn clear(&self, backup: &BackupRow) -> Result<(), StepError> {
        let cleared = self.depot(backup).await?.clear(backup.id).await;
        fault("backup", "clear", "done").await?;
        if let Err(error) = cleared {
            if backup.status == BackupStatus::Deleting {
                self.away(backup.id, &error).await?;
            }
            return Err(error.into());
        }
        record(&self.vms, backup.id, |backup, _| backup.begun_at = None).await
    }

    async fn let_go(&self, id: BackupId) -> Result<(), StepError> {
        let now = self.vms.clock().now();
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = store::backup::load(&mut tx, id).await? else { return Ok(()) };
        if let Some(snapshot) = before.snapshot {
            drop_copy(&mut tx, snapshot, now).await?;
        }
        let backup = BackupRow { snapshot: None, ..before.clone() };
        write(&mut tx, &before, backup, now).await?;
        Ok(tx.commit().await?)
    }

    /// Tells the owner that the store is away, and the operator why.
    async fn away(&self, id: BackupId, error: &DepotError) -> Result<(), StepError> {
        tracing::warn!(backup = %id, %error, "the store of backups cannot be used; trying again");
        say(&self.vms, id, AWAY.to_owned()).await
    }
}

/// Tells how far the work on a backup is. Only for who looks on: nobody is woken.
async fn say(vms: &Vms, id: BackupId, message: String) -> Result<(), StepError> {
    record(vms, id, |backup, _| {
        if !matches!(backup.status, BackupStatus::Ready | BackupStatus::Failed) {
            backup.message = Some(message);
        }
    })
    .await
}

async fn record(vms: &Vms, id: BackupId, change: impl FnOnce(&mut BackupRow, Timestamp)) -> Result<(), StepError> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin().await?;
    let Some(before) = store::backup::load(&mut tx, id).await? else { return Ok(()) };
    let mut backup = before.clone();
    change(&mut backup, now);
    write(&mut tx, &before, backup, now).await?;
    Ok(tx.commit().await?)
}

/// Writes a row; tells of what its owner sees another way, and its schedule of what it keeps.
async fn write(tx: &mut Tx, before: &BackupRow, mut backup: BackupRow, now: Timestamp) -> Result<BackupRow, StepError> {
    if backup.status != before.status {
        backup.updated_at = now;
        told::backup(tx, &backup, now).await?;
        if let Some(schedule) = backup.schedule {
            store::backup_schedule::wake(tx, schedule, now).await?;
        }
    }
    store::backup::update(tx, before, &backup).await?;
    Ok(backup)
}

/// The store that has a backup, or is to have it. Where it cannot be used, the owner is told so.
pub(super) async fn at_hand<'a, F: Future<Output = Result<(), StepError>>>(
    vms: &'a Vms,
    backup: &BackupRow,
    tell: impl FnOnce(&'static str) -> F,
) -> Result<&'a Depot<BackupId>, StepError> {
    let wanted = backup.store.as_deref();
    let Some(depot) = vms.depot().filter(|depot| wanted.is_none_or(|wanted| wanted == depot.name())) else {
        tracing::warn!(backup = %backup.id, wanted, "no such store of backups is configured");
        tell(AWAY).await?;
        return Err(EngineError::Transient("the store of the backup is not configured".into()).into());
    };
    if let Err(error) = in_place(vms, depot).await {
        tell(AWAY).await?;
        return Err(error);
    }
    Ok(depot)
}

/// Fails where the store is not in its place.
pub(super) async fn in_place(vms: &Vms, depot: &Depot<BackupId>) -> Result<Standing, StepError> {
    Searcher { depot, keeps: vms, service: vms.host() }.in_place().await
}

/// Looks whether the store is in its place, and searches it for what no row names, until told to stop.
pub async fn search(vms: Vms, stop: CancellationToken) {
    let Some(depot) = vms.depot() else { return stop.cancelled().await };
    // Some may have waited for this store, which was not configured before.
    if let Err(error) = store::backup::wake_all(vms.db(), vms.clock().now()).await {
        tracing::warn!(%error, "backups that wait are looked at later");
    }
    let searcher = Searcher { depot, keeps: &vms, service: vms.host() };
    searcher.search(vms.clock(), vms.lost_days(), &stop).await;
}

impl Id for BackupId {
    const ABOUT: &'static str = "backup.json";
}

#[async_trait]
impl Keeps<BackupId> for Vms {
    async fn lies_in(&self, store: &str) -> Result<bool, DbError> {
        store::backup::lies_in(self.db(), store).await
    }

    async fn named(&self, _: &str) -> Result<HashSet<BackupId>, DbError> {
        Ok(store::backup::living(self.db()).await?.into_iter().collect())
    }
}
