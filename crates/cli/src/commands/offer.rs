//! What is on offer.

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
