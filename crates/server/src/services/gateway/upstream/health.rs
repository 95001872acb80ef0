//! Looks after upstreams: whether those whose breaker is open are well again, without risking a request of anybody, and
//! that no connection stays open that nobody will use.

use std::sync::Arc;
use std::time::Duration;

use berth_domain::gateway::breaker::State;
use tokio_util::sync::CancellationToken;

use super::fleet::Fleet;
use super::slot::Upstream;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// How long a look may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Looks until told to stop.
pub async fn watch(fleet: Arc<Fleet>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
        fleet.addresses().for_each(|address| address.origin.tidy());
        let table = fleet.table();
        let doubtful = table.models.iter().flat_map(|entry| &entry.upstreams);
        let looks = doubtful.filter(|upstream| upstream.breaker() != State::Closed).map(|u| look(&fleet, u));
        tokio::select! {
            () = stop.cancelled() => return,
            _ = futures::future::join_all(looks) => {}
        }
    }
}

/// A server that lists its models is well; one that answers anything but a fault of its own is, too.
async fn look(fleet: &Fleet, upstream: &Arc<Upstream>) {
    let Some(address) = upstream.address() else { return };
    let request = address.look();
    let answer = tokio::time::timeout(PATIENCE, fleet.client.send(&address.origin, &request)).await;
    upstream.probed(answer.is_ok_and(|answer| answer.is_ok_and(|answer| answer.status.as_u16() < 429)));
}
