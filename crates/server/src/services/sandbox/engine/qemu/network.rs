//! A machine's link to the network: the gateway's task for it, as long as the machine lives.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use berth_domain::sandbox::network::Network;
use berth_egress::{Config, Counters, Egress};
use berth_qemu::machine::connect_network;
use rustix::process::{Resource, getrlimit};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Between two tries to reach a machine's network card.
const AGAIN: Duration = Duration::from_millis(500);
/// Tries without success after which the machine is taken for gone.
const TRIES: u32 = 20;

/// Files of a service that are counted on.
const MOST_FILES: u64 = 1 << 17;

/// A machine's link. Dropping it ends the machine's connections.
pub(super) struct Link {
    policy: watch::Sender<Arc<Network>>,
    counters: Arc<Counters>,
    task: AbortHandle,
}

impl Link {
    /// Becomes the other end of the network card of the machine in a folder.
    pub(super) fn new(egress: &Egress, dir: PathBuf, network: Network) -> Self {
        let (policy, rules) = watch::channel(Arc::new(network));
        let counters = Arc::new(Counters::default());
        let task = tokio::spawn(keep(egress.clone(), dir, rules, counters.clone())).abort_handle();
        Self { policy, counters, task }
    }

    /// Sets what the machine may reach from now on; connections that are not allowed any more end.
    pub(super) fn set(&self, network: Network) {
        self.policy.send_replace(Arc::new(network));
    }

    /// Bytes received and sent since this service joined the link.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.counters.rx_bytes.load(Ordering::Relaxed), self.counters.tx_bytes.load(Ordering::Relaxed))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// How sandboxes reach the outside. Their sockets are files of the service's; half of those it may have is left to
/// everything else.
pub(super) fn egress() -> Config {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(MOST_FILES);
    Config { sockets: sockets_of(files), ..Config::default() }
}

/// How many of a service's files are sockets of sandboxes.
fn sockets_of(files: u64) -> usize {
    usize::try_from(files.min(MOST_FILES) / 2).unwrap_or(usize::MAX)
}

async fn keep(egress: Egress, dir: PathBuf, rules: watch::Receiver<Arc<Network>>, counters: Arc<Counters>) {
    let mut failures = 0;
    let forwards = watch::Sender::default();
    while failures < TRIES {
        match connect_network(&dir).await {
            Ok(stream) => {
                failures = 0;
                if let Err(error) = egress.attach(stream, rules.clone(), forwards.subscribe(), counters.clone()).await {
                    tracing::debug!(dir = %dir.display(), %error, "a link broke");
                }
            }
            Err(_) => failures += 1,
        }
        tokio::time::sleep(AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_files_are_left_to_the_service() {
        assert_eq!([1024, 65_536, MOST_FILES, u64::MAX].map(sockets_of), [512, 32_768, 65_536, 65_536]);
    }
}
