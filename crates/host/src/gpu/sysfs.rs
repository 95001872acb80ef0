//! What sysfs says of PCI functions, and the few files of it that are written to.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use berth_domain::host::gpu::{Facts, Function, PciAddress, VFIO};
use rustix::fs::{Access, access};

/// Where distributions keep the list of PCI ids.
const LISTS: [&str; 3] = ["/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids", "/usr/share/pci.ids"];
/// A region of a device's memory that may lie above 4 GiB (Linux, `include/linux/ioport.h`, `IORESOURCE_MEM_64`).
const LARGE: u64 = 0x0010_0000;
/// Regions of a device beside its ROM and those of a bridge (`PCI_STD_NUM_BARS`).
const REGIONS: usize = 6;

/// Writes to files by which a kernel is told what to do.
pub(super) trait Kernel: Send + Sync {
    /// Writes a text to a file that is there, as one write.
    fn write(&self, file: &Path, text: &str) -> io::Result<()>;
}

/// The kernel of this host.
pub(super) struct Running;

impl Kernel for Running {
    fn write(&self, file: &Path, text: &str) -> io::Result<()> {
        OpenOptions::new().write(true).open(file)?.write_all(text.as_bytes())
    }
}

/// Where a host's devices are seen.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// `/sys`.
    pub(super) sys: PathBuf,
    /// `/dev`.
    pub(super) dev: PathBuf,
    /// `/proc`.
    pub(super) proc: PathBuf,
    /// Lists of PCI ids, of which the first one that is there counts.
    pub(super) lists: Vec<PathBuf>,
}

impl Default for Places {
    fn default() -> Self {
        Self { sys: "/sys".into(), dev: "/dev".into(), proc: "/proc".into(), lists: LISTS.map(PathBuf::from).into() }
    }
}

impl Places {
    fn bus(&self) -> PathBuf {
        self.sys.join("bus/pci")
    }

    /// The file that has the kernel look for a driver for a device.
    pub(super) fn probe(&self) -> PathBuf {
        self.bus().join("drivers_probe")
    }

    /// The folder of a function.
    pub(super) fn function(&self, address: PciAddress) -> PathBuf {
        self.bus().join("devices").join(address.to_string())
    }

    /// The driver that a function has.
    pub(super) fn driver(&self, address: PciAddress) -> Option<String> {
        link(&self.function(address).join("driver"))
    }

    /// What a function's driver is chosen by, if it is not by its kind.
    pub(super) fn chosen_driver(&self, address: PciAddress) -> Option<String> {
        let text = text(&self.function(address).join("driver_override"))?;
        // The kernel writes `(null)` where nobody has chosen.
        Some(text).filter(|driver| !driver.is_empty() && driver != "(null)")
    }

    /// All functions of the host if one of them is a GPU; else none.
    pub(super) fn functions(&self) -> Vec<Function> {
        let entries = fs::read_dir(self.bus().join("devices")).into_iter().flatten().flatten();
        let named = entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())));
        let classes = named.filter_map(|(address, dir)| Some((address, number(&dir, "class")?, dir)));
        // Most hosts have none, and what else there is to read is much.
        let found: Vec<_> = classes.collect();
        if !found.iter().any(|(_, class, _)| is_gpu(*class)) {
            return Vec::new();
        }
        found.into_iter().filter_map(|(address, class, dir)| self.read(address, class, &dir)).collect()
    }

    /// What a folder says of a function.
    fn read(&self, address: PciAddress, class: u32, dir: &Path) -> Option<Function> {
        let short = |name: &str| number(dir, name).and_then(|number| u16::try_from(number).ok());
        let count = |name: &str| text(&dir.join(name)).and_then(|text| text.parse().ok());
        let is_gpu = is_gpu(class);
        Some(Function {
            address,
            class,
            vendor: short("vendor")?,
            device: short("device")?,
            subsystem: (short("subsystem_vendor").unwrap_or(0), short("subsystem_device").unwrap_or(0)),
            group: link(&dir.join("iommu_group")).and_then(|group| group.parse().ok()),
            // A host that tells no nodes apart says -1.
            numa_node: count("numa_node"),
            driver: link(&dir.join("driver")),
            is_boot_screen: count("boot_vga") == Some(1),
            physical: link(&dir.join("physfn")).and_then(|physical| physical.parse().ok()),
            virtual_functions: count("sriov_numvfs").unwrap_or(0),
            has_reset: dir.join("reset").exists(),
            large_bytes: large_bytes(&fs::read_to_string(dir.join("resource")).unwrap_or_default()),
            offers: if is_gpu { Self::offers(dir) } else { Vec::new() },
            mig_instances: if is_gpu { self.mig_instances(address) } else { 0 },
        })
    }

    /// What there is to hand devices out by.
    pub(super) fn facts(&self) -> Facts {
        let has_entry = |dir: &Path| fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
        Facts {
            has_iommu: has_entry(&self.sys.join("kernel/iommu_groups")),
            has_vfio: self.bus().join("drivers").join(VFIO).exists(),
            may_bind: access(self.probe(), Access::WRITE_OK).is_ok(),
            opened: self.opened(),
            parts: Vec::new(),
        }
    }

    /// Files by which a program reaches what is in these groups.
    pub(super) fn device_files(&self, groups: &BTreeSet<u32>) -> Vec<PathBuf> {
        let vfio = self.dev.join("vfio");
        std::iter::once(vfio.join("vfio")).chain(groups.iter().map(|group| vfio.join(group.to_string()))).collect()
    }

    /// Groups whose device file the service may open.
    fn opened(&self) -> BTreeSet<u32> {
        let entries = fs::read_dir(self.dev.join("vfio")).into_iter().flatten().flatten();
        let may_open = |path: &Path| access(path, Access::READ_OK | Access::WRITE_OK).is_ok();
        let groups = entries.filter(|entry| may_open(&entry.path()));
        groups.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// The host's list of PCI ids, or nothing.
    pub(super) fn list(&self) -> String {
        // It holds bytes here and there that are no UTF-8.
        let list = self.lists.iter().find_map(|path| fs::read(path).ok());
        list.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }
}

/// Whether what is of a class may be a GPU: a display controller, or a processing accelerator.
const fn is_gpu(class: u32) -> bool {
    matches!(class >> 16, 0x03 | 0x12)
}

pub(super) fn text(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
}

/// A number in hexadecimal.
fn number(dir: &Path, name: &str) -> Option<u32> {
    u32::from_str_radix(text(&dir.join(name))?.strip_prefix("0x")?, 16).ok()
}

/// The last name of what a link leads to.
pub(super) fn link(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_str()?.to_owned())
}

/// Bytes of the regions that may lie above 4 GiB: a line for each has its first and last address and its flags.
fn large_bytes(regions: &str) -> u64 {
    let region = |line: &str| {
        let hex = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
        let mut words = line.split_whitespace();
        let (first, last, flags) = (hex(words.next()?)?, hex(words.next()?)?, hex(words.next()?)?);
        (flags & LARGE != 0 && last > first).then(|| (last - first).saturating_add(1))
    };
    regions.lines().take(REGIONS).filter_map(region).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_above_four_gib_are_summed() {
        let regions = "0x00000000f6000000 0x00000000f6ffffff 0x0000000000040200\n\
            0x0000006000000000 0x0000007fffffffff 0x000000000014220c\n\
            0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
            0x0000008000000000 0x0000008001ffffff 0x000000000014220c\n\
            0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
            0x000000000000e000 0x000000000000e07f 0x0000000000040101\n\
            0x0000006000000000 0x0000007fffffffff 0x000000000014220c\n";
        assert_eq!(large_bytes(regions), (128 << 30) + (32 << 20), "the seventh is no region of its own");
        assert_eq!((large_bytes(""), large_bytes("0x0 0x1\nnonsense\n")), (0, 0));
    }
}
