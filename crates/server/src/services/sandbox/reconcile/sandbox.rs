//! Brings a sandbox to what its row wants.
//!
//! A step is recorded only onto the row it was decided for: if a request changed the wish meanwhile, the worker drops
//! the record and the next look decides anew. A checkpoint is the exception: the worker records what it checkpointed
//! whatever is wanted now.

mod checkpoint;
mod ground;
mod leaving;
mod machine;
mod placement;
mod record;

use std::sync::Arc;

use berth_domain::ids::{Owner, SandboxId};
use berth_domain::sandbox::plan::{self, Deadlines, Expiry, Look, Machine, Source, Step};
use berth_domain::sandbox::{Phase, SnapshotStatus, TemplateStatus, Wish};
use berth_domain::{Result, Timestamp};
use berth_host::EngineError;
use berth_host::sandbox::{Activity, SandboxEngine};

use super::{StepError, fault};
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::store;
use crate::services::sandbox::store::archive::Thing;
use crate::services::sandbox::store::sandbox::SandboxRow;
use crate::services::sandbox::store::snapshot::SnapshotRow;
use crate::work::Due;
use crate::work::lifecycle::{Life, Next};
pub(super) use leaving::DOWN;
pub(super) use machine::warm_again;
pub(in crate::services::sandbox) use record::enter;
use record::still;

/// Seconds until a sandbox whose guest is being asked is looked at again, if nothing tells before.
const ASKED: i64 = 5;

/// What the owner of a sandbox is told while what it begins with comes back.
const COMES_BACK: &str = "what it begins with comes back to its host from the store of backups";
/// Seconds until it is looked again whether something came back to the service's own host.
const COMING_BACK: i64 = 2;

/// The lives of sandboxes.
pub struct SandboxLife {
    sandboxes: Sandboxes,
}

/// One look at a sandbox.
pub struct Seen {
    row: SandboxRow,
    /// The snapshot whose checkpoint is next.
    checkpoint: Option<SnapshotRow>,
    now: Timestamp,
}

/// A step, and what it was decided from.
pub struct Decided {
    step: Step,
    look: Look,
}

impl Life for SandboxLife {
    type Key = SandboxId;
    type Seen = Seen;
    type Step = Decided;
    const TABLE: &'static str = store::sandbox::TABLE;
    const KIND: &'static str = "sandbox";

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Due<SandboxId>> {
        Ok(store::sandbox::due(self.sandboxes.db(), now, limit).await?)
    }

    async fn owner(&self, id: &SandboxId) -> Option<Owner> {
        store::sandbox::owner(self.sandboxes.db(), *id).await.ok().flatten()
    }

    async fn look(&self, id: &SandboxId) -> Result<Option<Seen>, StepError> {
        let mut on = self.sandboxes.db().reader().await?;
        let Some(row) = store::sandbox::load(&mut on, *id).await? else { return Ok(None) };
        let checkpoint = store::snapshot::to_checkpoint(&mut on, *id).await?.into_iter().next();
        Ok(Some(Seen { row, checkpoint, now: self.sandboxes.clock().now() }))
    }

    async fn plan(&self, seen: &Seen) -> Result<Next<Decided>, StepError> {
        if self.awaits(&seen.row).await? {
            if seen.row.message.as_deref() != Some(COMES_BACK) && seen.row.phase.is_transitional() {
                self.record(seen, |row| row.message = Some(COMES_BACK.to_owned())).await?;
            }
            return Ok(Next::Rest(Some(seen.now.plus_seconds(COMING_BACK))));
        }
        let look = self.observe(seen).await?;
        Ok(match plan::next(&look) {
            Step::Rest => Next::Rest(None),
            Step::Wait(until) => Next::Rest(Some(until)),
            step => Next::Take(Decided { step, look }),
        })
    }

    fn name(decided: &Decided) -> &'static str {
        decided.step.name()
    }

    async fn take(&self, seen: &Seen, Decided { step, look }: Decided) -> Result<(), StepError> {
        let engine = self.engine(seen)?;
        match step {
            Step::Reserve => self.reserve(seen).await,
            Step::MakeDisk => self.make_disk(seen).await,
            Step::Swap => self.swap(seen).await,
            Step::Start => self.start(seen, &look).await,
            Step::Checkpoint(_) => self.checkpoint(seen, false).await,
            Step::CheckpointCold(_) => self.checkpoint(seen, true).await,
            Step::GiveUpCheckpoint(_) => self.give_up_checkpoint(seen, &look).await,
            Step::SetNetwork => {
                engine.set_network(seen.row.machine.aim(), &seen.row.network).await?;
                fault("sandbox", "set_network", "done").await?;
                self.record(seen, |row| row.applied_network = Some(seen.row.network.clone())).await
            }
            Step::Pause => self.pause(seen, &look).await,
            Step::End => Ok(engine.end(seen.row.machine.aim()).await?),
            Step::Leave => self.leave(seen).await,
            Step::Expire(over) => self.expire(seen, over).await,
            Step::Fail(reason) => self.fail(seen, &reason).await,
            Step::Finish => {
                engine.discard(seen.row.machine.aim()).await?;
                fault("sandbox", "finish", "done").await?;
                self.finish(seen).await
            }
            step => self.record(seen, |row| record::apply(row, &look, &step)).await,
        }
    }

    async fn catch_up(&self, seen: &Seen, generation: i64) -> Result<bool, StepError> {
        if seen.row.machine.generation >= generation {
            return Ok(false);
        }
        self.record(seen, |row| {
            row.machine.generation = generation;
            row.work_at = Some(seen.now);
        })
        .await?;
        Ok(true)
    }

    /// A change that came in meanwhile, whatever it is, wants another look: it set its own time.
    async fn rest(&self, seen: &Seen, until: Option<Timestamp>) -> Result<(), StepError> {
        if seen.row.work_at == until {
            return Ok(());
        }
        let mut tx = self.sandboxes.db().begin().await?;
        if let Some(before) = still(&mut tx, seen).await?
            && (before.updated_at, before.work_at) == (seen.row.updated_at, seen.row.work_at)
        {
            let after = SandboxRow { work_at: until, ..before.clone() };
            store::sandbox::update(&mut tx, &before, &after, seen.now).await?;
            tx.commit().await?;
        }
        Ok(())
    }

    async fn postpone(&self, seen: &Seen, until: Timestamp) -> Result<(), StepError> {
        self.record(seen, |row| row.work_at = Some(until)).await
    }

    /// Deletion is never given up, and what failed already cannot fail more.
    async fn give_up(&self, seen: &Seen, error: &EngineError) -> Result<bool, StepError> {
        if seen.row.wish == Wish::Deleted || seen.row.phase == Phase::Failed {
            return Ok(false);
        }
        self.fail(seen, &error.to_string()).await?;
        Ok(true)
    }
}

impl SandboxLife {
    /// The lives of the service's sandboxes.
    pub const fn new(sandboxes: Sandboxes) -> Self {
        Self { sandboxes }
    }

    /// Whether something comes back to the service's own host without which nothing can be done for a sandbox that is to begin there.
    async fn awaits(&self, row: &SandboxRow) -> Result<bool, StepError> {
        let coming = self.sandboxes.coming_back();
        let is_here = row.machine.host.is_none_or(|host| host == self.sandboxes.host());
        if coming.is_empty() || !is_here || row.wish == Wish::Deleted {
            return Ok(false);
        }
        let db = self.sandboxes.db();
        let (mut layer, mut memory) = (row.layer, row.memory);
        if let Some(id) = row.restore.or(row.source_snapshot.filter(|_| layer.is_none())) {
            let source = store::snapshot::load(db, id).await?;
            (layer, memory) = source.map_or((None, None), |snapshot| (snapshot.layer, snapshot.memory));
        } else if let (None, Some(id)) = (layer, row.source_template) {
            layer = store::template::load(db, id).await?.and_then(|template| template.layer);
        }
        let mut needed: Vec<_> = memory.map(Thing::Memory).into_iter().collect();
        if let Some(top) = layer {
            needed.extend(store::layer::chain(db, top).await?.into_iter().map(Thing::Layer));
        }
        Ok(coming.lacks(&needed))
    }

    /// The engine of the host that a sandbox's machine is on.
    fn engine(&self, seen: &Seen) -> Result<Arc<dyn SandboxEngine>, EngineError> {
        self.sandboxes.engine_of(seen.row.machine.host)
    }

    /// A sandbox's machine as its host shows it.
    async fn machine(&self, row: &SandboxRow) -> Result<(Arc<dyn SandboxEngine>, Machine), EngineError> {
        let observed = async {
            let engine = self.sandboxes.engine_of(row.machine.host)?;
            let machine = engine.observe(row.machine.id).await?;
            Ok((engine, machine))
        };
        let observed: Result<_, EngineError> = observed.await;
        if let (Err(error), Some(host)) = (&observed, row.machine.host)
            && !error.is_final()
        {
            self.sandboxes.note_silence(host);
        }
        observed
    }

    /// What the plan is made from: the row, what it names, and what the host has of it.
    async fn observe(&self, seen: &Seen) -> Result<Look, StepError> {
        let (row, config) = (&seen.row, self.sandboxes.config());
        let (engine, machine) = self.machine(row).await?;
        let counts_since = self.sandboxes.counts_since(row.machine.host.unwrap_or_else(|| self.sandboxes.host()));
        let layer = match row.layer {
            Some(id) => store::layer::find(self.sandboxes.db(), id).await?,
            None => None,
        };
        let ready = row.phase == Phase::Ready;
        let (source, brought) = self.ground(row, seen.now).await?;
        Ok(Look {
            now: seen.now,
            deadlines: Deadlines {
                provisioning: config.provisioning_seconds,
                pausing: config.pausing_seconds,
                resuming: config.resuming_seconds,
                restoring: config.restoring_seconds,
                snapshot: config.snapshot_seconds,
            },
            wish: row.wish,
            phase: row.phase,
            since: row.phase_since.max(counts_since).max(brought),
            attempts: row.attempts,
            source,
            reserved: row.machine.reserved,
            layer: row.layer,
            layer_made: layer.is_some_and(|layer| layer.made),
            swap: row.restore.is_some(),
            generation: row.machine.generation,
            machine,
            host_restarted: row.machine.host_boot.as_ref().is_some_and(|boot| *boot != engine.host_boot()),
            deaths: row.deaths,
            deaths_since: row.deaths_since,
            checkpoint: seen.checkpoint.as_ref().map(|snapshot| plan::Checkpoint {
                snapshot: snapshot.id,
                begun: snapshot.next_layer.and(snapshot.cut_at).map(|at| at.max(counts_since)),
                given_up: snapshot.status != SnapshotStatus::Pending,
            }),
            leaving: self.leaving(row).await?,
            network_changed: ready && row.applied_network.as_ref() != Some(&row.network),
            expiry: if ready { expiry(&*engine, row, seen.now) } else { Expiry::default() },
        })
    }

    /// What a sandbox without a disk is made of.
    async fn source(&self, row: &SandboxRow) -> Result<Source, StepError> {
        let db = self.sandboxes.db();
        if row.layer.is_some() {
            return Ok(Source::Ready);
        }
        if let Some(id) = row.source_snapshot {
            let found = store::snapshot::load(db, id).await?;
            return Ok(match found {
                Some(s) if s.status == SnapshotStatus::Pending => Source::Waiting,
                Some(s) if s.status != SnapshotStatus::Failed && s.layer.is_some() && s.next_layer.is_none() => {
                    Source::Ready
                }
                Some(s) => Source::Failed(s.message.unwrap_or_else(|| "the snapshot could not be taken".into())),
                None => Source::Failed("the snapshot was deleted".into()),
            });
        }
        let found = match row.source_template {
            Some(id) => store::template::load(db, id).await?.filter(|template| template.deleted_at.is_none()),
            None => None,
        };
        Ok(match found {
            Some(t) if matches!(t.status, TemplateStatus::Pending | TemplateStatus::Building) => Source::Waiting,
            Some(t) if t.status == TemplateStatus::Failed => {
                Source::Failed(format!("the template {} is not ready: {}", t.name, t.message.unwrap_or_default()))
            }
            Some(t) if t.layer.is_some() => Source::Ready,
            _ => Source::Failed("the template was deleted".into()),
        })
    }
}

/// When the time of a sandbox that is ready is over.
fn expiry(engine: &dyn SandboxEngine, row: &SandboxRow, now: Timestamp) -> Expiry {
    let idle_at = row.idle_timeout_seconds.map(|seconds| {
        let activity = engine.activity(row.machine.id);
        // The time counts from the last use of this machine.
        let used = activity.last_used.max(row.ready_since).unwrap_or(now);
        idle_at(activity, used, now, seconds)
    });
    Expiry { expires_at: row.expires_at, idle_at }
}

/// When a sandbox that is used like this has been idle for so many seconds, as far as is known now.
fn idle_at(activity: Activity, used: Timestamp, now: Timestamp, seconds: i64) -> Timestamp {
    let over = used.plus_seconds(seconds);
    match activity.running {
        _ if activity.open > 0 => now.plus_seconds(seconds),
        // Nobody needs to know yet what runs in it.
        _ if over > now => over,
        Some(0) => over,
        Some(_) => now.plus_seconds(seconds),
        None => now.plus_seconds(ASKED),
    }
}

#[cfg(test)]
mod tests {
    use berth_domain::ids::{HostId, OrgId, ProjectId};
    use berth_host::clock::Clock;
    use berth_host::network::Switches;
    use berth_host::sandbox::qemu::QemuSandboxes;
    use berth_host::vm::qemu::QemuEngine;
    use uuid::Uuid;

    use super::*;
    use crate::config::Config;
    use crate::db::{Db, record};
    use crate::services::fleet::{Engines, Fleet};

    /// Rows of an organization, a project of it, and a sandbox that is gone.
    async fn gone(db: &Db, (org, project): Owner, id: SandboxId) {
        let mut tx = db.begin().await.unwrap();
        for (table, columns) in [
            (
                "orgs",
                crate::columns! {"id": org, "name": "a", "slug": "a", "is_personal": 0_i64, "created_at": 0_i64,
                "updated_at": 0_i64},
            ),
            (
                "projects",
                crate::columns! {"id": project, "org_id": org, "name": "a", "slug": "a", "created_at": 0_i64,
                "updated_at": 0_i64},
            ),
            (
                "sandboxes",
                crate::columns! {"id": id, "org_id": org, "project_id": project, "name": "a", "phase": "Deleting",
                "wish": "deleted", "metadata": "{}", "env": "{}", "vcpu": 1_i64, "memory_mb": 1_i64, "disk_gb": 1_i64,
                "network": "{}", "run_user": "root", "on_timeout": "pause", "fresh": false, "phase_since": 0_i64,
                "created_at": 0_i64, "updated_at": 0_i64, "deleted_at": 0_i64},
            ),
        ] {
            record::insert(table, columns).execute(&mut tx).await.unwrap();
        }
        tx.commit().await.unwrap();
    }

    #[tokio::test]
    async fn what_is_done_for_one_that_is_gone_counts_for_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let folder = |name: &str| (name == "BERTH_DATA_DIR").then(|| dir.path().display().to_string());
        let config = Config::from_sources(None, folder).unwrap();
        let db = Db::open(&config.database_url).await.unwrap();
        let (owner, id) = ((OrgId(Uuid::now_v7()), ProjectId(Uuid::now_v7())), SandboxId(Uuid::now_v7()));
        gone(&db, owner, id).await;
        let network = Switches::open(&config.network_engine());
        let vm = Arc::new(QemuEngine::open(config.vm_engine(), Clock::default(), network.clone()));
        let sandbox = Arc::new(QemuSandboxes::open(config.sandbox_engine(), Clock::default(), network.clone()));
        let fleet = Fleet::new(HostId(Uuid::nil()), Engines { vm, sandbox, network });
        let reconciler = SandboxLife::new(Sandboxes::new((db, "database"), Clock::default(), &config, fleet));
        assert_eq!(reconciler.owner(&id).await, Some(owner));
        assert_eq!(reconciler.owner(&SandboxId(Uuid::now_v7())).await, None);
    }

    #[test]
    fn who_says_nothing_is_neither_idle_nor_waited_for() {
        let at = |second: i64| Timestamp(second * Timestamp::SECOND);
        let idle = |open, running, now| idle_at(Activity { open, running, last_used: None }, at(0), at(now), 10);
        assert_eq!(idle(0, None, 9), at(10), "its time is not over");
        assert_eq!(idle(0, Some(3), 9), at(10));
        assert_eq!(idle(0, Some(0), 10), at(10), "idle");
        assert_eq!(idle(0, Some(1), 10), at(20), "something runs");
        assert_eq!(idle(1, Some(0), 10), at(20), "somebody is connected");
        assert_eq!(idle(0, None, 10), at(10 + ASKED), "it is looked at again");
    }
}
