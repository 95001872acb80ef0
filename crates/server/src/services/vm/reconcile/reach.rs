//! How VMs are reached: by what the operator configured, and what their rows hold.

use berth_domain::error::Error;
use berth_domain::vm::inbound::block;
use berth_domain::vm::{Inbound, Reach};
use berth_host::EngineError;

use super::StepError;
use crate::services::vm::Vms;
use crate::services::vm::store::vm::VmRow;

impl Vms {
    /// Where the inbound ports of a VM that holds an address and a slot are to be reached.
    ///
    /// # Errors
    /// The ports that VMs share do not suffice for it.
    pub(super) fn inbound(&self, vm: &VmRow) -> Result<Vec<Inbound>, StepError> {
        Ok(self.reach(vm)?.ports(&vm.exposed_ports, &vm.applied_ports))
    }

    fn reach(&self, vm: &VmRow) -> Result<Reach, StepError> {
        let machine = &vm.machine;
        let Some((shared, slot)) = self.shared().zip(machine.slot) else {
            let address = machine.address.ok_or_else(|| Error::internal("a machine without an address"))?;
            // One that answered at a shared address had another port there.
            let held = machine.ssh_port.filter(|_| machine.shared_address.is_none());
            return Ok(Reach::Own { address, ssh_port: held.unwrap_or_else(|| self.engine().ssh_port()) });
        };
        let no_room = || {
            let (first, last) = shared.ports;
            EngineError::NoCapacity(format!(
                "the ports {first}-{last} that VMs share are all given out; an operator widens network.ports"
            ))
        };
        let first = block(shared.ports, slot).ok_or_else(no_room)?;
        Ok(Reach::Shared { address: shared.address, first })
    }
}

/// Notes where a VM is reached.
pub(super) fn place(vm: &mut VmRow, ports: &[Inbound]) {
    let Some(ssh) = ports.first() else { return };
    let own = vm.machine.address.map(std::net::IpAddr::V4);
    vm.machine.ssh_port = Some(ssh.at.port());
    vm.machine.shared_address = Some(ssh.at.ip()).filter(|address| Some(*address) != own);
}
