//! Disks that lie in a store: made, grown and removed there.
//!
//! A disk is an image of RBD that is called after the disk's row. It is made as `<disk id>.coming` and renamed when it is whole,
//! so that what has the name is a disk, whatever was interrupted. What a root disk boots with lies beside it before that
//! ([`super::shared_boots`]). Nothing of a store is kept here but what serves disks to machines ([`super::served`]).

use std::fmt::Display;
use std::path::PathBuf;

use berth_domain::ids::DiskId;
use berth_qemu::image::Manifest;
use berth_qemu::rbd::Pool;
use berth_qemu::{Error, disk};

use super::{QemuEngine, STAGING, gib};
use crate::error::{qemu_failed, transient};
use crate::vm::{DiskSource, DiskSpec, Reached, Store};
use crate::{EngineError, Result, fault};

impl QemuEngine {
    /// Whether this host can do all that disks of a store need, and from where it reaches it.
    pub(super) async fn reach(&self, store: &Store) -> Result<Reached> {
        self.can_serve().await.map_err(for_operator)?;
        pool_of(store)?.reach().await.map(|addresses| Reached { addresses }).map_err(for_operator)
    }

    /// Finds out whether a user may have a store refuse hosts and take them again.
    ///
    /// # Errors
    /// Permanent, with a sentence for an operator, where that user may not.
    pub async fn may_fence(&self, store: &Store) -> Result<()> {
        pool_of(store)?.require_fencing().await.map_err(for_operator)
    }

    /// Makes a disk in a store, whole or not at all.
    pub(super) async fn make_shared(&self, spec: &DiskSpec, store: &Store) -> Result<()> {
        let (pool, name) = (pool_of(store)?, spec.id.to_string());
        if pool.size(&name).await.map_err(qemu_failed)?.is_some() {
            return Ok(());
        }
        let coming = format!("{name}.coming");
        match &spec.source {
            DiskSource::Image(image) => self.fill_root(&pool, spec, &coming, image).await?,
            DiskSource::Empty => pool.create(&coming, gib(spec.size_gb)).await.map_err(qemu_failed)?,
            DiskSource::Filesystem(label) => self.fill_with_files(&pool, spec, &coming, label).await?,
            DiskSource::Snapshot { .. } => {
                return Err(EngineError::Permanent("a disk of a store is restored of a snapshot, not made".into()));
            }
        }
        fault::point("shared_disk.filled").await.map_err(transient)?;
        pool.publish(&coming, &name).await.map_err(qemu_failed)
    }

    /// Fills a root disk with what an image has, and lays beside it what that boots with.
    async fn fill_root(&self, pool: &Pool, spec: &DiskSpec, coming: &str, image: &str) -> Result<()> {
        let base = self.base(image).await?;
        // No note says that a disk is made of it.
        self.touch(&base)?;
        let manifest = Manifest::load(&base).map_err(qemu_failed)?;
        self.send_boot(pool, spec.id, &base, &manifest).await?;
        fault::point("shared_disk.boot").await.map_err(transient)?;
        let bytes = gib(spec.size_gb).max(manifest.virtual_size_bytes);
        pool.create(coming, bytes).await.map_err(qemu_failed)?;
        pool.fill(coming, &base.join(&manifest.disk), "qcow2").await.map_err(qemu_failed)
    }

    /// Fills a data disk with a file system, which is made in a file that takes little room.
    async fn fill_with_files(&self, pool: &Pool, spec: &DiskSpec, coming: &str, label: &str) -> Result<()> {
        let (file, bytes) = (self.staged(spec.id, "raw")?, gib(spec.size_gb));
        disk::remove(&file).await.map_err(qemu_failed)?;
        disk::create_filesystem(&file, bytes, label).await.map_err(qemu_failed)?;
        pool.create(coming, bytes).await.map_err(qemu_failed)?;
        pool.fill(coming, &file, "raw").await.map_err(qemu_failed)?;
        disk::remove(&file).await.map_err(qemu_failed)
    }

    /// Has a disk grow that no machine of this host has.
    pub(super) async fn grow_shared(&self, id: DiskId, size_gb: i64, store: &Store) -> Result<()> {
        self.require_unserved(id)?;
        pool_of(store)?.grow(&id.to_string(), gib(size_gb)).await.map_err(qemu_failed)
    }

    /// Removes a disk from its store, and what this host has of it. What was made of it stays.
    pub(super) async fn forget_shared(&self, id: DiskId, store: &Store) -> Result<()> {
        self.require_unserved(id)?;
        self.end_served(id).await?;
        let pool = pool_of(store)?;
        // That it is there is known for as long as anything of it is.
        for name in [format!("{id}.coming"), format!("{id}.boot"), id.to_string()] {
            pool.remove(&name).await.map_err(qemu_failed)?;
        }
        for file in [self.staged(id, "raw")?, self.staged(id, "boot")?] {
            disk::remove(&file).await.map_err(qemu_failed)?;
        }
        self.forget_boot(id).await
    }

    /// A file in which something of a disk of a store, or of a snapshot, lies for as long as it is on its way.
    pub(super) fn staged(&self, id: impl Display, what: &str) -> Result<PathBuf> {
        let folder = self.settings.host.data.join(STAGING);
        std::fs::create_dir_all(&folder).map_err(transient)?;
        Ok(folder.join(format!("shared-{id}.{what}")))
    }
}

/// What is wrong with a store: an operator reads this, who may know all of it.
pub(super) fn for_operator(error: Error) -> EngineError {
    match error {
        Error::Invalid(_) | Error::Missing { .. } | Error::Unconfined(_) => EngineError::Permanent(error.to_string()),
        other => transient(other),
    }
}

/// A store as Ceph's programs are told of it.
pub(super) fn pool_of(store: &Store) -> Result<Pool> {
    store.check().map_err(EngineError::Permanent)?;
    Ok(Pool {
        monitors: store.addresses().map_err(EngineError::Permanent)?,
        name: store.pool.clone(),
        user: store.user.clone(),
        key: store.key.reveal().to_owned(),
    })
}
