//! Of what backups are made, as it is typed.

use anyhow::Result;
use berth_client::{NewBackup, ProjectClient};
use clap::Args;

use super::find::{find_data, find_root};
use crate::commands::vm::find as find_vm;

/// Of what a backup is made, or a schedule makes them.
#[derive(Args)]
pub struct TargetArgs {
    /// Disk, by name or id
    #[arg(required_unless_present = "vm")]
    disk: Option<String>,
    /// A root disk volume
    #[arg(long, requires = "disk")]
    root: bool,
    /// All disks of a VM, by name or id
    #[arg(long, conflicts_with = "disk")]
    vm: Option<String>,
}

impl TargetArgs {
    /// Whether it is a VM, so that there may be several.
    pub const fn is_vm(&self) -> bool {
        self.vm.is_some()
    }

    /// What was typed, as a request names it.
    pub async fn find(&self, project: &ProjectClient) -> Result<NewBackup> {
        let mut found = NewBackup::default();
        match (&self.disk, &self.vm) {
            (Some(disk), _) if self.root => found.root_disk_id = Some(find_root(project, disk).await?.id),
            (Some(disk), _) => found.disk_id = Some(find_data(project, disk).await?.id),
            (None, Some(vm)) => found.vm_id = Some(find_vm(project, vm).await?.id),
            (None, None) => {}
        }
        Ok(found)
    }
}
