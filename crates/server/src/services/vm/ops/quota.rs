//! Whether a project may have more: its quota, summed over rows in the transaction that would add to them.

use berth_domain::{Code, Error, Result};

use crate::db::{Tx, tenant};
use crate::http::auth::Scope;
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
    if !tenant::lives(tx, scope.project).await? {
        return Err(Error::new(Code::ProjectNotFound, "There is no such project, or you do not belong to it."));
    }
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

fn within(what: &str, used: i64, wanted: i64, limit: Option<i64>) -> Result<()> {
    match limit {
        Some(limit) if wanted > 0 && used.saturating_add(wanted) > limit => Err(Error::new(
            Code::QuotaExceeded,
            format!(
                "The project may have {limit} {what}; it has {used} and this needs {wanted} more. \
                 Delete something, or ask an administrator of the platform for more."
            ),
        )),
        _ => Ok(()),
    }
}
