//! Has backups made when it is time for them, and those go that are more than is kept.

use berth_domain::ids::{BackupScheduleId, Owner};
use berth_domain::vm::DiskStatus;
use berth_domain::vm::backup_schedule::{Every, Made, ScheduleStep, is_free, next, surplus};
use berth_domain::{Error, Result, Timestamp};
use berth_host::EngineError;

use super::StepError;
use crate::db::Tx;
use crate::services::quota;
use crate::services::vm::ops::backup::{disks_of, doomed, held, make, record};
use crate::services::vm::ops::backup_schedule;
use crate::services::vm::store::Tenant;
use crate::services::vm::store::backup_schedule::BackupScheduleRow;
use crate::services::vm::{Vms, store};
use crate::work::Due;
use crate::work::lifecycle::{Life, Next};

/// The lives of schedules of backups.
pub struct BackupScheduleLife {
    vms: Vms,
}

/// One look at a schedule: its row, the backups that it made, and whether its organization is suspended.
pub struct Seen {
    schedule: BackupScheduleRow,
    made: Vec<Made>,
    is_suspended: bool,
}

impl Life for BackupScheduleLife {
    type Key = BackupScheduleId;
    type Seen = Seen;
    type Step = ScheduleStep;
    const TABLE: &'static str = store::backup_schedule::TABLE;
    const KIND: &'static str = "backup_schedule";

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Due<BackupScheduleId>> {
        Ok(store::backup_schedule::due(self.vms.db(), now, limit).await?)
    }

    async fn owner(&self, id: &BackupScheduleId) -> Option<Owner> {
        store::backup_schedule::owner(self.vms.db(), *id).await.ok().flatten()
    }

    async fn look(&self, id: &BackupScheduleId) -> Result<Option<Seen>, StepError> {
        let Some(schedule) = store::backup_schedule::load(self.vms.db(), *id).await? else { return Ok(None) };
        let made = store::backup::of_schedule(self.vms.db(), *id).await?;
        let is_suspended = store::backup_schedule::is_suspended(self.vms.db(), schedule.org).await?;
        Ok(Some(Seen { schedule, made, is_suspended }))
    }

    async fn plan(&self, Seen { schedule, made, is_suspended }: &Seen) -> Result<Next<ScheduleStep>, StepError> {
        // What a suspended organization has stays as it is.
        let has_surplus = !is_suspended && !surplus(made, schedule.keep).is_empty();
        let step = next(schedule.is_due(self.vms.clock().now()), has_surplus);
        Ok(step.map_or(Next::Rest(schedule.next_at), Next::Take))
    }

    fn name(step: &ScheduleStep) -> &'static str {
        step.as_str()
    }

    async fn take(&self, seen: &Seen, step: ScheduleStep) -> Result<(), StepError> {
        match step {
            ScheduleStep::Run => self.run(seen.schedule.id).await,
            ScheduleStep::Prune => self.prune(seen.schedule.id).await,
        }
    }

    async fn rest(&self, seen: &Seen, until: Option<Timestamp>) -> Result<(), StepError> {
        if seen.schedule.work_at == until {
            return Ok(());
        }
        self.change(seen.schedule.id, |row| {
            // What changed meanwhile, one of its backups too, wants another look.
            if (row.next_at, row.work_at) == (seen.schedule.next_at, seen.schedule.work_at) {
                row.work_at = until;
            }
        })
        .await
    }

    async fn postpone(&self, seen: &Seen, until: Timestamp) -> Result<(), StepError> {
        self.change(seen.schedule.id, |row| row.work_at = Some(until)).await
    }

    /// A schedule asks nothing of the host.
    async fn give_up(&self, _: &Seen, _: &EngineError) -> Result<bool, StepError> {
        Ok(false)
    }
}

impl BackupScheduleLife {
    /// The lives of the service's schedules.
    pub const fn new(vms: Vms) -> Self {
        Self { vms }
    }

    async fn change(&self, id: BackupScheduleId, change: impl FnOnce(&mut BackupScheduleRow)) -> Result<(), StepError> {
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = store::backup_schedule::load(&mut tx, id).await? else { return Ok(()) };
        let mut row = before.clone();
        change(&mut row);
        store::backup_schedule::update(&mut tx, &before, &row).await?;
        Ok(tx.commit().await?)
    }

    /// Has a backup made of each disk, and sets the next time, which lies ahead: what was missed is made up for once. That one
    /// is left out, or none follows, is told.
    async fn run(&self, id: BackupScheduleId) -> Result<(), StepError> {
        let now = self.vms.clock().now();
        let mut tx = self.vms.db().begin().await?;
        let found = store::backup_schedule::load(&mut tx, id).await?;
        let Some(before) = found.filter(|schedule| schedule.is_due(now)) else { return Ok(()) };
        let message = self.make_all(&mut tx, &before, now).await?;
        let when = Every::parse(&before.every).map_err(Error::internal)?;
        let is_over = message.is_over;
        let next_at = when.next(before.anchor_at, now).filter(|_| !is_over);
        let row = BackupScheduleRow {
            enabled: before.enabled && !is_over,
            last_at: before.next_at,
            next_at,
            message: message.text,
            work_at: next_at,
            updated_at: now,
            ..before.clone()
        };
        store::backup_schedule::update(&mut tx, &before, &row).await?;
        if row.message.is_some() || row.message != before.message {
            backup_schedule::record(&mut tx, None, &row, "update").await?;
        }
        Ok(tx.commit().await?)
    }

    async fn make_all(&self, tx: &mut Tx, schedule: &BackupScheduleRow, now: Timestamp) -> Result<Said, StepError> {
        if self.vms.depot().is_none() {
            return Ok(Said::of("the platform keeps no backups at present; ask its operator"));
        }
        if store::backup_schedule::is_suspended(&mut *tx, schedule.org).await? {
            return Ok(Said::of("left out: the organization is suspended"));
        }
        let tenant = Tenant { org: schedule.org, project: schedule.project };
        let mut disks = disks_of(tx, tenant, schedule.of).await?;
        if disks.is_empty() {
            let text = Some("what it made backups of is gone; delete it, the backups stay".to_owned());
            return Ok(Said { text, is_over: true });
        }
        let made = store::backup::of_schedule(&mut *tx, schedule.id).await?;
        disks.retain(|disk| disk.status == DiskStatus::Ready && is_free(&made, disk.id));
        if disks.is_empty() {
            return Ok(Said::of("left out: no disk was ready, or the backup before was still under way"));
        }
        if let Err(refused) = quota::admit_of(tx, (schedule.org, schedule.project), held(&disks), now).await {
            if refused.code.status() >= 500 {
                return Err(refused.into());
            }
            return Ok(Said { text: Some(format!("left out: {}", refused.message)), is_over: false });
        }
        for disk in &disks {
            let backup = make(tx, disk, (&schedule.name, Some(schedule.id)), now).await?;
            record(tx, None, &backup, "create").await?;
        }
        Ok(Said { text: None, is_over: false })
    }

    /// Has those backups go that are more than is kept.
    async fn prune(&self, id: BackupScheduleId) -> Result<(), StepError> {
        let now = self.vms.clock().now();
        let mut tx = self.vms.db().begin().await?;
        let Some(schedule) = store::backup_schedule::load(&mut tx, id).await? else { return Ok(()) };
        let made = store::backup::of_schedule(&mut tx, id).await?;
        for gone in surplus(&made, schedule.keep) {
            if let Some(backup) = store::backup::load(&mut tx, gone).await? {
                let row = doomed(&backup, now);
                store::backup::update(&mut tx, &backup, &row).await?;
                record(&mut tx, None, &row, "delete").await?;
            }
        }
        Ok(tx.commit().await?)
    }
}

/// What a schedule says of its last time.
struct Said {
    text: Option<String>,
    /// Whether there is nothing any more of which backups could be made.
    is_over: bool,
}

impl Said {
    fn of(text: &str) -> Self {
        Self { text: Some(text.to_owned()), is_over: false }
    }
}
