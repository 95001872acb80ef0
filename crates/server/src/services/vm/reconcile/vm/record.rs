//! What a step leaves on the row: status, message, events, the end of operations.
//!
//! Everything here begins with [`still`]: the row is written only if it wants what it wanted when the step
//! was decided.

use std::fmt;

use berth_domain::Timestamp;
use berth_domain::vm::model::{KeysState, Want};
use berth_domain::vm::plan::Step;
use berth_domain::vm::{DiskKind, DiskStatus, ExposedPort, InboundPort, Status};
use berth_host::vm::{MachineSpec, Started};
use serde_json::json;

use super::{Seen, VmLife};
use crate::db::{Signal, Tx, event};
use crate::services::placement::Refusal;
use crate::services::vm::reconcile::StepError;
use crate::services::vm::reconcile::reach::note_reach;
use crate::services::vm::store::disk::DiskRow;
use crate::services::vm::store::vm::VmRow;
use crate::services::vm::{ops, store, told};

/// Why a guest that powered itself off is stopped.
const GUEST_OFF: &str = "the guest powered itself off";

/// What the owner of a VM is told whose host is drained.
const LEAVES: &str = "its host is about to be maintained: it shuts down, and starts on another one";

/// What is said of a machine that an earlier Berth started.
const WITHOUT_RULES: &str = "its firewall rules hold once it is restarted, since an earlier version started it";

/// What is said of a machine on a bridge that is to be reached by its host's loopback.
const ON_BRIDGE: &str =
    "it is reached there once it is stopped and started, and until then where it was, since it is on a bridge";

/// Why a VM failed; shown to its owner.
#[derive(Debug)]
pub(super) enum Failure {
    /// No host takes it: the address is given back, too, and administrators are told of each host.
    NoHost(Refusal),
    /// The host lacks this: the address is given back, too.
    Capacity(String),
    /// Anything else.
    Other(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHost(Refusal { owner: missing, .. }) | Self::Capacity(missing) => {
                write!(f, "insufficient_capacity: {missing}")
            }
            Self::Other(reason) => f.write_str(reason),
        }
    }
}

impl Failure {
    /// A sentence for each host, where none takes it.
    fn hosts(&self) -> Option<&[String]> {
        match self {
            Self::NoHost(refusal) => Some(&refusal.hosts),
            Self::Capacity(_) | Self::Other(_) => None,
        }
    }
}

impl VmLife {
    /// Writes a change onto the row it was decided for, with its event. A row whose wish changed
    /// meanwhile is left alone.
    pub(super) async fn record(&self, seen: &Seen, change: impl FnOnce(&mut VmRow)) -> Result<(), StepError> {
        self.is_recorded(seen, change).await.map(drop)
    }

    /// The same; whether the row still was the one it was decided for.
    pub(super) async fn is_recorded(&self, seen: &Seen, change: impl FnOnce(&mut VmRow)) -> Result<bool, StepError> {
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await? else { return Ok(false) };
        let mut vm = before.clone();
        change(&mut vm);
        self.write(&mut tx, &before, &vm).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Writes a row; tells of it where an owner would see the difference.
    pub(super) async fn write(&self, tx: &mut Tx, before: &VmRow, after: &VmRow) -> Result<(), StepError> {
        let mut vm = after.clone();
        let now = self.vms.clock().now();
        let message = told::message(&vm);
        let is_told = vm.status != before.status || message != told::message(before);
        let seen = vm.machine.address != before.machine.address || vm.guest_ready != before.guest_ready;
        // A boot that takes keys is told as a boot.
        let seen = seen || before.keys_state == KeysState::Pending && vm.keys_state != before.keys_state;
        if is_told || seen || vm.machine.reserved != before.machine.reserved {
            vm.updated_at = now;
        }
        store::vm::update(tx, before, &vm).await?;
        if is_told {
            let data = json!({"status": vm.status.as_str(), "message": message});
            event::emit(tx, vm.project, "vm.status", &vm.id.to_string(), &data, now).await?;
        }
        if vm.guest_ready && !before.guest_ready {
            event::emit(tx, vm.project, "vm.ready", &vm.id.to_string(), &json!({"boot": vm.machine.generation}), now)
                .await?;
        }
        if !vm.status.is_transitional() && vm.status != before.status {
            let failed = vm.status == Status::Failed || is_back(before.status, vm.status);
            let outcome = if failed { "failed" } else { "done" };
            let reason = if failed { vm.message.as_deref() } else { None };
            store::operation::finish(tx, vm.id, outcome, reason, now).await?;
        }
        tx.signal(Signal::Row("vms", vm.id.0));
        Ok(())
    }

    /// Records a failure: nothing is wanted any more, nothing stays reserved, everything made is kept.
    pub(super) async fn fail(&self, seen: &Seen, failure: Failure) -> Result<(), StepError> {
        let now = self.vms.clock().now();
        let reason = failure.to_string();
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await? else { return Ok(()) };
        let mut vm = before.clone();
        // What it goes on with is kept.
        let (status, want) =
            if vm.has_memory { (Status::Suspended, Want::Suspend) } else { (Status::Failed, Want::Stop) };
        enter(&mut vm, status, Some(reason.clone()), now);
        vm.want = want;
        vm.rescue_user = None;
        vm.machine.reserved = false;
        if let Failure::NoHost(refusal) = &failure {
            let subject = vm.id.to_string();
            event::emit_to_administrators(&mut tx, vm.project, "vm.unplaced", &subject, &refusal.event(), now).await?;
        }
        if matches!(failure, Failure::Capacity(_) | Failure::NoHost(_)) && !vm.has_memory {
            (vm.machine.address, vm.machine.pool_address, vm.machine.ssh_port) = (None, None, None);
        }
        for disk in store::disk::of_vm(&mut tx, vm.id).await? {
            if matches!(disk.status, DiskStatus::Pending | DiskStatus::Provisioning) {
                let message = Some(reason.clone());
                let failed = DiskRow { status: DiskStatus::Failed, message, updated_at: now, ..disk.clone() };
                store::disk::update(&mut tx, &disk, &failed).await?;
                told::disk(&mut tx, &failed, now).await?;
            }
        }
        self.write(&mut tx, &before, &vm).await?;
        tracing::warn!(vm = %vm.id, reason, hosts = failure.hosts().map(tracing::field::debug), "VM failed");
        Ok(tx.commit().await?)
    }

    /// Records the platform's own wish to delete a VM whose time is over.
    pub(super) async fn expire(&self, seen: &Seen) -> Result<(), StepError> {
        let now = self.vms.clock().now();
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await? else { return Ok(()) };
        let mut vm = before.clone();
        ops::vm::expire(&mut tx, (&before, &mut vm), now).await?;
        Ok(tx.commit().await?)
    }

    /// Releases the disks and records that the VM is gone.
    pub(super) async fn finish(&self, seen: &Seen) -> Result<(), StepError> {
        let now = self.vms.clock().now();
        let mut tx = self.vms.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await? else { return Ok(()) };
        let mut vm = before.clone();
        for disk in store::disk::of_vm(&mut tx, vm.id).await? {
            let mut released = disk.clone();
            released.release(now);
            if goes_with(&vm, &disk) {
                released.status = DiskStatus::Deleting;
                released.work_at = Some(now);
            }
            tx.signal(Signal::Work("disks"));
            store::disk::update(&mut tx, &disk, &released).await?;
            told::disk(&mut tx, &released, now).await?;
        }
        enter(&mut vm, Status::Deleted, None, now);
        vm.machine.end(now);
        vm.networks.clear();
        vm.user_data = None;
        vm.work_at = None;
        vm.deleted_at = Some(now);
        self.write(&mut tx, &before, &vm).await?;
        Ok(tx.commit().await?)
    }
}

/// The row as it is now, if it still wants what it wanted when it was looked at.
pub(super) async fn still(tx: &mut Tx, seen: &Seen) -> Result<Option<VmRow>, StepError> {
    let now = store::vm::load(tx, seen.vm.id).await?;
    Ok(now.filter(|vm| is_still_wanted(&seen.vm, vm)))
}

/// Whether a row still wants what it wanted when it was looked at.
pub(super) fn is_still_wanted(seen: &VmRow, now: &VmRow) -> bool {
    let decided_for = |vm: &VmRow| (vm.want, vm.status, vm.status_since, vm.restart_policy, vm.expires_at);
    // What a guest takes at a boot, too: one that begins after a change has it.
    let taken_alike = now.ssh_keys == seen.ssh_keys && now.user_data == seen.user_data;
    now.deleted_at.is_none() && decided_for(now) == decided_for(seen) && taken_alike
}

/// Whether a change led back to where it began: what was asked for failed, and the VM is as it was.
const fn is_back(before: Status, after: Status) -> bool {
    matches!((before, after), (Status::Suspending, Status::Running) | (Status::Starting, Status::Suspended))
}

/// What each step that only records does to the row.
pub(super) fn apply(vm: &mut VmRow, step: &Step, now: Timestamp) {
    match step {
        Step::Enter(status, message) => enter(vm, *status, Some((*message).to_owned()), now),
        Step::Running => running(vm, now, None),
        Step::GuestReady => vm.guest_ready = true,
        Step::GuestOff => {
            vm.want = Want::Stop;
            enter(vm, Status::Stopping, Some(GUEST_OFF.into()), now);
            vm.stop_reason = Some(GUEST_OFF.into());
        }
        Step::StartAgain { reason, delay } => {
            vm.deaths = if *delay == 0 { 1 } else { vm.deaths + 1 };
            enter(vm, Status::Starting, Some((*reason).to_owned()), now);
            vm.start_after = (*delay > 0).then(|| now.plus_seconds(*delay));
            vm.ending = true;
        }
        Step::Leave => {
            enter(vm, Status::Restarting, Some(LEAVES.into()), now);
            vm.ending = true;
        }
        Step::Ended => {
            vm.ending = false;
            (vm.power_off_at, vm.pressed_at) = (None, None);
        }
        Step::Stopped { .. } => {
            let reason = vm.stop_reason.take();
            enter(vm, Status::Stopped, reason, now);
            vm.rescue_user = None;
            vm.machine.reserved = false;
            vm.ending = false;
        }
        Step::Suspended => {
            enter(vm, Status::Suspended, None, now);
            vm.machine.reserved = false;
            vm.ending = false;
        }
        Step::KeepRunning(reason) => {
            vm.want = Want::Run;
            vm.has_memory = false;
            enter(vm, Status::Running, Some(format!("it could not be suspended: {reason}")), now);
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

/// Takes a new status, whose deadline begins now and has not passed yet.
pub(super) fn enter(vm: &mut VmRow, status: Status, message: Option<String>, now: Timestamp) {
    vm.status = status;
    vm.message = message;
    vm.status_since = now;
    vm.attempts = 0;
    vm.work_at = Some(now);
    (vm.power_off_at, vm.pressed_at) = (None, None);
    if !status.is_transitional() {
        vm.ending = false;
    }
}

pub(super) fn running(vm: &mut VmRow, now: Timestamp, message: Option<String>) {
    let message = standing(vm, message);
    enter(vm, Status::Running, message, now);
    vm.has_memory = false;
    // Whether one that runs leaves a host that is drained is said anew.
    vm.leaves = false;
    vm.start_after = None;
}

/// Most keys that are remembered of those that a guest may have got: what a boot gave it, it need not have any more.
const GIVEN_KEYS: usize = 100;

/// The guest is about to get its keys: until it is recorded that it has no others, it may have these beside those it had.
pub(super) fn given(vm: &mut VmRow) {
    vm.given_keys.retain(|key| !vm.ssh_keys.contains(key));
    vm.given_keys.extend(vm.ssh_keys.iter().cloned());
    let oldest = vm.given_keys.len().saturating_sub(GIVEN_KEYS);
    vm.given_keys.drain(..oldest);
}

/// A guest begins. An image of the platform's takes its keys at each boot, an imported one at its first; what comes later is
/// for its agent, and so is what came while it was suspended. A rescue system has keys of its own.
pub(super) fn boots_with_keys(vm: &mut VmRow, before: &VmRow, started: &Started) {
    if vm.rescue_user.is_some() || (before.has_memory && started.unloadable.is_none()) {
        return;
    }
    let is_late = started.takes_keys_once && !before.given_keys.is_empty() && before.keys_state != KeysState::Applied;
    vm.keys_state = if is_late { KeysState::Pending } else { KeysState::Applied };
}

/// The message of a VM that runs: what does not hold of what was wished, and how its rescue ends.
pub(super) fn standing(vm: &VmRow, message: Option<String>) -> Option<String> {
    let rescue = vm.rescue_user.as_ref().map(|user| {
        let disk = vm.root_disk_id.serial();
        format!(
            "it runs the rescue system: log in as {user}, repair its root disk, /dev/disk/by-id/virtio-{disk}, then \
             restart it, which leaves rescue"
        )
    });
    let all: Vec<_> = rescue.into_iter().chain(message).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// What a step is about to open: until it is recorded, the machine may have these ports beside those it had.
pub(super) fn opens(vm: &mut VmRow, spec: &MachineSpec) {
    for port in &spec.ports {
        if !vm.applied_ports.contains(port) {
            vm.applied_ports.push(*port);
        }
    }
    vm.ports_pending = true;
}

/// What a step opened. What another program has of an address that others reach is tried again: it may be gone soon, and of
/// a shared address no owner chose the port.
pub(super) fn opened(vm: &mut VmRow, spec: &MachineSpec, started: &Started) {
    note_reach(vm, &spec.ports);
    let is_open = |port: &&InboundPort| !spec.is_reached_by_others() || !started.taken_ports.contains(&port.to);
    vm.applied_ports = spec.ports.iter().filter(is_open).copied().collect();
    vm.applied_rules = spec.rules.clone();
    vm.ports_pending = false;
}

/// What does not hold of what was wished, as a message for the owner: exposed ports that could not be bound, and rules.
pub(super) fn refused(spec: &MachineSpec, started: &Started) -> Option<String> {
    let list = |ports: &[ExposedPort], why: &str, then: &str| {
        let names: Vec<_> = ports.iter().map(|p| format!("{}/{}", p.port, p.protocol)).collect();
        (!names.is_empty()).then(|| format!("not reachable from outside, because {why}: {}{then}", names.join(", ")))
    };
    let low = list(&started.low_ports, "this service may not bind ports below 1024", "");
    let again = if spec.is_reached_by_others() {
        "; it is tried again, or expose another port"
    } else {
        "; expose another port, or restart the VM once it is free"
    };
    let taken = list(&started.taken_ports, "another program of the host has it", again);
    let elsewhere = started.is_reached_as_before.then(|| ON_BRIDGE.to_owned());
    let unruled = started.is_without_rules.then(|| WITHOUT_RULES.to_owned());
    let unloadable = started.unloadable.as_ref();
    let unloadable = unloadable.map(|reason| format!("it booted instead of going on with its memory: {reason}"));
    let booted = started.booted.as_ref().map(|reason| format!("it boots from the beginning: {reason}"));
    let all: Vec<_> =
        low.into_iter().chain(taken).chain(elsewhere).chain(unruled).chain(unloadable).chain(booted).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Whether a disk is removed together with its VM (contract, section 1).
fn goes_with(vm: &VmRow, disk: &DiskRow) -> bool {
    let unfinished = matches!(disk.status, DiskStatus::Pending | DiskStatus::Provisioning);
    let ordered = disk.kind == DiskKind::Root && vm.root_disk_created && vm.delete_root_disk;
    // What was on one that is made anew was given up.
    ordered || (unfinished && (disk.anew || disk.created_with == Some(vm.id)))
}
