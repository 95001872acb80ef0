//! The GPUs of a host that only remembers, and which machine has which.

use std::collections::HashMap;

use berth_domain::ids::MachineId;
use berth_host::vm::{Gpu, PciAddress};

#[derive(Default)]
pub(crate) struct Gpus {
    /// What the host says that it has.
    pub(crate) found: Vec<Gpu>,
    /// Devices of machines, from their start until the host was told of their end.
    pub(crate) assigned: HashMap<PciAddress, MachineId>,
    /// How often a machine was started with a device of another one.
    pub(crate) clashes: u32,
}

impl Gpus {
    /// The host has these, each in a group and at a node of its own.
    pub(crate) fn set(&mut self, addresses: &[&str]) {
        self.found = (1..).zip(addresses).map(|(number, address)| gpu(number, address)).collect();
    }

    /// A machine is started with these, and no others.
    pub(crate) fn start(&mut self, machine: MachineId, devices: &[PciAddress]) {
        self.end(machine);
        for device in devices {
            let before = self.assigned.insert(*device, machine);
            self.clashes += u32::from(before.is_some());
        }
    }

    /// A machine has none any more.
    pub(crate) fn end(&mut self, machine: MachineId) {
        self.assigned.retain(|_, holder| *holder != machine);
    }
}

fn gpu(number: u32, address: &str) -> Gpu {
    let address = address.parse().expect("an address");
    Gpu {
        address,
        model: "example-9000".into(),
        name: "Example 9000".into(),
        ids: "1234:0001 1234:0002".into(),
        group: Some(number),
        numa_node: Some(number),
        functions: vec![address],
        driver: None,
        unavailable: None,
    }
}
