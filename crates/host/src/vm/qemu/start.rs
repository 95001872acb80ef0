//! Starting a machine: its process, with its seed and the devices that it has for itself, and its network.

use std::path::Path;

use berth_domain::vm::inbound::SSH;
use berth_domain::vm::{ExposedPort, InboundPort};
use berth_qemu::image::Manifest;
use berth_qemu::seed::{Mac, Mount, Seed, generic_vendor_data};
use berth_qemu::{accel, machine};

use super::boots::Begun;
use super::bridged::Plugged;
use super::serving::served_drive;
use super::{QemuEngine, network};
use crate::error::qemu_failed;
use crate::vm::{DataDisk, MachineSpec, Open, Started};
use crate::{Result, gpu};

impl QemuEngine {
    /// How machines are accelerated, as was found out by trying.
    pub(super) async fn acceleration(&self, probe: Option<accel::Probe>, qemu: &Path) -> accel::Decision {
        if let Some(decision) = self.probed.get() {
            return decision.clone();
        }
        let decision = self.settings.host.decide_acceleration(probe.as_ref(), qemu).await;
        if !decision.provisional {
            tracing::info!(accel = ?decision.accel, reason = decision.reason, "acceleration decided");
            // Somebody may have decided the same meanwhile.
            let _ = self.probed.set(decision.clone());
        }
        decision
    }

    /// A machine, as its process is told of it.
    pub(super) async fn qemu_spec(&self, spec: &MachineSpec, assigned: machine::Assigned) -> Result<machine::Spec> {
        let dir = self.machine(spec.id);
        let base = match &spec.store {
            Some(store) => self.shared_base(spec.root_disk, store).await?,
            None => self.base_of(spec.root_disk)?,
        };
        let manifest = Manifest::load(&base).map_err(qemu_failed)?;
        self.integrity.check(&base, &manifest).await?;
        let qemu = self.settings.host.find_qemu()?;
        let boot = manifest.boot(&base);
        let probe = match &boot {
            machine::Boot::Kernel { kernel, initrd, .. } => {
                Some(accel::Probe { kernel: kernel.clone(), initrd: initrd.clone() })
            }
            _ => None,
        };
        Ok(machine::Spec {
            id: spec.id.0,
            name: spec.name.clone(),
            seed: dir.join("seed.iso"),
            dir,
            vcpus: u32::try_from(spec.vcpu).unwrap_or(1),
            memory_mb: u32::try_from(spec.memory_mb).unwrap_or(512),
            boot,
            root: match &spec.store {
                Some(_) => served_drive(spec.root_disk),
                None => self.root_drive(spec.root_disk, &base)?,
            },
            drives: spec.data_disks.iter().map(|disk| self.drive_of(spec, disk.id)).collect(),
            served: Vec::new(),
            places: spec.disk_places,
            assigned,
            mac: Mac::of(spec.id.0),
            link: machine::Link::Socket,
            mtu: berth_egress::MTU,
            accel: self.acceleration(probe, &qemu).await.accel,
            translated_mb: self.settings.translated_mb,
            jail: self.settings.host.machines.of_vm(spec.address),
            memory: None,
            mapped: None,
            qemu,
        })
    }

    /// Changes the ports and rules of a machine that runs.
    pub(super) async fn change_ports(&self, spec: &MachineSpec, before: Open) -> Result<Started> {
        if self.is_bridged(spec.id) {
            return self.set_bridged(spec).await;
        }
        let (open, low_ports) = self.sort_ports(spec);
        let taken_ports = self.programs.set_ports(spec, &open, &before).await?;
        let is_without_rules = !spec.rules.is_empty() && self.programs.is_qemus(spec.id);
        Ok(Started { low_ports, taken_ports, is_without_rules, ..Started::default() })
    }

    /// Which of some ports may be bound here, and which not.
    pub(super) fn sort_ports(&self, spec: &MachineSpec) -> (Vec<InboundPort>, Vec<ExposedPort>) {
        let may_bind = |port: &&InboundPort| port.to == SSH || self.ssh_port == SSH.port || port.at.port() >= 1024;
        let (open, low): (Vec<InboundPort>, Vec<_>) = spec.ports.iter().partition(may_bind);
        (open, low.into_iter().map(|port| port.to).collect())
    }

    /// Starts a machine with those of its ports that nobody else on the host has.
    pub(super) async fn start_anew(&self, spec: &MachineSpec) -> Result<Started> {
        // One that an earlier machine left a moment ago may have them still.
        self.programs.end(spec.id).await?;
        self.end_rescue(spec.id).await?;
        self.end_served_to(spec.id).await?;
        if let Some(plugged) = self.bridge_for(spec).await? {
            let begun = self.start_or_give_back(spec, Some(&plugged)).await;
            drop(plugged.beginning);
            if begun.is_err() {
                self.bridges.let_go(spec.id).await?;
            }
            return Ok(begun?.told(plugged.started));
        }
        let (open, low_ports) = self.sort_ports(spec);
        let bound = network::bind(&open)?;
        let begun = self.start_or_give_back(spec, None).await?;
        self.programs.begin(spec, bound.sockets).await?;
        Ok(begun.told(Started { low_ports, taken_ports: bound.taken, ..Started::default() }))
    }

    /// Makes the process. Where that fails, the devices that it was to have are given back.
    async fn start_or_give_back(&self, spec: &MachineSpec, plugged: Option<&Plugged<'_>>) -> Result<Begun> {
        let started = self.start_process(spec, plugged).await;
        if started.is_err() && machine::find(&self.machine(spec.id), spec.id.0).is_none() {
            self.gpus.give_back(spec.id).await?;
            self.end_served_to(spec.id).await?;
        }
        started
    }

    /// Starts a machine's process, with the devices that it has for itself.
    async fn start_process(&self, spec: &MachineSpec, plugged: Option<&Plugged<'_>>) -> Result<Begun> {
        let assigned = self.gpus.take(spec.id, &spec.gpus, gpu::lives(&self.settings.host.data)).await?;
        let own = self.qemu_spec(spec, assigned).await?;
        let own = match plugged {
            Some(plugged) => machine::Spec { link: plugged.link.clone(), mtu: plugged.mtu, ..own },
            None => own,
        };
        let takes_keys_once = is_foreign(&own);
        let serving = self.serve(spec).await?;
        let own = machine::Spec { served: serving.iter().map(|disk| disk.connection.clone()).collect(), ..own };
        let machine = match &spec.rescue {
            Some(image) => self.rescuing(own, image).await?,
            None => own,
        };
        let begun = self.make_machine(spec, machine).await;
        drop(serving);
        Ok(Begun { takes_keys_once, ..begun? })
    }

    /// Boots a machine.
    pub(super) async fn boot(&self, spec: &MachineSpec, machine: machine::Spec) -> Result<()> {
        write_seed(spec, &machine)?;
        machine::start(&machine).await.map_err(qemu_failed)
    }
}

/// Writes what the guest of a machine finds when it boots.
pub(super) fn write_seed(spec: &MachineSpec, machine: &machine::Spec) -> Result<()> {
    let vendor_data = is_foreign(machine).then(generic_vendor_data);
    Seed { vendor_data, ..seed_of(spec) }.write(&machine.seed).map_err(qemu_failed)
}

/// Whether a machine's image was imported: the platform's own have their kernel beside them.
const fn is_foreign(machine: &machine::Spec) -> bool {
    !matches!(machine.boot, machine::Boot::Kernel { .. })
}

/// What the guest of a machine is told.
pub(super) fn seed_of(spec: &MachineSpec) -> Seed {
    let is_own = spec.rescue.is_none();
    let mount = |disk: &DataDisk| Some(Mount { serial: disk.id.serial(), path: disk.mount.clone()? });
    Seed {
        instance_id: spec.id.0,
        hostname: spec.name.clone(),
        ssh_keys: spec.ssh_keys.clone(),
        user_data: spec.user_data.clone().filter(|_| is_own),
        vendor_data: None,
        mac: Mac::of(spec.id.0),
        mounts: spec.data_disks.iter().filter(|_| is_own).filter_map(mount).collect(),
    }
}
