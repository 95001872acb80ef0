//! Has a VM leave its host, which is drained: one that runs goes while it runs ([`super::migration`]), or ends first if it may be
//! restarted; one that is off is put onto another host at once.
//!
//! The row names the new host before anything of the VM is there, and its disks have their places there from then on; a VM
//! that is to run has all of its own there at once, so that no other one takes that meanwhile. Its disks are elsewhere then,
//! and their own workers bring them (`disk_travel`); a VM that is to run waits for them. A VM that no other host takes stays,
//! and is asked to leave again later (`reconcile::drain`).

use std::sync::PoisonError;

use berth_domain::host::Drain;
use berth_domain::ids::VmId;
use berth_domain::vm::model::Want;
use berth_domain::vm::plan::Step;

use super::migration::Migrated;
use super::record::{apply, still};
use super::{Seen, VmLife};
use crate::db::{Tx, event, machine_gpu};
use crate::services::placement::{Refusal, drain_of};
use crate::services::vm::reconcile::capacity::{self, Among, Offers};
use crate::services::vm::reconcile::{StepError, fault};
use crate::services::vm::store::vm::VmRow;

/// How often a VM that may be restarted breaks off on its way before it is.
const MOST_TRIES: u32 = 3;

impl VmLife {
    /// Has a machine go to another host while it runs, or else records that it has to end, if it may and another host takes it.
    pub(super) async fn leave(&self, seen: &Seen) -> Result<(), StepError> {
        let migrated = self.migrate(seen).await?;
        let times = self.broken_off(seen.vm.id, matches!(migrated, Migrated::BrokeOff(_)));
        let (refusal, may_restart) = match migrated {
            Migrated::Over => return Ok(()),
            Migrated::Not(refusal) => (refusal, true),
            Migrated::BrokeOff(refusal) => (refusal, times >= MOST_TRIES),
        };
        if may_restart && drain_of(self.vms.db(), seen.vm.machine.host).await? == Some(Drain::All) {
            return self.leave_ended(seen, &refusal).await;
        }
        self.stay(seen, &refusal).await
    }

    /// Counts that a VM broke off on its way, or did not; how often that was so in a row.
    fn broken_off(&self, id: VmId, is_so: bool) -> u32 {
        let mut all = self.broken_off.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_so {
            all.remove(&id);
            return 0;
        }
        let times = all.entry(id).or_default();
        *times = times.saturating_add(1);
        *times
    }

    /// Records that a machine has to end, if another host takes it.
    async fn leave_ended(&self, seen: &Seen, why: &Refusal) -> Result<(), StepError> {
        let offers = capacity::all_offers(&self.vms, &seen.vm, &seen.disks).await?;
        if let Some(refusal) = self.unsendable(seen, &offers) {
            return self.stay(seen, &refusal).await;
        }
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await?.filter(|vm| vm.leaves) else { return Ok(()) };
        if drain_of(&mut tx, before.machine.host).await? != Some(Drain::All) {
            return self.keep(tx, &before, seen).await;
        }
        if let Err(refusal) = capacity::place(&mut tx, &before, &offers, (&self.vms, Among::All)).await? {
            drop(tx);
            return self.stay(seen, &refusal).await;
        }
        let mut vm = before.clone();
        apply(&mut vm, &Step::Leave, seen.now);
        self.write(&mut tx, &before, &vm).await?;
        tx.commit().await?;
        tracing::warn!(vm = %vm.id, why = why.owner, hosts = ?why.hosts, "a VM cannot leave its host while it runs, and is restarted");
        Ok(())
    }

    /// Puts a VM that is off onto another host, and wakes whoever brings its disks.
    pub(super) async fn move_on(&self, seen: &Seen) -> Result<(), StepError> {
        let runs = seen.vm.want == Want::Run;
        let (offers, reached) = if runs {
            self.prospect(seen).await?
        } else {
            (capacity::all_offers(&self.vms, &seen.vm, &seen.disks).await?, None)
        };
        let refusal = match self.unsendable(seen, &offers) {
            Some(refusal) => Some(refusal),
            None => self.choice(seen, &offers, Among::All).await?.err(),
        };
        if let Some(refusal) = refusal {
            return self.stay(seen, &refusal).await;
        }
        self.let_go(seen).await?;
        self.engine(seen)?.discard(seen.vm.machine.aim()).await?;
        fault("vm", "move", "done").await?;
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await?.filter(|vm| vm.leaves) else { return Ok(()) };
        let from = before.machine.host;
        if drain_of(&mut tx, from).await?.is_none() {
            return self.keep(tx, &before, seen).await;
        }
        let placed = capacity::place(&mut tx, &before, &offers, (&self.vms, Among::Asked)).await?;
        let Ok(placed) = placed else { return Ok(()) };
        let reach = self.still_free(&mut tx, &before, &placed, reached).await?;
        if from == Some(placed.host) || runs && reach.is_none() {
            // What was decided for an older state is decided anew.
            return Ok(());
        }
        let mut vm = VmRow { leaves: false, work_at: Some(seen.now), ..before.clone() };
        machine_gpu::release(&mut tx, vm.machine.id).await?;
        vm.machine.leave_for(placed.host);
        if let Some(reach) = reach {
            self.take_place(&mut tx, &mut vm, &placed, reach).await?;
        }
        self.put(tx, &before, &vm, &placed).await?;
        tracing::info!(vm = %vm.id, ?from, to = %placed.host, "a VM leaves its host");
        Ok(())
    }

    /// Why a VM's disks could not be sent, if they could not.
    fn unsendable(&self, seen: &Seen, offers: &Offers) -> Option<Refusal> {
        if capacity::store(&seen.disks).is_some() {
            // They stay where they are.
            return None;
        }
        let why = capacity::unsendable(&self.vms, offers, seen.vm.machine.host?)?;
        Some(Refusal::everywhere(why.to_owned()))
    }

    /// Has a VM stay for now.
    pub(super) async fn keep(&self, mut tx: Tx, before: &VmRow, seen: &Seen) -> Result<(), StepError> {
        let vm = VmRow { leaves: false, work_at: Some(seen.now), ..before.clone() };
        self.write(&mut tx, before, &vm).await?;
        Ok(tx.commit().await?)
    }

    /// Records that a VM stays where it is for now.
    async fn stay(&self, seen: &Seen, refusal: &Refusal) -> Result<(), StepError> {
        tracing::warn!(vm = %seen.vm.id, reason = refusal.owner, hosts = ?refusal.hosts, "a VM stays on its host for now");
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await? else { return Ok(()) };
        let (subject, data) = (before.id.to_string(), refusal.event());
        event::emit_to_administrators(&mut tx, before.project, "vm.unplaced", &subject, &data, seen.now).await?;
        self.keep(tx, &before, seen).await
    }
}
