//! Following what happens on a host that is somewhere else.

use std::convert::Infallible;
use std::time::Duration;

use berth_domain::host::ask::stream::{Event, Watch};
use berth_domain::host::ask::{Ask, host, sandbox};
use berth_domain::ids::MachineId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::remote::Remote;
use crate::Result;

/// Between two tries to reach a host that is gone.
const RETRY: Duration = Duration::from_secs(1);
/// A host that was followed for longer was there meanwhile, even if the same ends it again.
const LASTING: Duration = Duration::from_mins(1);

impl Remote {
    /// Follows what happens on the host, until told to stop. While it cannot be reached, its engines are not ready;
    /// once it can be again, every machine that it has is looked at, since nobody knows what happened meanwhile.
    pub async fn follow(&self, stop: CancellationToken) {
        let mut told = None;
        loop {
            let began = Instant::now();
            let Some(Err(error)) = stop.run_until_cancelled(self.listen()).await else { return };
            self.cache.lose(&error);
            // What goes on for hours is told once.
            let text = Some(error.to_string());
            if told != text || began.elapsed() > LASTING {
                tracing::warn!(%error, "nobody knows what happens on a host; trying again");
            }
            told = text;
            if stop.run_until_cancelled(tokio::time::sleep(RETRY)).await.is_none() {
                return;
            }
        }
    }

    async fn listen(&self) -> Result<Infallible> {
        let mut stream = self.begin(Ask::Stream(Watch {}.into())).await?;
        self.hear(&mut stream).await?;
        // In which boot it is decides what became of its machines.
        self.describe().await?;
        self.look_at_all().await?;
        loop {
            match self.next(&mut stream).await? {
                // Who does not watch misses nothing.
                Event::Vm(id) => drop(self.cache.vms.send(id)),
                Event::Sandbox(id) => drop(self.cache.sandboxes.send(id)),
                Event::About(about) => self.cache.note(about),
                Event::Missed => self.look_at_all().await?,
            }
        }
    }

    /// Has every machine of the host looked at.
    async fn look_at_all(&self) -> Result<()> {
        for id in self.ask(host::ScanVms {}).await?.machines {
            let _ = self.cache.vms.send(id);
        }
        for id in self.ask(host::ScanSandboxes {}).await?.machines {
            let _ = self.cache.sandboxes.send(id);
        }
        Ok(())
    }

    /// Begins to ask how a sandbox is used; whoever watches sandboxes is told when that is known.
    pub(super) fn learn_activity(&self, id: MachineId) {
        if self.cache.begin_activity(id) {
            let remote = self.clone();
            tokio::spawn(async move {
                let activity = remote.ask(sandbox::Activity { id }).await.ok();
                remote.cache.end_activity(id, activity);
            });
        }
    }
}
