//! What is on offer here: the configuration's sizes, and one for each model of GPU that the host has.

use berth_host::vm::Engine;

use crate::config::{Config, Share};

/// The configuration with what the host has. A host that does not say keeps nothing else from being offered.
pub(super) async fn with_gpus(config: &Config, engine: &dyn Engine) -> Config {
    let found = async { Ok::<_, berth_host::EngineError>((engine.gpus().await?, engine.capacity().await?)) };
    let (gpus, capacity) = match found.await {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(%error, "the host does not say which GPUs it has; none is offered");
            return config.clone();
        }
    };
    for gpu in &gpus {
        for kind in gpu.offered() {
            tracing::info!(address = %gpu.address, model = kind.model, most = kind.most, "a part of a GPU can be handed out");
        }
        match &gpu.unavailable {
            None => tracing::info!(address = %gpu.address, model = gpu.model, "a GPU can be handed out"),
            Some(why) => tracing::info!(address = %gpu.address, model = gpu.model, why, "a GPU cannot be handed out"),
        }
    }
    let share = Share::of(
        whole(capacity.vcpu, config.vm.cpu_overcommit),
        whole(capacity.memory_mb, config.vm.memory_overcommit),
        &gpus,
    );
    Config { catalog: config.catalog.with_gpus(&gpus, share), ..config.clone() }
}

/// What there is, of what is promised.
#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "capacities are far below 2^52")]
fn whole(promised: i64, factor: f64) -> i64 {
    (promised as f64 / factor) as i64
}
