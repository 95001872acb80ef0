//! Brings one VM to what its row wants: snapshot, plan, step, record, and again.
//!
//! A step is recorded only onto the row it was decided for: if a request changed the wish meanwhile,
//! the record is dropped and the next look decides anew. Doing is repeatable, so nothing is lost by
//! that. Failures that may pass are tried again, ever later, until the status' deadline ends them.

mod record;

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use berth_domain::ids::{DiskId, Owner, VmId};
use berth_domain::vm::model::{Want, ssh_port};
use berth_domain::vm::plan::{self, Deadlines, Disk, Machine, Snapshot, Step};
use berth_domain::vm::{DiskKind, Status};
use berth_domain::{Error, Result, Timestamp};

use super::capacity::shortage;
use super::{StepError, fault};
use crate::services::vm::Vms;
use crate::services::vm::engine::{DataDisk, EngineError, MachineSpec, Open, ssh_at};
use crate::services::vm::store;
use crate::services::vm::store::disk::{DiskRow, mount_points};
use crate::services::vm::store::vm::VmRow;
use crate::work::{Due, Reconciler};
use record::{Failure, apply, opened, opens, refused, running, still};

/// Steps of one run: far more than a life needs, so that a defect cannot spin for ever.
const MAX_STEPS: usize = 100;
/// Longest pause between two tries of a failing step, in seconds.
const LONGEST_PAUSE: i64 = 15;
/// SSH's own port, where nothing else is known of it.
const SSH: u16 = 22;
/// What the owner of a running VM is told while the worker cannot reach its machine.
const PORTS_LATER: &str = "its inbound ports could not be changed yet; the worker tries again";
/// What the owner of a VM is told whose guest wrote more than the host had room for.
const STALLED: &str = "the host's disk is full; the VM stands still, and goes on once there is room";
/// Wait when not even the pause could be recorded.
const BLIND_PAUSE: Duration = Duration::from_millis(500);

/// Reconciles VMs.
pub struct VmReconciler {
    vms: Vms,
    failures: Mutex<HashMap<VmId, u32>>,
}

/// One look at a VM.
struct Seen {
    vm: VmRow,
    disks: Vec<DiskRow>,
    now: Timestamp,
}

impl Reconciler for VmReconciler {
    type Key = VmId;
    const TABLE: &'static str = "vms";

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Due<VmId>> {
        Ok(store::vm::due(self.vms.db(), now, limit).await?)
    }

    async fn owner(&self, id: &VmId) -> Option<Owner> {
        store::vm::owner(self.vms.db(), *id).await.ok().flatten()
    }

    async fn reconcile(&self, id: VmId) {
        let mut seen = None;
        match self.bring_about(id, &mut seen).await {
            Ok(()) => {
                self.failures().remove(&id);
            }
            Err(error) => self.postpone(id, seen, error).await,
        }
    }
}

impl VmReconciler {
    /// A reconciler for the service's VMs.
    pub fn new(vms: Vms) -> Self {
        Self { vms, failures: Mutex::default() }
    }

    fn failures(&self) -> std::sync::MutexGuard<'_, HashMap<VmId, u32>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes steps until there is none to take; `last` is what the last one was decided for.
    async fn bring_about(&self, id: VmId, last: &mut Option<Seen>) -> Result<(), StepError> {
        for _ in 0..MAX_STEPS {
            let Some(seen) = self.look(id).await? else {
                return Ok(());
            };
            let seen = last.insert(seen);
            let step = plan::next(&self.snapshot(seen).await?);
            match step {
                Step::Rest => return self.rest(seen, None).await,
                Step::Wait(until) => return self.rest(seen, Some(until)).await,
                step => {
                    tracing::debug!(vm = %id, step = step.name(), "step");
                    self.take(seen, step).await?;
                }
            }
        }
        Err(StepError::Own(Error::internal(format!("no rest after {MAX_STEPS} steps"))))
    }

    async fn look(&self, id: VmId) -> Result<Option<Seen>, StepError> {
        let Some(vm) = store::vm::peek(self.vms.db(), id).await? else {
            return Ok(None);
        };
        let disks = store::disk::peek_of_vm(self.vms.db(), id).await?;
        Ok(Some(Seen { vm, disks, now: self.vms.clock().now() }))
    }

    async fn snapshot(&self, seen: &Seen) -> Result<Snapshot, StepError> {
        let (vm, engine, config) = (&seen.vm, self.vms.engine(), self.vms.config());
        let running = vm.status == Status::Running;
        let machine = engine.observe(vm.id).await?;
        Ok(Snapshot {
            now: seen.now,
            deadlines: Deadlines {
                provisioning: config.provisioning_seconds,
                starting: config.starting_seconds,
                restarting: config.restarting_seconds,
                stopping: config.stopping_seconds,
                deleting: config.deleting_seconds,
                power_off: config.stop_seconds,
            },
            want: vm.want,
            status: vm.status,
            since: vm.status_since,
            served_since: self.vms.began_at(),
            attempts: vm.attempts,
            deaths: vm.deaths,
            reserved: vm.reserved,
            ending: vm.ending,
            power_off_at: vm.power_off_at,
            pressed_at: vm.pressed_at,
            start_after: vm.start_after,
            guest_ready: vm.guest_ready,
            ports_changed: running && (vm.ports_pending || vm.exposed_ports != vm.applied_ports),
            host_restarted: vm.host_boot.as_ref().is_some_and(|boot| *boot != engine.host_boot()),
            restart_policy: vm.restart_policy,
            disks: seen.disks.iter().map(|d| Disk { id: d.id, status: d.status, message: d.message.clone() }).collect(),
            // Asked for only where it matters.
            has_room: machine != Machine::Stalled || engine.capacity().await?.disk_free,
            machine,
            machine_ready: running && !vm.guest_ready && engine.guest_ready(vm.id).await,
        })
    }

    /// Does a step and records it, passing the fault points before, between and after.
    async fn take(&self, seen: &Seen, step: Step) -> Result<(), StepError> {
        let name = step.name();
        fault("vm", name, "before").await?;
        self.perform(seen, step).await?;
        fault("vm", name, "after").await
    }

    async fn perform(&self, seen: &Seen, step: Step) -> Result<(), StepError> {
        let (id, engine, now) = (seen.vm.id, self.vms.engine(), seen.now);
        match step {
            Step::Reserve => self.reserve(seen).await,
            Step::MakeDisk(disk) => self.make_disk(seen, disk).await,
            Step::Start => self.start(seen).await,
            Step::SetPorts => self.set_ports(seen).await,
            Step::Resume => Ok(engine.resume(id).await?),
            Step::GoOn { has_room } => self.go_on(seen, has_room).await,
            Step::PressPower => {
                engine.press_power(id).await?;
                fault("vm", "press_power", "done").await?;
                self.record(seen, |vm| {
                    vm.power_off_at = vm.power_off_at.or(Some(now));
                    vm.pressed_at = Some(now);
                })
                .await
            }
            Step::PowerOff => Ok(engine.power_off(id).await?),
            Step::Finish => {
                engine.discard(id).await?;
                fault("vm", "finish", "done").await?;
                self.finish(seen).await
            }
            Step::Fail(reason) => self.fail(seen, Failure::Other(reason)).await,
            step => self.record(seen, |vm| apply(vm, &step, now)).await,
        }
    }

    async fn reserve(&self, seen: &Seen) -> Result<(), StepError> {
        let engine = self.vms.engine();
        let capacity = engine.capacity().await?;
        let address = self.free_address(seen.vm.address).await?;
        let now = self.vms.clock().now();
        fault("vm", "reserve", "done").await?;
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await? else { return Ok(()) };
        let mut vm = before.clone();
        if let Some(missing) = shortage(&mut tx, &vm, capacity).await? {
            drop(tx);
            return self.fail(seen, Failure::Capacity(missing)).await;
        }
        vm.reserved = true;
        vm.address = Some(address);
        vm.ssh_port = Some(ssh_port(engine.ssh_port(), &vm.exposed_ports));
        let placed = super::disk::place_all(&mut tx, vm.id, now).await?;
        // Told in the same breath, since it begins at once.
        vm.message = placed.first().map(making).or(vm.message);
        self.write(&mut tx, &before, &vm).await?;
        Ok(tx.commit().await?)
    }

    /// The address a VM has, or one that neither a row nor anybody else on the host holds.
    async fn free_address(&self, held: Option<Ipv4Addr>) -> Result<Ipv4Addr, StepError> {
        const TRIES: usize = 65_536;
        if let Some(address) = held {
            return Ok(address);
        }
        for _ in 0..TRIES {
            let address = self.vms.candidate_address();
            if !store::vm::address_is_held(self.vms.db(), address).await?
                && self.vms.engine().address_free(address).await
            {
                return Ok(address);
            }
        }
        Err(EngineError::NoCapacity("this region has no free address".into()).into())
    }

    async fn make_disk(&self, seen: &Seen, id: DiskId) -> Result<(), StepError> {
        let Some(disk) = seen.disks.iter().find(|d| d.id == id) else {
            return Ok(());
        };
        let message = Some(making(disk));
        if seen.vm.message != message {
            self.record(seen, |vm| vm.message = message).await?;
        }
        super::disk::make(&self.vms, disk).await
    }

    async fn start(&self, seen: &Seen) -> Result<(), StepError> {
        let spec = spec(&seen.vm, &seen.disks)?;
        let host = self.vms.engine().host_boot();
        let now = seen.now;
        let intent = |vm: &mut VmRow| {
            vm.boot += 1;
            vm.host_boot = Some(host);
            opens(vm, &spec);
            vm.ssh_port = Some(spec.ssh_port);
            vm.guest_ready = false;
            vm.power_off_at = None;
            // A worker that dies here must find the row again.
            vm.work_at = Some(now);
        };
        if !self.is_recorded(seen, intent).await? {
            return Ok(());
        }
        fault("vm", "start", "intent").await?;
        let started = self.vms.engine().start(&spec).await?;
        fault("vm", "start", "done").await?;
        self.record(seen, |vm| {
            let message = started.as_ref().and_then(refused);
            if started.is_some() {
                opened(vm, &spec);
            }
            running(vm, now, message);
        })
        .await
    }

    async fn go_on(&self, seen: &Seen, has_room: bool) -> Result<(), StepError> {
        if has_room {
            self.vms.engine().resume(seen.vm.id).await?;
        }
        self.record(seen, |vm| {
            if has_room {
                vm.message.take_if(|message| message == STALLED);
            } else {
                vm.message = Some(STALLED.to_owned());
            }
            vm.start_after = Some(seen.now.plus_seconds(plan::ROOM_POLL));
        })
        .await
    }

    async fn set_ports(&self, seen: &Seen) -> Result<(), StepError> {
        let (vm, spec) = (&seen.vm, spec(&seen.vm, &seen.disks)?);
        let ports = vm.applied_ports.iter().copied().chain(vm.ssh_port.map(ssh_at)).collect();
        let before = if vm.ports_pending { Open::Some(ports) } else { Open::All(ports) };
        if !self.is_recorded(seen, |vm| opens(vm, &spec)).await? {
            return Ok(());
        }
        let changed = self.vms.engine().set_ports(&spec, before).await;
        if changed.is_err() {
            // A running VM has no deadline that would tell its owner.
            self.record(seen, |vm| vm.message = Some(PORTS_LATER.into())).await?;
        }
        let started = changed?;
        fault("vm", "set_ports", "done").await?;
        self.record(seen, |vm| {
            opened(vm, &spec);
            vm.message = refused(&started);
        })
        .await
    }

    /// Tries a failing step again later; a failure that will not pass is recorded.
    async fn postpone(&self, id: VmId, seen: Option<Seen>, error: StepError) {
        let outcome = match error {
            StepError::Engine(EngineError::Permanent(reason)) => self.give_up(id, Failure::Other(reason)).await,
            StepError::Engine(EngineError::NoCapacity(missing)) => self.give_up(id, Failure::Capacity(missing)).await,
            StepError::Engine(EngineError::Transient(reason)) => {
                tracing::warn!(vm = %id, reason, "a step failed; trying again");
                self.try_later(id, seen).await
            }
            StepError::Own(error) => {
                tracing::error!(vm = %id, %error, "a step failed; trying again");
                self.try_later(id, seen).await
            }
        };
        if let Err(error) = outcome {
            tracing::error!(vm = %id, ?error, "the failure could not be recorded; trying again");
            tokio::time::sleep(BLIND_PAUSE).await;
        }
    }

    async fn give_up(&self, id: VmId, failure: Failure) -> Result<(), StepError> {
        match self.look(id).await? {
            // A deletion is given up by its deadline alone.
            Some(seen) if seen.vm.want == Want::Gone => self.try_later(id, Some(seen)).await,
            Some(seen) => self.fail(&seen, failure).await,
            None => Ok(()),
        }
    }

    /// Has the row wait, if it still is what the failed step was decided for: another wish does not.
    async fn try_later(&self, id: VmId, seen: Option<Seen>) -> Result<(), StepError> {
        let failures = {
            let mut all = self.failures();
            let entry = all.entry(id).or_default();
            *entry = entry.saturating_add(1);
            *entry
        };
        let pause = 1_i64.checked_shl(failures - 1).unwrap_or(LONGEST_PAUSE).clamp(1, LONGEST_PAUSE);
        let Some(seen) = seen else {
            return Ok(());
        };
        let until = self.vms.clock().now().plus_seconds(pause);
        self.record(&seen, |vm| vm.work_at = Some(until)).await
    }
}

/// What a VM's owner is told while a disk of it is made.
fn making(disk: &DiskRow) -> String {
    let what = if disk.kind == DiskKind::Root { "cloning the root disk" } else { "making the data disk" };
    format!("{what} {}", disk.name)
}

/// The machine a row describes.
pub(super) fn spec(vm: &VmRow, disks: &[DiskRow]) -> Result<MachineSpec, StepError> {
    let address = vm.address.ok_or_else(|| Error::internal("a machine without an address"))?;
    let data: Vec<_> = disks.iter().filter(|d| d.kind == DiskKind::Data).collect();
    let mounts = mount_points(&data);
    Ok(MachineSpec {
        id: vm.id,
        name: vm.name.clone(),
        vcpu: vm.vcpu,
        memory_mb: vm.memory_mb,
        image_id: vm.image_id.clone(),
        root_disk: vm.root_disk_id,
        data_disks: data.iter().zip(mounts).map(|(d, mount)| DataDisk { id: d.id, mount }).collect(),
        ssh_keys: vm.ssh_keys.clone(),
        user_data: vm.user_data.clone(),
        address,
        ssh_port: ssh_port(vm.ssh_port.unwrap_or(SSH), &vm.exposed_ports),
        ports: vm.exposed_ports.clone(),
    })
}
