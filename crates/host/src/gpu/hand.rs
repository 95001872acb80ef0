//! Handing a device out and taking it back, a write to sysfs at a time (Linux, `Documentation/driver-api/vfio.rst` and
//! `Documentation/ABI/testing/sysfs-bus-pci`).

use std::io;

use berth_domain::host::gpu::{Device, PciAddress, VFIO};
use berth_domain::ids::MachineId;

use super::Inner;
use super::note::{Before, Keeper, Note};
use crate::error::transient;
use crate::{EngineError, Result};

/// What has the kernel choose a driver by a device's kind again.
const BY_KIND: &str = "\n";

impl Inner {
    /// Gives devices to a machine, which has none so far.
    pub(super) fn hand_out(&self, machine: MachineId, keeper: Keeper, devices: &[Device]) -> Result<()> {
        let before = |address: PciAddress| Before {
            address,
            driver: self.places.driver(address),
            chosen: self.places.chosen_driver(address),
        };
        let note = Note {
            boot: self.boot.clone(),
            keeper,
            functions: devices.iter().filter_map(Device::function).map(before).collect(),
            parts: devices.iter().filter_map(Device::part).cloned().collect(),
        };
        self.notes.write(machine, &note)?;
        note.functions.iter().try_for_each(|function| self.bind(function))?;
        note.parts.iter().try_for_each(|part| self.make(part))
    }

    /// Has a function have the driver by which QEMU reaches it.
    fn bind(&self, before: &Before) -> Result<()> {
        let address = before.address;
        if before.driver.as_deref() == Some(VFIO) {
            return Ok(());
        }
        let failed = |what: &str| {
            let what = what.to_owned();
            move |error: io::Error| EngineError::Transient(format!("the GPU {address} {what}: {error}"))
        };
        self.choose_driver(address, VFIO).map_err(failed("cannot be given vfio-pci"))?;
        if before.driver.is_some() {
            self.unbind(address).map_err(failed("cannot be taken from its driver"))?;
        }
        self.probe(address).map_err(failed("cannot be given vfio-pci"))?;
        match self.places.driver(address) {
            Some(driver) if driver == VFIO => Ok(()),
            _ => Err(EngineError::Transient(format!(
                "vfio-pci does not take the GPU {address}; its log says why: dmesg"
            ))),
        }
    }

    /// Gives back what a machine has taken. What cannot be given back is out of service, so that nobody waits for it.
    pub(super) fn give_back(&self, machine: MachineId) -> Result<()> {
        let note = self.notes.read(machine)?.filter(|note| note.boot == self.boot);
        if let Some(note) = note {
            let functions = note.functions.iter().map(|before| (before.address, self.undo(before)));
            let parts = note.parts.iter().map(|part| (part.at, self.unmake(part)));
            for (device, undone) in functions.chain(parts) {
                if let Err(sentence) = undone {
                    tracing::error!(%device, %machine, sentence, "a GPU is out of service");
                    self.faults.add(device, &self.boot, &sentence).map_err(transient)?;
                }
            }
        }
        self.notes.remove(machine)
    }

    /// Has a function be as it was before; the sentence says why it stays out of service.
    fn undo(&self, before: &Before) -> std::result::Result<(), String> {
        let address = before.address;
        if !self.places.function(address).exists() {
            return Ok(());
        }
        let driver = self.places.driver(address);
        if driver.as_deref() == Some(VFIO) {
            self.reset(address)?;
        }
        if before.driver.as_deref() == Some(VFIO) {
            return Ok(());
        }
        let failed = |error: io::Error| {
            format!("it cannot be given back to the host ({error}); restart the host, and it is offered again")
        };
        if driver.as_deref() == Some(VFIO) {
            self.unbind(address).map_err(failed)?;
        }
        if let Some(former) = &before.driver
            && self.places.driver(address).is_none()
        {
            self.choose_driver(address, former).map_err(failed)?;
            if let Err(error) = self.probe(address) {
                // Its module may be gone. A machine can have it all the same.
                tracing::warn!(device = %address, driver = former, %error, "a GPU is not taken by the driver that it had");
            }
        }
        self.choose_driver(address, before.chosen.as_deref().unwrap_or(BY_KIND)).map_err(failed)
    }

    /// Forgets what a machine left in a function, if the kernel knows how. Of the functions beside a GPU it need not.
    fn reset(&self, address: PciAddress) -> std::result::Result<(), String> {
        let file = self.places.function(address).join("reset");
        if !file.exists() {
            return Ok(());
        }
        self.kernel.write(&file, "1").map_err(|error| {
            format!("its reset failed after a machine had it ({error}); restart the host, and it is offered again")
        })
    }

    fn choose_driver(&self, address: PciAddress, driver: &str) -> io::Result<()> {
        self.kernel.write(&self.places.function(address).join("driver_override"), driver)
    }

    fn unbind(&self, address: PciAddress) -> io::Result<()> {
        self.kernel.write(&self.places.function(address).join("driver/unbind"), &address.to_string())
    }

    fn probe(&self, address: PciAddress) -> io::Result<()> {
        self.kernel.write(&self.places.probe(), &address.to_string())
    }
}
