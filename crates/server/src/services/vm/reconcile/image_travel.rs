//! Carries images of the platform from the service's own host to those that joined.
//!
//! Which go where is decided from what each host says it has (`domain::vm::image_travel`), when hosts come or go, when something
//! has arrived, and every minute, since an image may be built anew beside a running service. No row knows of it: whoever died
//! in the middle left nothing that anybody sees, and the next look begins anew.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use berth_domain::ids::HostId;
use berth_domain::vm::image_travel::{Stock, Travel, next};
use berth_domain::{Result, Timestamp};
use berth_host::vm::travel::{Progress, carry};
use berth_host::vm::{Edition, Engine};
use futures::future::join_all;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::services::fleet::Engines;
use crate::services::vm::{Vms, store};

/// Between two looks, where nothing happens.
const LOOK: Duration = Duration::from_mins(1);
/// How long a host may take to say what it has.
const PATIENCE: Duration = Duration::from_secs(10);
/// Seconds until another try, after one that broke off, and after one that a host refused, as it does where it has no room.
const AGAIN: i64 = 50;
const AFTER_A_REFUSAL: i64 = 600;

/// Hosts that are given time, each for an edition.
type Resting = HashMap<(HostId, Edition), Timestamp>;

/// Has every host get the images that it lacks, until told to stop. What is under way then is given up.
pub async fn watch(vms: Vms, stop: CancellationToken) {
    let (mut changes, mut ticks) = (vms.fleet().changes(), tokio::time::interval(LOOK));
    let (mut going, mut resting) = (JoinSet::new(), Resting::new());
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
            told = changes.changed() => if told.is_err() { return },
            Some(ended) = going.join_next() => resting.extend(ended.ok().flatten()),
        }
        resting.retain(|_, until| *until > vms.clock().now());
        match due(&vms, &resting).await {
            Err(error) => tracing::warn!(%error, "nobody knows which images hosts lack; trying again"),
            Ok(due) => due.into_iter().for_each(|travel| drop(going.spawn(go(vms.clone(), travel)))),
        }
    }
}

/// The travels to begin now.
async fn due(vms: &Vms, resting: &Resting) -> Result<Vec<Travel>> {
    let (own, others): (Vec<_>, Vec<_>) = vms.fleet().all().into_iter().partition(|(host, _)| *host == vms.host());
    if others.is_empty() {
        return Ok(Vec::new());
    }
    let said = async |hosts: Vec<(HostId, Engines)>| -> Vec<Stock> {
        join_all(hosts.into_iter().map(|(host, engines)| stock(host, engines.vm))).await.into_iter().flatten().collect()
    };
    let (own, others) = tokio::join!(said(own), said(others));
    let own: Vec<Edition> = own.into_iter().flat_map(|stock| stock.editions).collect();
    let barred = store::image::that_stay(vms.db()).await?;
    let going: Vec<Travel> = vms.travels().under_way().keys().cloned().collect();
    let may =
        |edition: &Edition, to: HostId| !barred.contains(&edition.id) && !resting.contains_key(&(to, edition.clone()));
    Ok(next(&own, &others, &going, may))
}

/// What a host has; nothing is known of one that does not say.
async fn stock(host: HostId, engine: Arc<dyn Engine>) -> Option<Stock> {
    let said = tokio::time::timeout(PATIENCE, engine.editions()).await.ok()?;
    match said {
        Ok(editions) => Some(Stock { host, editions }),
        Err(error) => {
            tracing::debug!(%host, %error, "a host does not say which images it has");
            None
        }
    }
}

/// Carries an image; answers how long its host is given time, where it did not arrive.
async fn go(vms: Vms, travel: Travel) -> Option<((HostId, Edition), Timestamp)> {
    let progress = Arc::<Progress>::default();
    vms.travels().under_way().insert(travel.clone(), progress.clone());
    let _ended = Ended(&vms, &travel);
    let Travel { edition: Edition { id: image, version, .. }, to } = &travel;
    tracing::info!(image, version, %to, "an image begins to go to another host");
    let began = Instant::now();
    let outcome = async {
        let target = vms.fleet().of(*to)?;
        carry(vms.engine(), &*target.vm, &travel.edition, &progress).await
    };
    let outcome = outcome.await;
    vms.travels().end(&outcome);
    let seconds = began.elapsed().as_secs_f64();
    match outcome {
        Ok(bytes) => {
            tracing::info!(image, version, %to, bytes, seconds, "an image has arrived on another host");
            None
        }
        Err(error) => {
            let bytes = progress.carried.load(Ordering::Relaxed);
            tracing::warn!(image, version, %to, bytes, seconds, %error, "an image has not arrived on another host");
            let again = if error.is_final() { AFTER_A_REFUSAL } else { AGAIN };
            Some(((*to, travel.edition.clone()), vms.clock().now().plus_seconds(again)))
        }
    }
}

/// Takes a travel off the list, however it ends.
struct Ended<'a>(&'a Vms, &'a Travel);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.travels().under_way().remove(self.1);
    }
}
