//! What is on offer.

use anyhow::Result;
use serde_json::json;

use crate::context::Context;
use crate::output::{self, Table, money};

pub async fn catalog(context: &Context) -> Result<()> {
    let (regions, configs, plans) = (
        context.client.regions().await?.data,
        context.client.vm_configs().await?.data,
        context.client.plans().await?.data,
    );
    if context.look.is_json() {
        return output::json(&json!({ "regions": regions, "vm_configs": configs, "plans": plans }));
    }
    let sizes = configs.into_iter().map(|c| {
        let gpus = c.gpu_model.map_or_else(|| "-".into(), |model| format!("{} x {model}", c.gpu_max));
        [c.id, c.vcpu.to_string(), format!("{} MiB", c.memory_mb), gpus]
    });
    Table::new(["SIZE", "VCPU", "MEMORY", "GPU"], sizes, "No sizes are configured.").print(context.look);
    output::say(context.look, "");
    Table::new(["REGION", "NAME"], regions.into_iter().map(|r| [r.id, r.name]), "No regions are configured.")
        .print(context.look);
    output::say(context.look, "");
    let plans = plans.into_iter().map(|p| {
        let prices = [p.price.vcpu_hour, p.price.memory_gb_hour, p.price.gpu_hour].map(money);
        let [vcpu, memory, gpu] = prices;
        [p.id, p.name, vcpu, memory, gpu]
    });
    let columns = ["PLAN", "NAME", "VCPU HOUR", "GIB HOUR", "GPU HOUR"];
    Table::new(columns, plans, "No plans are configured.").print(context.look);
    Ok(())
}
