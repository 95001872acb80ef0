//! The GPUs of a host that only remembers, and which machine has which.

use std::collections::HashMap;

use berth_domain::host::gpu::{Kind, PciAddress, Place};
use berth_domain::ids::MachineId;
use berth_host::vm::{Device, Gpu};

#[derive(Default)]
pub(crate) struct Gpus {
    /// What the host says that it has.
    pub(crate) found: Vec<Gpu>,
    /// Devices of machines, from their start until the host was told of their end.
    pub(crate) assigned: HashMap<Device, MachineId>,
    /// How often a machine was started with a device of another one.
    pub(crate) clashes: u32,
}

impl Gpus {
    /// The host has these, each in a group and at a node of its own.
    pub(crate) fn set(&mut self, addresses: &[&str]) {
        self.found = (1..).zip(addresses).map(|(number, address)| gpu(number, address)).collect();
    }

    /// The host has a GPU of which so many parts of each kind can be made, as long as none of another kind is there.
    pub(crate) fn divide(&mut self, address: &str, kinds: &[(&str, u32)]) {
        let mut divided = gpu(1, address);
        divided.unavailable = Some("its driver makes parts of it".into());
        divided.kinds = kinds.iter().map(|(id, most)| kind(id, *most, divided.address)).collect();
        self.found = vec![divided];
    }

    /// Says anew which parts there are, and how many more there may be.
    fn count(&mut self) {
        for gpu in self.found.iter_mut().filter(|gpu| !gpu.kinds.is_empty()) {
            let made = self.assigned.keys().filter_map(Device::part).filter(|part| part.at == gpu.address);
            gpu.parts = made.cloned().collect();
            for kind in &mut gpu.kinds {
                let is_alone = gpu.parts.iter().all(|part| part.kind == kind.id);
                let made = u32::try_from(gpu.parts.len()).unwrap_or(u32::MAX);
                let free = if is_alone { kind.most.saturating_sub(made) } else { 0 };
                let place = Place { at: gpu.address, free };
                kind.places = Vec::from_iter((free > 0).then_some(place));
            }
        }
    }

    /// A machine is started with these, and no others.
    pub(crate) fn start(&mut self, machine: MachineId, devices: &[Device]) {
        self.end(machine);
        for device in devices {
            let before = self.assigned.insert(device.clone(), machine);
            self.clashes += u32::from(before.is_some());
        }
        self.count();
    }

    /// A machine has none any more.
    pub(crate) fn end(&mut self, machine: MachineId) {
        self.assigned.retain(|_, holder| *holder != machine);
        self.count();
    }
}

fn kind(id: &str, most: u32, at: PciAddress) -> Kind {
    Kind {
        id: id.parse().expect("a kind"),
        model: format!("example-{id}"),
        name: format!("Example {id}"),
        is_mediated: true,
        most,
        places: vec![Place { at, free: most }],
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
        part_of: None,
        kinds: Vec::new(),
        parts: Vec::new(),
    }
}
