//! Carries what sandboxes boot, the guest, from the service's own host to those that joined.
//!
//! Which host gets it is decided from what each says that it has (`domain::sandbox::guest_travel`), when hosts come or go, when
//! something has arrived, and every minute, since it may be built anew beside a running service. No row knows of it: whoever
//! died in the middle left nothing that anybody sees, and the next look begins anew.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use berth_domain::Timestamp;
use berth_domain::ids::HostId;
use berth_domain::sandbox::guest_travel::{Other, Travel, next};
use berth_host::EngineError;
use berth_host::sandbox::travel::carry_guest;
use futures::future::join_all;
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::db::keeper;
use crate::services::fleet::Engines;
use crate::services::sandbox::Sandboxes;

/// Between two looks, where nothing happens.
const LOOK: Duration = Duration::from_mins(1);
/// How long a host may take to say what it has, and how long a guest may take: some ten MiB.
const PATIENCE: Duration = Duration::from_secs(10);
const CARRYING: Duration = Duration::from_mins(10);
/// Seconds until another try, after one that arrived or broke off, and after one that a host refused, as it does where it has no room.
const AGAIN: i64 = 50;
const AFTER_A_REFUSAL: i64 = 600;

/// Ways that are given time.
type Resting = HashMap<Travel, Timestamp>;

/// Has every host get the guest where it lacks it, until told to stop. What is under way then is given up.
pub async fn watch(sandboxes: Sandboxes, stop: CancellationToken) {
    let (mut changes, mut ticks) = (sandboxes.fleet().changes(), tokio::time::interval(LOOK));
    let (mut tasks, mut going, mut resting) = (JoinSet::new(), HashMap::<Id, Travel>::new(), Resting::new());
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
            told = changes.changed() => if told.is_err() { return },
            Some(ended) = tasks.join_next_with_id() => {
                let (id, again) = ended.unwrap_or_else(|error| (error.id(), None));
                resting.extend(going.remove(&id).zip(again));
            }
        }
        resting.retain(|_, until| *until > sandboxes.clock().now());
        let under_way: Vec<_> = going.values().cloned().collect();
        for travel in due(&sandboxes, &under_way, &resting).await {
            going.insert(tasks.spawn(go(sandboxes.clone(), travel.clone())).id(), travel);
        }
    }
}

/// The travels to begin now, beside those that are under way.
async fn due(sandboxes: &Sandboxes, under_way: &[Travel], resting: &Resting) -> Vec<Travel> {
    let (own, others): (Vec<_>, Vec<_>) =
        sandboxes.fleet().all().into_iter().partition(|(host, _)| *host == sandboxes.host());
    if others.is_empty() {
        return Vec::new();
    }
    let replicas = match keeper::hosts(sandboxes.db()).await {
        Ok(replicas) => replicas,
        Err(error) => {
            tracing::warn!(%error, "which hosts are replicas' is not known; trying again");
            return Vec::new();
        }
    };
    let own = join_all(own.into_iter().map(guest)).await.into_iter().flatten().next();
    let others = join_all(others.into_iter().map(guest)).await.into_iter().flatten();
    let others: Vec<_> =
        others.map(|(host, guest)| Other { host, guest, is_replicas: replicas.contains(&host) }).collect();
    let own = own.and_then(|(_, guest)| guest);
    next(own.as_deref(), &others, under_way, |travel| !resting.contains_key(travel))
}

/// What a host has; nothing is known of one that does not say.
async fn guest((host, engines): (HostId, Engines)) -> Option<(HostId, Option<String>)> {
    match tokio::time::timeout(PATIENCE, engines.sandbox.guest()).await.ok()? {
        Ok(guest) => Some((host, guest)),
        Err(error) => {
            tracing::debug!(%host, %error, "a host does not say what its sandboxes boot");
            None
        }
    }
}

/// Carries it; answers until when the way is given time.
async fn go(sandboxes: Sandboxes, Travel { version, to }: Travel) -> Option<Timestamp> {
    tracing::info!(version, %to, "what sandboxes boot begins to go to another host");
    let began = Instant::now();
    let carried = async {
        let target = sandboxes.fleet().of(to)?;
        let late = || EngineError::Transient("it took too long".into());
        let carried = carry_guest(sandboxes.engine(), &*target.sandbox, &version);
        tokio::time::timeout(CARRYING, carried).await.unwrap_or_else(|_| Err(late()))
    };
    let outcome = carried.await;
    sandboxes.travels().end(&outcome);
    let seconds = began.elapsed().as_secs_f64();
    match outcome {
        Ok(bytes) => {
            tracing::info!(version, %to, bytes, seconds, "what sandboxes boot has arrived on another host");
            // One that does not say so then has to wait: others have their turn.
            Some(sandboxes.clock().now().plus_seconds(AGAIN))
        }
        Err(error) => {
            tracing::warn!(version, %to, seconds, %error, "what sandboxes boot has not arrived on another host");
            let again = if error.is_final() { AFTER_A_REFUSAL } else { AGAIN };
            Some(sandboxes.clock().now().plus_seconds(again))
        }
    }
}
