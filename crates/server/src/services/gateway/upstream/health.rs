//! Looks after upstreams: checks whether those with an open breaker are well again, so that no client's request is
//! risked on them, and closes connections that nothing will use.

use std::sync::Arc;
use std::time::Duration;

use berth_domain::gateway::breaker::State;
use tokio_util::sync::CancellationToken;

use super::fleet::Fleet;
use super::slot::Upstream;

/// Pause between two checks.
const LOOK: Duration = Duration::from_secs(1);
/// How long a check may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Checks until told to stop.
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

/// A server that lists its models is well; so is one that answers with anything but a server error.
async fn look(fleet: &Fleet, upstream: &Arc<Upstream>) {
    let Some(address) = upstream.address() else { return };
    let request = address.look();
    let answer = tokio::time::timeout(PATIENCE, fleet.client.send(&address.origin, &request)).await;
    upstream.probed(answer.is_ok_and(|answer| answer.is_ok_and(|answer| answer.status.as_u16() < 429)));
}
