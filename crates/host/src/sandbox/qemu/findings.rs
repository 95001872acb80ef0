//! What `berth doctor` says about sandboxes: whether there is what they boot and what they are made of, and how they are
//! limited.

use berth_qemu::groups::possible;

use super::QemuSandboxes;
use crate::Finding;

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
        // Where there are none, that is told with what else machines are not confined by.
        let limited = "memory, threads and processors of each machine, by control groups";
        let limits = possible().ok().map(|()| finding(true, "limits", limited.into()));
        std::iter::once(built).chain(limits).collect()
    }
}
