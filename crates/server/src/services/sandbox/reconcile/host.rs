//! Hosts as sandboxes see them: their machines, those that wait for an owner, and what no row owns of theirs.

use std::collections::HashSet;

use berth_domain::Error;
use berth_domain::ids::{HostId, MachineId, SandboxId};
use berth_domain::machine::Owner;
use berth_host::EngineError;
use berth_host::sandbox::{Aim, Kept, SandboxEngine};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::StepError;
use crate::db::{Db, DbError, Signal};
use crate::services::fleet::Engines;
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::store;
use crate::work::Poker;
use crate::work::host::{self, MachineOwners, Sentences, end_unowned};

/// Watches every host of the fleet, until told to stop: each from when it is there until it is not.
pub async fn watch(sandboxes: Sandboxes, poke: Poker<SandboxId>, stop: CancellationToken) {
    let fleet = sandboxes.fleet().clone();
    fleet
        .each(stop, |host, engines, ending| {
            let on = SandboxesOnHost { sandboxes: sandboxes.clone(), host, engines };
            host::watch(on, poke.clone(), ending)
        })
        .await;
}

/// The sandboxes of one host.
struct SandboxesOnHost {
    sandboxes: Sandboxes,
    host: HostId,
    engines: Engines,
}

impl SandboxesOnHost {
    fn engine(&self) -> &dyn SandboxEngine {
        &*self.engines.sandbox
    }
}

impl MachineOwners for SandboxesOnHost {
    type Id = SandboxId;
    const SENTENCES: Sentences = Sentences {
        adopting: "looking at every sandbox that should have a machine",
        unlisted: "the sandboxes cannot be listed; trying again",
        unsearched: "the host could not be searched for sandboxes; trying again later",
        removing: "removing a sandbox's machine that no row owns",
    };

    fn db(&self) -> &Db {
        self.sandboxes.db()
    }

    fn host(&self) -> HostId {
        self.host
    }

    fn events(&self) -> broadcast::Receiver<MachineId> {
        self.engine().watch()
    }

    fn of_kind(owner: Owner) -> Option<SandboxId> {
        if let Owner::Sandbox(sandbox) = owner { Some(sandbox) } else { None }
    }

    /// Whoever keeps warm machines is told of theirs; whoever made another one waits for it.
    fn happened_to_another(&self, owner: Owner) {
        if matches!(owner, Owner::Warm(_)) {
            self.db().signal(Signal::Warm(self.host));
        }
    }

    async fn wanting(&self) -> Result<Vec<SandboxId>, DbError> {
        // Those of nowhere are the service's own host's to look at, too.
        store::sandbox::wanting(self.db(), self.host, self.host == self.sandboxes.host()).await
    }

    async fn machines(&self) -> Result<Vec<MachineId>, EngineError> {
        Ok(self.engine().scan().await?.machines)
    }

    async fn off(&self) -> Result<Vec<Aim>, DbError> {
        store::sandbox::failed_on(self.db(), self.host).await
    }

    async fn end(&self, aim: Aim) -> Result<(), EngineError> {
        self.engine().end(aim).await
    }

    async fn remove(&self, id: MachineId) -> Result<(), EngineError> {
        let nobodys = Aim::uncounted(id);
        self.engine().end(nobodys).await?;
        self.engine().discard(nobodys).await
    }

    async fn search(&self) -> Result<(), StepError> {
        let (db, host, engine) = (self.db(), self.host, self.engine());
        let found = engine.scan().await?;
        end_unowned(self, found.machines).await?;
        for id in unowned(found.builds, store::template::living(db, host).await?) {
            if let Err(error) = engine.clear_build(id).await {
                tracing::warn!(template = %id, %error, "a build that no row owns cannot be removed; trying again later");
            }
        }
        // A build takes uploads to the host that it is on.
        let uploads = unowned(found.uploads, store::upload::ids(db).await?).map(Kept::Upload);
        let layers = unowned(found.layers, store::layer::ids(db, host).await?).map(Kept::Layer);
        let memories = unowned(found.memories, store::memory::ids(db, host).await?).map(Kept::Memory);
        for kept in uploads.chain(layers).chain(memories) {
            if let Err(error) = self.set_aside(kept).await {
                tracing::warn!(?kept, ?error, "what no row owns cannot be set aside; trying again later");
            }
        }
        Ok(())
    }
}

impl SandboxesOnHost {
    async fn set_aside(&self, kept: Kept) -> Result<(), StepError> {
        let now = self.sandboxes.clock().now();
        let into = self.sandboxes.lost().folder(kept.folder(), now).await.map_err(Error::internal)?;
        tracing::warn!(?kept, host = %self.host, into = %into.display(), "setting aside what no row owns");
        Ok(self.engine().set_aside(kept, &into).await?)
    }
}

/// Of what the host has, what no row owns.
fn unowned<I: ToString>(found: Vec<I>, owned: Vec<String>) -> impl Iterator<Item = I> {
    let owned: HashSet<String> = owned.into_iter().collect();
    found.into_iter().filter(move |id| !owned.contains(&id.to_string()))
}
