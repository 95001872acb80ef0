//! Keeps warm machines: makes those that are wanted, and ends those that are not.
//!
//! A machine's row is there before the machine, and goes after it. What a service that died left is found by the rows:
//! what was ready and still runs is had by whoever comes next, and what was being made is ended. One that dies is ended
//! as soon as that is told. Whoever got it in between begins from its disk, and its memory is not taken for unloadable.
//! Each host has its own, of the memories that lie there, and one keeper for as long as it can be asked.

use std::collections::HashSet;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_domain::Result;
use berth_domain::host::placement::Room;
use berth_domain::ids::{HostId, LayerId, MachineId, MemoryId};
use berth_domain::machine::Owner;
use berth_domain::sandbox::network_policy::NetworkPolicy;
use berth_host::EngineError;
use berth_host::sandbox::{Aim, From, SandboxEngine, StartSpec};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::StepError;
use super::capacity::{Asked, offer, place};
use crate::db::Signal;
use crate::db::machine::{self, Machine};
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::store;
use crate::services::sandbox::store::layer::LayerRow;
use crate::services::sandbox::store::template::TemplateRow;
use crate::services::sandbox::warm::WarmPool;

/// Those that are made at the same time, so that one that hangs does not hold up the others. Of memories whose last one
/// failed one is made at a time, however many there are.
const AT_ONCE: usize = 2;
/// The one start of a machine that nobody owns, which is the first one of whoever gets it.
const FIRST: i64 = 1;
/// Between two looks at those that are not wanted any more.
const LOOK: Duration = Duration::from_secs(30);

/// What keeps the warm machines of a host.
#[derive(Clone)]
struct Keeper {
    sandboxes: Sandboxes,
    host: HostId,
    engine: Arc<dyn SandboxEngine>,
    pool: Arc<WarmPool>,
}

/// Before the first request: nobody gets a machine that an earlier service left, but for those of the service's own host that
/// are alive and still nobody's.
pub async fn prepare(sandboxes: &Sandboxes) -> Result<()> {
    let (db, host, engine) = (sandboxes.db(), sandboxes.host(), sandboxes.engine());
    let mut tx = db.begin().await?;
    machine::forgo_elsewhere(&mut tx, host).await?;
    tx.commit().await?;
    for machine in machine::all_warm(db, host).await?.into_iter().filter(|machine| machine.ready) {
        match machine.owner {
            // One that cannot be asked is taken for dead.
            Owner::Warm(memory) if engine.is_warm(machine.id).await.unwrap_or(false) => {
                if let Some(pool) = sandboxes.warm(host) {
                    pool.found(memory);
                }
            }
            _ => {
                let mut tx = db.begin().await?;
                machine::update(&mut tx, &machine, &Machine { ready: false, ..machine.clone() }).await?;
                tx.commit().await?;
            }
        }
    }
    Ok(())
}

/// Keeps those of every host, until told to stop, and ends them then, unless they are another service's by then.
pub async fn watch(sandboxes: Sandboxes, stop: CancellationToken, taken_over: CancellationToken) {
    let (fleet, stopped) = (sandboxes.fleet().clone(), stop.clone());
    // Heard from before the first keeper looks.
    let relayed = relay(sandboxes.db().watch(), sandboxes.clone(), stop.clone());
    let kept = fleet.each(stop, |host, engines, ending| {
        let (sandboxes, stopped, taken_over) = (sandboxes.clone(), stopped.clone(), taken_over.clone());
        let engine = engines.sandbox;
        async move {
            // Which the service's own host found is known since before the first request.
            let here = sandboxes.warm(host).filter(|_| host == sandboxes.host());
            let pool = here.unwrap_or_else(|| Arc::new(WarmPool::new(engine.most_warm())));
            sandboxes.set_warm(host, pool.clone());
            let keeper = Keeper { sandboxes, host, engine, pool: pool.clone() };
            keep(&keeper, &ending).await;
            if !stopped.is_cancelled() {
                // The host is asked no more: whoever asks it next ends what is there.
                keeper.sandboxes.forget_warm(host, &pool);
            } else if !taken_over.is_cancelled() {
                end_kept(&keeper).await;
            }
        }
    });
    tokio::join!(relayed, kept);
}

/// Tells keepers what commits changed, until told to stop: the one of the host that it is about, where each of them would wake
/// for every step of every machine of the service.
async fn relay(mut signals: Receiver<Signal>, sandboxes: Sandboxes, stop: CancellationToken) {
    loop {
        let heard = tokio::select! {
            () = stop.cancelled() => return,
            heard = signals.recv() => heard,
        };
        match heard {
            Ok(Signal::Warm(host)) => sandboxes.warm(host).iter().for_each(|pool| pool.note_change()),
            Ok(Signal::Work(store::template::TABLE)) => {
                sandboxes.all_warm().iter().for_each(|pool| pool.note_template());
            }
            Ok(_) => {}
            Err(RecvError::Lagged(_)) => sandboxes.all_warm().iter().for_each(|pool| pool.note_change()),
            Err(RecvError::Closed) => return,
        }
    }
}

/// Keeps those of a host until told to stop.
async fn keep(keeper: &Keeper, stop: &CancellationToken) {
    let mut tick = tokio::time::interval(LOOK);
    // Each is made in a task of its own: a maker that holds the database's writer goes on while the keeper waits for it.
    let mut making = JoinSet::new();
    loop {
        // Whatever becomes due behind this is waited for below.
        let looked = Instant::now();
        while making.len() < AT_ONCE
            && let Some(machine) = next(keeper).await
        {
            let keeper = keeper.clone();
            making.spawn(async move { (machine.id, make(&keeper, machine).await) });
        }
        tokio::select! {
            () = stop.cancelled() => break,
            () = keeper.pool.wanted() => {}
            Some(made) = making.join_next() => finish(&keeper.pool, made),
            () = sleep_until(keeper.pool.next_try(looked).into()) => {}
            _ = tick.tick() => end_unwanted(keeper).await,
            () = keeper.pool.changed() => end_unwanted(keeper).await,
        }
    }
    making.shutdown().await;
}

/// Ends all of a host.
async fn end_kept(keeper: &Keeper) {
    match machine::all_warm(keeper.sandboxes.db(), keeper.host).await {
        // A maker that was called off may have recorded its machine as ready since the look.
        Ok(all) => end_all(keeper, all.into_iter().map(|it| Machine { ready: true, ..it }).collect()).await,
        Err(error) => tracing::warn!(%error, "warm machines cannot be ended; the next service finds them"),
    }
}

/// The row of the next one that is wanted, if there is room for it.
async fn next(keeper: &Keeper) -> Option<Machine> {
    let all = machine::all_warm(keeper.sandboxes.db(), keeper.host).await.ok()?;
    let id = machine::new_id();
    let memory = keeper.pool.next(&all, id)?;
    let begun = begin(keeper, id, memory).await;
    match begun {
        Ok(Some(machine)) => return Some(machine),
        Ok(None) => keeper.pool.forget(memory),
        Err(error) => tracing::debug!(?error, "no warm machine can be made now"),
    }
    keeper.pool.finish(id, false);
    None
}

/// Writes the rows of a machine and of its disk; none where no template has that memory any more.
async fn begin(keeper: &Keeper, id: MachineId, memory: MemoryId) -> Result<Option<Machine>, StepError> {
    let (sandboxes, host) = (&keeper.sandboxes, keeper.host);
    let (now, offers) = (sandboxes.clock().now(), offer(sandboxes, host, false).await?);
    let mut tx = sandboxes.db().begin().await?;
    let Some(template) = store::template::of_memory(&mut tx, memory).await? else { return Ok(None) };
    let machines = Asked::machines((template.vcpu, template.memory_mb), 1);
    let asked = Asked { makes_disk: true, tied: Some(host), ..machines };
    let found = match place(&mut tx, sandboxes, &offers, asked).await? {
        Ok(placed) if placed.room == Room::Beside => Ok(placed),
        Ok(_) => Err("the host has no room for one".to_owned()),
        Err(refusal) => Err(format!("no host takes one: {}", refusal.hosts.join("; "))),
    };
    let placed = found.map_err(EngineError::Transient)?;
    let layer = LayerId(Uuid::now_v7());
    let (org, project) = (template.org, template.project);
    let row = LayerRow {
        id: layer,
        parent: template.layer,
        org,
        project,
        host: Some(host),
        frozen: false,
        made: false,
        created_at: now,
    };
    store::layer::insert(&mut tx, &row).await?;
    let mut machine = Machine::new(id, Owner::Warm(memory), template.vcpu, template.memory_mb);
    machine::reserve(&mut tx, placed.host, placed.room, slice::from_mut(&mut machine)).await?;
    machine.layer = Some(layer);
    machine::insert(&mut tx, &machine).await?;
    tx.commit().await?;
    Ok(Some(machine))
}

/// Notes how the making of a machine ended. The keeper notes it and chooses the next one, so that it counts no machine
/// twice and misses none.
///
/// # Panics
/// Its maker did: the service ends, and the next one knows what is there.
fn finish(warm: &WarmPool, made: Result<(MachineId, bool), JoinError>) {
    match made.map_err(JoinError::try_into_panic) {
        Ok((id, is_made)) => warm.finish(id, is_made),
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_)) => {}
    }
}

/// Makes one, and ends it if nobody wants it any more. Whether it is there.
async fn make(keeper: &Keeper, machine: Machine) -> bool {
    let made = match machine.owner {
        Owner::Warm(memory) => try_make(keeper, &machine, memory).await,
        _ => Ok(false),
    };
    if let Err(error) = &made {
        tracing::debug!(?error, "no warm machine could be made");
    }
    let is_made = matches!(made, Ok(true));
    if !is_made {
        end_all(keeper, vec![machine]).await;
    }
    is_made
}

/// Makes one. Whether it is still wanted then.
async fn try_make(keeper: &Keeper, machine: &Machine, memory: MemoryId) -> Result<bool, StepError> {
    super::fault("warm", "make", "intent").await?;
    let (db, engine) = (keeper.sandboxes.db(), &keeper.engine);
    let Some(template) = store::template::of_memory(db, memory).await? else { return Ok(false) };
    let (Some(layer), Some(slot)) = (machine.layer, machine.slot) else { return Ok(false) };
    let layers = store::layer::chain(db, layer).await?;
    let [top, base, ..] = layers[..] else { return Ok(false) };
    engine.make_layer(top, base).await?;
    engine.warm_up(&spec(machine, memory, template, slot, layers)).await?;
    super::fault("warm", "make", "done").await?;
    let mut tx = db.begin().await?;
    let found = machine::find(&mut tx, machine.id).await?;
    // One that gave way meanwhile holds nothing any more.
    let Some(before) = found.filter(|found| found.reserved) else { return Ok(false) };
    store::layer::made(&mut tx, layer).await?;
    machine::update(&mut tx, &before, &Machine { ready: true, ..before.clone() }).await?;
    tx.commit().await?;
    Ok(true)
}

fn spec(machine: &Machine, memory: MemoryId, template: TemplateRow, slot: i64, layers: Vec<LayerId>) -> StartSpec {
    StartSpec {
        id: machine.id,
        guest: machine.id.to_string(),
        generation: FIRST,
        slot,
        hostname: "warm".into(),
        vcpu: machine.vcpu,
        memory_mb: machine.memory_mb,
        layers,
        from: From::Memory(memory),
        fresh: true,
        env: std::collections::BTreeMap::new(),
        user: template.run_user,
        workdir: template.workdir,
        network: NetworkPolicy::default(),
        networks: Vec::new(),
        gpus: Vec::new(),
        // Programs of the platform bear to become somebody while they run; those of a project's template may not.
        rehearsal: template.ready_command.filter(|_| template.org.is_none()),
    }
}

/// Ends those that are dead, and those that nobody wants.
async fn end_unwanted(keeper: &Keeper) {
    match unwanted(keeper).await {
        Ok(machines) => end_all(keeper, machines).await,
        Err(error) => tracing::warn!(?error, "warm machines cannot be looked at; trying again later"),
    }
}

async fn unwanted(keeper: &Keeper) -> Result<Vec<Machine>, StepError> {
    let (mut there, mut dead, db) = (Vec::new(), Vec::new(), keeper.sandboxes.db());
    let mut memories = HashSet::new();
    for machine in machine::all_warm(db, keeper.host).await? {
        if let Owner::Warm(memory) = machine.owner
            && memories.insert(memory)
            && store::template::of_memory(db, memory).await?.is_none()
        {
            keeper.pool.forget(memory);
        }
        // Whether one that was made still runs, and nobody's.
        let is_there = !machine.ready || keeper.engine.is_warm(machine.id).await?;
        if is_there { there.push(machine) } else { dead.push(machine) }
    }
    dead.extend(keeper.pool.surplus(&there));
    Ok(dead)
}

/// Ends machines, if nobody got them meanwhile. What cannot be ended now is tried again with the next look.
async fn end_all(keeper: &Keeper, machines: Vec<Machine>) {
    for machine in machines {
        if let Err(error) = end(keeper, &machine).await {
            tracing::warn!(machine = %machine.id, ?error, "a warm machine cannot be ended; trying again later");
        }
    }
}

async fn end(keeper: &Keeper, machine: &Machine) -> Result<(), StepError> {
    let sandboxes = &keeper.sandboxes;
    let mut tx = sandboxes.db().begin().await?;
    let found = machine::find(&mut tx, machine.id).await?;
    let Some(before) = found.filter(|now| may_end(machine, now)) else { return Ok(()) };
    // From here on nobody gets it.
    machine::update(&mut tx, &before, &Machine { ready: false, ..before.clone() }).await?;
    tx.commit().await?;
    // Its row may be an older copy's, and count fewer starts than its host.
    let aim = Aim::uncounted(machine.id);
    keeper.engine.end(aim).await?;
    keeper.engine.discard(aim).await?;
    let mut tx = sandboxes.db().begin().await?;
    machine::remove(&mut tx, machine.id).await?;
    if let Some(layer) = machine.layer {
        store::layer::look_at(&mut tx, layer, sandboxes.clock().now()).await?;
    }
    Ok(tx.commit().await?)
}

/// Whether what was decided of a machine by what was seen of it holds for what it is now: nobody owns it, and nobody has
/// made it ready since.
fn may_end(seen: &Machine, now: &Machine) -> bool {
    matches!(now.owner, Owner::Warm(_)) && (seen.ready || !now.ready)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use berth_domain::ids::SandboxId;

    use super::*;

    fn warm(ready: bool) -> Machine {
        Machine { ready, ..Machine::new(machine::new_id(), Owner::Warm(MemoryId(Uuid::nil())), 1, 256) }
    }

    #[test]
    fn one_that_was_made_ready_or_got_an_owner_meanwhile_stays() {
        let owned = Machine { owner: Owner::Sandbox(SandboxId(Uuid::nil())), ..warm(true) };
        for (seen, now, ends) in [(false, warm(true), false), (true, warm(true), true), (false, warm(false), true)] {
            assert_eq!(may_end(&warm(seen), &now), ends, "{seen} {now:?}");
        }
        assert!(!may_end(&warm(true), &owned));
    }

    #[tokio::test]
    async fn a_maker_that_panics_ends_the_service() {
        let (pool, id, memory) = (WarmPool::new(1), machine::new_id(), MemoryId(Uuid::nil()));
        pool.asked(memory);
        assert_eq!(pool.next(&[], id), Some(memory));
        let panicked = tokio::spawn(async { panic!("a maker's") }).await;
        assert!(catch_unwind(AssertUnwindSafe(|| finish(&pool, panicked))).is_err());
        let stopped = tokio::spawn(std::future::pending());
        stopped.abort();
        finish(&pool, stopped.await);
        assert_eq!(pool.next(&[], machine::new_id()), None, "what is told to stop says nothing");
        finish(&pool, Ok((id, true)));
        assert_eq!(pool.next(&[], machine::new_id()), Some(memory));
    }
}
