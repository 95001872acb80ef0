//! Brings one VM to what its row wants: snapshot, plan, step, record, and again.
//!
//! A step is recorded only onto the row it was decided for: if a request changed the wish meanwhile,
//! the record is dropped and the next look decides anew. Doing is repeatable, so nothing is lost by
//! that. Failures that may pass are tried again, ever later, until the status' deadline ends them.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use berth_domain::ids::{DiskId, VmId};
use berth_domain::vm::model::Want;
use berth_domain::vm::plan::{self, Deadlines, Disk, Snapshot, Step};
use berth_domain::vm::{DiskKind, DiskStatus, ExposedPort, Status};
use berth_domain::{Error, Result, Timestamp};
use serde_json::json;

use super::{StepError, fault};
use crate::db::{Signal, Tx, event};
use crate::services::vm::Vms;
use crate::services::vm::engine::{Capacity, DataDisk, EngineError, MachineSpec};
use crate::services::vm::store;
use crate::services::vm::store::disk::DiskRow;
use crate::services::vm::store::vm::VmRow;
use crate::work::{Due, Reconciler};

/// Steps of one run: far more than a life needs, so that a defect cannot spin for ever.
const MAX_STEPS: usize = 100;
/// Longest pause between two tries of a failing step, in seconds.
const LONGEST_PAUSE: i64 = 15;
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
        Ok(Due::at(now, store::vm::with_work(self.vms.db(), limit).await?))
    }

    async fn reconcile(&self, id: VmId) {
        match self.bring_about(id).await {
            Ok(()) => {
                self.failures().remove(&id);
            }
            Err(error) => self.postpone(id, error).await,
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

    async fn bring_about(&self, id: VmId) -> Result<(), StepError> {
        for _ in 0..MAX_STEPS {
            let Some(seen) = self.look(id).await? else {
                return Ok(());
            };
            let step = plan::next(&self.snapshot(&seen).await?);
            match step {
                Step::Rest => return self.rest(&seen, None).await,
                Step::Wait(until) => return self.rest(&seen, Some(until)).await,
                step => {
                    tracing::debug!(vm = %id, step = step.name(), "step");
                    self.take(&seen, step).await?;
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
            attempts: vm.attempts,
            reserved: vm.reserved,
            ending: vm.ending,
            power_off_at: vm.power_off_at,
            start_after: vm.start_after,
            guest_ready: vm.guest_ready,
            ports_changed: running && vm.exposed_ports != vm.applied_ports,
            host_restarted: vm.host_boot.as_ref().is_some_and(|boot| *boot != engine.host_boot()),
            restart_policy: vm.restart_policy,
            disks: seen.disks.iter().map(|d| Disk { id: d.id, status: d.status, message: d.message.clone() }).collect(),
            machine: engine.observe(vm.id).await?,
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
            Step::PressPower => {
                engine.press_power(id).await?;
                fault("vm", "press_power", "done").await?;
                self.record(seen, |vm| vm.power_off_at = Some(now)).await
            }
            Step::PowerOff => Ok(engine.power_off(id).await?),
            Step::Finish => {
                engine.discard(id).await?;
                fault("vm", "finish", "done").await?;
                self.finish(seen).await
            }
            Step::Fail(reason) => self.fail(seen, &reason).await,
            step => self.record(seen, |vm| apply(vm, &step, now)).await,
        }
    }

    /// Writes a change onto the row it was decided for, with its event. A row whose wish changed
    /// meanwhile is left alone.
    async fn record(&self, seen: &Seen, change: impl FnOnce(&mut VmRow)) -> Result<(), StepError> {
        let mut tx = self.vms.db().begin().await?;
        if let Some(mut vm) = still(&mut tx, seen).await? {
            change(&mut vm);
            self.write(&mut tx, &seen.vm, &vm).await?;
            tx.commit().await?;
        }
        Ok(())
    }

    /// Writes a row; tells of it where an owner would see the difference.
    async fn write(&self, tx: &mut Tx, before: &VmRow, after: &VmRow) -> Result<(), StepError> {
        let mut vm = after.clone();
        let now = self.vms.clock().now();
        let told = vm.status != before.status || vm.message != before.message;
        if told || vm.address != before.address || vm.guest_ready != before.guest_ready {
            vm.updated_at = now;
        }
        store::vm::update(tx, &vm).await?;
        if told {
            let data = json!({"status": vm.status.as_str(), "message": vm.message});
            event::emit(tx, vm.project, "vm.status", &vm.id.to_string(), &data, now).await?;
        } else if vm.guest_ready && !before.guest_ready {
            event::emit(tx, vm.project, "vm.ready", &vm.id.to_string(), &json!({"boot": vm.boot}), now).await?;
        }
        if !vm.status.is_transitional() && vm.status != before.status {
            let failed = vm.status == Status::Failed;
            let outcome = if failed { "failed" } else { "done" };
            let reason = if failed { vm.message.as_deref() } else { None };
            store::operation::finish(tx, vm.id, outcome, reason, now).await?;
        }
        tx.signal(Signal::Row("vms", vm.id.0));
        Ok(())
    }

    /// Nothing to do now: remembers when to look again.
    async fn rest(&self, seen: &Seen, until: Option<Timestamp>) -> Result<(), StepError> {
        if seen.vm.work_at == until {
            return Ok(());
        }
        let mut tx = self.vms.db().begin().await?;
        // A change that came in meanwhile, whatever it is, wants another look: it set its own time.
        if let Some(mut vm) = still(&mut tx, seen).await?
            && vm.updated_at == seen.vm.updated_at
        {
            vm.work_at = until;
            store::vm::update(&mut tx, &vm).await?;
            tx.commit().await?;
        }
        Ok(())
    }

    async fn reserve(&self, seen: &Seen) -> Result<(), StepError> {
        let engine = self.vms.engine();
        let capacity = engine.capacity().await?;
        let address = self.free_address(seen.vm.address).await?;
        fault("vm", "reserve", "done").await?;
        let mut tx = self.vms.db().begin().await?;
        let Some(mut vm) = still(&mut tx, seen).await? else {
            return Ok(());
        };
        if let Some(missing) = shortage(&mut tx, &vm, capacity).await? {
            drop(tx);
            return self.fail(seen, &format!("insufficient_capacity: {missing}")).await;
        }
        vm.reserved = true;
        vm.address = Some(address);
        vm.ssh_port = Some(engine.ssh_port());
        self.write(&mut tx, &seen.vm, &vm).await?;
        Ok(tx.commit().await?)
    }

    /// The address a VM has, or one that neither a row nor anybody else on the host holds.
    async fn free_address(&self, held: Option<Ipv4Addr>) -> Result<Ipv4Addr, StepError> {
        const TRIES: usize = 65_536;
        if let Some(address) = held {
            return Ok(address);
        }
        let mut tx = self.vms.db().begin().await?;
        for _ in 0..TRIES {
            let address = self.vms.candidate_address();
            if !store::vm::address_is_held(&mut tx, address).await? && self.vms.engine().address_free(address).await {
                return Ok(address);
            }
        }
        Err(EngineError::Permanent("insufficient_capacity: no free address".into()).into())
    }

    async fn make_disk(&self, seen: &Seen, id: DiskId) -> Result<(), StepError> {
        let Some(disk) = seen.disks.iter().find(|d| d.id == id) else {
            return Ok(());
        };
        let what = if disk.kind == DiskKind::Root { "cloning the root disk" } else { "making the data disk" };
        self.record(seen, |vm| vm.message = Some(format!("{what} {}", disk.name))).await?;
        super::disk::make(&self.vms, disk).await
    }

    async fn start(&self, seen: &Seen) -> Result<(), StepError> {
        let spec = spec(&seen.vm, &seen.disks)?;
        let host = self.vms.engine().host_boot();
        let now = seen.now;
        self.record(seen, |vm| {
            vm.boot += 1;
            vm.host_boot = Some(host);
            vm.guest_ready = false;
            vm.power_off_at = None;
            // A worker that dies here must find the row again.
            vm.work_at = Some(now);
        })
        .await?;
        fault("vm", "start", "intent").await?;
        let started = self.vms.engine().start(&spec).await?;
        fault("vm", "start", "done").await?;
        self.record(seen, |vm| {
            vm.applied_ports.clone_from(&spec.ports);
            running(vm, now, refused(&started.refused_ports));
        })
        .await
    }

    async fn set_ports(&self, seen: &Seen) -> Result<(), StepError> {
        let spec = spec(&seen.vm, &seen.disks)?;
        let started = self.vms.engine().set_ports(&spec, &seen.vm.applied_ports).await?;
        fault("vm", "set_ports", "done").await?;
        self.record(seen, |vm| {
            vm.applied_ports = spec.ports;
            vm.message = refused(&started.refused_ports);
        })
        .await
    }

    /// Records a failure: nothing is wanted any more, nothing stays reserved, everything made is kept.
    async fn fail(&self, seen: &Seen, reason: &str) -> Result<(), StepError> {
        let now = self.vms.clock().now();
        let mut tx = self.vms.db().begin().await?;
        let Some(mut vm) = still(&mut tx, seen).await? else {
            return Ok(());
        };
        enter(&mut vm, Status::Failed, Some(reason.to_owned()), now);
        vm.want = Want::Stop;
        vm.reserved = false;
        if reason.starts_with("insufficient_capacity") {
            vm.address = None;
            vm.ssh_port = None;
        }
        for mut disk in store::disk::of_vm(&mut tx, vm.id).await? {
            if matches!(disk.status, DiskStatus::Pending | DiskStatus::Provisioning) {
                disk.status = DiskStatus::Failed;
                disk.message = Some(reason.to_owned());
                disk.updated_at = now;
                store::disk::update(&mut tx, &disk).await?;
            }
        }
        self.write(&mut tx, &seen.vm, &vm).await?;
        tracing::warn!(vm = %vm.id, reason, "VM failed");
        Ok(tx.commit().await?)
    }

    /// Releases the disks and records that the VM is gone.
    async fn finish(&self, seen: &Seen) -> Result<(), StepError> {
        let now = self.vms.clock().now();
        let mut tx = self.vms.db().begin().await?;
        let Some(mut vm) = still(&mut tx, seen).await? else {
            return Ok(());
        };
        for mut disk in store::disk::of_vm(&mut tx, vm.id).await? {
            disk.vm = None;
            disk.updated_at = now;
            if goes_with(&vm, &disk) {
                disk.status = DiskStatus::Deleting;
                disk.work_at = Some(now);
                tx.signal(Signal::Work("disks"));
            }
            store::disk::update(&mut tx, &disk).await?;
        }
        enter(&mut vm, Status::Deleted, None, now);
        vm.reserved = false;
        vm.address = None;
        vm.ssh_port = None;
        vm.user_data = None;
        vm.work_at = None;
        vm.deleted_at = Some(now);
        self.write(&mut tx, &seen.vm, &vm).await?;
        Ok(tx.commit().await?)
    }

    /// Tries a failing step again later; a failure that will not pass is recorded.
    async fn postpone(&self, id: VmId, error: StepError) {
        let outcome = match error {
            StepError::Engine(EngineError::Permanent(reason)) => self.give_up(id, &reason).await,
            StepError::Engine(EngineError::Transient(reason)) => {
                tracing::warn!(vm = %id, reason, "a step failed; trying again");
                self.try_later(id).await
            }
            StepError::Own(error) => {
                tracing::error!(vm = %id, %error, "a step failed; trying again");
                self.try_later(id).await
            }
        };
        if let Err(error) = outcome {
            tracing::error!(vm = %id, ?error, "the failure could not be recorded; trying again");
            tokio::time::sleep(BLIND_PAUSE).await;
        }
    }

    async fn give_up(&self, id: VmId, reason: &str) -> Result<(), StepError> {
        match self.look(id).await? {
            // Deletion is never given up.
            Some(seen) if seen.vm.want == Want::Gone => self.try_later(id).await,
            Some(seen) => self.fail(&seen, reason).await,
            None => Ok(()),
        }
    }

    async fn try_later(&self, id: VmId) -> Result<(), StepError> {
        let failures = {
            let mut all = self.failures();
            let entry = all.entry(id).or_default();
            *entry = entry.saturating_add(1);
            *entry
        };
        let pause = 1_i64.checked_shl(failures - 1).unwrap_or(LONGEST_PAUSE).clamp(1, LONGEST_PAUSE);
        let Some(seen) = self.look(id).await? else {
            return Ok(());
        };
        let until = seen.now.plus_seconds(pause);
        self.record(&seen, |vm| vm.work_at = Some(until)).await
    }
}

/// The row as it is now, if it still wants what it wanted when it was looked at.
async fn still(tx: &mut Tx, seen: &Seen) -> Result<Option<VmRow>, StepError> {
    let now = store::vm::load(tx, seen.vm.id).await?;
    Ok(now.filter(|vm| {
        let (a, b) = (vm, &seen.vm);
        a.deleted_at.is_none() && (a.want, a.status, a.status_since) == (b.want, b.status, b.status_since)
    }))
}

/// What each step that only records does to the row.
fn apply(vm: &mut VmRow, step: &Step, now: Timestamp) {
    match step {
        Step::Enter(status, message) => enter(vm, *status, Some((*message).to_owned()), now),
        Step::Running => running(vm, now, None),
        Step::GuestReady => vm.guest_ready = true,
        Step::GuestOff => {
            vm.want = Want::Stop;
            enter(vm, Status::Stopping, Some("the guest powered itself off".into()), now);
        }
        Step::StartAgain { reason, delay } => {
            let deaths = if *delay == 0 { 1 } else { vm.attempts + 1 };
            enter(vm, Status::Starting, Some((*reason).to_owned()), now);
            vm.attempts = deaths;
            vm.start_after = (*delay > 0).then(|| now.plus_seconds(*delay));
            vm.ending = true;
        }
        Step::Ended => {
            vm.ending = false;
            vm.power_off_at = None;
        }
        Step::Stopped => {
            let message = vm.message.take().filter(|m| m.starts_with("the guest"));
            enter(vm, Status::Stopped, message, now);
            vm.reserved = false;
            vm.ending = false;
        }
        Step::Retry => {
            vm.attempts += 1;
            vm.ending = true;
            vm.status_since = now;
            vm.message = Some("it took too long; trying once more".into());
        }
        _ => {}
    }
}

fn enter(vm: &mut VmRow, status: Status, message: Option<String>, now: Timestamp) {
    vm.status = status;
    vm.message = message;
    vm.status_since = now;
    vm.work_at = Some(now);
    vm.power_off_at = None;
    if !status.is_transitional() {
        vm.ending = false;
    }
}

fn running(vm: &mut VmRow, now: Timestamp, message: Option<String>) {
    enter(vm, Status::Running, message, now);
    vm.start_after = None;
}

/// Exposed ports that could not be bound, as a message for the owner.
fn refused(ports: &[ExposedPort]) -> Option<String> {
    let list: Vec<_> = ports.iter().map(|p| format!("{}/{}", p.port, p.protocol)).collect();
    (!list.is_empty()).then(|| {
        format!("not reachable from outside, because this service may not bind ports below 1024: {}", list.join(", "))
    })
}

/// Whether a disk is removed together with its VM (contract, section 1).
fn goes_with(vm: &VmRow, disk: &DiskRow) -> bool {
    let unfinished = matches!(disk.status, DiskStatus::Pending | DiskStatus::Provisioning);
    let ordered = disk.kind == DiskKind::Root && vm.root_disk_created && vm.delete_root_disk;
    ordered || (unfinished && disk.created_with == Some(vm.id))
}

/// What the host lacks for a VM, as a sentence; sums over rows are the only counters.
async fn shortage(tx: &mut Tx, vm: &VmRow, capacity: Capacity) -> Result<Option<String>, StepError> {
    let held = store::vm::reserved(tx, &vm.region_id).await?;
    let disk = store::disk::total_gb(tx, &vm.region_id).await?;
    let lacks = [
        (held.vcpu + vm.vcpu, capacity.vcpu, "virtual CPUs", ""),
        (held.memory_mb + vm.memory_mb, capacity.memory_mb, "memory", " MiB"),
        (disk, capacity.disk_gb, "disk", " GiB"),
        (vm.gpu_config_count, 0, "GPUs", ""),
    ];
    let over = lacks.into_iter().find(|(need, have, _, _)| need > have);
    let short = over.map(|(need, have, what, unit)| {
        format!("this region has {have}{unit} of {what}, and {need}{unit} would be needed")
    });
    let full = (!capacity.disk_free).then(|| "the host's disk is almost full".to_owned());
    Ok(short.or(full))
}

/// The machine a row describes.
pub(super) fn spec(vm: &VmRow, disks: &[DiskRow]) -> Result<MachineSpec, StepError> {
    let address = vm.address.ok_or_else(|| Error::internal("a machine without an address"))?;
    let data = disks.iter().filter(|d| d.kind == DiskKind::Data);
    Ok(MachineSpec {
        id: vm.id,
        name: vm.name.clone(),
        vcpu: vm.vcpu,
        memory_mb: vm.memory_mb,
        image_id: vm.image_id.clone(),
        root_disk: vm.root_disk_id,
        data_disks: data.map(|d| DataDisk { id: d.id, name: d.name.clone(), kind: d.disk_type }).collect(),
        ssh_keys: vm.ssh_keys.clone(),
        user_data: vm.user_data.clone(),
        address,
        ssh_port: vm.ssh_port.unwrap_or(22),
        ports: vm.exposed_ports.clone(),
    })
}
