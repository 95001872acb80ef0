//! How VMs are reached: by what the operator configured, and what their rows hold.

use std::net::IpAddr;

use berth_domain::error::Error;
use berth_domain::ids::HostId;
use berth_domain::vm::inbound::{BLOCK, Reached, block};
use berth_domain::vm::{InboundPort, Reach};
use berth_host::EngineError;

use super::StepError;
use crate::db::machine::{self, Machine};
use crate::services::vm::Vms;
use crate::services::vm::store::vm::VmRow;

/// Blocks of ports, and addresses, that are tried one after another, where other programs of the host have some of them.
const TRIES: usize = 64;

impl Vms {
    /// Where the inbound ports of a VM are to be reached. One that runs, and whose block or address is not among those that
    /// VMs have any more, keeps what it has.
    ///
    /// # Errors
    /// It has no address yet.
    pub(super) fn inbound(&self, vm: &VmRow) -> Result<Vec<InboundPort>, StepError> {
        Ok(self.reach(vm)?.ports(&vm.exposed_ports, &vm.applied_ports))
    }

    fn reach(&self, vm: &VmRow) -> Result<Reach, StepError> {
        let machine = &vm.machine;
        let without = || Error::internal("a machine without an address");
        // One that answered at a shared address had another port there.
        let held = machine.ssh_port.filter(|_| machine.shared_address.is_none());
        let engine = self.engine_of(machine.host)?;
        let ssh_port = held.unwrap_or_else(|| engine.ssh_port());
        let wanted = match engine.network().reached {
            Reached::Shared(shared) => {
                let first = machine.slot.and_then(|slot| block(shared.ports, slot));
                first.map(|first| Reach::Shared { address: shared.address, first })
            }
            Reached::Pool(_) => machine.pool_address.map(|address| Reach::Own { address, ssh_port }),
            Reached::Here => {
                let address = machine.address.ok_or_else(without)?;
                Some(Reach::Own { address: address.into(), ssh_port })
            }
        };
        Ok(wanted.or_else(|| vm.reach()).ok_or_else(without)?)
    }

    /// The slot for a machine that is about to hold one: its own, or where VMs share an address and it cannot have the
    /// ports of that, the first whose ports nobody has. None where any will do.
    ///
    /// # Errors
    /// The ports that VMs share do not suffice for it.
    pub(super) async fn free_slot(&self, machine: &Machine, host: HostId) -> Result<Option<i64>, StepError> {
        let engine = self.engine_of(Some(host))?;
        let Reached::Shared(shared) = engine.network().reached else { return Ok(machine.slot) };
        let free = machine::free_slots(self.db(), host, TRIES).await?;
        for slot in machine.slot.into_iter().chain(free) {
            if let Some(first) = block(shared.ports, slot)
                && engine.ports_free((shared.address, first).into(), BLOCK).await
            {
                return Ok(Some(slot));
            }
        }
        let (first, last) = shared.ports;
        Err(EngineError::NoCapacity(format!(
            "the ports {first}-{last} that VMs share are all given out; an operator widens network.ports"
        ))
        .into())
    }

    /// The address that others reach a machine at that is about to have one: its own, or the first that no other machine
    /// has. None where VMs have no such addresses.
    ///
    /// # Errors
    /// All are given out, or this host has none of those that are free.
    pub(super) async fn free_pool_address(&self, machine: &Machine, host: HostId) -> Result<Option<IpAddr>, StepError> {
        let engine = self.engine_of(Some(host))?;
        let Reached::Pool(pool) = engine.network().reached else { return Ok(None) };
        let mut held = machine::pool_addresses(self.db(), host).await?;
        let own = machine.pool_address.filter(|address| pool.has(*address));
        if let Some(own) = &own {
            held.remove(own);
        }
        let free = pool.addresses().filter(|address| !held.contains(address) && Some(*address) != own);
        let candidates: Vec<_> = own.into_iter().chain(free).take(TRIES).collect();
        for address in candidates.iter().copied() {
            if engine.ports_free((address, engine.ssh_port()).into(), 1).await {
                return Ok(Some(address));
            }
        }
        let missing = if candidates.is_empty() {
            "the addresses of network.pool are all given out; an operator adds some"
        } else {
            "this host has none of the addresses of network.pool that are free; the operator types: berth doctor"
        };
        Err(EngineError::NoCapacity(missing.into()).into())
    }
}

/// Notes where a VM is reached.
pub(super) fn note_reach(vm: &mut VmRow, ports: &[InboundPort]) {
    let Some(ssh) = ports.first() else { return };
    let at = ssh.at.ip();
    let is_own = vm.machine.address.map(IpAddr::V4) == Some(at);
    vm.machine.ssh_port = Some(ssh.at.port());
    vm.machine.pool_address = vm.machine.pool_address.filter(|address| *address == at);
    vm.machine.shared_address = (!is_own && vm.machine.pool_address.is_none()).then_some(at);
}
