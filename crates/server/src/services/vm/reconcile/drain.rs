//! Has VMs leave hosts that are drained.
//!
//! A host is drained for as long as an administrator says so, and what is there may change meanwhile: a VM is stopped, another
//! host gets room. So the rows are looked at every few seconds, and VMs that could leave are asked to: those that are off, all at
//! once, and those that run, a few at a time: they go while they run, or, where they may be restarted, are down until their disks
//! have arrived. A VM that no other host takes, or that cannot go as it is, is asked again after two minutes, and so is one that
//! could not be shut down for so long: another one has its turn meanwhile.

use std::collections::HashMap;
use std::time::Duration;

use berth_domain::Timestamp;
use berth_domain::ids::{HostId, VmId};
use tokio_util::sync::CancellationToken;

use crate::db::{DbError, Signal, Tx, event};
use crate::services::placement::{Refusal, drained};
use crate::services::vm::store::vm::VmRow;
use crate::services::vm::{Vms, store};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(2);
/// VMs of a host that run, or are down, and are on their way to another one at a time.
const AT_ONCE: usize = 2;
/// The same of all hosts: each has a worker for as long as it is on its way.
pub(in crate::services::vm) const IN_ALL: usize = 4;
/// Seconds until a VM is asked again that no other host took, or that did not shut down for so long.
const AGAIN: i64 = 120;
/// What administrators are told of one that does not leave.
const LATE: &str = "it cannot leave now: it stands still, boots, does not answer, or a disk of it is being copied";

/// Whom this service asked.
#[derive(Default)]
struct Asked {
    /// VMs that are not asked for a while to leave a host, since when.
    lately: HashMap<(VmId, HostId), Timestamp>,
    /// VMs that run and are to leave, since when.
    waits: HashMap<VmId, Timestamp>,
}

/// Looks at hosts that are drained, until told to stop.
pub async fn watch(vms: Vms, stop: CancellationToken) {
    let mut asked = Asked::default();
    while stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
        if let Err(error) = look(&vms, &mut asked).await {
            tracing::warn!(%error, "hosts that are drained could not be looked at; trying again");
        }
    }
}

/// Asks VMs to leave, and says of those of other hosts that they stay.
async fn look(vms: &Vms, asked: &mut Asked) -> Result<(), DbError> {
    // Nearly always nothing is drained, and then no writer is kept waiting.
    if drained(vms.db()).await?.is_empty() && store::vm::leaving_for_nothing(vms.db()).await?.is_empty() {
        return Ok(());
    }
    let now = vms.clock().now();
    asked.lately.retain(|_, at| now < at.plus_seconds(AGAIN));
    let mut tx = vms.db().begin().await?;
    let mut stay = store::vm::leaving_for_nothing(&mut tx).await?;
    let (mut leave, mut wait) = (Vec::new(), Vec::new());
    let mut hosts = Vec::new();
    for (host, _) in drained(&mut tx).await? {
        hosts.push((host, usize::try_from(store::vm::leaving(&mut tx, host).await?).unwrap_or(usize::MAX)));
        // However long it takes: where it comes to nothing, others have their turn first.
        asked.lately.extend(store::vm::to_leave(&mut tx, host).await?.into_iter().map(|id| ((id, host), now)));
    }
    let mut turns = IN_ALL.saturating_sub(hosts.iter().fold(0, |all, (_, leaving)| all.saturating_add(*leaving)));
    for (host, leaving) in hosts {
        leave.extend(of_host(&mut tx, (host, leaving), &mut turns, &asked.lately).await?);
        wait.extend(store::vm::asked_on(&mut tx, host).await?);
    }
    let late = asked.late(wait, now);
    for vm in &late {
        let (subject, data) = (vm.id.to_string(), Refusal::everywhere(LATE.to_owned()).event());
        event::emit_to_administrators(&mut tx, vm.project, "vm.unplaced", &subject, &data, now).await?;
        tracing::warn!(vm = %vm.id, reason = LATE, "a VM stays on its host for now");
    }
    let on = |vm: &VmRow| vm.machine.host.map(|host| ((vm.id, host), now));
    let again: Vec<_> = late.iter().chain(&leave).filter_map(on).collect();
    stay.extend(late);
    if stay.is_empty() && leave.is_empty() {
        return Ok(());
    }
    for (vm, leaves) in stay.iter().map(|vm| (vm, false)).chain(leave.iter().map(|vm| (vm, true))) {
        store::vm::update(&mut tx, vm, &VmRow { leaves, work_at: Some(now), ..vm.clone() }).await?;
    }
    tx.signal(Signal::Work("vms"));
    tx.commit().await?;
    asked.lately.extend(again);
    Ok(())
}

impl Asked {
    /// Of VMs that run and are to leave, those that were waited for long enough.
    fn late(&mut self, wait: Vec<VmRow>, now: Timestamp) -> Vec<VmRow> {
        self.waits = wait.iter().map(|vm| (vm.id, self.waits.get(&vm.id).copied().unwrap_or(now))).collect();
        let is_late = |vm: &VmRow| self.waits.get(&vm.id).is_some_and(|since| now >= since.plus_seconds(AGAIN));
        wait.into_iter().filter(is_late).collect()
    }
}

/// The VMs of a host, of which so many are leaving, that are asked now, as long as there are turns for those that run.
async fn of_host(
    tx: &mut Tx,
    (host, leaving): (HostId, usize),
    turns: &mut usize,
    asked: &HashMap<(VmId, HostId), Timestamp>,
) -> Result<Vec<VmRow>, DbError> {
    let may = |vm: &VmRow| !asked.contains_key(&(vm.id, host));
    let mut all: Vec<_> = store::vm::off_on(tx, host).await?.into_iter().filter(may).collect();
    let running = store::vm::running_on(tx, host).await?.into_iter().filter(may);
    let running: Vec<_> = running.take(AT_ONCE.saturating_sub(leaving).min(*turns)).collect();
    *turns -= running.len();
    all.extend(running);
    Ok(all)
}
