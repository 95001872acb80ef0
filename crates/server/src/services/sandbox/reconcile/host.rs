//! The host as sandboxes see it: their machines, what no row owns of theirs, and the platform's templates.

use std::collections::HashSet;

use berth_domain::Error;
use berth_domain::ids::{HostId, MachineId, SandboxId};
use berth_domain::machine::Owner;
use berth_host::EngineError;
use berth_host::sandbox::{Aim, Kept};
use tokio::sync::broadcast;

use super::StepError;
use crate::db::{Db, DbError, Signal, machine};
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::store;
use crate::work::host::{MachineOwners, Sentences, end_unowned};

impl MachineOwners for Sandboxes {
    type Id = SandboxId;
    const SENTENCES: Sentences = Sentences {
        adopting: "looking at every sandbox that should have a machine",
        unlisted: "the sandboxes cannot be listed; trying again",
        unsearched: "the host could not be searched for sandboxes; trying again later",
        removing: "removing a sandbox's machine that no row owns",
    };

    fn db(&self) -> &Db {
        self.db()
    }

    fn host(&self) -> HostId {
        self.host()
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
            self.db().signal(Signal::Work(machine::TABLE));
        }
    }

    async fn wanting(&self) -> Result<Vec<SandboxId>, DbError> {
        store::sandbox::with_machine(self.db(), None).await
    }

    async fn machines(&self) -> Result<Vec<MachineId>, EngineError> {
        Ok(self.engine().scan().await?.machines)
    }

    async fn remove(&self, id: MachineId) -> Result<(), EngineError> {
        let nobodys = Aim::uncounted(id);
        self.engine().end(nobodys).await?;
        self.engine().discard(nobodys).await
    }

    async fn search(&self) -> Result<(), StepError> {
        let (db, engine) = (self.db(), self.engine());
        let found = engine.scan().await?;
        end_unowned(self, found.machines).await?;
        for id in unowned(found.builds, store::template::living(db).await?) {
            if let Err(error) = engine.clear_build(id).await {
                tracing::warn!(template = %id, %error, "a build that no row owns cannot be removed; trying again later");
            }
        }
        let uploads = unowned(found.uploads, store::upload::ids(db).await?).map(Kept::Upload);
        let layers = unowned(found.layers, store::layer::ids(db).await?).map(Kept::Layer);
        let memories = unowned(found.memories, store::memory::ids(db).await?).map(Kept::Memory);
        for kept in uploads.chain(layers).chain(memories) {
            set_aside(self, kept).await;
        }
        Ok(())
    }
}

/// Of what the host has, what no row owns.
fn unowned<I: ToString>(found: Vec<I>, owned: Vec<String>) -> impl Iterator<Item = I> {
    let owned: HashSet<String> = owned.into_iter().collect();
    found.into_iter().filter(move |id| !owned.contains(&id.to_string()))
}

async fn set_aside(sandboxes: &Sandboxes, kept: Kept) {
    if let Err(error) = try_set_aside(sandboxes, kept).await {
        tracing::warn!(?kept, ?error, "what no row owns cannot be set aside; trying again later");
    }
}

async fn try_set_aside(sandboxes: &Sandboxes, kept: Kept) -> Result<(), StepError> {
    let into = sandboxes.lost().folder(kept.folder(), sandboxes.clock().now()).await.map_err(Error::internal)?;
    tracing::warn!(?kept, into = %into.display(), "setting aside what no row owns");
    Ok(sandboxes.engine().set_aside(kept, &into).await?)
}
