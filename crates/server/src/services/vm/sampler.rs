//! Asks hosts what machines use, while the service runs.

use std::time::Duration;

use berth_domain::ids::{HostId, MachineId, VmId};
use futures::StreamExt;
use tokio_util::sync::CancellationToken;

use super::metrics::{INTERVAL, KEPT, Sample};
use super::{Vms, store};
use crate::services::fleet::each_host;

/// How long a host may take to say what a machine uses.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a round may take; the next one begins with others.
const ROUND: Duration = Duration::from_secs(8);
/// Machines of a host that are asked for at the same time.
const AT_ONCE: usize = 4;

/// Samples every running machine until told to stop.
pub async fn sample(vms: Vms, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(Duration::from_secs(INTERVAL.unsigned_abs()));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut turn = 0_usize;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let Ok(machines) = store::vm::machines(vms.db()).await else {
            continue;
        };
        let machines = machines.into_iter().map(|(id, machine, host)| (host, (id, machine, host)));
        turn = turn.wrapping_add(1);
        let round = each_host(machines, (AT_ONCE, turn), |machine| ask(&vms, machine));
        round.take_until(tokio::time::sleep(ROUND)).for_each(async |()| ()).await;
        vms.metrics().forget(vms.clock().now().plus_seconds(-KEPT));
    }
}

/// Notes what a machine uses, if its host says it in time.
async fn ask(vms: &Vms, (id, machine, host): (VmId, MachineId, Option<HostId>)) {
    let Ok(engine) = vms.engine_of(host) else { return };
    if let Ok(Some(usage)) = tokio::time::timeout(PATIENCE, engine.usage(machine)).await {
        vms.metrics().add(id, Sample { at: vms.clock().now(), usage });
    }
}
