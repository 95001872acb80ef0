//! Quotas: what an administrator lets a project have.

use berth_domain::Result;
use berth_domain::ids::ProjectId;
use serde_json::json;

use crate::db::audit::Audit;
use crate::http::auth::{Limits, Person};
use crate::services::identity::{Identity, project_not_found, store};

/// Sets what a project may have; what is there already stays.
pub(in crate::services::identity) async fn set(
    identity: &Identity,
    admin: &Person,
    project: ProjectId,
    limits: Limits,
) -> Result<()> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin().await?;
    let row = store::project::find(&mut tx, project).await?.ok_or_else(project_not_found)?;
    store::quota::put(&mut tx, project, &limits, now).await?;
    let subject = project.to_string();
    let audit = Audit {
        org: Some(row.org),
        project: Some(project),
        data: json!({"vms": limits.vms, "vcpu": limits.vcpu, "memory_mb": limits.memory_mb, "disks": limits.disks,
            "disk_gb": limits.disk_gb, "sandboxes": limits.sandboxes,
            "requests_per_minute": limits.requests_per_minute, "tokens_per_minute": limits.tokens_per_minute,
            "spend_per_month": limits.spend_per_month}),
        ..admin.caller.audit("quota.set", &subject)
    };
    audit.write_and_tell(&mut tx, now).await?;
    tx.commit().await?;
    identity.inner.memory.forget_scopes();
    Ok(())
}
