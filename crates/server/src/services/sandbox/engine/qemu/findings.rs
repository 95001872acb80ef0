//! What `berth doctor` says about sandboxes: whether there is what they boot and what they are made of, and how they are
//! confined.

use berth_qemu::sandbox::can_limit;

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
        let confined = if rustix::process::geteuid().is_root() {
            "each machine as a user of its own in an empty folder, behind a filter of system calls"
        } else {
            "a filter of system calls alone; run the service as root for a user and a folder of each machine's own"
        };
        let limited = if can_limit() {
            "memory and threads of each machine, by control groups"
        } else {
            "none: this service may not make control groups; run it as root, or let systemd delegate them to it"
        };
        vec![built, finding(true, "confinement", confined.into()), finding(true, "limits", limited.into())]
    }
}
