//! Has a sandbox that has no machine leave its host, which is drained, with its disk and its memory.
//!
//! Its row names its host and the one that it goes to until it is there. All that it may need was brought by then, so that it is
//! whole on one host at every moment: its disk is frozen where it is, under a new top that is made where it starts next, and a
//! copy of a frozen layer is never out of date. Whoever wants something of it meanwhile gets that where it is, and it stays.

use std::time::Duration;

use berth_domain::Timestamp;
use berth_domain::host::Drain;
use berth_domain::host::placement::Placed;
use berth_domain::ids::{HostId, LayerId, MemoryId, SandboxId};
use berth_domain::sandbox::layer_copy::{Availability, availability, holders};
use berth_domain::sandbox::plan::Leaving;
use berth_domain::sandbox::{Phase, Wish};
use berth_host::sandbox::DISK_FULL;
use uuid::Uuid;

use super::ground::Begins;
use super::placement::tell;
use super::record::{GOING, enter, still, still_as};
use super::{SandboxLife, Seen};
use crate::db::{Signal, Tx, machine, machine_gpu, network};
use crate::services::fleet::is_there;
use crate::services::placement::{Refusal, drain_of, placed_event, takers};
use crate::services::sandbox::reconcile::capacity::{Offers, offer};
use crate::services::sandbox::reconcile::memory_travel::{self, Travelled};
use crate::services::sandbox::reconcile::{StepError, fault};
use crate::services::sandbox::store;
use crate::services::sandbox::store::sandbox::{Move, SandboxRow};

/// Between two looks whether a sandbox is wanted whose memory is carried.
const LOOK: Duration = Duration::from_millis(500);
/// Seconds that the way may take of one that is to go on, and of one that stands still anyway.
pub(in crate::services::sandbox::reconcile) const DOWN: i64 = 1800;
const PATIENCE: i64 = 2 * 3600;

/// What is left of the time that the way of a sandbox may take.
fn patience(to: Move, now: Timestamp) -> Duration {
    let until = to.since.plus_seconds(if to.resumes { DOWN } else { PATIENCE });
    Duration::from_micros(u64::try_from(until.0.saturating_sub(now.0)).unwrap_or(0))
}

impl SandboxLife {
    /// Whether anything is to be done for a sandbox that is to leave its host.
    pub(super) async fn leaving(&self, row: &SandboxRow) -> Result<Option<Leaving>, StepError> {
        let (Some(to), Some(top)) = (row.moves, row.layer) else { return Ok(None) };
        let chain = store::layer_copy::chain(self.sandboxes.db(), top).await?;
        let here = chain.get(1..).unwrap_or_default();
        let is_coming = availability(here, to.host, self.sandboxes.host(), to.since) == Availability::Coming;
        let waits = is_coming && self.reason_to_stay(row, to, self.sandboxes.clock().now()).await?.is_none();
        Ok(Some(if waits { Leaving::Waits } else { Leaving::Goes }))
    }

    /// Why a sandbox stays on its host that was to leave it, if it does.
    async fn reason_to_stay(
        &self,
        row: &SandboxRow,
        to: Move,
        now: Timestamp,
    ) -> Result<Option<&'static str>, StepError> {
        let db = self.sandboxes.db();
        Ok(if drain_of(db, row.machine.host).await?.is_none() {
            Some("its host is not drained any more")
        } else if !takers(db).await?.contains(&to.host) {
            Some("the other host takes nothing any more")
        } else if patience(to, now).is_zero() {
            Some("what it needs did not come to the other host in time")
        } else {
            None
        })
    }

    /// Chooses the host that a sandbox goes to, if one takes it, and has it leave. One that runs is paused for that: whether one
    /// is.
    pub(in crate::services::sandbox::reconcile) async fn send(
        &self,
        id: SandboxId,
        (from, drain): (HostId, Drain),
        offers: &Offers,
    ) -> Result<bool, StepError> {
        let now = self.sandboxes.clock().now();
        let mut tx = self.sandboxes.db().begin().await?;
        let Some(before) = store::sandbox::load(&mut tx, id).await? else { return Ok(false) };
        let Some(top) = before.layer.filter(|_| before.machine.host == Some(from) && before.moves.is_none()) else {
            return Ok(false);
        };
        let resumes = match (before.phase, before.wish) {
            (Phase::Paused | Phase::Failed, Wish::Paused) => false,
            (Phase::Ready, Wish::Ready) if drain == Drain::All => true,
            _ => return Ok(false),
        };
        let is_snapshotted = !store::snapshot::to_checkpoint(&mut tx, id).await?.is_empty();
        if is_snapshotted || drain_of(&mut tx, Some(from)).await?.is_none() {
            return Ok(false);
        }
        let mut row = before.clone();
        let placed = match self.place_elsewhere(&mut tx, &before, (top, resumes), offers).await? {
            Ok(placed) if placed.host == from => return Ok(false),
            Ok(placed) => placed,
            Err(refusal) => {
                tell(&mut tx, &row, "sandbox.unplaced", &refusal.event(), now).await?;
                tx.commit().await?;
                return Ok(false);
            }
        };
        if resumes {
            row.keep_memory = row.keeps_memory();
            enter(&mut row, Phase::Pausing, Some(GOING.into()), now);
            row.wish = Wish::Paused;
        }
        row.moves = Some(Move { host: placed.host, since: now, resumes });
        row.work_at = Some(now);
        self.write(&mut tx, &before, row).await?;
        tx.signal(Signal::Work(store::sandbox::TABLE));
        tx.commit().await?;
        tracing::info!(sandbox = %id, %from, to = %placed.host, resumes, "a sandbox is to leave its host");
        Ok(resumes)
    }

    /// The place for a sandbox on another host than its own. One that does not run holds nothing there but its disk.
    async fn place_elsewhere(
        &self,
        tx: &mut Tx,
        row: &SandboxRow,
        (top, runs): (LayerId, bool),
        offers: &Offers,
    ) -> Result<Result<Placed, Refusal>, StepError> {
        let chain = store::layer_copy::chain(&mut *tx, top).await?;
        let begins = Begins { hosts: holders(&chain, self.sandboxes.host()), layers: Some(chain) };
        let mut asks = SandboxRow { layer: None, ..row.clone() };
        asks.machine.host = None;
        asks.memory_mb = if runs { row.memory_mb } else { 0 };
        let placed = self.place(tx, &asks, &begins, offers).await?;
        let has_memory = row.keeps_memory() && (runs || row.memory.is_some());
        let has_room = |host: &HostId| offers.get(host).is_some_and(|offer| offer.capacity.has_room(row.memory_mb));
        // Of one that runs it is captured where that is.
        let captures = row.machine.host.filter(|_| runs);
        Ok(placed.and_then(|placed| {
            let fits = captures.iter().chain([&placed.host]).all(has_room);
            if fits || !has_memory { Ok(placed) } else { Err(Refusal::everywhere(DISK_FULL.to_owned())) }
        }))
    }

    /// The next thing for a sandbox that is to leave its host.
    pub(super) async fn leave(&self, seen: &Seen) -> Result<(), StepError> {
        let (Some(to), Some(from)) = (seen.row.moves, seen.row.machine.host) else { return Ok(()) };
        if let Some(reason) = self.reason_to_stay(&seen.row, to, seen.now).await? {
            return self.stay(seen, reason).await;
        }
        let Some(base) = self.seal(&seen.row).await? else { return Ok(()) };
        let chain = store::layer_copy::chain(self.sandboxes.db(), base).await?;
        match availability(&chain, to.host, self.sandboxes.host(), to.since) {
            Availability::Coming => Ok(()),
            Availability::Failed(reason) => self.stay(seen, &reason).await,
            Availability::Lacking(layers) => {
                let mut tx = self.sandboxes.db().begin().await?;
                if still(&mut tx, seen).await?.is_some_and(|row| row.moves == Some(to)) {
                    store::layer_copy::want(&mut tx, &layers, to.host, seen.now).await?;
                    tx.commit().await?;
                }
                Ok(())
            }
            Availability::Here(_) => self.go_over(seen, from, to).await,
        }
    }

    /// Has nobody write to its disk any more where it is: a new top is on it, which is made where it starts next. What it lies on;
    /// none where that is to be looked at anew.
    pub(in crate::services::sandbox::reconcile) async fn seal(
        &self,
        seen: &SandboxRow,
    ) -> Result<Option<LayerId>, StepError> {
        let Some(top) = seen.layer else { return Ok(None) };
        let Some(layer) = store::layer::find(self.sandboxes.db(), top).await? else { return Ok(None) };
        if !layer.made {
            return Ok(layer.parent);
        }
        let bytes = self.sandboxes.engine_of(seen.machine.host)?.layer_bytes(top).await?;
        let mut tx = self.sandboxes.db().begin().await?;
        let Some(before) = still_as(&mut tx, seen).await?.filter(|row| row.moves == seen.moves) else {
            return Ok(None);
        };
        if before.layer != Some(top) || !store::snapshot::to_checkpoint(&mut tx, before.id).await?.is_empty() {
            return Ok(None);
        }
        let id = LayerId(Uuid::now_v7());
        store::layer::insert(&mut tx, &store::layer::above(&before, id, top, self.sandboxes.clock().now())).await?;
        store::layer::freeze(&mut tx, top, bytes).await?;
        self.write(&mut tx, &before, SandboxRow { layer: Some(id), ..before.clone() }).await?;
        tx.commit().await?;
        fault("sandbox", "leave", "frozen").await?;
        Ok(None)
    }

    /// Brings its memory, and has it be on the other host, which has its disk.
    async fn go_over(&self, seen: &Seen, from: HostId, to: Move) -> Result<(), StepError> {
        let (mut memory, patience) = (seen.row.memory, patience(to, seen.now));
        if let Some(id) = memory {
            let carried = tokio::select! {
                carried = memory_travel::bring(&self.sandboxes, id, to.host, patience) => carried?,
                () = self.is_wanted(seen) => return Ok(()),
            };
            match carried {
                Travelled::There => {}
                Travelled::Refused(_) if drain_of(self.sandboxes.db(), Some(from)).await? == Some(Drain::All) => {
                    memory = None;
                }
                Travelled::Refused(reason) | Travelled::NoRoom(reason) => return self.stay(seen, &reason).await,
            }
        }
        fault("sandbox", "leave", "brought").await?;
        if self.change_host(seen, (from, to), memory).await? {
            fault("sandbox", "leave", "gone").await?;
            self.forget_at(from, seen, memory).await;
        }
        Ok(())
    }

    /// Records that a sandbox is on the other host, with its memory if that is there; whether it is.
    async fn change_host(
        &self,
        seen: &Seen,
        (from, to): (HostId, Move),
        memory: Option<MemoryId>,
    ) -> Result<bool, StepError> {
        let runs = to.resumes && seen.row.phase == Phase::Paused;
        let has_gpus = seen.row.gpu_config_count > 0;
        let offers = if runs { Some(offer(&self.sandboxes, to.host, has_gpus).await?) } else { None };
        let mut tx = self.sandboxes.db().begin().await?;
        let is_same =
            |row: &SandboxRow| (row.moves, row.layer, row.memory) == (seen.row.moves, seen.row.layer, seen.row.memory);
        let Some(before) = still(&mut tx, seen).await?.filter(is_same) else { return Ok(false) };
        let is_snapshotted = !store::snapshot::to_checkpoint(&mut tx, before.id).await?.is_empty();
        if is_snapshotted || drain_of(&mut tx, Some(from)).await?.is_none() || !is_there(&mut tx, to.host).await? {
            return Ok(false);
        }
        let mut row = SandboxRow { moves: None, work_at: Some(seen.now), memory, ..before.clone() };
        row.message = row.message.filter(|message| message != GOING);
        if !settle_on(&mut tx, &mut row, to.host).await? {
            return Ok(false);
        }
        if let Some(offers) = offers
            && let Err(refusal) = self.resume_there(&mut tx, &mut row, to.host, &offers, seen.now).await?
        {
            drop(tx);
            self.stay(seen, &refusal.owner).await?;
            return Ok(false);
        }
        if memory.is_none() && before.memory.is_some() {
            let message = "its memory could not be taken to another host; it starts from its disk".to_owned();
            (row.again, row.message) = (Some(message.clone()), Some(message));
        }
        let data = placed_event(to.host, "its host is drained");
        tell(&mut tx, &row, "sandbox.placed", &data, seen.now).await?;
        self.write(&mut tx, &before, row).await?;
        tx.commit().await?;
        tracing::info!(sandbox = %before.id, %from, to = %to.host, "a sandbox leaves its host");
        Ok(true)
    }

    /// Has a sandbox that stands still be on the host that has all of it, since its own is lost; whether it can be there.
    pub(in crate::services::sandbox::reconcile) async fn settle_after_loss(
        &self,
        tx: &mut Tx,
        id: SandboxId,
        to: HostId,
        now: Timestamp,
    ) -> Result<bool, StepError> {
        let Some(before) = store::sandbox::load(&mut *tx, id).await? else { return Ok(false) };
        let joined = network::hosts_of_others(&mut *tx, &before.networks, before.machine.id).await?;
        if joined.into_iter().any(|host| host != to) {
            return Ok(false);
        }
        let mut row = SandboxRow { work_at: Some(now), ..before.clone() };
        if row.phase == Phase::Resuming {
            // Its time begins there, and whoever saw it on its former host has seen another row.
            (row.phase_since, row.attempts) = (now, 0);
        }
        if !settle_on(tx, &mut row, to).await? {
            return Ok(false);
        }
        tell(tx, &row, "sandbox.placed", &placed_event(to, "its host is lost"), now).await?;
        self.write(tx, &before, row).await?;
        tx.signal(Signal::Work(store::sandbox::TABLE));
        Ok(true)
    }

    /// Waits until somebody wants something of a sandbox, who does not wait for its memory.
    async fn is_wanted(&self, seen: &Seen) {
        let is_wanted = |row: SandboxRow| row.moves.map(|to| to.host) != seen.row.moves.map(|to| to.host);
        loop {
            tokio::time::sleep(LOOK).await;
            let db = self.sandboxes.db();
            let (found, snapshots) =
                (store::sandbox::load(db, seen.row.id).await, store::snapshot::to_checkpoint(db, seen.row.id).await);
            if found.is_ok_and(|found| found.is_none_or(is_wanted)) || snapshots.is_ok_and(|all| !all.is_empty()) {
                return;
            }
        }
    }

    /// Has a sandbox that was put away for this take its place on the other host, if that has one.
    async fn resume_there(
        &self,
        tx: &mut Tx,
        row: &mut SandboxRow,
        host: HostId,
        offers: &Offers,
        now: Timestamp,
    ) -> Result<Result<(), Refusal>, StepError> {
        let placed = match self.place(tx, row, &Begins::on(host), offers).await? {
            Ok(placed) => placed,
            Err(refusal) => return Ok(Err(refusal)),
        };
        machine::reserve(tx, placed.host, placed.room, std::slice::from_mut(&mut row.machine)).await?;
        machine_gpu::reserve(tx, placed.host, row.machine.id, &placed.devices).await?;
        enter(row, Phase::Resuming, Some("starting on another host".into()), now);
        row.wish = Wish::Ready;
        Ok(Ok(()))
    }

    /// What it left on its former host goes. Where that fails, a search of that host finds it.
    async fn forget_at(&self, host: HostId, seen: &Seen, memory: Option<MemoryId>) {
        let forgotten = async {
            let engine = self.sandboxes.engine_of(Some(host))?;
            engine.discard(seen.row.machine.aim()).await
        };
        if let Err(error) = forgotten.await {
            tracing::warn!(%host, sandbox = %seen.row.id, %error, "what a sandbox left is still there");
        }
        if let Some(memory) = memory {
            memory_travel::forget_former(&self.sandboxes, memory, host).await;
        }
    }

    /// Has it stay on its host, and run there again where it was put away for this.
    async fn stay(&self, seen: &Seen, reason: &str) -> Result<(), StepError> {
        let mut tx = self.sandboxes.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await?.filter(|row| row.moves == seen.row.moves) else { return Ok(()) };
        let Some(to) = before.moves else { return Ok(()) };
        let mut row = SandboxRow { moves: None, work_at: Some(seen.now), ..before.clone() };
        row.message = row.message.filter(|message| message != GOING);
        if to.resumes && row.phase == Phase::Paused {
            enter(&mut row, Phase::Resuming, Some("starting again on its host".into()), seen.now);
            row.wish = Wish::Ready;
        }
        let refusal = Refusal::everywhere(reason.to_owned());
        tell(&mut tx, &row, "sandbox.unplaced", &refusal.event(), seen.now).await?;
        self.write(&mut tx, &before, row).await?;
        tracing::info!(sandbox = %before.id, reason, "a sandbox stays on its host, which is drained");
        Ok(tx.commit().await?)
    }
}

/// Has a sandbox without a machine be on a host that has what its disk lies on, and its memory; whether that is there.
async fn settle_on(tx: &mut Tx, row: &mut SandboxRow, host: HostId) -> Result<bool, StepError> {
    row.machine.leave_for(host);
    if let Some(top) = row.layer {
        store::layer::place(&mut *tx, top, host).await?;
    }
    Ok(match row.memory {
        Some(memory) => store::memory::go_over(tx, memory, host).await?,
        None => true,
    })
}
