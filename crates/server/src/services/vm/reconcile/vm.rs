//! Brings a VM to what its row wants.
//!
//! A step is recorded only onto the row it was decided for: if a request changed the wish meanwhile, the worker drops
//! the record and the next look decides anew. Doing is repeatable, so nothing is lost by that.

mod leaving;
mod migration;
mod placement;
mod record;
mod release;

pub(super) use self::release::Released;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use berth_domain::firewall::Rules;
use berth_domain::host::gpu::Device;
use berth_domain::ids::{DiskId, Owner, VmId};
use berth_domain::vm::disk_snapshot::first_due;
use berth_domain::vm::model::{KeysState, Want};
use berth_domain::vm::plan::{self, Deadlines, Disk, Machine, Snapshot, Step};
use berth_domain::vm::request::MAX_DATA_DISKS;
use berth_domain::vm::{DiskKind, Status};
use berth_domain::{Error, Result, Timestamp};
use berth_host::EngineError;
use berth_host::vm::{DataDisk, Engine, GuestKeys, MachineSpec, Open, Store};

use tokio_util::sync::CancellationToken;

use super::reach::note_reach;
use super::{StepError, fault};
use crate::db::network::MembershipRow;
use crate::db::{machine_gpu, network};
use crate::services::vm::Vms;
use crate::services::vm::ops::rescue::IMAGE as RESCUE;
use crate::services::vm::store;
use crate::services::vm::store::disk::{DiskRow, mount_points};
use crate::services::vm::store::disk_snapshot::DiskSnapshotRow;
use crate::services::vm::store::vm::VmRow;
use crate::work::Due;
use crate::work::lifecycle::{Life, Next};
use record::{Failure, apply, boots_with_keys, given, opened, opens, refused, running, standing, still};

/// What the owner of a running VM is told while the worker cannot reach its machine.
const PORTS_LATER: &str = "its inbound ports and firewall rules could not be changed yet; the worker tries again";
/// What the owner of a VM is told whose guest wrote more than the host had room for.
const STALLED: &str = "the host's disk is full; the VM stands still, and goes on once there is room";

/// The lives of VMs.
pub struct VmLife {
    vms: Vms,
    /// What takes long, and can be taken up again, ends where the service does.
    stop: CancellationToken,
    /// How often in a row a VM broke off on its way to another host.
    broken_off: Mutex<HashMap<VmId, u32>>,
}

/// One look at a VM.
pub struct Seen {
    vm: VmRow,
    disks: Vec<DiskRow>,
    snapshots: Vec<DiskSnapshotRow>,
    gpus: Vec<Device>,
    /// Its firewall rules as its machine is told them.
    rules: Rules,
    now: Timestamp,
}

impl Life for VmLife {
    type Key = VmId;
    type Seen = Seen;
    type Step = Step;
    const TABLE: &'static str = "vms";
    const KIND: &'static str = "vm";

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Due<VmId>> {
        Ok(store::vm::due(self.vms.db(), now, limit).await?)
    }

    async fn owner(&self, id: &VmId) -> Option<Owner> {
        store::vm::owner(self.vms.db(), *id).await.ok().flatten()
    }

    async fn look(&self, id: &VmId) -> Result<Option<Seen>, StepError> {
        let mut on = self.vms.db().reader().await?;
        let Some(vm) = store::vm::peek(&mut on, *id).await? else {
            return Ok(None);
        };
        let disks = store::disk::peek_of_vm(&mut on, *id).await?;
        let has_gpus = vm.gpu_config_count > 0;
        let gpus = if has_gpus { machine_gpu::of_machine(&mut on, vm.machine.id).await? } else { Vec::new() };
        let snapshots = store::disk_snapshot::open_of_vm(&mut on, *id).await?;
        drop(on);
        let rules = self.rules(&vm).await?;
        Ok(Some(Seen { vm, disks, snapshots, gpus, rules, now: self.vms.clock().now() }))
    }

    async fn plan(&self, seen: &Seen) -> Result<Next<Step>, StepError> {
        if let Some(step) = plan::first(seen.vm.machine.migrating) {
            return Ok(Next::Take(step));
        }
        if let Some(until) = self.awaits_release(seen).await? {
            return Ok(Next::Rest(Some(until)));
        }
        Ok(match plan::next(&self.snapshot(seen).await?) {
            Step::Rest => Next::Rest(None),
            Step::Wait(until) => Next::Rest(Some(until)),
            step => Next::Take(step),
        })
    }

    fn name(step: &Step) -> &'static str {
        step.name()
    }

    async fn take(&self, seen: &Seen, step: Step) -> Result<(), StepError> {
        let (machine, engine, now) = (seen.vm.machine.aim(), self.engine(seen)?, seen.now);
        match step {
            Step::Reserve => self.reserve(seen).await,
            Step::Leave => self.leave(seen).await,
            Step::CallOff => self.call_off(seen).await,
            Step::Move => self.move_on(seen).await,
            Step::MakeDisk(disk) => self.make_disk(seen, disk).await,
            Step::SnapshotDisk(id) => super::disk_snapshot::copy(&self.vms, id, Some(machine)).await,
            Step::GrowDisk(disk) => super::disk::grow(&self.vms, disk, Some(machine)).await,
            Step::AttachDisk(disk) => super::disk::attach(&self.vms, disk, machine).await,
            Step::DetachDisk { id, is_last } => super::disk::detach(&self.vms, id, machine, is_last).await,
            Step::Start => self.start(seen).await,
            Step::SetPorts => self.set_ports(seen).await,
            Step::SetKeys => self.set_keys(seen).await,
            Step::Suspend => self.suspend(seen).await,
            Step::ForgetMemory => {
                engine.forget_memory(machine).await?;
                fault("vm", "forget_memory", "done").await?;
                self.record(seen, |vm| vm.has_memory = false).await
            }
            Step::Resume => Ok(engine.resume(machine).await?),
            Step::GoOn { has_room } => self.go_on(seen, has_room).await,
            Step::PressPower => {
                engine.press_power(machine).await?;
                fault("vm", "press_power", "done").await?;
                self.record(seen, |vm| {
                    vm.power_off_at = vm.power_off_at.or(Some(now));
                    vm.pressed_at = Some(now);
                })
                .await
            }
            Step::PowerOff => Ok(engine.power_off(machine).await?),
            Step::Finish => {
                self.let_go(seen).await?;
                engine.discard(machine).await?;
                fault("vm", "finish", "done").await?;
                self.finish(seen).await
            }
            Step::Expire => self.expire(seen).await,
            Step::Fail(reason) => {
                self.let_go_if_it_can(seen).await?;
                self.fail(seen, Failure::Other(reason)).await
            }
            Step::Stopped { is_late } => {
                if is_late { self.let_go_if_it_can(seen).await } else { self.let_go(seen).await }?;
                self.record(seen, |vm| apply(vm, &step, now)).await
            }
            step => self.record(seen, |vm| apply(vm, &step, now)).await,
        }
    }

    async fn catch_up(&self, seen: &Seen, generation: i64) -> Result<bool, StepError> {
        if seen.vm.machine.generation >= generation {
            return Ok(false);
        }
        self.record(seen, |vm| {
            vm.machine.generation = generation;
            vm.work_at = Some(seen.now);
        })
        .await?;
        Ok(true)
    }

    /// A change that came in meanwhile, whatever it is, wants another look: it set its own time.
    async fn rest(&self, seen: &Seen, until: Option<Timestamp>) -> Result<(), StepError> {
        if seen.vm.work_at == until {
            return Ok(());
        }
        let mut tx = self.vms.db().begin().await?;
        if let Some(before) = still(&mut tx, seen).await?
            && (before.updated_at, before.work_at) == (seen.vm.updated_at, seen.vm.work_at)
        {
            let after = VmRow { work_at: until, ..before.clone() };
            store::vm::update(&mut tx, &before, &after).await?;
            tx.commit().await?;
        }
        Ok(())
    }

    async fn postpone(&self, seen: &Seen, until: Timestamp) -> Result<(), StepError> {
        self.record(seen, |vm| vm.work_at = Some(until)).await
    }

    /// A deletion is given up by its deadline alone.
    async fn give_up(&self, seen: &Seen, error: &EngineError) -> Result<bool, StepError> {
        if seen.vm.want == Want::Gone {
            return Ok(false);
        }
        let failure = match error {
            // Its guest did nothing wrong, and goes on.
            error
                if seen.vm.status == Status::Suspending
                    && self.engine(seen)?.observe(seen.vm.machine.id).await? != Machine::Absent =>
            {
                let step = Step::KeepRunning(error.to_string());
                self.record(seen, |vm| apply(vm, &step, seen.now)).await?;
                return Ok(true);
            }
            EngineError::NoCapacity(missing) => Failure::Capacity(missing.clone()),
            other => Failure::Other(other.to_string()),
        };
        self.let_go_if_it_can(seen).await?;
        self.fail(seen, failure).await?;
        Ok(true)
    }
}

impl VmLife {
    /// The lives of the service's VMs.
    pub fn new(vms: Vms, stop: CancellationToken) -> Self {
        Self { vms, stop, broken_off: Mutex::default() }
    }

    /// The engine of the host that a VM's machine is on.
    fn engine(&self, seen: &Seen) -> Result<Arc<dyn Engine>, EngineError> {
        self.vms.engine_of(seen.vm.machine.host)
    }

    /// A VM's rules as its machine is told them: with the addresses of whoever is in a group, of those whom its networks join
    /// it to.
    async fn rules(&self, vm: &VmRow) -> Result<Rules, StepError> {
        if !vm.rules.has_groups() {
            return Ok(vm.rules.clone());
        }
        let labelled = network::labelled(self.vms.db(), vm.machine.owner).await?;
        Ok(vm.rules.with_groups(|label| network::group(&labelled, label)))
    }

    async fn snapshot(&self, seen: &Seen) -> Result<Snapshot, StepError> {
        let (vm, engine, config) = (&seen.vm, self.engine(seen)?, self.vms.config());
        let running = vm.status == Status::Running;
        let machine = engine.observe(vm.machine.id).await?;
        Ok(Snapshot {
            now: seen.now,
            deadlines: Deadlines {
                provisioning: config.provisioning_seconds,
                starting: config.starting_seconds,
                restarting: config.restarting_seconds,
                stopping: config.stopping_seconds,
                suspending: config.suspending_seconds,
                deleting: config.deleting_seconds,
                power_off: config.stop_seconds,
            },
            want: vm.want,
            status: vm.status,
            since: vm.status_since,
            served_since: self.vms.began_at(),
            attempts: vm.attempts,
            deaths: vm.deaths,
            reserved: vm.machine.reserved,
            has_memory: vm.has_memory,
            ending: vm.ending,
            leaves: vm.leaves,
            power_off_at: vm.power_off_at,
            pressed_at: vm.pressed_at,
            start_after: vm.start_after,
            guest_ready: vm.guest_ready,
            ports_changed: running && self.ports_changed(vm, &seen.rules, &*engine).await,
            keys_changed: running && vm.keys_state == KeysState::Pending,
            host_restarted: vm.machine.host_boot.as_ref().is_some_and(|boot| *boot != engine.host_boot()),
            restart_policy: vm.restart_policy,
            disks: seen.disks.iter().map(|row| disk(row, vm, &seen.snapshots)).collect(),
            expires_at: vm.expires_at,
            // Asked for only where it matters.
            has_room: machine != Machine::Stalled || engine.capacity().await?.disk_free,
            machine,
            machine_ready: running && !vm.guest_ready && engine.guest_ready(vm.machine.id).await,
        })
    }

    /// Whether a machine that runs is not reached as it should be, has not these rules, or nobody carries its network.
    async fn ports_changed(&self, vm: &VmRow, rules: &Rules, engine: &dyn Engine) -> bool {
        let is_pending = vm.ports_pending || *rules != vm.applied_rules;
        let is_pending = is_pending || self.vms.inbound(vm).is_ok_and(|ports| ports != vm.applied_ports);
        is_pending || !engine.has_network(vm.machine.id).await
    }

    /// Has the host let go of a machine that is to hold nothing any more: end a start whose answer never came, and take back devices,
    /// since once its row says so they may be another's, and what a rescue left.
    async fn let_go(&self, seen: &Seen) -> Result<(), StepError> {
        if seen.vm.machine.host.is_some() {
            self.engine(seen)?.power_off(seen.vm.machine.aim()).await?;
            fault("vm", "let_go", "done").await?;
        }
        Ok(())
    }

    /// The same of a VM that does not wait for its host: where that cannot, only what another machine might be given keeps it.
    async fn let_go_if_it_can(&self, seen: &Seen) -> Result<(), StepError> {
        // A device, or a disk that another host has as well, must not be had twice.
        let is_kept =
            !seen.gpus.is_empty() || seen.vm.rescue_user.is_some() || super::capacity::store(&seen.disks).is_some();
        match self.let_go(seen).await {
            Err(StepError::Engine(error)) if !is_kept => {
                tracing::warn!(vm = %seen.vm.id, %error, "the host does not let go of a machine that its VM has no more");
                Ok(())
            }
            result => result,
        }
    }

    async fn make_disk(&self, seen: &Seen, id: DiskId) -> Result<(), StepError> {
        let Some(disk) = seen.disks.iter().find(|d| d.id == id) else {
            return Ok(());
        };
        let message = Some(making(disk));
        if seen.vm.message != message {
            self.record(seen, |vm| vm.message = message).await?;
        }
        super::disk::make(&self.vms, disk, Some(seen.vm.machine.aim())).await
    }

    async fn start(&self, seen: &Seen) -> Result<(), StepError> {
        let spec = self.spec(seen)?;
        let spec = MachineSpec { generation: spec.generation + 1, ..spec };
        let engine = self.engine(seen)?;
        let host = engine.host_boot();
        let now = seen.now;
        let intent = |vm: &mut VmRow| {
            vm.machine.generation = spec.generation;
            vm.machine.host_boot = Some(host);
            vm.disk_places = i64::try_from(spec.disk_places).unwrap_or_default();
            opens(vm, &spec);
            note_reach(vm, &spec.ports);
            vm.guest_ready &= vm.has_memory;
            if !vm.has_memory {
                given(vm);
            }
            vm.power_off_at = None;
            // A worker that dies here must find the row again.
            vm.work_at = Some(now);
        };
        if !self.is_recorded(seen, intent).await? {
            return Ok(());
        }
        fault("vm", "start", "intent").await?;
        let started = engine.start(&spec).await?;
        fault("vm", "start", "done").await?;
        self.record(seen, |vm| {
            if let Some(started) = &started {
                opened(vm, &spec, started);
            }
            let message = started.as_ref().and_then(|started| refused(&spec, started));
            if let Some(started) = &started {
                boots_with_keys(vm, &seen.vm, started);
            }
            vm.guest_ready &= started.as_ref().is_none_or(|started| started.unloadable.is_none());
            running(vm, now, message);
        })
        .await
    }

    /// The machine a row describes.
    fn spec(&self, seen: &Seen) -> Result<MachineSpec, StepError> {
        self.spec_of(&seen.vm, seen)
    }

    /// The machine that a row would describe, with the disks, rules and GPUs that were seen.
    fn spec_of(&self, vm: &VmRow, seen: &Seen) -> Result<MachineSpec, StepError> {
        let disks = &seen.disks;
        let ports = self.vms.inbound(vm)?;
        let address = vm.machine.address.ok_or_else(|| Error::internal("a machine without an address"))?;
        let data: Vec<_> = disks.iter().filter(|d| d.kind == DiskKind::Data).collect();
        let mounts = mount_points(&data);
        Ok(MachineSpec {
            id: vm.machine.id,
            generation: vm.machine.generation,
            name: vm.name.clone(),
            vcpu: vm.vcpu,
            memory_mb: vm.memory_mb,
            image_id: vm.image_id.clone(),
            root_disk: vm.root_disk_id,
            data_disks: data.iter().zip(mounts).map(|(d, mount)| DataDisk { id: d.id, mount }).collect(),
            disk_places: MAX_DATA_DISKS,
            ssh_keys: vm.ssh_keys.clone(),
            user_data: vm.user_data.clone(),
            address,
            slot: vm.machine.slot.unwrap_or_default(),
            // A switch of a project's network is linked to a program beside the machine.
            is_bridged: self.vms.engine_of(vm.machine.host)?.network().is_bridged && vm.networks.is_empty(),
            ports,
            networks: vm.networks.iter().map(MembershipRow::membership).collect(),
            rules: seen.rules.clone(),
            goes_on: vm.has_memory,
            gpus: seen.gpus.clone(),
            rescue: vm.rescue_user.as_ref().map(|_| RESCUE.to_owned()),
            store: self.store_of(disks)?,
        })
    }

    /// The store that the disks of a machine lie in, as its host is told.
    fn store_of(&self, disks: &[DiskRow]) -> Result<Option<Store>, EngineError> {
        super::capacity::store(disks).map(|name| self.vms.store(name).cloned()).transpose()
    }

    async fn suspend(&self, seen: &Seen) -> Result<(), StepError> {
        let spec = self.spec(seen)?;
        self.engine(seen)?.suspend(&spec).await?;
        fault("vm", "suspend", "done").await?;
        self.record(seen, |vm| vm.has_memory = true).await
    }

    async fn go_on(&self, seen: &Seen, has_room: bool) -> Result<(), StepError> {
        if has_room {
            self.engine(seen)?.resume(seen.vm.machine.aim()).await?;
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

    async fn set_keys(&self, seen: &Seen) -> Result<(), StepError> {
        let vm = &seen.vm;
        // Noted first: some of them may be in the guest, though it is not said.
        if !self.is_recorded(seen, given).await? {
            return Ok(());
        }
        let keys = GuestKeys { user: vm.login_user.clone(), keys: vm.ssh_keys.clone(), former: vm.given_keys.clone() };
        let are_set = self.engine(seen)?.set_keys(vm.machine.aim(), &keys).await?;
        fault("vm", "set_keys", "done").await?;
        self.record(seen, |vm| {
            if are_set {
                vm.given_keys.clone_from(&vm.ssh_keys);
            }
            vm.keys_state = if are_set { KeysState::Applied } else { KeysState::NextBoot };
        })
        .await
    }

    async fn set_ports(&self, seen: &Seen) -> Result<(), StepError> {
        let (vm, spec) = (&seen.vm, self.spec(seen)?);
        let ports = vm.applied_ports.clone();
        let before = if vm.ports_pending { Open::Some(ports) } else { Open::All(ports) };
        if !self.is_recorded(seen, |vm| opens(vm, &spec)).await? {
            return Ok(());
        }
        let changed = self.engine(seen)?.set_ports(&spec, before).await;
        if changed.is_err() {
            // A running VM has no deadline that would tell its owner.
            self.record(seen, |vm| vm.message = Some(PORTS_LATER.into())).await?;
        }
        let started = changed?;
        fault("vm", "set_ports", "done").await?;
        self.record(seen, |vm| {
            opened(vm, &spec, &started);
            vm.message = standing(vm, refused(&spec, &started));
        })
        .await?;
        if spec.is_reached_by_others() && !started.taken_ports.is_empty() {
            return Err(EngineError::Transient("another program has ports of a VM".into()).into());
        }
        Ok(())
    }
}

/// A disk as a plan sees it.
fn disk(row: &DiskRow, vm: &VmRow, snapshots: &[DiskSnapshotRow]) -> Disk {
    // Whichever is to be looked at first: one that is copied for hours keeps none of the others waiting.
    let open = snapshots.iter().filter(|snapshot| snapshot.disk == row.id).map(DiskSnapshotRow::open);
    Disk {
        id: row.id,
        status: row.status,
        message: row.message.clone(),
        grows: row.grows(),
        is_elsewhere: row.is_elsewhere(vm.machine.host),
        stuck_since: row.stuck_since,
        moving: row.moving,
        snapshot: first_due(open),
    }
}

/// What a VM's owner is told while a disk of it is made.
fn making(disk: &DiskRow) -> String {
    let what = if disk.kind == DiskKind::Root { "cloning the root disk" } else { "making the data disk" };
    format!("{what} {}", disk.name)
}
