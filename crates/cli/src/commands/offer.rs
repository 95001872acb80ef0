//! What is on offer and what is used of it.

use anyhow::Result;
use serde_json::json;

use crate::context::Context;
use crate::output;

pub async fn catalog(context: &Context) -> Result<()> {
    let (regions, configs, plans) = (
        context.client.regions().await?.data,
        context.client.vm_configs().await?.data,
        context.client.plans().await?.data,
    );
    if context.json {
        return output::json(&json!({ "regions": regions, "vm_configs": configs, "plans": plans }));
    }
    let sizes = configs.into_iter().map(|c| {
        let gpus = c.gpu_model.map_or_else(|| "-".into(), |model| format!("{} x {model}", c.gpu_max));
        [c.id, c.vcpu.to_string(), format!("{} MiB", c.memory_mb), gpus]
    });
    output::table(["SIZE", "VCPU", "MEMORY", "GPU"], sizes, "No sizes are configured.");
    println!();
    output::table(["REGION", "NAME"], regions.into_iter().map(|r| [r.id, r.name]), "No regions are configured.");
    println!();
    output::table(["PLAN", "NAME"], plans.into_iter().map(|p| [p.id, p.name]), "No plans are configured.");
    Ok(())
}

pub async fn quota(context: &Context) -> Result<()> {
    let quota = context.project()?.quota().await?;
    if context.json {
        return output::json(&quota);
    }
    let named = [
        ("VMs", quota.vms),
        ("vCPUs", quota.vcpu),
        ("memory (MiB)", quota.memory_mb),
        ("disks", quota.disks),
        ("disk (GiB)", quota.disk_gb),
    ];
    let rows = named.map(|(name, q)| {
        [name.to_owned(), q.used.to_string(), q.limit.map_or_else(|| "unlimited".into(), |l| l.to_string())]
    });
    output::table(["WHAT", "USED", "LIMIT"], rows, "");
    Ok(())
}
