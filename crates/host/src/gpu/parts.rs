//! Parts of GPUs: which kinds a driver makes, what is there of them, and having one made and taken away.
//!
//! Files of mediated devices: Linux, `Documentation/driver-api/vfio-mediated-device.rst`. Files of virtual functions that
//! become parts (`nvidia/creatable_vgpu_types`, a line `1414 : NVIDIA H200X-1-18C` for each kind, and
//! `nvidia/current_vgpu_type`, `0` for none): NVIDIA, "Virtual GPU Software User Guide"; `NVIDIA/vgpu-device-manager`,
//! `pkg/vfio`; `NVIDIA/kubevirt-gpu-device-plugin`, `README.md`.
//!
//! A part is noted before it is made, by a UUID that nobody had before or by its function, which was no part then. Only what is
//! noted is ever taken away.

use std::fs;
use std::path::{Path, PathBuf};

use berth_domain::host::gpu::{Gpu, Offer, Part, PciAddress};
use rustix::fs::{Access, access};
use uuid::Uuid;

use super::Inner;
use super::sysfs::{Places, link, text};
use crate::{EngineError, Result};

/// What a machine reaches a mediated device by, which stands for a PCI function.
const API: &str = "vfio-pci";
/// What a function that is no part has for its kind.
const NONE: &str = "0";

impl Places {
    /// Kinds of parts that the driver of a function makes.
    pub(super) fn offers(dir: &Path) -> Vec<Offer> {
        let folders = fs::read_dir(dir.join("mdev_supported_types")).into_iter().flatten().flatten();
        let mut offers: Vec<_> = folders.filter_map(|entry| mediated(&entry.path())).collect();
        offers.sort_by(|one, other| one.kind.cmp(&other.kind));
        offers.extend(typed(dir));
        offers
    }

    /// How many MIG instances the driver of the host has made of a GPU (NVIDIA, "MIG User Guide", device nodes and
    /// capabilities).
    pub(super) fn mig_instances(&self, address: PciAddress) -> u32 {
        let driver = self.proc.join("driver/nvidia");
        let told = fs::read_to_string(driver.join(format!("gpus/{address}/information"))).unwrap_or_default();
        let minor = |line: &str| line.strip_prefix("Device Minor:")?.trim().parse::<u32>().ok();
        let Some(minor) = told.lines().find_map(minor) else { return 0 };
        let entries = fs::read_dir(driver.join(format!("capabilities/gpu{minor}/mig"))).into_iter().flatten().flatten();
        let instances = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("gi"));
        u32::try_from(instances.count()).unwrap_or(u32::MAX)
    }

    /// The folder of a mediated device among those of the function that made it.
    fn below(&self, part: &Part, uuid: Uuid) -> PathBuf {
        self.function(part.at).join(uuid.to_string())
    }

    /// The folder by which QEMU is told of a mediated device.
    pub(super) fn mediated(&self, uuid: Uuid) -> PathBuf {
        self.sys.join("bus/mdev/devices").join(uuid.to_string())
    }

    fn current_kind(&self, at: PciAddress) -> PathBuf {
        self.function(at).join("nvidia/current_vgpu_type")
    }

    /// Whether a part is there.
    pub(super) fn has(&self, part: &Part) -> bool {
        match part.uuid {
            Some(uuid) => self.below(part, uuid).exists(),
            None => text(&self.current_kind(part.at)).as_deref() == Some(part.kind.as_str()),
        }
    }

    /// The IOMMU group of a part.
    pub(super) fn group(&self, part: &Part) -> Option<u32> {
        let folder = part.uuid.map_or_else(|| self.function(part.at), |uuid| self.below(part, uuid));
        link(&folder.join("iommu_group"))?.parse().ok()
    }
}

/// What a folder says of a kind of mediated devices.
fn mediated(dir: &Path) -> Option<Offer> {
    if text(&dir.join("device_api")).as_deref() != Some(API) {
        return None;
    }
    let kind: String = dir.file_name()?.to_str()?.to_owned();
    let described = text(&dir.join("description")).unwrap_or_default();
    let most = |word: &str| word.strip_prefix("max_instance=")?.parse().ok();
    Some(Offer {
        name: text(&dir.join("name")).filter(|name| !name.is_empty()).unwrap_or_else(|| kind.clone()),
        kind: kind.parse().ok()?,
        is_mediated: true,
        free: text(&dir.join("available_instances"))?.parse().ok()?,
        most: described.split([',', ' ', '\n']).find_map(most),
        may_make: access(dir.join("create"), Access::WRITE_OK).is_ok(),
    })
}

/// Kinds of parts that a virtual function may become.
fn typed(dir: &Path) -> Vec<Offer> {
    let current = dir.join("nvidia/current_vgpu_type");
    let (Some(kinds), Some(now)) = (text(&dir.join("nvidia/creatable_vgpu_types")), text(&current)) else {
        return Vec::new();
    };
    let may_make = access(&current, Access::WRITE_OK).is_ok();
    let offer = |line: &str| {
        let (number, name) = line.split_once(':')?;
        // A line above them says what stands in which column.
        let kind = number.trim().parse::<u32>().ok()?.to_string().parse().ok()?;
        let free = u32::from(now == NONE);
        Some(Offer { kind, name: name.trim().to_owned(), is_mediated: false, free, most: None, may_make })
    };
    kinds.lines().filter_map(offer).collect()
}

impl Inner {
    /// Refuses a part that cannot be made any more, or that is there and nobody's.
    pub(super) fn check_part(&self, gpus: &[Gpu], part: &Part) -> Result<()> {
        let refused =
            |why: &str| EngineError::NoCapacity(format!("no part of the GPU {} can be handed out: {why}", part.at));
        if self.places.has(part) || part.uuid.is_some_and(|uuid| self.places.mediated(uuid).exists()) {
            return Err(refused("somebody else has made it"));
        }
        let mut kinds = gpus.iter().flat_map(|gpu| &gpu.kinds).filter(|kind| kind.id == part.kind);
        if kinds.any(|kind| kind.is_mediated == part.uuid.is_some() && kind.places.iter().any(|at| at.at == part.at)) {
            return Ok(());
        }
        let gpu = gpus.iter().find(|gpu| gpu.address == part.at && gpu.kinds.is_empty());
        let why = gpu.and_then(|gpu| gpu.unavailable.as_deref());
        Err(refused(why.unwrap_or("its driver has no room for another one of the kind")))
    }

    /// Has a part made, which is noted.
    pub(super) fn make(&self, part: &Part) -> Result<()> {
        let folder = self.places.function(part.at);
        let kind = part.kind.as_str();
        let made = match part.uuid {
            Some(uuid) => {
                let file = folder.join("mdev_supported_types").join(kind).join("create");
                self.kernel.write(&file, &uuid.to_string())
            }
            None => self.kernel.write(&self.places.current_kind(part.at), kind),
        };
        // Drivers refuse in many ways what they have no room for.
        made.map_err(|error| {
            EngineError::NoCapacity(format!(
                "the driver of the GPU {} makes no part of the kind {kind}: {error}",
                part.at
            ))
        })?;
        if self.places.group(part).is_none() {
            let at = part.at;
            return Err(EngineError::Transient(format!(
                "a part of the GPU {at} is in no IOMMU group; type: sudo modprobe vfio_mdev, and look into: dmesg"
            )));
        }
        Ok(())
    }

    /// Has a part taken away, if it is there; the sentence says why it stays out of service.
    pub(super) fn unmake(&self, part: &Part) -> std::result::Result<(), String> {
        if !self.places.has(part) {
            return Ok(());
        }
        let done = match part.uuid {
            Some(uuid) => self.kernel.write(&self.places.below(part, uuid).join("remove"), "1"),
            None => self.kernel.write(&self.places.current_kind(part.at), NONE),
        };
        done.map_err(|error| {
            format!(
                "its driver does not take away the part {part} after a machine had it ({error}); restart the host, and it is \
                 offered again"
            )
        })
    }

    /// Parts that machines have by their notes, and that are there.
    pub(super) fn made(&self) -> Vec<Part> {
        let notes = self.notes.holders().into_iter().filter_map(|holder| self.notes.read(holder).ok().flatten());
        let parts = notes.filter(|note| note.boot == self.boot).flat_map(|note| note.parts);
        parts.filter(|part| self.places.has(part)).collect()
    }
}
