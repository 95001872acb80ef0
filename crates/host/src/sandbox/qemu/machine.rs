//! Starting and ending machines of sandboxes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use berth_domain::agent::control::{Boot, Identity, Interface, Interface6};
use berth_domain::ids::{LayerId, MachineId};
use berth_domain::network::LOCAL6;
use berth_egress::program::process;
use berth_qemu::machine::{self, Assigned};
use berth_qemu::sandbox::{self, Begin, Layer};
use uuid::Uuid;

use super::captured::{About, agent_failed, begin, booted};
use super::live::{Incarnation, Live};
use super::places::Captured;
use super::{MAC, QemuSandboxes};
use crate::Result;
use crate::error::{qemu_failed, transient};
use crate::sandbox::{From, Observed, StartSpec, Started};
use crate::{fault, gpu};

/// Where the guest finds its disk.
pub(super) const DISK: &str = "/dev/vda";
/// How often a memory is loaded that does not come to run.
const LOADS: u32 = 3;

/// What is a machine's own.
pub(super) struct Part<'a> {
    /// Its id.
    pub id: Uuid,
    /// Its folder.
    pub dir: &'a Path,
    /// Its disk, the top layer first.
    pub disk: Vec<Layer>,
    /// How it begins.
    pub begin: Begin,
    /// Devices of the host that it has for itself.
    pub assigned: Assigned,
    /// Which of the users it runs as.
    pub slot: i64,
}

/// What a machine begins with, decided.
struct Origin {
    /// What it loads. One with a GPU boots, since nothing that was captured knows its devices.
    captured: Option<Captured>,
    about: About,
    /// Whether it has its root file system already.
    booted: bool,
    note: Option<String>,
}

impl QemuSandboxes {
    pub(super) async fn start_machine(&self, spec: &StartSpec) -> Result<Started> {
        let dir = self.places.machine(spec.id);
        let before = Incarnation::read(&dir);
        if machine::find(&dir, spec.id.0).is_some() {
            match before {
                Some(known) if self.is_this(spec, &dir, &known).await => {
                    return self.take_over(spec, &dir, known).await;
                }
                _ => self.end_machine(spec.id).await?,
            }
        }
        self.start_anew(spec, &dir, before).await
    }

    /// Whether the machine that runs is the one to be started. One that an interrupted start left is, once: its
    /// memory is loaded by then, and would be lost with it.
    async fn is_this(&self, spec: &StartSpec, dir: &Path, known: &Incarnation) -> bool {
        if known.top != spec.layers.first().copied() {
            return false;
        }
        let is_left = !known.identified && known.generation + 1 == spec.generation;
        let fits = !known.from_memory || known.consumed == memory_of(spec);
        known.generation == spec.generation
            || is_left && fits && machine::observe(dir, spec.id.0).await == machine::Observed::Running
    }

    async fn start_anew(&self, spec: &StartSpec, dir: &Path, before: Option<Incarnation>) -> Result<Started> {
        let start_slot = self.starting.take().await.map_err(transient)?;
        let (mut incarnation, note) = self.launch_or_give_back(spec, before).await?;
        let started = self.identify(spec, dir, &mut incarnation).await?;
        drop(start_slot);
        Ok(Started { note, ..started })
    }

    /// A machine that runs and is not this sandbox yet: what an interrupted start left, or a warm one.
    async fn take_over(&self, spec: &StartSpec, dir: &Path, mut known: Incarnation) -> Result<Started> {
        known.network = spec.network.clone();
        known.guest.clone_from(&spec.guest);
        known.write(dir).map_err(transient)?;
        if let Some(live) = self.live(spec.id) {
            live.link().set(spec.network.clone()).await.map_err(transient)?;
        }
        known.generation = spec.generation;
        self.identify(spec, dir, &mut known).await
    }

    /// Starts the process. Where that fails, the devices that it was to have are given back.
    async fn launch_or_give_back(
        &self,
        spec: &StartSpec,
        before: Option<Incarnation>,
    ) -> Result<(Incarnation, Option<String>)> {
        let launched = self.launch(spec, before).await;
        if launched.is_err() && machine::find(&self.places.machine(spec.id), spec.id.0).is_none() {
            self.gpus.give_back(spec.id).await?;
        }
        launched
    }

    /// Starts the process. What runs is nobody yet.
    pub(super) async fn launch(
        &self,
        spec: &StartSpec,
        before: Option<Incarnation>,
    ) -> Result<(Incarnation, Option<String>)> {
        let dir = &self.places.machine(spec.id);
        std::fs::create_dir_all(dir).map_err(transient)?;
        let origin = self.origin(spec, before.as_ref()).await?;
        let mut incarnation = incarnation(spec, before, origin.booted)?;
        incarnation.write(dir).map_err(transient)?;
        let disk = spec.layers.iter().map(|id| self.layer(*id)).collect();
        let stays = if origin.captured.is_none() { Some(self.guests.stays().await) } else { None };
        let begin = match &origin.captured {
            Some(captured) => begin(captured),
            None => self.guest()?.begin(self.accel().await?),
        };
        let assigned = self.gpus.take(spec.id, &spec.gpus, gpu::lives(&self.settings.host.data)).await?;
        let part = Part { id: spec.id.0, dir, disk, begin, assigned, slot: spec.slot };
        let machine = self.machine_of(part, &origin.about).await?;
        sandbox::start(&machine, || {
            let Some((key, _)) = &incarnation.loading else { return Ok(()) };
            // Before anything runs, so that a machine is never loaded twice onto the same disk.
            incarnation.consumed = Some(key.clone());
            incarnation.write(dir).map_err(|error| berth_qemu::Error::io("cannot note what is loaded", error))
        })
        .await
        .map_err(qemu_failed)?;
        drop(stays);
        fault::point("sandbox.start.launched").await.map_err(transient)?;
        if origin.captured.is_none() {
            booted(dir).await?;
        }
        Ok((incarnation, origin.note))
    }

    /// A machine of some sizes.
    pub(super) async fn machine_of(&self, part: Part<'_>, about: &About) -> Result<sandbox::Spec> {
        Ok(sandbox::Spec {
            id: part.id,
            dir: part.dir.to_path_buf(),
            vcpus: u32::try_from(about.vcpu).unwrap_or(1),
            memory_mb: u32::try_from(about.memory_mb).unwrap_or(256),
            disk: part.disk,
            mac: MAC,
            begin: part.begin,
            accel: self.accel().await?,
            assigned: part.assigned,
            jail: self.settings.host.machines.of_sandbox(part.slot),
            reads_memory: self.host().await?.reads_memory,
            qemu: self.settings.host.find_qemu()?,
        })
    }

    pub(super) fn layer(&self, id: LayerId) -> Layer {
        Layer { path: self.places.layer(id), id: id.0 }
    }

    /// The memory that was asked for, if it can be had; else the boot snapshot.
    async fn origin(&self, spec: &StartSpec, before: Option<&Incarnation>) -> Result<Origin> {
        let mut about = self.about(spec).await?;
        // What was captured knows no GPU. Tests have others boot, too.
        if !spec.gpus.is_empty() || fault::point("sandbox.start.captured").await.is_err() {
            return Ok(Origin { captured: None, about, booted: false, note: None });
        }
        let mut note = None;
        if let From::Memory(id) = spec.from {
            about.layer = memory_layer(&self.places.memory(id));
            let is_over = before.is_some_and(|known| is_consumed(known, &load_key(spec, id.0)));
            match self.fitting(id, &about).filter(|_| !is_over) {
                Some(captured) => return Ok(Origin { captured: Some(captured), about, booted: true, note }),
                None => note = Some("Its memory could not be taken up again; it began from its disk.".into()),
            }
        }
        about.layer = None;
        Ok(Origin { captured: Some(self.boot_snapshot(&about).await?), about, booted: false, note })
    }

    /// What a capture has to be to load into a machine.
    pub(super) async fn about(&self, spec: &StartSpec) -> Result<About> {
        let lowest = spec.layers.first().ok_or_else(|| transient("a sandbox has no disk"))?;
        Ok(About {
            fingerprint: self.fingerprint().await?,
            vcpu: spec.vcpu,
            memory_mb: spec.memory_mb,
            disk_bytes: sandbox::layer_size(&self.places.layer(*lowest)).map_err(qemu_failed)?,
            layer: None,
        })
    }

    /// Makes the machine this sandbox. Before that, no program of the user runs.
    async fn identify(&self, spec: &StartSpec, dir: &Path, incarnation: &mut Incarnation) -> Result<Started> {
        let live = self.live(spec.id).ok_or_else(|| transient("the machine's folder is gone"))?;
        let session = live.session().await.map_err(agent_failed)?;
        if !incarnation.from_memory {
            let root =
                Boot { root: DISK.into(), user: Some(spec.user.clone()), workspace: spec.workdir.clone(), bare: false };
            session.boot(&root).await.map_err(agent_failed)?;
        }
        self.switches.join(spec.id, &spec.networks).await?;
        session.identify(&identity(spec, incarnation, self.clock.now().0)?).await.map_err(agent_failed)?;
        live.begins();
        incarnation.identified = true;
        incarnation.write(dir).map_err(transient)?;
        let from_memory = incarnation.from_memory;
        let has_run = |memory: &String| incarnation.consumed.as_ref() == Some(memory);
        let unloadable = !from_memory && memory_of(spec).is_some_and(|memory| !has_run(&memory));
        Ok(Started { from_memory, unloadable, note: None })
    }

    /// Ends the process at once.
    pub(super) async fn end_machine(&self, id: MachineId) -> Result<()> {
        self.lives.forget(id);
        let dir = self.places.machine(id);
        sandbox::stop(&dir, id.0).await.map_err(qemu_failed)?;
        process::end(&dir).await.map_err(transient)?;
        self.gpus.give_back(id).await?;
        // From here on nobody misses it.
        match Incarnation::read(&dir).filter(|known| known.identified) {
            Some(known) => Incarnation { identified: false, ..known }.write(&dir).map_err(transient),
            None => Ok(()),
        }
    }

    pub(super) fn observe_machine(&self, id: MachineId) -> Observed {
        let dir = self.places.machine(id);
        match (machine::find(&dir, id.0), Incarnation::read(&dir)) {
            (Some(_), Some(known)) if known.identified => Observed::Running { generation: known.generation },
            (None, Some(known)) if known.identified => Observed::Ended,
            // Between its start and its identity it is nothing yet: the start is repeated.
            _ => Observed::Absent,
        }
    }

    /// A machine that runs, to be spoken to.
    pub(super) fn live(&self, id: MachineId) -> Option<Arc<Live>> {
        self.lives.of(id, &self.places.machine(id))
    }
}

/// The layer that a memory belongs to.
fn memory_layer(captured: &Captured) -> Option<LayerId> {
    About::read(captured).and_then(|about| about.layer)
}

/// A memory on a disk: what may happen once.
fn load_key(spec: &StartSpec, memory: Uuid) -> String {
    let top = spec.layers.first().map(ToString::to_string).unwrap_or_default();
    format!("{memory} on {top}")
}

/// What is loaded onto the disk, if something is.
fn memory_of(spec: &StartSpec) -> Option<String> {
    match spec.from {
        From::Memory(id) => Some(load_key(spec, id.0)),
        From::Disk => None,
    }
}

/// Whether a memory ran on a disk already, or could not be loaded again and again.
fn is_consumed(known: &Incarnation, key: &str) -> bool {
    let is_hopeless = known.loading.as_ref().is_some_and(|(loading, tries)| loading == key && *tries >= LOADS);
    known.consumed.as_deref() == Some(key) || is_hopeless
}

fn incarnation(spec: &StartSpec, before: Option<Incarnation>, booted: bool) -> Result<Incarnation> {
    let loading = memory_of(spec).filter(|_| booted).map(|key| {
        let earlier = before.as_ref().and_then(|known| known.loading.as_ref()).filter(|(loading, _)| *loading == key);
        let tries = earlier.map_or(1, |(_, tries)| tries + 1);
        (key, tries)
    });
    let (kept, consumed) = before.map(|known| (known.machine_id, known.consumed)).unzip();
    let kept = kept.filter(|_| !spec.fresh);
    Ok(Incarnation {
        guest: spec.guest.clone(),
        generation: spec.generation,
        token: token()?,
        machine_id: kept.map_or_else(machine_id, Ok)?,
        from_memory: booted,
        top: spec.layers.first().copied(),
        consumed: consumed.flatten(),
        loading,
        vcpu: spec.vcpu,
        memory_mb: spec.memory_mb,
        network: spec.network.clone(),
        slot: Some(spec.slot),
        identified: false,
    })
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).map_err(transient)?;
    Ok(bytes)
}

/// What a request to the agent bears.
fn token() -> Result<String> {
    Ok(URL_SAFE_NO_PAD.encode(random::<32>()?))
}

fn machine_id() -> Result<String> {
    Ok(random::<16>()?.iter().map(|b| format!("{b:02x}")).collect())
}

/// The identity of a machine's present life.
pub(super) fn identity(spec: &StartSpec, incarnation: &Incarnation, unix_micros: i64) -> Result<Identity> {
    Ok(Identity {
        token: incarnation.token.clone(),
        machine_id: incarnation.machine_id.clone(),
        env: environment(spec),
        network: Some(network(spec.networks.iter().any(|network| network.cidr6.is_some()))),
        ..identity_of(&spec.guest, &spec.hostname, unix_micros)?
    })
}

/// An identity that was never anybody's.
pub(super) fn identity_of(guest: &str, hostname: &str, unix_micros: i64) -> Result<Identity> {
    Ok(Identity {
        sandbox_id: guest.to_owned(),
        token: token()?,
        hostname: hostname.to_owned(),
        machine_id: machine_id()?,
        entropy: STANDARD.encode(random::<256>()?),
        unix_micros,
        env: BTreeMap::new(),
        network: Some(network(false)),
        thaw: true,
    })
}

/// How a guest sets up its card. IPv6 is for networks of projects, and leads to those alone: who belongs to none that has it
/// begins as it was captured.
fn network(has_ipv6: bool) -> Interface {
    Interface {
        mac: None,
        address: berth_egress::GUEST.to_string(),
        prefix: berth_egress::PREFIX,
        gateway: berth_egress::GATEWAY.to_string(),
        dns: berth_egress::RESOLVER.to_string(),
        ipv6: has_ipv6.then(|| Interface6 {
            address: berth_egress::GUEST6.to_string(),
            prefix: berth_egress::PREFIX6,
            gateway: berth_egress::GATEWAY6.to_string(),
            to: LOCAL6.to_string(),
        }),
    }
}

/// What every command finds, beside what the owner set.
fn environment(spec: &StartSpec) -> BTreeMap<String, String> {
    let own = [("BERTH_SANDBOX_ID".to_owned(), spec.guest.clone())];
    own.into_iter().chain(spec.env.clone()).collect()
}
