//! Machines that go to another host while they run, and those that come from one.
//!
//! All that a disk has comes with its machine, so that it needs nothing of the image that it was once cloned from. A root disk
//! lies on the image as it is here all the same: that has the kernel which it boots, and every cluster of it is covered.
//!
//! A note beside each disk names the machine that it comes with until that goes on: only such a disk is removed for another try,
//! and of a machine that goes on here nothing is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use berth_domain::ids::{DiskId, MachineId};
use berth_qemu::image::Manifest;
use berth_qemu::machine::{self, Assigned, Fits, migration, snapshot};
use berth_qemu::{accel, disk, host};

use super::bases::COMING;
use super::disks::in_time;
use super::memory::processor_of;
use super::start::write_seed;
use super::{QemuEngine, network, notes};
use crate::error::{qemu_failed, transient};
use crate::vm::{Channel, Console, DataDisk, Likeness, MachineSpec, Started};
use crate::{EngineError, Result};

impl QemuEngine {
    /// What a running machine is like, where it can go to another host.
    pub(super) async fn describe_machine(&self, spec: &MachineSpec) -> Result<Likeness> {
        require_movable(spec)?;
        let (id, dir) = (spec.id, self.machine(spec.id));
        if machine::find(&dir, id.0).is_none() {
            return refused("it does not run");
        }
        if self.is_bridged(id) {
            return refused("it is on its host's bridge, whose addresses another host does not have; stop it first");
        }
        if self.programs.is_qemus(id) {
            return refused(OLDER);
        }
        let found = in_time(migration::look(&dir, &accel::processor())).await?;
        let ids = disks_of(spec);
        let sizes = ids.iter().filter_map(|id| Some((*id, *found.disks.get(&id.serial())?)));
        let disks: BTreeMap<_, _> = sizes.collect();
        if disks.len() != ids.len() || disks.len() != found.disks.len() {
            return Err(transient("the machine does not have exactly the disks that it is to have"));
        }
        let is_placed = |disk: &DataDisk| found.fits.places.contains_key(&disk.id.serial());
        if !spec.data_disks.iter().all(is_placed) || found.places != places_of(spec) {
            return refused(OLDER);
        }
        let Fits { processor, qemu, places, has_screen, has_guest_port, .. } = found.fits;
        Ok(Likeness { processor, qemu, places, has_screen, has_guest_port, disks })
    }

    /// Has a machine wait for what another host sends of it.
    pub(super) async fn begin_to_wait(&self, spec: &MachineSpec, likeness: &Likeness) -> Result<Started> {
        require_movable(spec)?;
        self.remove_what_came(spec).await?;
        let started = self.wait_like(spec, likeness).await;
        if started.is_err() {
            // What made it fail is what counts; another try removes what is left.
            if self.remove_what_came(spec).await.is_ok() {
                let _ = self.remove_machine(spec.id).await;
            }
        }
        started
    }

    /// Removes what an earlier try for the same machine left.
    async fn remove_what_came(&self, spec: &MachineSpec) -> Result<()> {
        let (id, dir) = (spec.id, self.machine(spec.id));
        if machine::find(&dir, id.0).is_some() && !migration::waits(&dir).await.map_err(qemu_failed)? {
            return Err(EngineError::Permanent("the machine runs on the host already".into()));
        }
        let disks = disks_of(spec);
        for disk in &disks {
            let is_there = [true, false].iter().any(|is_root| self.disk_file(*disk, *is_root).exists());
            if is_there && self.comes_with(*disk)? != Some(id) {
                let text = "the host has a disk of the machine that did not come with it; remove the disk there first";
                return Err(EngineError::Permanent(text.into()));
            }
        }
        self.end_machine(id).await?;
        for disk in disks {
            self.forget_disk(disk).await?;
        }
        self.remove_memory(id)
    }

    async fn wait_like(&self, spec: &MachineSpec, likeness: &Likeness) -> Result<Started> {
        let dir = self.machine(spec.id);
        std::fs::create_dir_all(&dir).map_err(transient)?;
        self.make_disks_to_fill(spec, likeness).await?;
        // Its guest has the network of a program, whatever it is to have from its next boot on.
        let as_it_is = MachineSpec { is_bridged: false, goes_on: false, ..spec.clone() };
        drop(self.bridge_for(&as_it_is).await?);
        let fits = Fits {
            processor: likeness.processor.clone(),
            qemu: likeness.qemu,
            places: likeness.places.clone(),
            has_screen: likeness.has_screen,
            has_guest_port: likeness.has_guest_port,
            disks: BTreeMap::new(),
        };
        let own = self.qemu_spec(spec, Assigned::default()).await?;
        let coming = machine::Spec { memory: Some(fits), ..own };
        require_alike(likeness, &coming).await?;
        write_seed(spec, &coming)?;
        let (open, low_ports) = self.sort_ports(spec);
        let bound = network::bind(&open)?;
        migration::expect(&coming).await.map_err(qemu_failed)?;
        self.programs.begin(spec, bound.sockets).await?;
        self.attend(spec.id);
        Ok(Started { low_ports, taken_ports: bound.taken, ..Started::default() })
    }

    /// Makes empty disks for what comes.
    async fn make_disks_to_fill(&self, spec: &MachineSpec, likeness: &Likeness) -> Result<()> {
        let (_, free) = host::disk(&self.settings.host.data).map_err(qemu_failed)?;
        if !self.is_room(free) {
            return Err(EngineError::NoCapacity("the host's disk has no room for the machine's disks".into()));
        }
        if let Err(error) = Manifest::load(&self.images_dir().join(&spec.image_id)) {
            tracing::warn!(vm = %spec.id, image = spec.image_id, %error, "a machine comes whose image is not there");
            return Err(EngineError::NoCapacity(format!("the image '{}' is not on the host", spec.image_id)));
        }
        let ids: BTreeSet<_> = disks_of(spec).into_iter().collect();
        if !ids.iter().eq(likeness.disks.keys()) {
            return Err(EngineError::Permanent("the machine has other disks than it is to have".into()));
        }
        std::fs::create_dir_all(self.disks()).map_err(transient)?;
        for (id, bytes) in &likeness.disks {
            notes::write(&self.coming_note(*id), spec.id.to_string().as_bytes()).map_err(transient)?;
            if *id == spec.root_disk {
                let base = self.base(&spec.image_id).await?;
                self.clone_root_to_fill(*id, &base, *bytes).await?;
            } else {
                disk::create_block(&self.disk_file(*id, false), *bytes).await.map_err(qemu_failed)?;
            }
        }
        Ok(())
    }

    /// The machine with which a disk comes.
    fn comes_with(&self, id: DiskId) -> Result<Option<MachineId>> {
        let noted = notes::read(&self.coming_note(id)).map_err(transient)?;
        Ok(noted.and_then(|noted| noted.parse().ok()))
    }

    /// Has the disks be this host's that came with a machine, which is about to go on.
    pub(super) fn keep_what_came(&self, id: MachineId) -> Result<()> {
        for entry in std::fs::read_dir(self.disks()).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let comes = entry.extension().is_some_and(|end| end == COMING);
            if comes && notes::read(&entry).map_err(transient)? == Some(id.to_string()) {
                std::fs::remove_file(&entry).map_err(transient)?;
            }
        }
        Ok(())
    }

    /// A way by which a running machine sends something of itself.
    pub(super) async fn begin_to_send(&self, id: MachineId, channel: Channel) -> Result<Box<dyn Console>> {
        let dir = self.process_of(id)?;
        let way = match channel {
            Channel::Disk(disk) => in_time(migration::send_disk(&dir, &disk.serial())).await?,
            Channel::Memory => {
                // A guest that is frozen stays so elsewhere, where nobody knows of it; a disk that is copied does not go.
                self.thaw(id).await;
                in_time(snapshot::give_up_all(&dir)).await?;
                in_time(migration::send_memory(&dir)).await?
            }
        };
        Ok(Box::new(way))
    }

    /// A way by which a machine that waits gets something of itself.
    pub(super) async fn begin_to_fill(&self, id: MachineId, channel: Channel) -> Result<Box<dyn Console>> {
        let dir = self.process_of(id)?;
        if !migration::waits(&dir).await.map_err(qemu_failed)? {
            return Err(EngineError::Permanent("the machine does not wait for another host".into()));
        }
        let way = match channel {
            Channel::Disk(_) => migration::fill_disk(&dir).await,
            Channel::Memory => migration::fill_memory(&dir).await,
        };
        Ok(Box::new(way.map_err(qemu_failed)?))
    }

    /// Waits until the other host has all of a machine's disks.
    pub(super) async fn wait_mirrored(&self, id: MachineId) -> Result<()> {
        migration::mirrored(&self.process_of(id)?).await.map_err(qemu_failed)
    }

    /// Waits until the other host has all of a machine, which stands still then.
    pub(super) async fn hand_machine_over(&self, id: MachineId) -> Result<()> {
        migration::hand_over(&self.process_of(id)?).await.map_err(qemu_failed)
    }

    /// Waits until all of a machine has come.
    pub(super) async fn take_machine(&self, id: MachineId) -> Result<()> {
        migration::taken(&self.process_of(id)?, id.0).await.map_err(qemu_failed)
    }

    /// Has a machine go on that is being sent, or was; fine where there is none.
    pub(super) async fn keep_machine(&self, id: MachineId) -> Result<()> {
        let dir = self.machine(id);
        if machine::find(&dir, id.0).is_none() {
            return Ok(());
        }
        migration::call_off(&dir).await.map_err(qemu_failed)
    }

    /// The folder of a machine that has a process.
    fn process_of(&self, id: MachineId) -> Result<PathBuf> {
        let dir = self.machine(id);
        match machine::find(&dir, id.0) {
            Some(_) => Ok(dir),
            None => Err(transient("the machine has no process on the host")),
        }
    }
}

/// What a machine is told that an earlier version started.
const OLDER: &str = "an older version, or one with other settings, started it; restart it first";

/// What is said of a machine that stays where it is.
fn refused<T>(why: &str) -> Result<T> {
    Err(EngineError::Permanent(format!("the machine cannot go to another host while it runs: {why}")))
}

/// Refuses a machine that has what only its host has.
fn require_movable(spec: &MachineSpec) -> Result<()> {
    if !spec.gpus.is_empty() {
        return refused("it has a GPU; stop it first");
    }
    if spec.store.is_some() {
        return refused("its disks lie in a store; restart it there");
    }
    if spec.rescue.is_some() {
        return refused("it is being rescued");
    }
    if !spec.networks.is_empty() {
        return refused("it belongs to a network of its project; stop it first");
    }
    Ok(())
}

/// The disks of a machine, its root disk first.
fn disks_of(spec: &MachineSpec) -> Vec<DiskId> {
    std::iter::once(spec.root_disk).chain(spec.data_disks.iter().map(|disk| disk.id)).collect()
}

/// For how many data disks a machine has places.
fn places_of(spec: &MachineSpec) -> usize {
    spec.disk_places.max(spec.data_disks.len())
}

/// Refuses a machine that would find another processor here, or another QEMU.
async fn require_alike(likeness: &Likeness, here: &machine::Spec) -> Result<()> {
    let processor = processor_of(here.accel);
    if likeness.processor != processor {
        let text = format!("the machine has another processor than the host: {}, not {processor}", likeness.processor);
        return Err(EngineError::Permanent(text));
    }
    let (there, here) = (likeness.qemu, host::release_of(&here.qemu).await.map_err(qemu_failed)?);
    if there != here {
        let text =
            format!("the machine runs with QEMU {}.{}, and the host has {}.{}", there.0, there.1, here.0, here.1);
        return Err(EngineError::Permanent(text));
    }
    Ok(())
}
