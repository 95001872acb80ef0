//! Has what belongs to sandboxes leave hosts that are drained.
//!
//! A host is drained for as long as an administrator says so, so the rows are looked at every few seconds, as those of VMs are
//! (`vm::reconcile::drain`). Sandboxes that are paused or have failed leave, with their memories; those that run do where all is
//! to leave: they are paused for it, go over, and are resumed. A few at a time. What sandboxes, snapshots and templates lie on
//! leaves by itself: once another host has all of it, that is its home, and what is left is a copy, which goes with it. Whatever
//! no host takes is asked again after two minutes.

use std::collections::HashMap;
use std::time::Duration;

use berth_domain::Timestamp;
use berth_domain::host::Drain;
use berth_domain::ids::{HostId, LayerId, SandboxId};
use berth_domain::sandbox::MemoryKind;
use berth_domain::sandbox::layer_copy::{Departure, Lying, departure, lacking};
use tokio_util::sync::CancellationToken;

use super::StepError;
use super::capacity::{Asked, Offers, offers, place};
use super::memory_travel::{self, Travelled};
use super::sandbox::{DOWN, SandboxLife, warm_again};
use crate::services::placement::{drain_of, drained, takers};
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::store;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(2);
/// Sandboxes of a host that are on their way to another one at a time.
const AT_ONCE: usize = 2;
/// While so many layers come to hosts, no others are wished: who waits for too long is given up.
const COMING: i64 = 16;
/// Seconds until what no host took is asked again.
const AGAIN: i64 = 120;
/// The same of a sandbox that is paused in order to leave, for at most half of it: that may have been for nothing.
const AFTER_A_PAUSE: i64 = 2 * DOWN;
/// Seconds after which nobody remembers that something rested.
const FORGOTTEN: i64 = 86_400;
/// How long a memory of a snapshot or template may take.
const CARRYING: Duration = Duration::from_hours(1);

/// What this service did for layers lately, and when.
#[derive(Default)]
struct Lately {
    /// Layers for which a host was looked for.
    asked: HashMap<LayerId, Timestamp>,
    /// Layers with memories that another host does not take.
    stuck: HashMap<LayerId, Timestamp>,
}

/// Looks at hosts that are drained, until told to stop. Sandboxes do not wait for the memories of snapshots.
pub async fn watch(sandboxes: Sandboxes, stop: CancellationToken) {
    let both = async {
        tokio::join!(watch_sandboxes(&sandboxes), watch_layers(&sandboxes));
    };
    stop.run_until_cancelled(Box::pin(both)).await;
}

async fn watch_sandboxes(sandboxes: &Sandboxes) {
    let (life, mut rest) = (SandboxLife::new(sandboxes.clone()), HashMap::new());
    loop {
        tokio::time::sleep(LOOK).await;
        if let Err(error) = look(sandboxes, &life, &mut rest).await {
            tracing::warn!(?error, "sandboxes of hosts that are drained could not be looked at; trying again");
        }
    }
}

async fn watch_layers(sandboxes: &Sandboxes) {
    let mut lately = Lately::default();
    loop {
        tokio::time::sleep(LOOK).await;
        if let Err(error) = look_at_layers(sandboxes, &mut lately).await {
            tracing::warn!(?error, "layers of hosts that are drained could not be looked at; trying again");
        }
    }
}

/// Has sandboxes leave that do not rest, which they do until then.
async fn look(
    sandboxes: &Sandboxes,
    life: &SandboxLife,
    rest: &mut HashMap<SandboxId, Timestamp>,
) -> Result<(), StepError> {
    let now = sandboxes.clock().now();
    rest.retain(|_, until| now < until.plus_seconds(FORGOTTEN));
    for (host, drain) in drained(sandboxes.db()).await? {
        let moving = store::leaving::moving_from(sandboxes.db(), host).await?;
        let all = store::leaving::could_leave(sandboxes.db(), host, drain == Drain::All).await?;
        let mut due: Vec<_> = all.into_iter().filter(|id| rest.get(id).is_none_or(|until| now >= *until)).collect();
        // Whoever rested longest has his turn, so that those that nobody takes keep no others waiting.
        due.sort_by_key(|id| rest.get(id).copied());
        due.truncate(AT_ONCE.saturating_sub(usize::try_from(moving).unwrap_or(AT_ONCE)));
        if due.is_empty() {
            continue;
        }
        let offers = offers(sandboxes, true).await?;
        for id in due {
            let is_paused_for_it = life.send(id, (host, drain), &offers).await?;
            rest.insert(id, now.plus_seconds(if is_paused_for_it { AFTER_A_PAUSE } else { AGAIN }));
        }
    }
    Ok(())
}

async fn look_at_layers(sandboxes: &Sandboxes, lately: &mut Lately) -> Result<(), StepError> {
    let now = sandboxes.clock().now();
    for map in [&mut lately.asked, &mut lately.stuck] {
        map.retain(|_, at| now < at.plus_seconds(AGAIN));
    }
    for (host, _) in drained(sandboxes.db()).await? {
        for layer in store::layer::leaving(sandboxes.db(), host).await? {
            if lately.stuck.contains_key(&layer) {
                continue;
            }
            if let Err(error) = send_layer(sandboxes, layer, host, lately).await {
                tracing::warn!(%layer, %host, ?error, "a layer cannot leave its host, which is drained; trying again later");
                lately.stuck.insert(layer, now);
            }
        }
    }
    Ok(())
}

/// Does the next thing for a layer that is to leave a host.
async fn send_layer(sandboxes: &Sandboxes, layer: LayerId, from: HostId, lately: &mut Lately) -> Result<(), StepError> {
    let now = sandboxes.clock().now();
    let chain = store::layer_copy::chain(sandboxes.db(), layer).await?;
    let can = takers(sandboxes.db()).await?;
    match departure(&chain, &can, sandboxes.host()) {
        Departure::Waits => Ok(()),
        Departure::To(to) => {
            if !move_home(sandboxes, &chain, (from, to)).await? {
                lately.stuck.insert(layer, now);
            }
            Ok(())
        }
        Departure::Asks if lately.asked.contains_key(&layer) => Ok(()),
        Departure::Asks if store::layer_copy::coming(sandboxes.db()).await? >= COMING => Ok(()),
        Departure::Asks => {
            lately.asked.insert(layer, now);
            want(sandboxes, layer, from, &offers(sandboxes, false).await?).await
        }
    }
}

/// Wishes a layer with what it lies on on a host that has room.
async fn want(sandboxes: &Sandboxes, layer: LayerId, from: HostId, offers: &Offers) -> Result<(), StepError> {
    let mut tx = sandboxes.db().begin().await?;
    let chain = store::layer_copy::chain(&mut tx, layer).await?;
    let asked = Asked { makes_disk: true, ground: Some(&chain), ..Asked::machines((0, 0), 1) };
    let placed = match place(&mut tx, sandboxes, offers, asked).await? {
        Ok(placed) if placed.host != from => placed,
        Ok(_) => return Ok(()),
        Err(refusal) => {
            tracing::warn!(%layer, %from, hosts = ?refusal.hosts, "a layer stays on its host, which is drained");
            return Ok(());
        }
    };
    let layers = lacking(&chain, placed.host, sandboxes.host());
    store::layer_copy::want(&mut tx, &layers, placed.host, sandboxes.clock().now()).await?;
    Ok(tx.commit().await?)
}

/// Has the layers of a disk be at home on a host that has them, with the memories that belong to them; false where one of these
/// cannot be there.
async fn move_home(sandboxes: &Sandboxes, chain: &[Lying], (from, to): (HostId, HostId)) -> Result<bool, StepError> {
    let Some(layer) = chain.first().map(|top| top.layer) else { return Ok(true) };
    let (mut memories, mut gone, mut renewed) = (Vec::new(), Vec::new(), Vec::new());
    for lying in chain {
        memories.extend(store::memory::shared_of(sandboxes.db(), lying.layer, from).await?);
    }
    for memory in memories {
        if store::memory::is_named_on(sandboxes.db(), memory.id, from).await? {
            // A sandbox is about to begin with it there, or takes it along.
            return Ok(false);
        }
        match memory_travel::bring(sandboxes, memory.id, to, CARRYING).await? {
            Travelled::There => gone.push(memory.id),
            // The template is booted anew where it is by then.
            Travelled::Refused(_) if memory.kind == MemoryKind::Template => renewed.push(memory.id),
            Travelled::Refused(reason) | Travelled::NoRoom(reason) => {
                tracing::warn!(%layer, memory = %memory.id, %from, reason, "a snapshot stays on its host, which is drained");
                return Ok(false);
            }
        }
    }
    let now = sandboxes.clock().now();
    let mut tx = sandboxes.db().begin().await?;
    let chain = store::layer_copy::chain(&mut tx, layer).await?;
    let can: Vec<_> = takers(&mut tx).await?.into_iter().filter(|host| *host == to).collect();
    let is_drained = drain_of(&mut tx, Some(from)).await?.is_some();
    if !is_drained || departure(&chain, &can, sandboxes.host()) != Departure::To(to) {
        return Ok(true);
    }
    store::layer_copy::rehome(&mut tx, &chain, from, to, now).await?;
    for memory in &gone {
        if !store::memory::go_over(&mut tx, *memory, to).await? {
            // It went elsewhere meanwhile, or is nobody's any more.
            return Ok(true);
        }
    }
    for memory in renewed {
        if let Some(template) = store::template::of_memory(&mut tx, memory).await? {
            warm_again(&mut tx, template.id, memory, now).await?;
        }
    }
    tx.commit().await?;
    tracing::info!(%layer, %from, %to, "a layer is at home on another host");
    for memory in gone {
        memory_travel::forget_former(sandboxes, memory, from).await;
    }
    Ok(true)
}
