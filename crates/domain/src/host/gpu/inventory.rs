//! Which GPUs a host has, and which of them can be handed out.

use super::function::{Facts, Function, VFIO};
use super::kinds::{self, kinds};
use super::names::{NVIDIA, named, one_of};
use super::{Gpu, Part, Whole};

/// The GPUs among a host's functions, in the order of the buses. `list` is the host's list of PCI ids, or empty.
pub fn inventory(functions: &[Function], facts: &Facts, list: &str) -> Vec<Gpu> {
    let gpus = functions.iter().filter(|function| function.is_gpu() && !function.is_mere_place(functions));
    let mut found: Vec<_> = gpus.map(|gpu| entry(gpu, functions, facts, list)).collect();
    found.sort_by_key(|gpu| gpu.address);
    found
}

fn entry(gpu: &Function, all: &[Function], facts: &Facts, list: &str) -> Gpu {
    let group = Group::of(gpu, all);
    let part_of = whole(gpu, all);
    let (model, name) = named(gpu.vendor, gpu.device, list);
    let (model, name) = part_of.map_or_else(|| (model, name.clone()), |whole| one_of(&name, whole.parts));
    let mut functions: Vec<_> = group.handed_out.iter().map(|function| function.address).collect();
    functions.sort_unstable();
    let members = members(gpu, all);
    let is_here = |part: &&Part| members.iter().any(|function| function.address == part.at);
    let parts: Vec<_> = facts.parts.iter().filter(is_here).cloned().collect();
    let (unavailable, kinds) = match (kinds(&members, &parts), kinds::obstacle(&members)) {
        (kinds, _) if kinds.is_empty() => (own_obstacle(gpu).or_else(|| group.obstacle(gpu, facts)), kinds),
        (_, Some(why)) => (Some(why), Vec::new()),
        (kinds, None) => (Some("its driver makes parts of it, and it is handed out in those".into()), kinds),
    };
    Gpu {
        address: gpu.address,
        model,
        name,
        ids: format!("{:04x}:{:04x} {:04x}:{:04x}", gpu.vendor, gpu.device, gpu.subsystem.0, gpu.subsystem.1),
        group: gpu.group,
        numa_node: gpu.numa_node,
        functions,
        driver: gpu.driver.clone(),
        unavailable,
        part_of,
        kinds,
        parts,
    }
}

/// What a virtual function is a part of.
fn whole(gpu: &Function, all: &[Function]) -> Option<Whole> {
    let address = gpu.physical?;
    let physical = all.iter().find(|function| function.address == address);
    Some(Whole { address, parts: physical.map_or(1, |function| function.virtual_functions).max(1) })
}

/// The functions at which parts of a GPU are made. One that the IOMMU does not tell from another is none that is given to a
/// machine itself.
fn members<'a>(gpu: &'a Function, all: &'a [Function]) -> Vec<&'a Function> {
    let is_apart = |function: &&Function| {
        let is_given = function.offers.iter().any(|offer| !offer.is_mediated);
        let is_shared = || all.iter().any(|other| other.address != function.address && other.group == function.group);
        !is_given || function.group.is_some() && !is_shared()
    };
    let divided = all.iter().filter(|function| function.physical == Some(gpu.address));
    std::iter::once(gpu).chain(divided).filter(is_apart).collect()
}

/// What the IOMMU cannot tell apart.
struct Group<'a> {
    /// GPUs, and the other functions of their devices.
    handed_out: Vec<&'a Function>,
    /// Other devices. Those that the host does not use stay without a driver.
    others: Vec<&'a Function>,
}

impl<'a> Group<'a> {
    fn of(gpu: &'a Function, all: &'a [Function]) -> Self {
        if gpu.group.is_none() {
            return Self { handed_out: vec![gpu], others: Vec::new() };
        }
        let members: Vec<_> = all.iter().filter(|f| f.group == gpu.group && !f.is_bridge()).collect();
        let devices: Vec<_> = members.iter().filter(|f| f.is_gpu()).map(|f| f.address).collect();
        let is_of_gpu = |f: &&Function| devices.iter().any(|gpu| gpu.is_beside(f.address));
        let (handed_out, others) = members.into_iter().partition(is_of_gpu);
        Self { handed_out, others }
    }

    /// What of the host or of the group keeps it from being handed out.
    fn obstacle(&self, gpu: &Function, facts: &Facts) -> Option<String> {
        let Some(number) = gpu.group.filter(|_| facts.has_iommu) else {
            let text = if facts.has_iommu {
                "it is in no IOMMU group; update the firmware, or put the card into another slot"
            } else {
                "the host's IOMMU is off; switch it on in the firmware (VT-d, AMD-Vi), and type what docs/gpu.md says"
            };
            return Some(text.into());
        };
        if let Some(screen) = self.handed_out.iter().find(|f| f.is_boot_screen && f.driver.as_deref() != Some(VFIO)) {
            let at = screen.address;
            return Some(format!("the host's own screen is on {at}; have vfio-pci take it at the host's start"));
        }
        if let Some((other, driver)) = self.others.iter().find_map(|f| Some((f.address, f.used_by()?))) {
            return Some(format!(
                "{other} is in its IOMMU group and in use by the host ({driver}); put the card into another slot"
            ));
        }
        let mut companions = self.handed_out.iter().filter(|f| f.is_gpu() && f.address != gpu.address);
        if let Some((other, why)) = companions.find_map(|f| Some((f.address, own_obstacle(f)?))) {
            return Some(format!("{other} is in its IOMMU group, and of that one: {why}"));
        }
        if !facts.has_vfio {
            return Some("the kernel has no vfio-pci; type: sudo modprobe vfio-pci".into());
        }
        self.unreachable(number, facts)
    }

    /// What keeps a service that is not root from it: it can use only what an operator has prepared.
    fn unreachable(&self, number: u32, facts: &Facts) -> Option<String> {
        if facts.may_bind {
            return None;
        }
        if let Some(other) = self.handed_out.iter().find(|f| f.driver.as_deref() != Some(VFIO)) {
            let at = other.address;
            return Some(format!(
                "the service may not give {at} another driver; have vfio-pci take it at the host's start"
            ));
        }
        (!facts.opened.contains(&number))
            .then(|| format!("the service may not open /dev/vfio/{number}; docs/gpu.md has the rule for udev"))
    }
}

/// What of the GPU itself keeps it from being handed out whole.
fn own_obstacle(gpu: &Function) -> Option<String> {
    let at = gpu.address;
    if gpu.physical.is_some() && gpu.vendor == NVIDIA {
        return Some("it is a part of another GPU, whose driver says of no kind that it makes it of this part".into());
    }
    if gpu.virtual_functions > 0 {
        let parts = gpu.virtual_functions;
        return Some(format!(
            "it is divided into {parts} parts, of which those are handed out that can be; to hand it out whole, type: \
             echo 0 | sudo tee /sys/bus/pci/devices/{at}/sriov_numvfs"
        ));
    }
    if gpu.mig_instances > 0 {
        let count = gpu.mig_instances;
        return Some(format!(
            "it is divided into {count} MIG instances, which nvidia-smi shows and programs of this host use: no VM can \
             have one without NVIDIA's vGPU Manager, which shows them as kinds in sysfs; to hand the GPU out whole, type: \
             sudo nvidia-smi mig -i {at} -dci; sudo nvidia-smi mig -i {at} -dgi; sudo nvidia-smi -i {at} -mig 0"
        ));
    }
    // The next machine would find in its memory what the last one left there.
    (!gpu.has_reset).then(|| "the kernel knows no way to reset it".into())
}
