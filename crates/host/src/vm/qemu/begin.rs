//! Machines that begin with a captured boot ([`super::boots`]), and capturing one.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use berth_domain::ids::{DiskId, MachineId};
use berth_qemu::image::Manifest;
use berth_qemu::machine::{self, Captured, Mapped, memory};
use berth_qemu::sandbox::copy_memory;
use berth_qemu::seed::{Mac, write_template};
use berth_qemu::{disk, host};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::boots::{DISK, MAKING, MEMORY, NOTE, Note, STATE, Wanted, key, publish};
use super::{CapturedBoots, QemuEngine, notes, start};
use crate::error::{qemu_failed, transient};
use crate::vm::MachineSpec;
use crate::{Result, fault};

/// How long a guest may take until it waits.
const WAITING: Duration = Duration::from_mins(5);
/// How long it settles then.
const SETTLING: Duration = Duration::from_secs(1);
/// Between two looks at what is wanted, and at a guest.
const LOOK: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(100);
/// How long loading a boot may take.
const LOADING: Duration = Duration::from_secs(30);
/// Most bytes of a root disk's part that a captured machine wrote.
const MOST_DISK: u64 = 1 << 30;

impl QemuEngine {
    /// Starts a machine that goes on with nothing: with a captured boot if it has a disk that no machine had yet, else it
    /// boots. Why it boots, where it might have done otherwise.
    pub(super) async fn begin(&self, spec: &MachineSpec, machine: machine::Spec) -> Result<Option<String>> {
        let boots = self.settings.captured_boots;
        if !boots.are_for(machine.accel) || spec.rescue.is_some() || !self.is_fresh(spec) {
            self.grow_as_noted(spec.root_disk).await?;
            return self.boot(spec, machine).await.map(|()| None);
        }
        let base = self.base_of(spec.root_disk)?;
        let reason = match unfit(spec, &machine, &base) {
            // Worth a word only where it was asked for.
            Some(reason) => (boots == CapturedBoots::Asked).then(|| reason.to_owned()),
            None => match self.begin_captured(spec, &machine, &base).await? {
                None => return self.forget_growth(spec.root_disk).await.map(|()| None),
                reason => reason,
            },
        };
        disk::remove(&self.fresh_note(spec.root_disk)).await.map_err(qemu_failed)?;
        self.grow_as_noted(spec.root_disk).await?;
        self.boot(spec, machine).await.map(|()| reason)
    }

    /// Has a root disk grow that was left as a captured boot has it, with its image's size.
    async fn grow_as_noted(&self, id: DiskId) -> Result<()> {
        let Some(bytes) = notes::read(&self.growth_note(id)).map_err(transient)? else { return Ok(()) };
        let bytes = bytes.parse().map_err(transient)?;
        machine::grow_file(&self.any_drive(id)?, bytes).await.map_err(qemu_failed)?;
        self.forget_growth(id).await
    }

    async fn forget_growth(&self, id: DiskId) -> Result<()> {
        disk::remove(&self.growth_note(id)).await.map_err(qemu_failed)
    }

    /// Starts a machine with a captured boot; else why that is not so, with its disk as it was.
    async fn begin_captured(&self, spec: &MachineSpec, machine: &machine::Spec, base: &Path) -> Result<Option<String>> {
        let key = key(machine, base);
        let boot = self.boots.folder.join(&key);
        let want = || {
            let (like, base) = (machine.clone(), base.to_path_buf());
            self.boots.want(Wanted { key: key.clone(), like, base, of: spec.id, since: Instant::now() })
        };
        if !boot.join(NOTE).is_file() {
            let reason = if want() {
                "no boot of its image and size was captured yet; the next VM begins with one"
            } else {
                "no boot of its image and size could be captured; it is tried again within an hour, and the log says why"
            };
            return Ok(Some(reason.into()));
        }
        let root_bytes = machine::size(&machine.root).map_err(qemu_failed)?;
        let started = self.start_captured(spec, machine, &boot, root_bytes).await;
        let is_unfit = self.boots.loaded(&key, started.is_ok());
        let Err(error) = started else { return Ok(None) };
        tracing::warn!(vm = %spec.id, %error, "a machine boots, since it cannot begin with a captured boot");
        machine::end(&machine.dir, machine.id).await.map_err(qemu_failed)?;
        if is_unfit {
            let _ = tokio::fs::remove_dir_all(&boot).await;
            want();
        }
        let image = machine.root.bases.first().map_or(base, PathBuf::as_path);
        disk::clone_image_anew(image, &machine.root.path, root_bytes).await.map_err(qemu_failed)?;
        Ok(Some("the captured boot of its image and size could not be loaded".into()))
    }

    async fn start_captured(
        &self,
        spec: &MachineSpec,
        machine: &machine::Spec,
        boot: &Path,
        root_bytes: u64,
    ) -> Result<()> {
        notes::make_young(&boot.join(NOTE));
        start::seed_of(spec).write_for_waiting(&machine.seed).map_err(qemu_failed)?;
        disk::remove(&self.fresh_note(spec.root_disk)).await.map_err(qemu_failed)?;
        // What replaces it has its image's size until QEMU has it.
        notes::write(&self.growth_note(spec.root_disk), root_bytes.to_string().as_bytes()).map_err(transient)?;
        let (from, to) = (boot.join(DISK), machine.root.path.clone());
        let copied = tokio::task::spawn_blocking(move || replace(&from, &to));
        copied.await.map_err(transient)?.map_err(transient)?;
        fault::point("vm.boot.disk").await.map_err(transient)?;
        let captured = Captured { memory: boot.join(MEMORY), state: boot.join(STATE), root_bytes };
        let machine = machine::Spec { mapped: Some(Mapped::Captured(captured)), ..machine.clone() };
        let started = tokio::time::timeout(LOADING, machine::start(&machine)).await;
        started.map_err(|_| transient("the captured boot was not loaded in time"))?.map_err(qemu_failed)
    }

    /// Notes that no machine had a root disk yet, where one may begin with a captured boot.
    pub(super) fn note_fresh(&self, id: DiskId) -> Result<()> {
        if self.settings.captured_boots == CapturedBoots::Never {
            return Ok(());
        }
        let state = memory::states(&[&self.disk_file(id, true)]).map_err(qemu_failed)?;
        let state = serde_json::to_vec(&state).map_err(transient)?;
        std::fs::write(self.fresh_note(id), state).map_err(transient)
    }

    fn is_fresh(&self, spec: &MachineSpec) -> bool {
        let noted =
            std::fs::read(self.fresh_note(spec.root_disk)).ok().and_then(|note| serde_json::from_slice(&note).ok());
        noted.is_some() && noted == memory::states(&[&self.disk_file(spec.root_disk, true)]).ok()
    }

    /// Captures boots that are wanted, one after another, until told to stop.
    pub(super) async fn tend_boots(&self, stop: &CancellationToken) {
        self.end_making().await;
        while stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
            self.boots.forget(&self.settings.host.data.join("bases"));
            if host::disk(&self.settings.host.data).is_ok_and(|(_, free)| !self.is_room(free)) {
                self.boots.give_way();
            }
            if self.settings.captured_boots == CapturedBoots::Never {
                continue;
            }
            let has_booted = |id: MachineId| {
                let dir = self.machine(id);
                machine::is_ready(&dir, id.0) || machine::find(&dir, id.0).is_none()
            };
            let Some(wanted) = self.boots.next(has_booted) else { continue };
            if let Some(Err(error)) = stop.run_until_cancelled(self.capture_boot(&wanted)).await {
                tracing::warn!(boot = wanted.key, %error, "a boot could not be captured; machines of its kind boot");
                self.boots.fail(&wanted.key);
            }
            self.end_making().await;
        }
    }

    /// Ends what is being captured, or was when an earlier service ended.
    async fn end_making(&self) {
        for found in machine::scan(&self.boots.folder.join(MAKING)) {
            if let Err(error) = machine::end(&found.dir, found.id).await {
                tracing::warn!(%error, "a machine that was to be captured cannot be ended");
                continue;
            }
            let _ = tokio::fs::remove_dir_all(&found.dir).await;
        }
    }

    async fn capture_boot(&self, wanted: &Wanted) -> Result<()> {
        let to = self.boots.folder.join(&wanted.key);
        if to.join(NOTE).is_file() {
            return Ok(());
        }
        let _room = self.room_for(u64::from(wanted.like.memory_mb) << 20)?;
        let id = Uuid::now_v7();
        let dir = self.boots.folder.join(MAKING).join(id.to_string());
        let whole = dir.join("whole");
        std::fs::create_dir_all(&whole).map_err(transient)?;
        let manifest = Manifest::load(&wanted.base).map_err(qemu_failed)?;
        let (image, path) = (wanted.base.join(&manifest.disk), dir.join(DISK));
        disk::clone_image(&image, &path, manifest.virtual_size_bytes).await.map_err(qemu_failed)?;
        let machine = nobodys(id, &dir, &wanted.like, self.settings.host.machines.of_boots());
        write_template(&machine.seed).map_err(qemu_failed)?;
        let since = Instant::now();
        machine::start(&machine).await.map_err(qemu_failed)?;
        while !machine::waits(&dir) {
            if since.elapsed() > WAITING || machine::find(&dir, id).is_none() {
                return Err(transient("its guest does not wait for an owner"));
            }
            tokio::time::sleep(TICK).await;
        }
        tokio::time::sleep(SETTLING).await;
        machine::capture(&dir, &whole.join(STATE)).await.map_err(qemu_failed)?;
        machine::end(&dir, id).await.map_err(qemu_failed)?;
        let base = wanted.base.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let note = serde_json::to_vec(&Note { base }).map_err(transient)?;
        let placed = tokio::task::spawn_blocking(move || publish(&dir, &whole, &to, &note));
        placed.await.map_err(transient)?.map_err(transient)?;
        tracing::info!(boot = wanted.key, seconds = since.elapsed().as_secs(), "captured a boot");
        Ok(())
    }
}

/// A machine like this one that belongs to nobody.
fn nobodys(id: Uuid, dir: &Path, like: &machine::Spec, jail: machine::Jail) -> machine::Spec {
    machine::Spec {
        id,
        name: "nobody".into(),
        dir: dir.to_path_buf(),
        root: machine::Drive { path: dir.join(DISK), serial: "root".into(), ..like.root.clone() },
        seed: dir.join("seed.iso"),
        drives: Vec::new(),
        served: Vec::new(),
        mac: Mac::of(id),
        // Nobody carries the network of a machine that is nobody's.
        link: machine::Link::Socket,
        jail,
        mapped: Some(Mapped::Written),
        ..like.clone()
    }
}

/// Why such a machine boots, whatever was captured.
fn unfit(spec: &MachineSpec, machine: &machine::Spec, base: &Path) -> Option<&'static str> {
    if !spec.gpus.is_empty() {
        return Some("a machine with a GPU boots");
    }
    if !matches!(machine.boot, machine::Boot::Kernel { .. }) {
        return Some("its image has a boot loader of its own");
    }
    let waits = Manifest::load(base).is_ok_and(|manifest| manifest.waits);
    (!waits).then_some("its image was built by an older version, which cannot wait for an owner")
}

/// Has a disk be what a captured machine left.
fn replace(from: &Path, to: &Path) -> std::io::Result<()> {
    let mut new = to.as_os_str().to_owned();
    new.push(".tmp");
    copy_memory(from, Path::new(&new), MOST_DISK).map_err(std::io::Error::other)?;
    std::fs::rename(&new, to)
}
