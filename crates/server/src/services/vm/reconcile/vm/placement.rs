//! Puts a VM onto a host: what it holds there, written in the transaction that read what there is.

use std::net::{IpAddr, Ipv4Addr};
use std::slice;

use berth_domain::host::placement::Placed;
use berth_host::EngineError;

use super::record::{Failure, still};
use super::{Seen, VmLife, making};
use crate::db::machine::{self, Machine};
use crate::db::{Tx, event, machine_gpu};
use crate::services::placement::placed_event;
use crate::services::vm::reconcile::capacity::{self, Own};
use crate::services::vm::reconcile::reach::note_reach;
use crate::services::vm::reconcile::{StepError, disk, fault};
use crate::services::vm::store::vm::VmRow;

/// A slot of a machine, and the address that others reach it at.
type Reach = (Option<i64>, Option<IpAddr>);

impl VmLife {
    pub(super) async fn reserve(&self, seen: &Seen) -> Result<(), StepError> {
        let engine = self.vms.engine();
        let capacity = engine.capacity().await?;
        let found = if seen.vm.gpu_config_count > 0 { engine.gpus().await? } else { Vec::new() };
        let address = self.free_address(seen.vm.machine.address).await?;
        let reached = self.free_reach(&seen.vm.machine).await?;
        fault("vm", "reserve", "done").await?;
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await? else { return Ok(()) };
        let lacks_network = reached.as_ref().err().map(String::as_str);
        let own = Own { capacity, gpus: &found, lacks_network };
        let placed = match capacity::place(&mut tx, &before, own, &self.vms).await? {
            Ok(placed) => placed,
            Err(refusal) => {
                drop(tx);
                return self.fail(seen, Failure::NoHost(refusal)).await;
            }
        };
        let (slot, pool_address) = reached.unwrap_or_default();
        if let Some(slot) = slot
            && machine::slot_is_held(&mut tx, placed.host, slot, before.machine.id).await?
        {
            // Somebody was quicker: another one is looked for.
            return Ok(());
        }
        if let Some(address) = pool_address
            && machine::pool_address_is_held(&mut tx, placed.host, address, before.machine.id).await?
        {
            return Ok(());
        }
        self.take_place(tx, before, &placed, (address, slot, pool_address)).await
    }

    /// Writes that a VM has its place on a host, with its disks.
    async fn take_place(
        &self,
        mut tx: Tx,
        before: VmRow,
        placed: &Placed,
        (address, slot, pool_address): (Ipv4Addr, Option<i64>, Option<IpAddr>),
    ) -> Result<(), StepError> {
        let (mut vm, now) = (before.clone(), self.vms.clock().now());
        (vm.machine.slot, vm.machine.pool_address) = (slot, pool_address);
        machine::reserve(&mut tx, placed.host, placed.room, slice::from_mut(&mut vm.machine)).await?;
        machine_gpu::reserve(&mut tx, placed.host, vm.machine.id, &placed.devices).await?;
        (vm.machine.address, vm.machine.ssh_port) = (Some(address), None);
        let ports = self.vms.inbound(&vm)?;
        note_reach(&mut vm, &ports);
        let disks = disk::place_all(&mut tx, vm.id, now).await?;
        // Told in the same breath, since it begins at once.
        vm.message = disks.first().map(making).or(vm.message);
        if before.machine.host.is_none() {
            let data = placed_event(placed.host, &placed.reason);
            let subject = vm.id.to_string();
            event::emit_to_administrators(&mut tx, vm.project, "vm.placed", &subject, &data, now).await?;
        }
        self.write(&mut tx, &before, &vm).await?;
        Ok(tx.commit().await?)
    }

    /// The slot of a machine and the address that others reach it at, where it is to have such, or what the host lacks of
    /// them.
    async fn free_reach(&self, machine: &Machine) -> Result<Result<Reach, String>, StepError> {
        let slot = match self.vms.free_slot(machine).await {
            Err(StepError::Engine(EngineError::NoCapacity(missing))) => return Ok(Err(missing)),
            slot => slot?,
        };
        match self.vms.free_pool_address(machine).await {
            Err(StepError::Engine(EngineError::NoCapacity(missing))) => Ok(Err(missing)),
            address => Ok(Ok((slot, address?))),
        }
    }

    /// The address a VM has, or one that neither a row nor anybody else on the host holds.
    async fn free_address(&self, held: Option<Ipv4Addr>) -> Result<Ipv4Addr, StepError> {
        const TRIES: usize = 65_536;
        if let Some(address) = held {
            return Ok(address);
        }
        for _ in 0..TRIES {
            let address = self.vms.candidate_address();
            if !machine::address_is_held(self.vms.db(), self.vms.host(), address).await?
                && self.vms.engine().ports_free((address, self.vms.engine().ssh_port()).into(), 1).await
            {
                return Ok(address);
            }
        }
        Err(EngineError::NoCapacity("this region has no free address".into()).into())
    }
}
