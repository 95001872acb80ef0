//! Snapshots of disks that lie in a store, and what is made of them.
//!
//! A snapshot that a person asked for stays in the store: a moment of its disk is cloned into an image that is called after the
//! snapshot's row, with a moment of its own from which disks are cloned. So nothing is copied, however large the disk is, and whatever goes
//! first, disk or snapshot, what was made of it stays: removing an image flattens its clones ([`berth_qemu::rbd`]). What a root disk
//! boots with lies beside its snapshot as it does beside the disk ([`super::shared_boots`]).
//!
//! A copy from which a file is made lies on this host instead, as snapshots of its own disks do ([`super::snapshots`]), and so whatever
//! reads those reads it. The moment of the disk is kept in the store for as long as it is being copied, so that a host that begins anew
//! copies the same, and so does another one, where the first could not be told to give it up.
//!
//! All images are made as `<id>.coming` and renamed when they are whole.

use std::path::Path;

use berth_domain::host::aim::Act;
use berth_domain::ids::{DiskSnapshotId, MachineId};
use berth_qemu::rbd::Pool;
use berth_qemu::{disk, machine};
use futures::FutureExt;

use super::shared::pool_of;
use super::shared_boots::boot_of;
use super::snapshots::{gone, require_size, sync};
use super::{QemuEngine, gib, notes};
use crate::error::{qemu_failed, transient};
use crate::vm::{Aim, DiskSnapshotSpec, DiskSource, DiskSpec, Store};
use crate::{EngineError, Result};

/// Most images that a disk reads from, one below the other; one that would read from more is made to stand alone. Each costs a look
/// where those above have nothing, and a disk of a snapshot of a disk of a snapshot reads from two more.
const LONGEST: usize = 8;

impl QemuEngine {
    /// Keeps in its store what a disk is at one moment; the bytes that it takes.
    pub(super) async fn snapshot_shared(&self, spec: &DiskSnapshotSpec, of: Option<Aim>, store: &Store) -> Result<u64> {
        let _turn = self.shared_snapshots.of(spec.id).await;
        let (pool, name, disk) = (pool_of(store)?, spec.id.to_string(), spec.disk.to_string());
        if pool.size(&name).await.map_err(qemu_failed)?.is_none() {
            self.keep_moment(&pool, spec, of).await?;
            let coming = format!("{name}.coming");
            pool.copy(&boot_of(spec.disk), &boot_of(spec.id)).await.map_err(qemu_failed)?;
            pool.clone_moment(&disk, &name, &coming).await.map_err(qemu_failed)?;
            pool.keep_moment(&coming, &name).await.map_err(qemu_failed)?;
            pool.publish(&coming, &name).await.map_err(qemu_failed)?;
        }
        // What it has may be the disk's, or of what that reads from; it may have to have all of it one day.
        pool.written(&name, &name).await.map_err(qemu_failed)
    }

    /// Copies a disk as it is at one moment into a snapshot that lies on this host; the bytes that it takes.
    pub(super) async fn copy_shared(&self, spec: &DiskSnapshotSpec, of: Option<Aim>, store: &Store) -> Result<u64> {
        let _turn = self.shared_snapshots.of(spec.id).await;
        let (pool, name, disk) = (pool_of(store)?, spec.id.to_string(), spec.disk.to_string());
        let (file, half) = (self.snapshot_file(spec.id), self.half_made(spec.id));
        if !file.exists() {
            std::fs::create_dir_all(self.snapshots()).map_err(transient)?;
            self.keep_moment(&pool, spec, of).await?;
            self.note_boot_of_copy(&pool, spec, store).await?;
            let bytes = pool.written(&disk, &name).await.map_err(qemu_failed)?;
            disk::remove(&half).await.map_err(qemu_failed)?;
            self.require_room_for(bytes)?;
            self.unload(&pool, (&disk, &name), &half).await?;
            sync(&half).await?;
            tokio::fs::rename(&half, &file).await.map_err(transient)?;
            sync(&self.snapshots()).await?;
        }
        pool.forget_moment(&disk, &name).await.map_err(qemu_failed)?;
        disk::info(&file, "qcow2").await.map(|info| info.actual_size).map_err(qemu_failed)
    }

    /// Makes a file of a moment of a disk. Who reads that alone is not told where something goes that it reads, be it the moment itself,
    /// which a host that is lost may take for its own.
    async fn unload(&self, pool: &Pool, (disk, name): (&str, &str), file: &Path) -> Result<()> {
        let read_from = async || {
            let number = pool.number_of_moment(disk, name).await.map_err(qemu_failed)?;
            Ok::<_, EngineError>((number, pool.lineage(disk).await.map_err(qemu_failed)?))
        };
        let before = read_from().await?;
        pool.unload(disk, name, file).await.map_err(qemu_failed)?;
        if read_from().await? == before {
            Ok(())
        } else {
            Err(transient("what the disk reads from went while it was copied"))
        }
    }

    /// Keeps in its store what a disk is now, whose machine's guest stands still for that. What was kept already stays.
    async fn keep_moment(&self, pool: &Pool, spec: &DiskSnapshotSpec, of: Option<Aim>) -> Result<()> {
        match of {
            // What is made of the moment needs no machine any more.
            Some(aim) => self.act(aim, Act::Change, self.keep_moment_of(pool, spec, Some(aim.id))).await,
            None => self.keep_moment_of(pool, spec, None).await,
        }
    }

    async fn keep_moment_of(&self, pool: &Pool, spec: &DiskSnapshotSpec, of: Option<MachineId>) -> Result<()> {
        let (disk, name) = (spec.disk.to_string(), spec.id.to_string());
        let is_new = pool.number_of_moment(&disk, &name).await.map_err(qemu_failed)?.is_none();
        let keep = async { if is_new { pool.keep_moment(&disk, &name).await } else { Ok(()) } };
        let kept = match of.filter(|id| machine::find(&self.machine(*id), id.0).is_some()) {
            Some(id) => self.while_still(id, is_new, keep.boxed()).await,
            None => keep.await,
        };
        kept.map_err(qemu_failed)
    }

    /// Lays among this host's bases what a root disk boots with, and notes that for a copy of it.
    async fn note_boot_of_copy(&self, pool: &Pool, spec: &DiskSnapshotSpec, store: &Store) -> Result<()> {
        if pool.size(&boot_of(spec.disk)).await.map_err(qemu_failed)?.is_none() {
            return Ok(());
        }
        let base = self.base_of_copy(spec, store).await?;
        let name = base.file_name().unwrap_or_default();
        notes::write(&self.snapshot_note(spec.id), name.as_encoded_bytes()).map_err(transient)
    }

    /// Makes a disk of a snapshot, whole or not at all.
    pub(super) async fn restore_shared(&self, spec: &DiskSpec, store: &Store) -> Result<()> {
        let (pool, name) = (pool_of(store)?, spec.id.to_string());
        if pool.size(&name).await.map_err(qemu_failed)?.is_some() {
            return Ok(());
        }
        let DiskSource::Snapshot { id, is_root } = spec.source else {
            return Err(EngineError::Permanent("only a disk of a snapshot is restored".into()));
        };
        let bytes = pool.size(&id.to_string()).await.map_err(qemu_failed)?.ok_or_else(gone)?;
        require_size(spec, bytes)?;
        if is_root && !pool.copy(&boot_of(id), &boot_of(spec.id)).await.map_err(qemu_failed)? {
            return Err(gone());
        }
        let coming = format!("{name}.coming");
        self.clone_snapshot(&pool, id, &coming).await?;
        pool.grow(&coming, gib(spec.size_gb)).await.map_err(qemu_failed)?;
        pool.publish(&coming, &name).await.map_err(qemu_failed)
    }

    async fn clone_snapshot(&self, pool: &Pool, id: DiskSnapshotId, to: &str) -> Result<()> {
        let name = id.to_string();
        pool.clone_moment(&name, &name, to).await.map_err(qemu_failed)?;
        // It is one of them itself.
        if pool.lineage(to).await.map_err(qemu_failed)?.len() > LONGEST + 1 {
            pool.flatten(to).await.map_err(qemu_failed)?;
        }
        Ok(())
    }

    /// Removes a snapshot, in the store and on this host.
    pub(super) async fn forget_shared_snapshot(&self, spec: &DiskSnapshotSpec, store: &Store) -> Result<()> {
        let _turn = self.shared_snapshots.of(spec.id).await;
        let (pool, name) = (pool_of(store)?, spec.id.to_string());
        self.forget_snapshot(spec.id, None).await?;
        disk::remove(&self.staged(spec.id, "boot")?).await.map_err(qemu_failed)?;
        // That it is there is known for as long as anything of it is.
        for image in [format!("{name}.coming"), boot_of(spec.id), name.clone()] {
            pool.remove(&image).await.map_err(qemu_failed)?;
        }
        pool.forget_moment(&spec.disk.to_string(), &name).await.map_err(qemu_failed)
    }
}
