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

use crate::gpu::sysfs::{Kernel, Places};
use crate::gpu::{Gpus, Inner};

/// A host that has a driver `vfio-pci`, an IOMMU, and no devices yet.
pub(in crate::gpu) struct Host {
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
    /// After which of those it does.
    dies_after: Option<usize>,
    /// Functions whose reset fails, or whose driver takes no part away.
    broken: BTreeSet<String>,
    resets: Vec<String>,
    /// Where the kernel waits at its next thing: once until somebody has seen that, and once until it may go on.
    gate: Option<Arc<Barrier>>,
}

/// What a function is made of: address, class, vendor, device, IOMMU group, driver.
pub(in crate::gpu) type Card<'a> = (&'a str, &'a str, &'a str, &'a str, u32, Option<&'a str>);

impl Host {
    pub(in crate::gpu) fn new() -> Self {
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
    pub(in crate::gpu) fn of(&self, address: &str) -> PathBuf {
        self.sys().join("bus/pci/devices").join(address)
    }

    /// Puts a card in.
    pub(in crate::gpu) fn plug(&self, (address, class, vendor, device, group, driver): Card<'_>) {
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
    pub(in crate::gpu) fn state(&self) -> Vec<(String, Option<String>, String)> {
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
    pub(in crate::gpu) fn driver(&self, address: &str) -> Option<String> {
        self.state().into_iter().find(|(known, ..)| known == address).and_then(|(_, driver, _)| driver)
    }

    pub(in crate::gpu) fn places(&self) -> Places {
        let root = self.root.path();
        Places { sys: root.join("sys"), dev: root.join("dev"), proc: root.join("proc"), lists: Vec::new() }
    }

    /// The host starts again: the kernel chooses all drivers anew, and everybody's are their own.
    pub(in crate::gpu) fn restart(&mut self) {
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
    pub(in crate::gpu) fn service(&self) -> Gpus {
        let kernel = MadeUp { sys: self.sys(), told: self.told.clone() };
        Gpus::new(&self.root.path().join("data"), self.places(), Box::new(kernel), self.boot.clone())
    }

    pub(in crate::gpu) fn inner(&self) -> Arc<Inner> {
        self.service().inner
    }

    /// Has the service die before the kernel is told so many things more; none has it live.
    pub(in crate::gpu) fn die_at(&self, writes: Option<usize>) {
        let mut told = self.told.lock().expect("nobody died here");
        told.dies_at = writes.map(|more| told.writes + more);
        told.dies_after = None;
    }

    /// Has the service die once the kernel was told so many things more.
    pub(in crate::gpu) fn die_after(&self, writes: usize) {
        let mut told = self.told.lock().expect("nobody died here");
        told.dies_after = Some(told.writes + writes);
    }

    /// Has a function's driver make mediated devices: of one kind at a time, of each as many as it has room for.
    pub(in crate::gpu) fn offer_mediated(&self, address: &str, kinds: &[(&str, &str, usize)]) {
        for (kind, name, most) in kinds {
            let dir = self.of(address).join("mdev_supported_types").join(kind);
            fs::create_dir_all(&dir).expect("a kind");
            for (file, text) in [
                ("name", (*name).to_owned()),
                ("device_api", "vfio-pci".into()),
                ("description", format!("num_heads=1, frl_config=60, framebuffer=5120M, max_instance={most}")),
                ("available_instances", most.to_string()),
                ("create", String::new()),
            ] {
                fs::write(dir.join(file), text + "\n").expect("a file");
            }
        }
    }

    /// Has a function be one that another is divided into, and that can become a part of some kinds.
    pub(in crate::gpu) fn offer_virtual(&self, address: &str, of: &str, kinds: &str) {
        symlink(self.of(of), self.of(address).join("physfn")).expect("a link");
        let dir = self.of(address).join("nvidia");
        fs::create_dir_all(&dir).expect("a folder");
        fs::write(dir.join("creatable_vgpu_types"), kinds).expect("a file");
        fs::write(dir.join("current_vgpu_type"), "0\n").expect("a file");
    }

    /// Parts that are there: mediated devices by their UUIDs, others by their functions and kinds.
    pub(in crate::gpu) fn parts(&self) -> Vec<String> {
        let list = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten();
        let name = |entry: fs::DirEntry| entry.file_name().into_string().expect("a name");
        let mut all: Vec<_> = list(self.sys().join("bus/mdev/devices")).map(name).collect();
        for address in list(self.sys().join("bus/pci/devices")).map(name) {
            let kind = fs::read_to_string(self.of(&address).join("nvidia/current_vgpu_type")).unwrap_or_default();
            if !matches!(kind.trim(), "" | "0") {
                all.push(format!("{address}/{}", kind.trim()));
            }
        }
        all.sort();
        all
    }

    /// Somebody else tells the kernel something.
    pub(in crate::gpu) fn tell(&self, file: &Path, text: &str) {
        MadeUp { sys: self.sys(), told: Arc::default() }.write(file, text).expect("the kernel does it");
    }

    /// What the kernel was told so far.
    pub(in crate::gpu) fn writes(&self) -> usize {
        self.told.lock().expect("nobody died here").writes
    }

    /// Has the kernel wait at its next thing: whoever waits here sees it there, and whoever does again lets it go on.
    pub(in crate::gpu) fn hold(&self) -> Arc<Barrier> {
        let gate = Arc::new(Barrier::new(2));
        self.told.lock().expect("nobody died here").gate = Some(gate.clone());
        gate
    }

    /// Functions that were reset, in order.
    pub(in crate::gpu) fn resets(&self) -> Vec<String> {
        self.told.lock().expect("nobody died here").resets.clone()
    }

    /// From now on the reset of a function fails.
    pub(in crate::gpu) fn break_reset(&self, address: &str) {
        self.told.lock().expect("nobody died here").broken.insert(address.to_owned());
    }
}

/// What a service dies of.
pub(in crate::gpu) struct Killed;

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

/// What a driver says of a kind that it has no room for (`ENOSPC`), and of what is still open (`EBUSY`).
const NO_ROOM: i32 = 28;
const BUSY: i32 = 16;

impl MadeUp {
    /// Mediated devices of a function, each with its kind.
    fn mediated(parent: &Path) -> Vec<(PathBuf, String)> {
        let entries = fs::read_dir(parent).expect("a folder").flatten().map(|entry| entry.path());
        let kind = |path: PathBuf| Some((path.clone(), fs::read_to_string(path.join("kind")).ok()?));
        entries.filter_map(kind).collect()
    }

    /// Says anew how many more of each kind there may be.
    fn count(parent: &Path) {
        let made = Self::mediated(parent);
        for dir in fs::read_dir(parent.join("mdev_supported_types")).expect("kinds").flatten() {
            let described = fs::read_to_string(dir.path().join("description")).expect("a file");
            let most: usize = described.trim().rsplit_once('=').expect("a number").1.parse().expect("a number");
            let is_alone = made.iter().all(|(_, kind)| dir.file_name() == kind.as_str());
            let free = if is_alone { most - made.len() } else { 0 };
            fs::write(dir.path().join("available_instances"), format!("{free}\n")).expect("a file");
        }
    }

    fn create(&self, kind: &Path, uuid: &str) -> io::Result<()> {
        let parent = kind.parent().and_then(Path::parent).expect("a function");
        if fs::read_to_string(kind.join("available_instances"))?.trim() == "0" {
            return Err(io::Error::from_raw_os_error(NO_ROOM));
        }
        let dir = parent.join(uuid);
        fs::create_dir(&dir)?;
        fs::write(dir.join("kind"), kind.file_name().and_then(|name| name.to_str()).expect("a name"))?;
        fs::write(dir.join("remove"), "")?;
        let groups = self.sys.join("kernel/iommu_groups");
        let group = groups.join((100 + Self::mediated(parent).len()).to_string());
        fs::create_dir_all(&group)?;
        symlink(group, dir.join("iommu_group"))?;
        let all = self.sys.join("bus/mdev/devices");
        fs::create_dir_all(&all)?;
        symlink(&dir, all.join(uuid))?;
        Self::count(parent);
        Ok(())
    }

    fn remove(&self, dir: &Path) {
        let uuid = dir.file_name().expect("a name");
        fs::remove_file(self.sys.join("bus/mdev/devices").join(uuid)).expect("a device");
        fs::remove_dir_all(dir).expect("a device");
        Self::count(dir.parent().expect("a function"));
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
            "create" => self.create(dir, text)?,
            "remove" | "current_vgpu_type" if text != "1" && text != "0" => fs::write(file, text)?,
            "remove" | "current_vgpu_type" => {
                let function =
                    dir.parent().and_then(Path::file_name).and_then(|name| name.to_str()).expect("an address");
                if told.broken.contains(function) {
                    return Err(io::Error::from_raw_os_error(BUSY));
                }
                if name == "remove" { self.remove(dir) } else { fs::write(file, text)? }
            }
            other => unreachable!("nothing is written to {other}"),
        }
        if told.dies_after == Some(told.writes) {
            drop(told);
            resume_unwind(Box::new(Killed));
        }
        Ok(())
    }
}
