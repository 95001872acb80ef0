//! Disks of a store, as the machines of this host have them: a program serves each for as long as its machine is.
//!
//! `served/<disk id>.of` names the machine, from before the program is begun until after it ended; `served/<disk id>/` is the
//! program's own. So whoever comes next finds what serves which machine, and ends what serves none. A program ends by itself when
//! its machine lets go of it ([`served`]); a machine whose program ended early goes on without the disk, whose reads and
//! writes fail, until it is started again.

use std::io::ErrorKind;
use std::path::PathBuf;

use berth_domain::ids::{DiskId, MachineId};
use berth_qemu::machine;
use berth_qemu::served::{self, Server};
use uuid::Uuid;

use super::disks::in_time;
use super::serving::served_drive;
use super::shared::pool_of;
use super::{QemuEngine, named, notes};
use crate::error::{qemu_failed, transient};
use crate::vm::{MachineSpec, Store};
use crate::{EngineError, Result, fault};

/// Where what serves disks lies, below the data folder.
const FOLDER: &str = "served";

impl QemuEngine {
    fn serving_folder(&self) -> PathBuf {
        self.settings.host.data.join(FOLDER)
    }

    fn serving_dir(&self, id: DiskId) -> PathBuf {
        self.serving_folder().join(id.to_string())
    }

    /// The file that names the machine that a disk is served to.
    fn serving_note(&self, id: DiskId) -> PathBuf {
        self.serving_folder().join(format!("{id}.of"))
    }

    /// Finds out whether this host can serve disks.
    pub(super) async fn can_serve(&self) -> berth_qemu::Result<()> {
        // Every disk is served by the same rules.
        let jail = self.settings.host.machines.of_served(DiskId(Uuid::nil()));
        served::check(&self.settings.host.data, &self.serving_folder(), jail).await
    }

    /// Has all disks of a machine served that is about to start, where they lie in a store.
    pub(super) async fn serve(&self, spec: &MachineSpec) -> Result<Vec<Server>> {
        let Some(store) = &spec.store else { return Ok(Vec::new()) };
        if spec.rescue.is_some() {
            let text = "a VM whose disks lie in a store cannot be rescued; start it from its own system";
            return Err(EngineError::Permanent(text.into()));
        }
        let mut all = Vec::new();
        for disk in std::iter::once(spec.root_disk).chain(spec.data_disks.iter().map(|disk| disk.id)) {
            all.push(self.serve_disk(spec.id, disk, store).await?);
        }
        fault::point("shared_disk.served").await.map_err(transient)?;
        Ok(all)
    }

    async fn serve_disk(&self, machine: MachineId, id: DiskId, store: &Store) -> Result<Server> {
        let pool = pool_of(store)?;
        let (dir, jail) = (self.serving_dir(id), self.settings.host.machines.of_served(id));
        std::fs::create_dir_all(self.serving_folder()).map_err(transient)?;
        let _turn = self.serving.beginning.read().await;
        notes::write(&self.serving_note(id), machine.to_string().as_bytes()).map_err(transient)?;
        let spec = served::Spec { id: id.0, dir: &dir, pool: &pool, image: &id.to_string(), jail };
        let begun = served::start(spec).await;
        self.serving.lost().remove(&id);
        begun.map_err(qemu_failed)
    }

    /// Hands a data disk of a store to a machine, where that runs.
    pub(super) async fn plug_shared(&self, machine: MachineId, disk: DiskId, store: &Store) -> Result<()> {
        let dir = self.machine(machine);
        if machine::find(&dir, machine.0).is_none() || in_time(machine::has_disk(&dir, &disk.serial())).await? {
            return Ok(());
        }
        let serving = self.serve_disk(machine, disk, store).await?;
        let (drive, connection) = (served_drive(disk), Some(&serving.connection));
        let attached = in_time(machine::attach(&dir, machine.0, &drive, connection)).await;
        drop(serving);
        if attached.is_err() {
            // What made it fail is what counts; the next look ends what is left.
            let _ = self.end_served(disk).await;
        }
        attached
    }

    /// Ends what serves a disk that nobody uses any more; fine where nothing does.
    pub(super) async fn end_served(&self, id: DiskId) -> Result<()> {
        served::end(&self.serving_dir(id), id.0).await.map_err(qemu_failed)?;
        self.forget_serving(id)
    }

    /// Ends what serves the disks of a machine that has ended.
    pub(super) async fn end_served_to(&self, machine: MachineId) -> Result<()> {
        for id in named::<DiskId>(&self.serving_folder()) {
            if self.served_to(id)? == Some(machine) {
                self.end_served(id).await?;
            }
        }
        Ok(())
    }

    /// Refuses a disk that a machine of this host has.
    pub(super) fn require_unserved(&self, id: DiskId) -> Result<()> {
        let runs = |of: &MachineId| machine::find(&self.machine(*of), of.0).is_some();
        match self.served_to(id)?.filter(runs) {
            Some(_) => Err(transient("a machine has the disk that runs")),
            None => Ok(()),
        }
    }

    /// Ends what serves disks to machines that are gone, and tells of machines whose disks are not served any more.
    pub(super) async fn tend_served(&self) {
        let Ok(_turn) = self.serving.beginning.try_write() else { return };
        for id in named::<DiskId>(&self.serving_folder()) {
            if let Err(error) = self.look_at_served(id).await {
                tracing::warn!(disk = %id, %error, "what serves a disk to no machine cannot be ended; trying again");
            }
        }
    }

    async fn look_at_served(&self, id: DiskId) -> Result<()> {
        let (dir, of) = (self.serving_dir(id), self.served_to(id)?);
        match of.filter(|of| machine::find(&self.machine(*of), of.0).is_some()) {
            None => {
                if served::end_if_idle(&dir, id.0).await.map_err(qemu_failed)? {
                    self.forget_serving(id)?;
                }
            }
            Some(vm) if !served::runs(&dir, id.0) && self.serving.lost().insert(id) => {
                let said = served::last_words(&dir);
                tracing::error!(
                    disk = %id, %vm, said,
                    "what serves a disk of a store ended before its machine, which cannot read or write it until the VM is restarted"
                );
            }
            Some(_) => {}
        }
        Ok(())
    }

    fn served_to(&self, id: DiskId) -> Result<Option<MachineId>> {
        let noted = notes::read(&self.serving_note(id)).map_err(transient)?;
        // A note of something else names no machine.
        Ok(noted.and_then(|text| text.parse().ok()))
    }

    fn forget_serving(&self, id: DiskId) -> Result<()> {
        self.serving.lost().remove(&id);
        match std::fs::remove_file(self.serving_note(id)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(transient(error)),
            _ => Ok(()),
        }
    }
}
