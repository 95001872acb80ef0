//! What `berth doctor` says about sandboxes: whether there is what they boot and what they are made of, and how they are
//! limited.

use berth_qemu::groups::possible;

use super::QemuSandboxes;
use crate::engine::Finding;

impl QemuSandboxes {
    /// What this host offers to sandboxes, and what to type for more.
    pub fn findings(&self) -> Vec<Finding> {
        let finding = |good, what: &str, text: String| Finding { good, what: what.into(), text };
        let templates: Vec<String> =
            self.platform_templates().unwrap_or_default().into_iter().map(|template| template.name).collect();
        let built = match self.guest() {
            Ok(_) if templates.is_empty() => finding(false, "sandboxes", "no template; type: script/quickstart".into()),
            Ok(_) => finding(true, "sandboxes", format!("templates {}", templates.join(", "))),
            Err(missing) => finding(false, "sandboxes", missing.to_string()),
        };
        let limited = match possible() {
            Ok(()) => "memory, threads and processors of each machine, by control groups".to_owned(),
            Err(reason) => {
                format!("none: {reason}; run the service as root, or let systemd delegate control groups to it")
            }
        };
        vec![built, finding(true, "limits", limited)]
    }
}
