//! The host as VMs see it: their machines, and what no row owns of theirs.

use std::collections::HashSet;

use berth_domain::ids::{DiskId, DiskSnapshotId, ImageId, MachineId, VmId};
use berth_domain::machine::Owner;
use berth_domain::{Error, Timestamp};
use berth_host::EngineError;
use berth_host::vm::Aim;
use tokio::sync::broadcast;

use super::StepError;
use crate::db::{Db, DbError};
use crate::services::vm::{Vms, store};
use crate::work::host::{MachineOwners, Sentences, end_unowned};

impl MachineOwners for Vms {
    type Id = VmId;
    const SENTENCES: Sentences = Sentences {
        adopting: "looking at every machine that should exist",
        unlisted: "the machines cannot be listed; trying again",
        unsearched: "the host could not be searched; trying again later",
        removing: "removing a machine that no row owns",
    };

    fn db(&self) -> &Db {
        self.db()
    }

    fn events(&self) -> broadcast::Receiver<MachineId> {
        self.engine().watch()
    }

    fn of_kind(owner: Owner) -> Option<VmId> {
        if let Owner::Vm(vm) = owner { Some(vm) } else { None }
    }

    async fn wanting(&self) -> Result<Vec<VmId>, DbError> {
        store::vm::with_machine(self.db(), None).await
    }

    async fn machines(&self) -> Result<Vec<MachineId>, EngineError> {
        Ok(self.engine().scan().await?.machines)
    }

    async fn remove(&self, id: MachineId) -> Result<(), EngineError> {
        let nobodys = Aim::uncounted(id);
        self.engine().power_off(nobodys).await?;
        self.engine().discard(nobodys).await
    }

    async fn search(&self) -> Result<(), StepError> {
        let now = self.clock().now();
        let found = self.engine().scan().await?;
        end_unowned(self, found.machines).await?;
        let disks: HashSet<_> = store::disk::living(self.db()).await?.into_iter().collect();
        for id in found.disks.into_iter().filter(|id| !disks.contains(id)) {
            if let Err(error) = set_aside(self, id, now).await {
                tracing::warn!(disk = %id, ?error, "a disk that no row owns cannot be set aside; trying again later");
            }
        }
        let snapshots: HashSet<_> = store::disk_snapshot::living(self.db()).await?.into_iter().collect();
        for id in found.snapshots.into_iter().filter(|id| !snapshots.contains(id)) {
            if let Err(error) = set_aside_snapshot(self, id, now).await {
                tracing::warn!(snapshot = %id, ?error, "a snapshot that no row owns cannot be set aside; trying again later");
            }
        }
        let images: HashSet<_> = store::project_image::living(self.db()).await?.into_iter().collect();
        for id in found.images.into_iter().filter(|id| !images.contains(id)) {
            if let Err(error) = set_aside_image(self, id, now).await {
                tracing::warn!(image = %id, ?error, "an image that no row owns cannot be set aside; trying again later");
            }
        }
        Ok(())
    }
}

async fn set_aside_image(vms: &Vms, id: ImageId, now: Timestamp) -> Result<(), StepError> {
    let into = vms.lost().folder("images", now).await.map_err(Error::internal)?;
    tracing::warn!(image = %id, into = %into.display(), "setting an image of a project aside that no row owns");
    Ok(vms.engine().set_aside_image(id, &into).await?)
}

async fn set_aside_snapshot(vms: &Vms, id: DiskSnapshotId, now: Timestamp) -> Result<(), StepError> {
    let into = vms.lost().folder("snapshots", now).await.map_err(Error::internal)?;
    tracing::warn!(snapshot = %id, into = %into.display(), "setting a snapshot of a disk aside that no row owns");
    Ok(vms.engine().set_aside_snapshot(id, &into).await?)
}

async fn set_aside(vms: &Vms, id: DiskId, now: Timestamp) -> Result<(), StepError> {
    let into = vms.lost().folder("disks", now).await.map_err(Error::internal)?;
    tracing::warn!(disk = %id, into = %into.display(), "setting a disk aside that no row owns");
    Ok(vms.engine().set_aside_disk(id, &into).await?)
}
