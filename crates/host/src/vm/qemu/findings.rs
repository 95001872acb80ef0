//! What this host can do for machines, and what is missing, in words that say what to type.

use std::path::Path;

use berth_qemu::{accel, host, image, machine};

use super::{GIB, QemuEngine};
use crate::Finding;

impl QemuEngine {
    /// What `berth doctor` tells of machines.
    pub async fn findings(&self) -> Vec<Finding> {
        let finding = |good, what: &str, text: String| Finding { good, what: what.into(), text };
        let mut findings: Vec<_> = host::tools()
            .into_iter()
            .map(|tool| match &tool.path {
                Some(path) => finding(true, tool.name, path.display().to_string()),
                None => finding(false, tool.name, format!("{}; type: sudo apt install {}", tool.purpose, tool.package)),
            })
            .collect();
        match self.settings.host.find_qemu() {
            Ok(qemu) => findings.extend(self.findings_of(&qemu).await),
            Err(missing) => findings.push(finding(false, "qemu", missing.to_string())),
        }
        findings.push(finding(true, "host", format!("{} cores, {} MiB of memory", host::cores(), host::memory_mb())));
        if let Ok((total, free)) = host::disk(&self.settings.host.data) {
            findings.push(finding(true, "disk", format!("{} of {} GiB free", free / GIB, total / GIB)));
        }
        let images = image::list(&self.images_dir()).into_iter().filter(|(_, manifest)| !manifest.is_owned);
        let images: Vec<_> = images.map(|(_, manifest)| manifest.id).collect();
        let text = if images.is_empty() { "none yet; type: script/quickstart".into() } else { images.join(", ") };
        findings.push(finding(!images.is_empty(), "images", text));
        findings
    }

    async fn findings_of(&self, qemu: &Path) -> Vec<Finding> {
        let finding = |good, what: &str, text: String| Finding { good, what: what.into(), text };
        let version = host::qemu_version(qemu).await.unwrap_or_else(|e| e.to_string());
        let stream = host::has_stream_network(qemu).await;
        let network = if stream {
            "a program beside each machine carries it"
        } else {
            "this QEMU has no network 'stream'; install QEMU 7.2 or later"
        };
        let decision = self.acceleration(self.any_probe(), qemu).await;
        let acceleration = format!("{:?}: {}", decision.accel, decision.reason).to_lowercase();
        let acceleration = match decision.accel {
            machine::Accel::Kvm => acceleration,
            // QEMU, docs/system/security.rst, "Non-virtualization Use Case".
            machine::Accel::Tcg => format!(
                "{acceleration}; emulation is outside QEMU's security support: run nobody's code here that you do not trust"
            ),
        };
        vec![
            finding(true, "version", version),
            finding(stream, "network", network.into()),
            finding(true, "acceleration", acceleration),
        ]
    }

    fn any_probe(&self) -> Option<accel::Probe> {
        image::list(&self.images_dir()).into_iter().find_map(|(dir, manifest)| match manifest.boot(&dir) {
            machine::Boot::Kernel { kernel, initrd, .. } => Some(accel::Probe { kernel, initrd }),
            _ => None,
        })
    }
}
