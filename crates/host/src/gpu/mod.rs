//! GPUs of this host, as engines hand them out.
//!
//! A machine gets a device by the kernel's driver `vfio-pci`. The device may have another driver before, which it is given
//! back to after the machine's end. Anything may die in between, so a note comes first: which functions a machine takes,
//! and the driver that each has. Whatever was begun is undone by the note, as often as somebody likes, and only then is
//! the note removed. Notes lie apart from the machines' folders, in which a taken-over machine may write: the service
//! takes drivers from devices as they say. A note of another boot of the host says nothing any more, since a host that
//! starts chooses all drivers anew.
//!
//! A part of a GPU is made by its driver when a machine begins, and taken away after its end ([`parts`]): noted in the same way.
//!
//! Before a device goes back it is reset, so that nobody finds in it what a machine left there. One whose reset fails,
//! that its driver cannot be taken from, or whose driver does not take a part away, is out of service until the host starts again: it stays as it is, and the
//! inventory says why.

mod faults;
mod findings;
mod hand;
mod note;
mod parts;
mod sysfs;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use berth_domain::host::gpu::{Device, Facts, Function, Gpu, Part, PciAddress, inventory, quirks};
use berth_domain::ids::MachineId;
use berth_qemu::host;
use berth_qemu::machine::{self, Assigned, HostDevice};
use tokio::sync::Mutex;

use crate::error::transient;
use crate::{EngineError, Result};
use faults::Faults;
use note::{Keeper, Notes};
use sysfs::{Kernel, Places, Running};

/// How long the kernel may take with a driver. One that still has users waits for them, for ever if need be.
const PATIENCE: Duration = Duration::from_mins(1);

/// The GPUs of a host.
#[derive(Clone)]
pub struct Gpus {
    inner: Arc<Inner>,
    /// Whoever changes drivers does so alone.
    turn: Arc<Mutex<()>>,
    /// Machines that began to take devices, and may not have a note yet.
    began: Arc<std::sync::Mutex<HashSet<MachineId>>>,
    keeper: Keeper,
}

struct Inner {
    places: Places,
    kernel: Box<dyn Kernel>,
    notes: Notes,
    faults: Faults,
    boot: String,
}

impl Gpus {
    /// Those of this host, with notes in a folder of the data folder.
    pub fn of_this_host(data: &Path) -> Self {
        Self::new(data, Places::default(), Box::new(Running), host::boot_id())
    }

    fn new(data: &Path, places: Places, kernel: Box<dyn Kernel>, boot: String) -> Self {
        let folder = data.join("gpus");
        let (notes, faults) = (Notes::new(folder.clone()), Faults::new(&folder));
        Self {
            inner: Arc::new(Inner { places, kernel, notes, faults, boot }),
            turn: Arc::default(),
            began: Arc::default(),
            keeper: Keeper::Vms,
        }
    }

    /// The same for machines of sandboxes: who changes drivers waits for whoever does so for VMs.
    #[must_use]
    pub fn of_sandboxes(&self) -> Self {
        Self { keeper: Keeper::Sandboxes, ..self.clone() }
    }

    /// All of them, and why some cannot be handed out.
    pub fn inventory(&self) -> Vec<Gpu> {
        self.inner.inventory()
    }

    /// Machines that have devices, or had when something died: those of VMs, or of sandboxes.
    pub fn holders(&self) -> Vec<MachineId> {
        let keeper = |holder| self.inner.notes.read(holder).ok().flatten().unwrap_or_default().keeper;
        self.inner.notes.holders().into_iter().filter(|holder| keeper(*holder) == self.keeper).collect()
    }

    /// Has a machine have these devices, and nothing else. Who `lives` keeps what they have; what is noted of somebody who does not
    /// is undone first.
    pub async fn take(
        &self,
        machine: MachineId,
        devices: &[Device],
        lives: impl Fn(MachineId) -> bool + Send + 'static,
    ) -> Result<Assigned> {
        if devices.is_empty() && !self.inner.notes.is_noted(machine) {
            return Ok(Assigned::default());
        }
        self.began().insert(machine);
        let (devices, keeper) = (devices.to_vec(), self.keeper);
        self.alone(move |inner| inner.take((machine, keeper), &devices, lives)).await
    }

    /// Gives back what a machine has; fine where that is nothing.
    pub async fn give_back(&self, machine: MachineId) -> Result<()> {
        // Whoever has nothing waits for nobody. A start that was called off may still be at it.
        if !self.began().contains(&machine) && !self.inner.notes.is_noted(machine) {
            return Ok(());
        }
        self.alone(move |inner| inner.give_back(machine)).await?;
        self.began().remove(&machine);
        Ok(())
    }

    fn began(&self) -> std::sync::MutexGuard<'_, HashSet<MachineId>> {
        self.began.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    async fn alone<T: Send + 'static>(&self, work: impl FnOnce(&Inner) -> Result<T> + Send + 'static) -> Result<T> {
        let (inner, turn) = (self.inner.clone(), self.turn.clone());
        let done = async {
            let turn = turn.lock_owned().await;
            let work = move || {
                // Nobody else begins while the kernel is still at it, whoever waits here.
                let _turn = turn;
                work(&inner)
            };
            tokio::task::spawn_blocking(work).await.map_err(transient)?
        };
        let late = |_| EngineError::Transient("a driver of the host does not let go of a GPU".into());
        tokio::time::timeout(PATIENCE, done).await.map_err(late)?
    }
}

/// Whether a machine runs, of a VM or a sandbox, by the folders of a data folder.
pub fn lives(data: &Path) -> impl Fn(MachineId) -> bool + Send + use<> {
    let folders = ["machines", "sandbox/machines"].map(|folder| data.join(folder));
    move |id| folders.iter().any(|folder| machine::find(&folder.join(id.to_string()), id.0).is_some())
}

impl Inner {
    fn inventory(&self) -> Vec<Gpu> {
        let functions = self.places.functions();
        if functions.is_empty() {
            return Vec::new();
        }
        let facts = Facts { parts: self.made(), ..self.places.facts() };
        let mut gpus = inventory(&functions, &facts, &self.places.list());
        let faults = self.faults.of_boot(&self.boot);
        for gpu in &mut gpus {
            mark(gpu, &functions, &faults);
        }
        gpus
    }

    fn take(
        &self,
        (machine, keeper): (MachineId, Keeper),
        devices: &[Device],
        lives: impl Fn(MachineId) -> bool,
    ) -> Result<Assigned> {
        // What it had before, it may not have any more.
        self.give_back(machine)?;
        for holder in self.notes.holders() {
            let noted = self.notes.read(holder)?;
            if !noted.is_some_and(|note| note.boot == self.boot && note.has_any(devices)) {
                continue;
            }
            if lives(holder) {
                return Err(EngineError::Transient("another machine still has a GPU of this one".into()));
            }
            self.give_back(holder)?;
        }
        if devices.is_empty() {
            return Ok(Assigned::default());
        }
        self.check(devices)?;
        self.hand_out(machine, keeper, devices)?;
        Ok(self.assigned(devices))
    }

    /// Refuses what cannot be handed out any more.
    fn check(&self, devices: &[Device]) -> Result<()> {
        let gpus = self.inventory();
        let wanted: BTreeSet<_> = devices.iter().filter_map(Device::function).collect();
        for function in &wanted {
            let of = gpus.iter().find(|gpu| gpu.functions.contains(function));
            let why = match of {
                None => "it is not there any more".to_owned(),
                Some(Gpu { unavailable: Some(why), .. }) => why.clone(),
                Some(gpu) if !gpu.functions.iter().all(|other| wanted.contains(other)) => {
                    "others of its IOMMU group are missing".into()
                }
                Some(_) => continue,
            };
            return Err(EngineError::NoCapacity(format!("the GPU {function} cannot be handed out: {why}")));
        }
        devices.iter().filter_map(Device::part).try_for_each(|part| self.check_part(&gpus, part))
    }

    /// What QEMU is told.
    fn assigned(&self, devices: &[Device]) -> Assigned {
        let functions = self.places.functions();
        let wanted: BTreeSet<_> = devices.iter().filter_map(Device::function).collect();
        let mine: Vec<_> = functions.iter().filter(|function| wanted.contains(&function.address)).collect();
        let quirks = quirks(mine.iter().copied());
        let parts: Vec<_> = devices.iter().filter_map(Device::part).collect();
        let own = mine.iter().filter_map(|function| function.group);
        let groups: BTreeSet<_> = own.chain(parts.iter().filter_map(|part| self.places.group(part))).collect();
        let whole: BTreeMap<_, _> = mine.iter().map(|function| (function.address, function.physical)).collect();
        let devices = whole.iter().map(|(at, physical)| match physical {
            Some(_) => HostDevice::Virtual(at.to_string()),
            None => HostDevice::Function(at.to_string()),
        });
        let folders = whole.keys().map(|at| self.places.function(*at));
        let part_device = |part: &&Part| match part.uuid {
            Some(uuid) => HostDevice::Mediated(self.places.mediated(uuid)),
            None => HostDevice::Virtual(part.at.to_string()),
        };
        let part_folder = |part: &&Part| match part.uuid {
            Some(uuid) => self.places.mediated(uuid),
            None => self.places.function(part.at),
        };
        Assigned {
            devices: devices.chain(parts.iter().map(part_device)).collect(),
            files: self.places.device_files(&groups),
            folders: folders.chain(parts.iter().map(part_folder)).collect(),
            hides_hypervisor: quirks.hides_hypervisor,
            window_mb: quirks.window_mb,
        }
    }
}

/// Has a GPU be as its faults say: out of service, or without those of its functions that are.
fn mark(gpu: &mut Gpu, functions: &[Function], faults: &BTreeMap<PciAddress, String>) {
    if let Some(fault) = gpu.functions.iter().find_map(|function| faults.get(function)) {
        gpu.unavailable = Some(fault.clone());
        gpu.kinds.clear();
    }
    if gpu.kinds.is_empty() {
        return;
    }
    let said = gpu.unavailable.get_or_insert_default();
    for function in functions.iter().filter(|function| function.physical == Some(gpu.address)) {
        let Some(fault) = faults.get(&function.address) else { continue };
        said.push_str(&format!("; but not at {}: {fault}", function.address));
        for kind in &mut gpu.kinds {
            kind.places.retain(|place| place.at != function.address);
        }
    }
}

#[cfg(test)]
mod tests;
