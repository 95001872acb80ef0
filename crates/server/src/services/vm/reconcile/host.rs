//! Hosts as VMs see them: their machines, and what no row owns of theirs.

use std::collections::HashSet;

use berth_domain::ids::{DiskId, DiskSnapshotId, HostId, ImageId, MachineId, VmId};
use berth_domain::machine::Owner;
use berth_domain::{Error, Timestamp};
use berth_host::EngineError;
use berth_host::vm::{Aim, Engine};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::StepError;
use crate::db::{Db, DbError};
use crate::services::fleet::Engines;
use crate::services::vm::{Vms, store};
use crate::work::Poker;
use crate::work::host::{self, MachineOwners, Sentences, end_unowned};

/// Watches every host of the fleet, until told to stop: each from when it is there until it is not.
pub async fn watch(vms: Vms, poke: Poker<VmId>, stop: CancellationToken) {
    let fleet = vms.fleet().clone();
    fleet
        .each(stop, |host, engines, ending| {
            let on = VmsOnHost { vms: vms.clone(), host, engines };
            host::watch(on, poke.clone(), ending)
        })
        .await;
}

/// The VMs of one host.
struct VmsOnHost {
    vms: Vms,
    host: HostId,
    engines: Engines,
}

impl VmsOnHost {
    fn engine(&self) -> &dyn Engine {
        &*self.engines.vm
    }

    /// Those of nowhere are this one's to look at, too.
    fn is_own(&self) -> bool {
        self.host == self.vms.host()
    }
}

impl MachineOwners for VmsOnHost {
    type Id = VmId;
    const SENTENCES: Sentences = Sentences {
        adopting: "looking at every machine that should exist",
        unlisted: "the machines cannot be listed; trying again",
        unsearched: "the host could not be searched; trying again later",
        removing: "removing a machine that no row owns",
    };

    fn db(&self) -> &Db {
        self.vms.db()
    }

    fn host(&self) -> HostId {
        self.host
    }

    fn events(&self) -> broadcast::Receiver<MachineId> {
        self.engine().watch()
    }

    fn of_kind(owner: Owner) -> Option<VmId> {
        if let Owner::Vm(vm) = owner { Some(vm) } else { None }
    }

    async fn wanting(&self) -> Result<Vec<VmId>, DbError> {
        store::vm::wanting(self.vms.db(), self.host, self.is_own()).await
    }

    async fn machines(&self) -> Result<Vec<MachineId>, EngineError> {
        Ok(self.engine().scan().await?.machines)
    }

    async fn off(&self) -> Result<Vec<Aim>, DbError> {
        store::vm::off(self.db(), self.host).await
    }

    async fn end(&self, aim: Aim) -> Result<(), EngineError> {
        self.engine().power_off(aim).await
    }

    async fn remove(&self, id: MachineId) -> Result<(), EngineError> {
        let nobodys = Aim::uncounted(id);
        self.engine().power_off(nobodys).await?;
        self.engine().discard(nobodys).await
    }

    async fn search(&self) -> Result<(), StepError> {
        let now = self.vms.clock().now();
        let found = self.engine().scan().await?;
        end_unowned(self, found.machines).await?;
        let disks: HashSet<_> = store::disk::living(self.vms.db(), self.host).await?.into_iter().collect();
        for id in found.disks.into_iter().filter(|id| !disks.contains(id)) {
            if let Err(error) = self.set_aside(id, now).await {
                tracing::warn!(disk = %id, ?error, "a disk that no row owns cannot be set aside; trying again later");
            }
        }
        let snapshots: HashSet<_> = store::disk_snapshot::living(self.vms.db(), self.host).await?.into_iter().collect();
        for id in found.snapshots.into_iter().filter(|id| !snapshots.contains(id)) {
            if let Err(error) = self.set_aside_snapshot(id, now).await {
                tracing::warn!(snapshot = %id, ?error, "a snapshot that no row owns cannot be set aside; trying again later");
            }
        }
        let images: HashSet<_> = store::project_image::living(self.vms.db(), self.host).await?.into_iter().collect();
        for id in found.images.into_iter().filter(|id| !images.contains(id)) {
            if let Err(error) = self.set_aside_image(id, now).await {
                tracing::warn!(image = %id, ?error, "an image that no row owns cannot be set aside; trying again later");
            }
        }
        Ok(())
    }
}

impl VmsOnHost {
    async fn set_aside_image(&self, id: ImageId, now: Timestamp) -> Result<(), StepError> {
        let into = self.vms.lost().folder("images", now).await.map_err(Error::internal)?;
        tracing::warn!(image = %id, into = %into.display(), "setting an image of a project aside that no row owns");
        Ok(self.engine().set_aside_image(id, &into).await?)
    }

    async fn set_aside_snapshot(&self, id: DiskSnapshotId, now: Timestamp) -> Result<(), StepError> {
        let into = self.vms.lost().folder("snapshots", now).await.map_err(Error::internal)?;
        tracing::warn!(snapshot = %id, into = %into.display(), "setting a snapshot of a disk aside that no row owns");
        Ok(self.engine().set_aside_snapshot(id, &into).await?)
    }

    async fn set_aside(&self, id: DiskId, now: Timestamp) -> Result<(), StepError> {
        // It may have come here since it was looked for.
        if store::disk::living(self.vms.db(), self.host).await?.contains(&id) {
            return Ok(());
        }
        let into = self.vms.lost().folder("disks", now).await.map_err(Error::internal)?;
        tracing::warn!(disk = %id, into = %into.display(), "setting a disk aside that no row owns");
        Ok(self.engine().set_aside_disk(id, &into).await?)
    }
}
