//! Whether a project may have more: its quota, summed over rows in the transaction that would add to them.

use berth_domain::Result;

use crate::db::Tx;
use crate::http::auth::Scope;
use crate::services::quota::{require_project, within};
use crate::services::vm::store;

/// What would be added.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    /// VMs.
    pub vms: i64,
    /// Virtual CPUs.
    pub vcpu: i64,
    /// Memory, in MiB.
    pub memory_mb: i64,
    /// Disks.
    pub disks: i64,
    /// Disk, in GiB.
    pub disk_gb: i64,
}

/// Refuses with 403 what would exceed the project's quota, and with 404 a project that was deleted meanwhile.
pub(super) async fn admit(tx: &mut Tx, scope: &Scope, wanted: Wanted) -> Result<()> {
    require_project(tx, scope).await?;
    let limits = &scope.limits;
    if [limits.vms, limits.vcpu, limits.memory_mb].iter().any(Option::is_some) {
        let used = store::vm::totals(&mut *tx, scope.into()).await?;
        within("VMs", used.vms, wanted.vms, limits.vms)?;
        within("virtual CPUs", used.vcpu, wanted.vcpu, limits.vcpu)?;
        within("MiB of memory", used.memory_mb, wanted.memory_mb, limits.memory_mb)?;
    }
    if limits.disks.is_some() || limits.disk_gb.is_some() {
        let (disks, disk_gb) = store::disk::totals(&mut *tx, scope.into()).await?;
        within("disks", disks, wanted.disks, limits.disks)?;
        within("GiB of disk", disk_gb, wanted.disk_gb, limits.disk_gb)?;
    }
    Ok(())
}
