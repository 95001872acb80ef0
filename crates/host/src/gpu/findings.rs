//! What a host needs to hand out GPUs, and what to type where it is missing.

use std::fs;

use berth_domain::host::gpu::{Facts, Gpu, Kind};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use super::Gpus;
use crate::Finding;

/// The least that a service without `CAP_SYS_RESOURCE` has to be allowed to lock, in bytes: a small guest's memory. A larger one
/// says itself what it lacks.
const LEAST_LOCKED: u64 = 2 << 30;

impl Gpus {
    /// What `berth doctor --gpu` tells.
    pub fn findings(&self) -> Vec<Finding> {
        let places = &self.inner.places;
        // Whoever has this right may lock all.
        let may_raise = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_RESOURCE));
        let locked = if may_raise { None } else { getrlimit(Resource::Memlock).maximum };
        let cpu = fs::read_to_string(places.proc.join("cpuinfo")).unwrap_or_default();
        let asked = fs::read_to_string(places.proc.join("cmdline")).unwrap_or_default();
        let gpus = self.inventory();
        let mut findings = vec![of_iommu(&places.facts(), &cpu, &asked), of_driver(&places.facts())];
        findings.push(of_container(places.dev.join("vfio/vfio").exists()));
        findings.push(of_rights(&places.facts(), locked));
        if gpus.is_empty() {
            findings.push(finding(
                false,
                "gpu",
                "none is seen in /sys/bus/pci/devices; type: lspci -nn | grep -E '\\[(03|12)'".into(),
            ));
        }
        findings.extend(gpus.iter().map(of_gpu));
        findings
    }
}

fn finding(good: bool, what: &str, text: String) -> Finding {
    Finding { good, what: what.into(), text }
}

/// Whether devices are kept apart. On Intel's processors the kernel has to be asked for it (Linux,
/// `Documentation/admin-guide/kernel-parameters.txt`, `intel_iommu`); on AMD's it is on where the firmware has it.
fn of_iommu(facts: &Facts, cpu: &str, asked: &str) -> Finding {
    if facts.has_iommu {
        return finding(true, "iommu", "devices are kept apart in groups".into());
    }
    let is_intel = cpu.contains("GenuineIntel");
    let text = if is_intel && !asked.split_whitespace().any(|word| word == "intel_iommu=on") {
        "off; put intel_iommu=on iommu=pt into GRUB_CMDLINE_LINUX of /etc/default/grub, type: sudo update-grub, and \
         restart the host"
    } else if is_intel {
        "off, though the kernel was asked for it; switch VT-d on in the firmware"
    } else {
        "off; switch AMD-Vi (IOMMU) on in the firmware"
    };
    finding(false, "iommu", text.into())
}

fn of_driver(facts: &Facts) -> Finding {
    if facts.has_vfio {
        return finding(true, "vfio-pci", "the kernel has it".into());
    }
    let text = "the kernel does not have it at hand; type: echo vfio-pci | sudo tee /etc/modules-load.d/vfio.conf && \
                sudo modprobe vfio-pci";
    finding(false, "vfio-pci", text.into())
}

fn of_container(is_there: bool) -> Finding {
    let text =
        if is_there { "/dev/vfio/vfio is there" } else { "there is no /dev/vfio/vfio; type: sudo modprobe vfio" };
    finding(is_there, "vfio", text.into())
}

/// Whether the service may do what it takes; `locked` is how much it may lock, if that is bounded.
fn of_rights(facts: &Facts, locked: Option<u64>) -> Finding {
    match locked {
        Some(most) if most < LEAST_LOCKED => {
            let text = "the service may not lock a guest's memory; put LimitMEMLOCK=infinity into its unit, type: sudo \
                        systemctl daemon-reload, and restart it";
            finding(false, "rights", text.into())
        }
        _ if facts.may_bind => finding(true, "rights", "the service gives devices their drivers".into()),
        _ => {
            let text = "the service may not give devices another driver: it hands out those that have vfio-pci already";
            finding(true, "rights", text.into())
        }
    }
}

fn of_gpu(gpu: &Gpu) -> Finding {
    let what = gpu.address.to_string();
    let (name, ids) = (&gpu.name, &gpu.ids);
    let group = gpu.group.map_or_else(|| "no group".to_owned(), |group| format!("group {group}"));
    let driver = gpu.driver.as_deref().unwrap_or("no driver");
    let known = format!("{name} ({ids}), {group}, {driver}");
    if !gpu.kinds.is_empty() {
        return finding(true, &what, format!("{known}: {}", in_parts(gpu)));
    }
    if let Some(why) = &gpu.unavailable {
        return finding(false, &what, format!("{known}: {why}"));
    }
    let model = &gpu.model;
    let more = match gpu.driver.as_deref() {
        // Its driver waits for whoever uses it (NVIDIA's open-gpu-kernel-modules, `kernel-open/nvidia/nv-pci.c`).
        Some("nvidia") => "; stop what keeps it open, as by: sudo systemctl disable --now nvidia-persistenced",
        _ => "",
    };
    finding(true, &what, format!("{known}: can be handed out, as size {model}{more}"))
}

/// What is said of a GPU that is handed out in parts.
fn in_parts(gpu: &Gpu) -> String {
    let kind = |kind: &Kind| {
        let free: u32 = kind.places.iter().map(|place| place.free).fold(0, u32::saturating_add);
        format!("{} ({} of {})", kind.model, free.min(kind.most), kind.most)
    };
    let offered: Vec<_> = gpu.offered().map(kind).collect();
    if offered.is_empty() {
        return "its driver makes parts of it, and has no room for one: others than the service have them".into();
    }
    let faults = gpu.unavailable.as_deref().and_then(|said| said.split_once("; ")).map(|(_, faults)| faults);
    let more = faults.map_or_else(String::new, |faults| format!("; {faults}"));
    format!("can be handed out in parts, as sizes with so many free: {}{more}", offered.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::tests::made_up::Host;
    use super::*;

    fn texts(findings: Vec<Finding>) -> Vec<(bool, String, String)> {
        findings.into_iter().map(|finding| (finding.good, finding.what, finding.text)).collect()
    }

    #[test]
    fn a_host_that_is_ready_says_what_it_hands_out() {
        let host = Host::new();
        host.plug(("0000:01:00.0", "0x030200", "0x10de", "0x2330", 7, Some("nvidia")));
        fs::write(host.places().dev.join("vfio/vfio"), "").unwrap();
        let found = texts(host.service().findings());
        assert!(found.iter().all(|(good, what, _)| *good || what == "rights"), "{found:?}");
        let (_, what, text) = found.last().unwrap();
        assert_eq!(what, "0000:01:00.0");
        let said = "NVIDIA H100 SXM5 80GB (10de:2330 10de:16c1), group 7, nvidia: can be handed out, as size \
                    nvidia-h100-sxm5-80gb; stop what keeps it open";
        assert!(text.starts_with(said), "{text}");
    }

    #[test]
    fn a_host_that_lacks_everything_says_what_to_type() {
        let host = Host::new();
        host.plug(("0000:01:00.0", "0x030000", "0x10de", "0x2684", 7, None));
        let places = host.places();
        fs::remove_dir_all(places.sys.join("kernel")).unwrap();
        fs::remove_dir_all(places.sys.join("bus/pci/drivers/vfio-pci")).unwrap();
        let found = texts(host.service().findings());
        let missing: Vec<_> = found.iter().filter(|(good, ..)| !good).map(|(_, what, _)| what.as_str()).collect();
        assert_eq!(
            missing.iter().filter(|what| **what != "rights").copied().collect::<Vec<_>>(),
            ["iommu", "vfio-pci", "vfio", "0000:01:00.0"]
        );
        assert!(found[1].2.contains("sudo modprobe vfio-pci"), "{found:?}");
        let none = texts(Host::new().service().findings());
        assert!(none.iter().any(|(good, what, text)| !good && what == "gpu" && text.contains("lspci -nn")), "{none:?}");
    }

    #[test]
    fn each_maker_s_iommu_is_switched_on_in_its_own_way() {
        let off = Facts::default();
        let says = |cpu: &str, asked: &str| of_iommu(&off, cpu, asked).text;
        assert!(says("vendor_id : GenuineIntel", "quiet").contains("intel_iommu=on iommu=pt"));
        assert!(says("vendor_id : GenuineIntel", "quiet intel_iommu=on").contains("VT-d"));
        assert!(says("vendor_id : AuthenticAMD", "").contains("AMD-Vi"));
        assert!(of_iommu(&Facts { has_iommu: true, ..off }, "", "").good);
    }

    #[test]
    fn what_may_be_locked_is_bounded_for_who_may_not_raise_it() {
        let facts = Facts { may_bind: true, ..Facts::default() };
        let good = |locked| of_rights(&facts, locked).good;
        assert_eq!([good(None), good(Some(LEAST_LOCKED)), good(Some(LEAST_LOCKED - 1))], [true, true, false]);
        let text = of_rights(&Facts::default(), None).text;
        assert!(text.contains("those that have vfio-pci already"), "{text}");
    }
}
