//! Puts a VM onto a host: what it holds there, written in the transaction that read what there is.

use std::net::{IpAddr, Ipv4Addr};
use std::slice;

use berth_domain::host::placement::Placed;
use berth_domain::ids::HostId;
use berth_host::EngineError;

use super::record::{Failure, still};
use super::{Seen, VmLife, making};
use crate::db::machine::{self, Machine};
use crate::db::{Tx, event, machine_gpu};
use crate::services::placement::{Refusal, placed_event};
use crate::services::vm::reconcile::capacity::{self, Among, Offers};
use crate::services::vm::reconcile::reach::note_reach;
use crate::services::vm::reconcile::{StepError, disk, disk_travel, fault};
use crate::services::vm::store::vm::VmRow;

/// Where a machine is reached on a host: its address, its slot, and the address that others reach it at.
pub(super) struct Reach {
    host: HostId,
    address: Ipv4Addr,
    slot: Option<i64>,
    pool_address: Option<IpAddr>,
}

impl VmLife {
    pub(super) async fn reserve(&self, seen: &Seen) -> Result<(), StepError> {
        let (offers, reached) = self.prospect(seen).await?;
        fault("vm", "reserve", "done").await?;
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await? else { return Ok(()) };
        // Why none takes it is told only where nobody is left to be asked.
        let among = if reached.is_some() { Among::Asked } else { Among::All };
        let placed = match capacity::place(&mut tx, &before, &offers, (&self.vms, among)).await? {
            Ok(placed) => placed,
            // Another one was quicker, and hosts that were not asked may take it: it is decided anew.
            Err(_) if reached.is_some() => return Ok(()),
            // Which hosts reach its store is known in a moment.
            Err(refusal) if refusal.is_early && self.has_store(seen) => {
                return Err(EngineError::Transient(refusal.owner).into());
            }
            Err(refusal) => {
                drop(tx);
                return self.fail(seen, Failure::NoHost(refusal)).await;
            }
        };
        // What was decided for an older state is decided anew.
        let Some(reach) = self.still_free(&mut tx, &before, &placed, reached).await? else { return Ok(()) };
        let mut vm = before.clone();
        self.take_place(&mut tx, &mut vm, &placed, reach).await?;
        self.put(tx, &before, &vm, &placed).await
    }

    /// Whether the disks of a VM lie in a store that the configuration has, so that hosts are asked about it.
    fn has_store(&self, seen: &Seen) -> bool {
        capacity::store(&seen.disks).is_some_and(|store| self.vms.store(store).is_ok())
    }

    /// What hosts offer, and where a VM would be reached on the one that takes it.
    pub(super) async fn prospect(&self, seen: &Seen) -> Result<(Offers, Option<Reach>), StepError> {
        let mut offers = Offers::new();
        for hosts in capacity::turns(&self.vms, &seen.vm, &seen.disks).await? {
            offers.extend(capacity::offers(&self.vms, &seen.vm, &seen.disks, &hosts).await?);
            if let Some(reach) = self.reach(seen, &mut offers).await? {
                return Ok((offers, Some(reach)));
            }
        }
        Ok((offers, None))
    }

    /// Where a VM would be reached on the host that takes it, if one of these does.
    pub(super) async fn reach(&self, seen: &Seen, offers: &mut Offers) -> Result<Option<Reach>, StepError> {
        loop {
            let Ok(Placed { host, .. }) = self.choice(seen, offers, Among::Asked).await? else { return Ok(None) };
            let missing = match self.free_reach(&seen.vm.machine, host).await? {
                Ok(reach) => return Ok(Some(reach)),
                Err(missing) => missing,
            };
            // Another one may have what this one lacks.
            let Some(offer) = offers.get_mut(&host) else { return Ok(None) };
            offer.lacks = Some(missing);
        }
    }

    /// Where a VM is reached on the host that takes it, if that was looked for there and nobody was quicker.
    pub(super) async fn still_free(
        &self,
        tx: &mut Tx,
        before: &VmRow,
        placed: &Placed,
        reached: Option<Reach>,
    ) -> Result<Option<Reach>, StepError> {
        let Some(reach) = reached.filter(|reach| reach.host == placed.host) else { return Ok(None) };
        if let Some(slot) = reach.slot
            && machine::slot_is_held(&mut *tx, placed.host, slot, before.machine.id).await?
        {
            return Ok(None);
        }
        if let Some(address) = reach.pool_address
            && machine::pool_address_is_held(&mut *tx, placed.host, address, before.machine.id).await?
        {
            return Ok(None);
        }
        Ok(Some(reach))
    }

    /// The host that a VM would be put onto now, or why none takes it.
    pub(super) async fn choice(
        &self,
        seen: &Seen,
        offers: &Offers,
        among: Among,
    ) -> Result<Result<Placed, Refusal>, StepError> {
        let mut tx = self.vms.db().begin().await?;
        Ok(capacity::place(&mut tx, &seen.vm, offers, (&self.vms, among)).await?)
    }

    /// Has a VM have its place on a host, with its disks.
    pub(super) async fn take_place(
        &self,
        tx: &mut Tx,
        vm: &mut VmRow,
        placed: &Placed,
        Reach { address, slot, pool_address, .. }: Reach,
    ) -> Result<(), StepError> {
        (vm.machine.slot, vm.machine.pool_address) = (slot, pool_address);
        machine::reserve(&mut *tx, placed.host, placed.room, slice::from_mut(&mut vm.machine)).await?;
        machine_gpu::reserve(&mut *tx, placed.host, vm.machine.id, &placed.devices).await?;
        (vm.machine.address, vm.machine.ssh_port) = (Some(address), None);
        let ports = self.vms.inbound(vm)?;
        note_reach(vm, &ports);
        let disks = disk::place_all(tx, vm.id, placed.host, self.vms.clock().now()).await?;
        // Told in the same breath, since it begins at once.
        vm.message = disks.first().map(making).or(vm.message.take());
        Ok(())
    }

    /// Writes that a VM was put onto a host, and wakes whoever brings its disks.
    pub(super) async fn put(&self, mut tx: Tx, before: &VmRow, vm: &VmRow, placed: &Placed) -> Result<(), StepError> {
        if before.machine.host != Some(placed.host) {
            let (subject, data) = (vm.id.to_string(), placed_event(placed.host, &placed.reason));
            let now = self.vms.clock().now();
            event::emit_to_administrators(&mut tx, vm.project, "vm.placed", &subject, &data, now).await?;
        }
        self.write(&mut tx, before, vm).await?;
        disk_travel::wake(&mut tx, vm).await?;
        tx.commit().await?;
        if vm.machine.reserved && !before.machine.reserved {
            self.vms.estimates().note(placed.host, vm.memory_mb);
        }
        Ok(())
    }

    /// Where a machine can be reached on a host, or what the host lacks for that.
    async fn free_reach(&self, machine: &Machine, host: HostId) -> Result<Result<Reach, String>, StepError> {
        let mut there = machine.clone();
        if machine.host.is_some_and(|at| at != host) {
            // What it has is of the host that it leaves.
            there.leave_for(host);
        }
        let found = async {
            let address = self.free_address(there.address, host).await?;
            let slot = self.vms.free_slot(&there, host).await?;
            let pool_address = self.vms.free_pool_address(&there, host).await?;
            Ok(Reach { host, address, slot, pool_address })
        };
        match found.await {
            Ok(reach) => Ok(Ok(reach)),
            Err(StepError::Engine(EngineError::NoCapacity(missing))) => Ok(Err(missing)),
            Err(error) => Err(error),
        }
    }

    /// The address a VM has, or one that neither a row nor anybody else on the host holds.
    async fn free_address(&self, held: Option<Ipv4Addr>, host: HostId) -> Result<Ipv4Addr, StepError> {
        const TRIES: usize = 65_536;
        if let Some(address) = held {
            return Ok(address);
        }
        let engine = self.vms.engine_of(Some(host))?;
        for _ in 0..TRIES {
            let address = self.vms.candidate_address();
            if !machine::address_is_held(self.vms.db(), host, address).await?
                && engine.ports_free((address, engine.ssh_port()).into(), 1).await
            {
                return Ok(address);
            }
        }
        Err(EngineError::NoCapacity("this region has no free address".into()).into())
    }
}
