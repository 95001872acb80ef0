//! The hosts that a service can ask at this moment.
//!
//! The service's own host is always among them. One that is asked over the network comes once it has said what it is, and
//! goes when it is removed; while it merely does not answer it stays, and what it is asked fails for now. So whoever acts
//! on something that is on a host asks [`Fleet::of`] that host, and treats a host that is not there like one that does not
//! answer: it tries again.

use std::collections::HashMap;
use std::sync::Arc;

use berth_domain::ids::HostId;
use berth_host::network::NetworkEngine;
use berth_host::sandbox::SandboxEngine;
use berth_host::vm::Engine;
use berth_host::{EngineError, Result};
use futures::stream::{self, Stream, StreamExt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::host;
use crate::db::{DbError, Tx};

/// What is told of a machine whose host is lost. What its status or phase says was so when that answered last.
const HOST_LOST: &str =
    "the host that it is on does not answer; it may go on there, and what is asked of it is done once the host is back";

/// What is told of a machine: that its host is lost, where it is, and what was told of it before.
pub fn told(host_is_lost: bool, message: Option<&str>) -> Option<String> {
    match (host_is_lost, message) {
        (false, message) => message.map(str::to_owned),
        (true, None) => Some(HOST_LOST.to_owned()),
        (true, Some(message)) => Some(format!("{HOST_LOST}; before that: {message}")),
    }
}

/// The engines that run machines on a host.
#[derive(Clone)]
pub struct Engines {
    /// Virtual machines.
    pub vm: Arc<dyn Engine>,
    /// Sandboxes.
    pub sandbox: Arc<dyn SandboxEngine>,
    /// Networks that join them.
    pub network: Arc<dyn NetworkEngine>,
}

impl Engines {
    /// Whether these are the same, and not others of the same host.
    pub fn are(&self, others: &Self) -> bool {
        Arc::ptr_eq(&self.vm, &others.vm)
    }
}

/// Asks something of each of these, of so many at a time on each host, all hosts beside each other: one that does not answer
/// keeps nobody waiting that is on another one. Answers come as they are there. Each `turn` begins with others on each host, so
/// that who stops before the end leaves out not always the same.
pub fn each_host<T, F: Future>(
    things: impl IntoIterator<Item = (Option<HostId>, T)>,
    (at_once, turn): (usize, usize),
    ask: impl Fn(T) -> F + Clone,
) -> impl Stream<Item = F::Output> {
    let mut hosts: HashMap<Option<HostId>, Vec<T>> = HashMap::new();
    for (host, thing) in things {
        hosts.entry(host).or_default().push(thing);
    }
    for things in hosts.values_mut() {
        let first = turn.wrapping_mul(at_once) % things.len();
        things.rotate_left(first);
    }
    let of_host = move |things| stream::iter(things).map(ask.clone()).buffer_unordered(at_once);
    stream::iter(hosts.into_values()).flat_map_unordered(None, of_host)
}

/// Whether a host is one of the platform's, as a transaction sees it: it was not removed.
pub async fn is_there(tx: &mut Tx, id: HostId) -> std::result::Result<bool, DbError> {
    Ok(host::find(tx, id).await?.is_some())
}

/// The hosts that a service can ask, each by its engines.
#[derive(Clone)]
pub struct Fleet {
    own: HostId,
    here: Engines,
    hosts: Arc<watch::Sender<HashMap<HostId, Engines>>>,
}

impl Fleet {
    /// The fleet of a service whose own host has these engines.
    pub fn new(own: HostId, engines: Engines) -> Self {
        let hosts = watch::Sender::new([(own, engines.clone())].into());
        Self { own, here: engines, hosts: Arc::new(hosts) }
    }

    /// The service's own host.
    pub const fn own(&self) -> HostId {
        self.own
    }

    /// The engines of the service's own host.
    pub const fn here(&self) -> &Engines {
        &self.here
    }

    /// The engines of a host.
    ///
    /// # Errors
    /// It cannot be asked now; another try may help.
    pub fn of(&self, host: HostId) -> Result<Engines> {
        let away = || EngineError::Transient("the host cannot be reached".into());
        self.hosts.borrow().get(&host).cloned().ok_or_else(away)
    }

    /// All of them.
    pub fn all(&self) -> Vec<(HostId, Engines)> {
        self.hosts.borrow().iter().map(|(id, engines)| (*id, engines.clone())).collect()
    }

    /// Which they are.
    pub fn ids(&self) -> Vec<HostId> {
        self.hosts.borrow().keys().copied().collect()
    }

    /// From now on a host can be asked, by these engines.
    pub fn join(&self, host: HostId, engines: Engines) {
        self.hosts.send_modify(|hosts| drop(hosts.insert(host, engines)));
    }

    /// A host is asked no more. The service's own stays.
    pub fn leave(&self, host: HostId) {
        self.hosts.send_if_modified(|hosts| host != self.own && hosts.remove(&host).is_some());
    }

    /// Watches every host, until told to stop: each from when it is there until it is not, by a future that ends then.
    pub async fn each<W>(&self, stop: CancellationToken, watch: impl Fn(HostId, Engines, CancellationToken) -> W)
    where
        W: Future<Output = ()> + Send + 'static,
    {
        let mut fleet = self.changes();
        let (mut watched, mut tasks) = (HashMap::<HostId, (Engines, CancellationToken)>::new(), JoinSet::new());
        loop {
            let hosts = fleet.borrow_and_update().clone();
            // One that left and came back meanwhile is another one to whoever watches it.
            watched.retain(|host, (known, ending)| {
                hosts.get(host).is_some_and(|engines| engines.are(known)) || {
                    ending.cancel();
                    false
                }
            });
            for (host, engines) in hosts {
                watched.entry(host).or_insert_with(|| {
                    let ending = stop.child_token();
                    tasks.spawn(watch(host, engines.clone(), ending.clone()));
                    (engines, ending)
                });
            }
            tokio::select! {
                () = stop.cancelled() => break,
                changed = fleet.changed() => if changed.is_err() { break },
                Some(_) = tasks.join_next() => {}
            }
        }
        while tasks.join_next().await.is_some() {}
    }

    /// Tells when hosts came or went, and which there are.
    pub fn changes(&self) -> watch::Receiver<HashMap<HostId, Engines>> {
        self.hosts.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures::future::Either;
    use uuid::Uuid;

    use super::*;

    #[tokio::test]
    async fn a_host_that_does_not_answer_keeps_none_waiting_that_are_on_others() {
        let [silent, other] = [1, 2].map(|number| Some(HostId(Uuid::from_u128(number))));
        let things = [(silent, None), (silent, Some(0)), (other, Some(1)), (None, Some(2)), (other, Some(3))];
        let ask = |answer: Option<i32>| answer.map_or_else(|| Either::Left(pending()), |it| Either::Right(ready(it)));
        // The next turn begins with the other one of each host.
        for (turn, told) in [(0, vec![1, 2, 3]), (1, vec![0, 1, 2, 3])] {
            let mut seen: Vec<_> = each_host(things, (1, turn), ask).take(told.len()).collect().await;
            seen.sort_unstable();
            assert_eq!(seen, told, "{turn}");
        }
    }
}
