//! A host made up of files, with a kernel that does what it is told by them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier, Mutex};

use berth_domain::host::gpu::VFIO;
use tempfile::TempDir;

use super::sysfs::{Kernel, Places};
use super::{Gpus, Inner};

/// A host that has a driver `vfio-pci`, an IOMMU, and no devices yet.
pub(super) struct Host {
    root: TempDir,
    boot: String,
    told: Arc<Mutex<Told>>,
}

#[derive(Default)]
struct Told {
    /// What the kernel was told, in order.
    writes: usize,
    /// Before which of those the service dies.
    dies_at: Option<usize>,
    /// Functions whose reset fails.
    broken: BTreeSet<String>,
    resets: Vec<String>,
    /// Where the kernel waits at its next thing: once until somebody has seen that, and once until it may go on.
    gate: Option<Arc<Barrier>>,
}

/// What a function is made of: address, class, vendor, device, IOMMU group, driver.
pub(super) type Card<'a> = (&'a str, &'a str, &'a str, &'a str, u32, Option<&'a str>);

impl Host {
    pub(super) fn new() -> Self {
        let root = tempfile::tempdir().expect("a folder");
        let host = Self { root, boot: "one".into(), told: Arc::default() };
        for driver in [VFIO, "nvidia", "snd_hda_intel", "nvme"] {
            fs::create_dir_all(host.sys().join("bus/pci/drivers").join(driver)).expect("a driver");
        }
        fs::create_dir_all(host.sys().join("bus/pci/devices")).expect("a bus");
        fs::write(host.sys().join("bus/pci/drivers_probe"), "").expect("a file");
        fs::create_dir_all(host.root.path().join("dev/vfio")).expect("a folder");
        host
    }

    fn sys(&self) -> PathBuf {
        self.root.path().join("sys")
    }

    /// The folder of a function.
    pub(super) fn of(&self, address: &str) -> PathBuf {
        self.sys().join("bus/pci/devices").join(address)
    }

    /// Puts a card in.
    pub(super) fn plug(&self, (address, class, vendor, device, group, driver): Card<'_>) {
        let dir = self.of(address);
        fs::create_dir_all(&dir).expect("a device");
        for (name, text) in [
            ("class", class),
            ("vendor", vendor),
            ("device", device),
            ("subsystem_vendor", "0x10de"),
            ("subsystem_device", "0x16c1"),
            ("numa_node", "-1"),
            ("driver_override", "(null)"),
            ("native", driver.unwrap_or_default()),
            ("reset", ""),
        ] {
            fs::write(dir.join(name), format!("{text}\n")).expect("a file");
        }
        let iommu = self.sys().join("kernel/iommu_groups").join(group.to_string());
        fs::create_dir_all(&iommu).expect("a group");
        symlink(iommu, dir.join("iommu_group")).expect("a link");
        if let Some(driver) = driver {
            symlink(self.sys().join("bus/pci/drivers").join(driver), dir.join("driver")).expect("a link");
        }
    }

    /// What each function has: its driver, and the one that was chosen for it.
    pub(super) fn state(&self) -> Vec<(String, Option<String>, String)> {
        let entries = fs::read_dir(self.sys().join("bus/pci/devices")).expect("a folder").flatten();
        let mut all: Vec<_> = entries
            .map(|entry| {
                let driver = fs::read_link(entry.path().join("driver")).ok();
                let driver = driver.and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
                let chosen = fs::read_to_string(entry.path().join("driver_override")).expect("a file");
                (entry.file_name().into_string().expect("a name"), driver, chosen.trim().replace("(null)", ""))
            })
            .collect();
        all.sort();
        all
    }

    /// The driver of a function.
    pub(super) fn driver(&self, address: &str) -> Option<String> {
        self.state().into_iter().find(|(known, ..)| known == address).and_then(|(_, driver, _)| driver)
    }

    pub(super) fn places(&self) -> Places {
        let root = self.root.path();
        Places { sys: root.join("sys"), dev: root.join("dev"), proc: root.join("proc"), lists: Vec::new() }
    }

    /// The host starts again: the kernel chooses all drivers anew, and everybody's are their own.
    pub(super) fn restart(&mut self) {
        self.boot.push('+');
        for (address, ..) in self.state() {
            let dir = self.of(&address);
            fs::write(dir.join("driver_override"), "(null)\n").expect("a file");
            let _ = fs::remove_file(dir.join("driver"));
            MadeUp { sys: self.sys(), told: Arc::default() }
                .write(&self.sys().join("bus/pci/drivers_probe"), &address)
                .expect("a driver");
        }
    }

    /// A service that starts, with what the last one left in its folder.
    pub(super) fn service(&self) -> Gpus {
        let kernel = MadeUp { sys: self.sys(), told: self.told.clone() };
        Gpus::new(&self.root.path().join("data"), self.places(), Box::new(kernel), self.boot.clone())
    }

    pub(super) fn inner(&self) -> Arc<Inner> {
        self.service().inner
    }

    /// Has the service die before the kernel is told so many things more; none has it live.
    pub(super) fn die_at(&self, writes: Option<usize>) {
        let mut told = self.told.lock().expect("nobody died here");
        told.dies_at = writes.map(|more| told.writes + more);
    }

    /// What the kernel was told so far.
    pub(super) fn writes(&self) -> usize {
        self.told.lock().expect("nobody died here").writes
    }

    /// Has the kernel wait at its next thing: whoever waits here sees it there, and whoever does again lets it go on.
    pub(super) fn hold(&self) -> Arc<Barrier> {
        let gate = Arc::new(Barrier::new(2));
        self.told.lock().expect("nobody died here").gate = Some(gate.clone());
        gate
    }

    /// Functions that were reset, in order.
    pub(super) fn resets(&self) -> Vec<String> {
        self.told.lock().expect("nobody died here").resets.clone()
    }

    /// From now on the reset of a function fails.
    pub(super) fn break_reset(&self, address: &str) {
        self.told.lock().expect("nobody died here").broken.insert(address.to_owned());
    }
}

/// What a service dies of.
pub(super) struct Killed;

struct MadeUp {
    sys: PathBuf,
    told: Arc<Mutex<Told>>,
}

impl MadeUp {
    /// Has a driver take a function that has none.
    fn take(&self, address: &str) {
        let dir = self.sys.join("bus/pci/devices").join(address);
        let read = |name: &str| fs::read_to_string(dir.join(name)).expect("a file").trim().to_owned();
        let chosen = Some(read("driver_override")).filter(|name| !name.is_empty() && name != "(null)");
        let driver = chosen.unwrap_or_else(|| read("native"));
        let found = self.sys.join("bus/pci/drivers").join(&driver);
        if !driver.is_empty() && found.exists() && !dir.join("driver").exists() {
            symlink(found, dir.join("driver")).expect("a link");
        }
    }
}

impl Kernel for MadeUp {
    fn write(&self, file: &Path, text: &str) -> io::Result<()> {
        let gate = self.told.lock().expect("nobody died here").gate.take();
        if let Some(gate) = gate {
            gate.wait();
            gate.wait();
        }
        let mut told = self.told.lock().expect("nobody died here");
        if told.dies_at == Some(told.writes) {
            drop(told);
            resume_unwind(Box::new(Killed));
        }
        told.writes += 1;
        let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
        let dir = file.parent().expect("a folder");
        match name {
            "drivers_probe" => self.take(text),
            "unbind" => fs::remove_file(dir).expect("a driver"),
            "driver_override" => fs::write(file, if text.trim().is_empty() { "(null)\n" } else { text })?,
            "reset" => {
                let address = dir.file_name().and_then(|name| name.to_str()).expect("an address").to_owned();
                if told.broken.contains(&address) {
                    return Err(io::Error::from_raw_os_error(5));
                }
                told.resets.push(address);
            }
            other => unreachable!("nothing is written to {other}"),
        }
        Ok(())
    }
}
