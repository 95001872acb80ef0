//! Asks the engine what machines use, while the service runs.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::metrics::{INTERVAL, KEPT, Sample};
use super::{Vms, store};

/// How long a host may take to say what a machine uses.
const PATIENCE: Duration = Duration::from_secs(2);

/// Samples every running machine until told to stop.
pub async fn sample(vms: Vms, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(Duration::from_secs(INTERVAL.unsigned_abs()));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let Ok(machines) = store::vm::machines(vms.db()).await else {
            continue;
        };
        for (id, machine, host) in machines {
            let Ok(engine) = vms.engine_of(host) else { continue };
            if let Ok(Some(usage)) = tokio::time::timeout(PATIENCE, engine.usage(machine)).await {
                vms.metrics().add(id, Sample { at: vms.clock().now(), usage });
            }
        }
        vms.metrics().forget(vms.clock().now().plus_seconds(-KEPT));
    }
}
