//! Has a VM go to another host while it runs.
//!
//! ```text
//!   describe ─► place, row ─► expect ─► disks are mirrored ─► memory ─► it stands still ─► rows ─► resume
//!       └─ not like that          └──────── call off: it goes on where it is ────────┘        └─ its former machine goes
//! ```
//!
//! The two hosts do not know each other: this service carries the bytes, and says which machine goes on. Until one transaction has
//! the rows name the other host, nobody resumes the machine there; from then on nobody resumes the former one. So at no moment
//! two of them run, whoever dies. A worker that finds such a VM on its way did not send it itself, since one worker has a VM at
//! a time: it calls that off. What the VM is to have on the other host it holds there from before anything is asked of that.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use berth_domain::host::Aim;
use berth_domain::ids::{DiskId, HostId, VmId};
use berth_domain::machine::Owner;
use berth_domain::vm::DiskStatus;
use berth_domain::vm::model::Want;
use berth_domain::vm::plan::Machine as Observed;
use berth_domain::vm::request::MAX_DATA_DISKS;
use berth_host::EngineError;
use berth_host::vm::{Channel, Engine, Likeness, MachineSpec, Started};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::record::{is_still_wanted, opened, refused, standing, still};
use super::{Seen, VmLife};
use crate::db::machine::{self, Machine};
use crate::db::{Tx, event};
use crate::services::fleet::is_there;
use crate::services::placement::{Refusal, drain_of, placed_event};
use crate::services::vm::reconcile::capacity::{self, Among};
use crate::services::vm::reconcile::{StepError, fault};
use crate::services::vm::store;
use crate::services::vm::store::disk::DiskRow;
use crate::services::vm::store::migration::MigrationRow;
use crate::services::vm::store::vm::VmRow;

/// Why one stays of which something else was wanted meanwhile.
const CHANGED: &str = "it cannot go while it runs: its disks, ports or rules changed, or were copied, on the way";
/// Why one does not go as it runs whose disks two hosts would have open at a time.
const IN_STORE: &str =
    "it cannot go while it runs: its disks lie in a store of several hosts; it goes once it is off, or by a restart";
/// How long its disks may take: 2 TiB at 30 MB a second.
const DISKS: Duration = Duration::from_hours(20);
/// How long its memory may take: a guest that writes faster than the network carries is slowed down by then.
const MEMORY: Duration = Duration::from_mins(30);
/// How long it may take until the other host has the last of it, while it stands still.
const TAKEN: Duration = Duration::from_secs(40);
/// Most bytes of what a processor is called.
const LONGEST_NAME: usize = 200;
/// Between two looks whether it is still to go.
const LOOK: Duration = Duration::from_secs(2);

/// What became of a VM that was to go.
pub(super) enum Migrated {
    /// It went, or somebody changed something: it is decided anew.
    Over,
    /// No other host takes it as it runs.
    Not(Refusal),
    /// Something on its way failed: it is where it was, and is asked again later.
    BrokeOff(Refusal),
}

/// A VM that goes to another host.
struct Migration {
    row: MigrationRow,
    /// Its row as it is to be.
    there: VmRow,
    /// Its machine as it is to be there, and as it is.
    spec: MachineSpec,
    likeness: Likeness,
    source: Arc<dyn Engine>,
    target: Arc<dyn Engine>,
    /// Why it was put there.
    reason: String,
}

/// Why a VM does not come.
enum Obstacle {
    /// The other host is not like this one, or lacks something.
    Unlike(EngineError),
    /// Something on the way failed.
    Failed(StepError),
    /// It is not to go any more as it was seen.
    Overtaken,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlike(error) | Self::Failed(StepError::Engine(error)) => error.fmt(f),
            Self::Failed(StepError::Own(error)) => error.fmt(f),
            Self::Overtaken => f.write_str("it, or its host, is wanted otherwise by now"),
        }
    }
}

/// Hosts that a VM cannot go to as it runs, and why.
type Unlike = HashMap<HostId, String>;

impl VmLife {
    /// Has a machine go to another host while it runs.
    pub(super) async fn migrate(&self, seen: &Seen) -> Result<Migrated, StepError> {
        if capacity::store(&seen.disks).is_some() {
            return Ok(Migrated::Not(Refusal::everywhere(IN_STORE.into())));
        }
        let source = self.engine(seen)?;
        let likeness = match source.likeness(&self.spec(seen)?).await {
            Ok(likeness) => likeness,
            Err(error) if error.is_final() => return Ok(Migrated::Not(cannot(&error))),
            Err(error) => return Ok(Migrated::BrokeOff(cannot(&error))),
        };
        if let Some(lie) = lies(&likeness, &seen.disks) {
            return Ok(Migrated::Not(Refusal::everywhere(lie.into())));
        }
        let (mut unlike, mut may_pass) = (Unlike::new(), false);
        loop {
            let migration = match self.begin(seen, (&source, &likeness), &unlike).await? {
                Ok(migration) => migration,
                // One that would take it failed for now.
                Err(Migrated::Not(refusal)) if may_pass => return Ok(Migrated::BrokeOff(refusal)),
                Err(migrated) => return Ok(migrated),
            };
            let Some(obstacle) = self.go(seen, &migration).await? else { return Ok(Migrated::Over) };
            self.end(seen.vm.id, Some(&migration.row), &obstacle.to_string()).await?;
            match obstacle {
                Obstacle::Overtaken if self.is_decided_anew(seen).await? => return Ok(Migrated::Over),
                Obstacle::Overtaken => return Ok(Migrated::BrokeOff(Refusal::everywhere(CHANGED.into()))),
                Obstacle::Unlike(error) => {
                    may_pass |= !error.is_final();
                    unlike.insert(migration.row.host, cannot(&error).owner);
                }
                Obstacle::Failed(StepError::Engine(error)) if error.is_final() => {
                    return Ok(Migrated::Not(cannot(&error)));
                }
                Obstacle::Failed(StepError::Engine(error)) => return Ok(Migrated::BrokeOff(cannot(&error))),
                Obstacle::Failed(error) => return Err(error),
            }
        }
    }

    /// Whether a VM that is not to go any more as it was seen is to go at all: what was changed of it comes first, and others have
    /// their turn meanwhile.
    async fn is_decided_anew(&self, seen: &Seen) -> Result<bool, StepError> {
        let vm = store::vm::peek(self.vms.db(), seen.vm.id).await?;
        let is_to_leave = vm.is_some_and(|vm| vm.leaves && is_still_wanted(&seen.vm, &vm));
        Ok(self.stop.is_cancelled() || !is_to_leave)
    }

    /// Has a machine come to the other host and go on there; why not, if it does not.
    async fn go(&self, seen: &Seen, migration: &Migration) -> Result<Option<Obstacle>, StepError> {
        fault("vm", "leave", "intent").await?;
        let came = tokio::select! {
            came = migration.carry() => came,
            () = self.overtaken(seen) => Err(Obstacle::Overtaken),
        };
        let started = match came {
            Ok(started) => started,
            Err(obstacle) => return Ok(Some(obstacle)),
        };
        if !self.settle(seen, migration, &started).await? {
            return Ok(Some(Obstacle::Overtaken));
        }
        self.arrive(seen, migration).await.map(|()| None)
    }

    /// Gives up that another host waits for a machine, which a worker that is gone was sending there.
    pub(super) async fn call_off(&self, seen: &Seen) -> Result<(), StepError> {
        self.end(seen.vm.id, None, "the worker that sent it is gone").await
    }

    /// Has a machine go on where it is: ends this migration of it, or whichever there is.
    async fn end(&self, id: VmId, of: Option<&MigrationRow>, why: &str) -> Result<(), StepError> {
        let Some((vm, migration)) = self.claim(id, of).await? else { return Ok(()) };
        let aim = vm.machine.aim();
        let goes_on = self.goes_on(&vm).await;
        fault("vm", "call_off", "done").await?;
        self.forget(aim, vm.id, migration.host).await;
        // One whose host is lost is looked at when that is back, and goes on then if it stands still. Any other is told again, and
        // keeps no turn from others meanwhile.
        let is_over = goes_on.is_ok() || vm.machine.host_is_lost;
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = store::vm::load(&mut tx, vm.id).await? else { return Ok(()) };
        if store::migration::find(&mut tx, vm.id).await? != Some(migration) {
            return Ok(());
        }
        let work_at = Some(self.vms.clock().now());
        let mut vm = VmRow { leaves: before.leaves && is_over, work_at, ..before.clone() };
        if is_over {
            store::migration::end(&mut tx, &migration).await?;
            vm.machine.migrating = false;
        }
        self.write(&mut tx, &before, &vm).await?;
        tx.commit().await?;
        if !is_over {
            return Ok(goes_on?);
        }
        tracing::info!(vm = %vm.id, to = %migration.host, why, "a VM stays, which was going to another host");
        Ok(())
    }

    /// Has a machine go on where it is. One that does not answer is ended where it is not to run any more.
    async fn goes_on(&self, vm: &VmRow) -> Result<(), EngineError> {
        let (engine, aim) = (self.vms.engine_of(vm.machine.host)?, vm.machine.aim());
        match engine.call_off(aim).await {
            Err(_) if matches!(vm.want, Want::Stop | Want::Gone) => engine.power_off(aim).await,
            called_off => called_off,
        }
    }

    /// Makes a VM that migrates, by this row or by any, one of a later generation. A worker that comes late changes nothing of what
    /// was decided since: the rows are others, and the hosts know a later generation.
    async fn claim(&self, id: VmId, of: Option<&MigrationRow>) -> Result<Option<(VmRow, MigrationRow)>, StepError> {
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = store::vm::load(&mut tx, id).await? else { return Ok(None) };
        let found = store::migration::find(&mut tx, id).await?;
        let Some(migration) = found.filter(|found| of.is_none_or(|of| of == found)) else { return Ok(None) };
        let mut vm = before.clone();
        vm.machine.generation += 1;
        self.write(&mut tx, &before, &vm).await?;
        tx.commit().await?;
        Ok(Some((vm, migration)))
    }

    /// Has a VM hold on another host what it is to have there, and says that it goes there.
    async fn begin(
        &self,
        seen: &Seen,
        (source, likeness): (&Arc<dyn Engine>, &Likeness),
        unlike: &Unlike,
    ) -> Result<Result<Migration, Migrated>, StepError> {
        let mut offers = capacity::all_offers(&self.vms, &seen.vm, &seen.disks).await?;
        for (host, offer) in &mut offers {
            let is_bridged = self.vms.engine_of(Some(*host)).is_ok_and(|engine| engine.network().is_bridged);
            let why = is_bridged.then(|| "it has VMs on a bridge, and this one runs on none".to_owned());
            offer.lacks = unlike.get(host).cloned().or(why);
        }
        let reached = self.reach(seen, &mut offers).await?;
        if let Err(refusal) = self.choice(seen, &offers, Among::All).await? {
            return Ok(Err(Migrated::Not(refusal)));
        }
        let mut tx = self.vms.db().begin().await?;
        let found = still(&mut tx, seen).await?.filter(|vm| vm.leaves && !vm.machine.migrating);
        let Some(before) = found else { return Ok(Err(Migrated::Over)) };
        if drain_of(&mut tx, before.machine.host).await?.is_none() {
            self.keep(tx, &before, seen).await?;
            return Ok(Err(Migrated::Over));
        }
        let placed = match capacity::place(&mut tx, &before, &offers, (&self.vms, Among::Asked)).await? {
            Ok(placed) => placed,
            Err(refusal) => return Ok(Err(Migrated::Not(refusal))),
        };
        let Some(reach) = self.still_free(&mut tx, &before, &placed, reached).await? else {
            return Ok(Err(Migrated::Over));
        };
        let mut there = VmRow { applied_ports: Vec::new(), ..before.clone() };
        there.machine.leave_for(placed.host);
        there.machine.generation += 1;
        self.take_place(&mut tx, &mut there, &placed, reach).await?;
        let spec = self.spec_of(&there, seen)?;
        let target = self.vms.engine_of(Some(placed.host))?;
        let row = self.say_so(&mut tx, (&before, &there), placed.host).await?;
        tx.commit().await?;
        self.vms.estimates().note(placed.host, there.memory_mb);
        tracing::info!(vm = %there.id, from = before.machine.host.map(tracing::field::display), to = %placed.host, "a VM goes to another host while it runs");
        let (source, likeness) = (source.clone(), likeness.clone());
        Ok(Ok(Migration { row, there, spec, likeness, source, target, reason: placed.reason }))
    }

    /// Writes that a VM is on its way, and what it holds on the host that it goes to.
    async fn say_so(
        &self,
        tx: &mut Tx,
        (before, there): (&VmRow, &VmRow),
        host: HostId,
    ) -> Result<MigrationRow, StepError> {
        let place = machine::new_id();
        let held = Machine { id: place, owner: Owner::Vm(VmId(place.0)), generation: 0, ..there.machine.clone() };
        machine::insert(tx, &held).await?;
        let migration = MigrationRow { vm: there.id, place, host };
        store::migration::insert(tx, &migration).await?;
        let mut vm = before.clone();
        (vm.machine.generation, vm.machine.migrating) = (there.machine.generation, true);
        self.write(tx, before, &vm).await?;
        Ok(migration)
    }

    /// Returns once a VM is not to go any more as it was seen, or the service stops.
    async fn overtaken(&self, seen: &Seen) {
        while self.stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
            // A database that does not answer says nothing.
            if self.is_to_go(seen).await.is_ok_and(|is_to_go| !is_to_go) {
                return;
            }
        }
    }

    async fn is_to_go(&self, seen: &Seen) -> Result<bool, StepError> {
        let Some(vm) = store::vm::peek(self.vms.db(), seen.vm.id).await? else { return Ok(false) };
        let disks = store::disk::peek_of_vm(self.vms.db(), seen.vm.id).await?;
        let copies = store::disk_snapshot::open_of_vm(self.vms.db(), seen.vm.id).await?;
        let is_over = vm.expires_at.is_some_and(|at| at <= self.vms.clock().now());
        let is_wanted = vm.leaves && !is_over && is_still_wanted(&seen.vm, &vm);
        let is_wanted = is_wanted && copies.is_empty() && are_alike(&seen.disks, &disks);
        let engine = self.engine(seen)?;
        // It stands still for the last of it, and only a process that is there has a network.
        let runs = match engine.observe(vm.machine.id).await? {
            Observed::Running => !self.ports_changed(&vm, &self.rules(&vm).await?, &*engine).await,
            Observed::Paused | Observed::Unresponsive => true,
            Observed::Absent | Observed::Stalled | Observed::PoweredOff | Observed::Panicked => false,
        };
        Ok(is_wanted && runs)
    }

    /// Has the rows name the host that a VM came to; false where something changed meanwhile.
    async fn settle(&self, seen: &Seen, migration: &Migration, started: &Started) -> Result<bool, StepError> {
        let (now, to) = (self.vms.clock().now(), migration.row.host);
        // What its guest said of its boot it said here.
        let guest_ready = migration.source.guest_ready(seen.vm.machine.id).await;
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await?.filter(|vm| vm.leaves) else { return Ok(false) };
        let found = store::migration::find(&mut tx, before.id).await?;
        let disks = store::disk::of_vm(&mut tx, before.id).await?;
        let is_same = found == Some(migration.row)
            && (before.machine.host, before.machine.generation) == (seen.vm.machine.host, migration.spec.generation);
        if !is_same || !are_alike(&seen.disks, &disks) || !is_there(&mut tx, to).await? {
            return Ok(false);
        }
        // The place is the machine's own from now on.
        store::migration::end(&mut tx, &migration.row).await?;
        let guest_ready = guest_ready || before.guest_ready;
        let mut vm = VmRow { leaves: false, guest_ready, work_at: Some(now), ..before.clone() };
        vm.machine = Machine { host_boot: Some(migration.target.host_boot()), ..migration.there.machine.clone() };
        opened(&mut vm, &migration.spec, started);
        vm.message = standing(&vm, refused(&migration.spec, started));
        self.write(&mut tx, &before, &vm).await?;
        for disk in &disks {
            let here = DiskRow { host: Some(to), to: None, stuck_since: None, updated_at: now, ..disk.clone() };
            store::disk::update(&mut tx, disk, &here).await?;
        }
        let (subject, data) = (vm.id.to_string(), placed_event(to, &migration.reason));
        event::emit_to_administrators(&mut tx, vm.project, "vm.placed", &subject, &data, now).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Has a machine go on where it came, and its former one go.
    async fn arrive(&self, seen: &Seen, migration: &Migration) -> Result<(), StepError> {
        fault("vm", "leave", "settled").await?;
        let aim = migration.spec.aim();
        migration.target.resume(aim).await?;
        fault("vm", "leave", "resumed").await?;
        tracing::info!(vm = %seen.vm.id, to = %migration.row.host, "a VM came to another host while it ran");
        if let Some(from) = seen.vm.machine.host {
            self.forget(aim, seen.vm.id, from).await;
        }
        Ok(())
    }

    /// Removes from a host what is there of a machine that goes on elsewhere. What stays, a search of the host finds.
    async fn forget(&self, aim: Aim, vm: VmId, host: HostId) {
        if let Err(error) = self.try_to_forget(aim, vm, host).await {
            tracing::warn!(%vm, %host, ?error, "what is left on a host of a VM that is elsewhere could not be removed");
        }
    }

    async fn try_to_forget(&self, aim: Aim, vm: VmId, host: HostId) -> Result<(), StepError> {
        let engine = self.vms.engine_of(Some(host))?;
        engine.power_off(aim).await?;
        engine.discard(aim).await?;
        // One that has its place there is another one of the VM's, which is about to come to it.
        for disk in store::disk::peek_of_vm(self.vms.db(), vm).await?.iter().filter(|disk| disk.host != Some(host)) {
            engine.remove_disk(disk.id).await?;
        }
        Ok(())
    }
}

impl Migration {
    /// Has all of a machine come to the other host, where it stands still then, as it does here.
    async fn carry(&self) -> Result<Started, Obstacle> {
        let started = match self.target.expect_machine(&self.spec, &self.likeness).await {
            Ok(started) => started,
            Err(error) => return Err(Obstacle::Unlike(error)),
        };
        self.send().await.map_err(Obstacle::Failed)?;
        Ok(started)
    }

    async fn send(&self) -> Result<(), StepError> {
        let (aim, mut channels) = (self.spec.aim(), JoinSet::new());
        fault("vm", "leave", "expected").await?;
        for disk in self.likeness.disks.keys() {
            self.join(&mut channels, Channel::Disk(*disk)).await?;
        }
        let late = |_| EngineError::Permanent("its disks did not come to another host in 20 hours".into());
        timeout(DISKS, self.source.mirrored(aim)).await.map_err(late)??;
        fault("vm", "leave", "mirrored").await?;
        self.join(&mut channels, Channel::Memory).await?;
        let late = |_| EngineError::Permanent("its memory did not come to another host in half an hour".into());
        timeout(MEMORY, self.source.hand_over(aim)).await.map_err(late)??;
        fault("vm", "leave", "handed_over").await?;
        let silent = |_| EngineError::Transient("the other host does not say that it came".into());
        timeout(TAKEN, self.target.taken(aim)).await.map_err(silent)??;
        Ok(())
    }

    /// Joins what the one host sends to what the other one takes, for as long as both are there.
    async fn join(&self, channels: &mut JoinSet<()>, channel: Channel) -> Result<(), EngineError> {
        let aim = self.spec.aim();
        let mut to = self.target.fill_machine(aim, channel).await?;
        let mut from = self.source.send_machine(aim, channel).await?;
        channels.spawn(async move {
            // Either host notices where it breaks off.
            let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
        });
        Ok(())
    }
}

/// Why a VM does not go while it runs.
fn cannot(error: &EngineError) -> Refusal {
    Refusal::everywhere(format!("it cannot go while it runs: {error}"))
}

/// What a host says that cannot be: it would have another one make larger disks than the VM has.
fn lies(likeness: &Likeness, disks: &[DiskRow]) -> Option<&'static str> {
    let largest = |id: &DiskId| disks.iter().find(|disk| disk.id == *id).map_or(0, |disk| disk.extent.placed_gb);
    let fits = |(id, bytes): (&DiskId, &u64)| i64::try_from(*bytes).is_ok_and(|bytes| bytes <= largest(id) << 30);
    let is_name = likeness.processor.len() <= LONGEST_NAME && !likeness.processor.chars().any(char::is_control);
    let is_true = likeness.disks.iter().all(fits) && likeness.places.values().all(|place| *place < MAX_DATA_DISKS);
    (!is_true || !is_name).then_some("it cannot go while it runs: its host says of it what cannot be")
}

/// Whether the disks of a VM are what they were, where they were, and nothing is to become of them.
fn are_alike(seen: &[DiskRow], now: &[DiskRow]) -> bool {
    let about = |disk: &DiskRow| (disk.id, disk.host, disk.extent.made_gb);
    let is_at_rest = |disk: &DiskRow| disk.status == DiskStatus::Ready && disk.moving.is_none() && !disk.grows();
    seen.iter().map(about).eq(now.iter().map(about)) && now.iter().all(is_at_rest)
}
