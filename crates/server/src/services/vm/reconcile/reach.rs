//! How VMs are reached: by what the operator configured, and what their rows hold.

use berth_domain::error::Error;
use berth_domain::vm::inbound::{BLOCK, block};
use berth_domain::vm::{InboundPort, Reach};
use berth_host::EngineError;

use super::StepError;
use crate::db::machine::{self, Machine};
use crate::services::vm::Vms;
use crate::services::vm::store::vm::VmRow;

/// Blocks of ports that are tried one after another, where other programs of the host have some of them.
const TRIES: usize = 64;

impl Vms {
    /// Where the inbound ports of a VM are to be reached. One that runs, and whose block is not among those that VMs share
    /// any more, keeps what it has.
    ///
    /// # Errors
    /// It has no address yet.
    pub(super) fn inbound(&self, vm: &VmRow) -> Result<Vec<InboundPort>, StepError> {
        Ok(self.reach(vm)?.ports(&vm.exposed_ports, &vm.applied_ports))
    }

    fn reach(&self, vm: &VmRow) -> Result<Reach, StepError> {
        let machine = &vm.machine;
        let without = || Error::internal("a machine without an address");
        if let Some(shared) = self.shared() {
            let first = machine.slot.and_then(|slot| block(shared.ports, slot));
            let wanted = first.map(|first| Reach::Shared { address: shared.address, first });
            return Ok(wanted.or_else(|| vm.reach()).ok_or_else(without)?);
        }
        // One that answered at a shared address had another port there.
        let held = machine.ssh_port.filter(|_| machine.shared_address.is_none());
        let ssh_port = held.unwrap_or_else(|| self.engine().ssh_port());
        Ok(Reach::Own { address: machine.address.ok_or_else(without)?, ssh_port })
    }

    /// The slot for a machine that is about to hold one: its own, or where VMs share an address and it cannot have the
    /// ports of that, the first whose ports nobody has. None where any will do.
    ///
    /// # Errors
    /// The ports that VMs share do not suffice for it.
    pub(super) async fn free_slot(&self, machine: &Machine) -> Result<Option<i64>, StepError> {
        let Some(shared) = self.shared() else { return Ok(machine.slot) };
        let free = machine::free_slots(self.db(), self.host(), TRIES).await?;
        for slot in machine.slot.into_iter().chain(free) {
            if let Some(first) = block(shared.ports, slot)
                && self.engine().ports_free((shared.address, first).into(), BLOCK).await
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
}

/// Notes where a VM is reached.
pub(super) fn place(vm: &mut VmRow, ports: &[InboundPort]) {
    let Some(ssh) = ports.first() else { return };
    let own = vm.machine.address.map(std::net::IpAddr::V4);
    vm.machine.ssh_port = Some(ssh.at.port());
    vm.machine.shared_address = Some(ssh.at.ip()).filter(|address| Some(*address) != own);
}
