//! The life of a VM: look, plan, step, record, and again. What comes next says [`plan::next`].

use std::rc::Rc;

use berth_domain::Timestamp;
use berth_domain::host::model::State;
use berth_domain::ids::DiskId;
use berth_domain::vm::model::{RestartPolicy, Want};
use berth_domain::vm::plan::{self, Disk, Machine, Snapshot, Step};
use berth_domain::vm::{DiskStatus, Status};
use uuid::Uuid;

use crate::broken::Rule;
use crate::check;
use crate::database::{Rows, VmRow};
use crate::host::{Answer, Ask, Deed};
use crate::service::Service;

/// Most steps in a row, as `MAX_STEPS` of `work::lifecycle`.
const STEPS: usize = 200;
/// Longest pause between two tries of a step, in seconds, as there.
const LONGEST_PAUSE: i64 = 15;
/// Why a step did not finish.
enum Failure {
    /// The host acted on a later generation.
    Outdated(VmRow, i64),
    /// It cannot be, whoever tries.
    Final(VmRow),
    /// Anything else: it is tried again.
    Passing,
}

/// What follows from a look.
enum Next {
    /// There is nothing to do before this time, or before something changes.
    Rest(Option<Timestamp>),
    /// There is no such VM any more.
    Gone,
}

impl VmRow {
    /// Takes a new status, whose deadline begins now.
    pub fn enter(&mut self, status: Status, now: Timestamp) {
        (self.status, self.since, self.attempts) = (status, now, 0);
        (self.power_off_at, self.pressed_at) = (None, None);
        self.ending &= status.is_transitional();
    }
}

/// Brings a VM to what its row wants, for as long as the service works.
pub async fn live(service: Rc<Service>, vm: usize) {
    let mut failures = 0;
    while !service.is_ending() {
        let until = match bring_about(&service, vm).await {
            Ok(Next::Gone) => return,
            Ok(Next::Rest(until)) => {
                failures = 0;
                until
            }
            Err(Failure::Outdated(seen, later)) if later >= seen.generation => {
                is_recorded(&service, vm, &seen, |row| row.generation = later + 1).await;
                continue;
            }
            Err(Failure::Final(seen)) if is_given_up(&service, vm, &seen).await => continue,
            Err(_) => {
                failures = (failures + 1).min(5);
                Some(service.wall().plus_seconds((1_i64 << (failures - 1)).min(LONGEST_PAUSE)))
            }
        };
        service.rest(vm, until).await;
    }
}

/// Records a final failure onto the row as it is by now, but for a deletion; whether that was tried.
async fn is_given_up(service: &Service, vm: usize, decided_for: &VmRow) -> bool {
    let Some(rows) = service.read().await else { return false };
    let Some(now) = rows.vms.get(vm).filter(|row| row.want != Want::Gone) else { return false };
    if end(service, vm, (now, &rows), Rule::FailuresEnd).await.is_err() {
        return false;
    }
    service.sim.reaches(check::GIVEN_UP);
    let fails = Step::Fail("its host will not come back".into());
    // What its owner wanted when the step was decided is what may be given up.
    let given_up = VmRow { wish: decided_for.wish, ..*now };
    is_recorded(service, vm, &given_up, |row| apply(row, &fails, service.wall())).await;
    true
}

async fn bring_about(service: &Service, vm: usize) -> Result<Next, Failure> {
    for _ in 0..STEPS {
        if service.is_ending() {
            break;
        }
        let rows = service.read().await.ok_or(Failure::Passing)?;
        let Some(seen) = rows.vms.get(vm).filter(|row| row.status != Status::Deleted) else { return Ok(Next::Gone) };
        let machine = match seen.host {
            None => Machine::Absent,
            Some(host) => match service.ask_of(host, rows.hosts[host].is_removed, Ask::Observe(vm)).await {
                Answer::Machine(machine) => machine,
                _ => return Err(Failure::Passing),
            },
        };
        match plan::next(&snapshot(service, vm, seen, machine)) {
            Step::Rest => return Ok(Next::Rest(None)),
            Step::Wait(until) => return Ok(Next::Rest(Some(until))),
            step => take(service, vm, (seen, &rows), step).await?,
        }
    }
    Ok(Next::Rest(None))
}

fn snapshot(service: &Service, vm: usize, row: &VmRow, machine: Machine) -> Snapshot {
    let disk = Disk {
        id: DiskId(Uuid::from_u128(vm as u128)),
        status: if row.has_disk { DiskStatus::Ready } else { DiskStatus::Pending },
        message: None,
        grows: false,
        is_elsewhere: false,
        stuck_since: None,
        moving: None,
        snapshot: None,
    };
    let boot = row.host.and_then(|host| service.boot_of(host));
    Snapshot {
        now: service.wall(),
        deadlines: service.sim.world.borrow().deadlines,
        want: row.want,
        status: row.status,
        since: row.since,
        served_since: service.began(),
        attempts: row.attempts,
        deaths: row.deaths,
        reserved: row.reserved,
        has_memory: false,
        ending: row.ending,
        leaves: false,
        power_off_at: row.power_off_at,
        pressed_at: row.pressed_at,
        start_after: row.start_after,
        has_room: true,
        guest_ready: row.guest_ready,
        ports_changed: false,
        keys_changed: false,
        host_restarted: row.host_boot.is_some() && row.host_boot != boot,
        restart_policy: RestartPolicy::OnFailure,
        expires_at: None,
        disks: vec![disk],
        machine,
        machine_ready: row.status == Status::Running && !row.guest_ready && machine == Machine::Running,
    }
}

async fn take(service: &Service, vm: usize, (seen, rows): (&VmRow, &Rows), step: Step) -> Result<(), Failure> {
    let now = service.wall();
    match step {
        Step::Reserve => reserve(service, vm, seen, rows).await,
        Step::MakeDisk(_) => {
            tell(service, vm, (seen, rows), Deed::MakeDisk).await?;
            record(service, vm, seen, |row| row.has_disk = true).await
        }
        Step::Start => start(service, vm, (seen, rows)).await,
        Step::PressPower => {
            tell(service, vm, (seen, rows), Deed::Press).await?;
            let pressed = |row: &mut VmRow| {
                row.power_off_at = row.power_off_at.or(Some(now));
                row.pressed_at = Some(now);
            };
            record(service, vm, seen, pressed).await
        }
        Step::PowerOff => tell(service, vm, (seen, rows), Deed::PowerOff).await,
        Step::Finish => {
            if seen.host.is_some() {
                end(service, vm, (seen, rows), Rule::DeletionsEnd).await?;
                tell(service, vm, (seen, rows), Deed::Discard).await?;
            }
            record(service, vm, seen, |row| row.enter(Status::Deleted, now)).await
        }
        step => {
            match step {
                Step::Stopped { .. } => end(service, vm, (seen, rows), Rule::StopsCallOff).await?,
                Step::Fail(_) => end(service, vm, (seen, rows), Rule::FailuresEnd).await?,
                _ => {}
            }
            notes(service, &step);
            record(service, vm, seen, |row| apply(row, &step, now)).await
        }
    }
}

/// Ends what may be left of a VM's machine that is not seen, as this rule has it.
async fn end(service: &Service, vm: usize, (seen, rows): (&VmRow, &Rows), rule: Rule) -> Result<(), Failure> {
    if seen.host.is_none() || service.sim.world.borrow().lacks(rule) {
        return Ok(());
    }
    tell(service, vm, (seen, rows), Deed::PowerOff).await
}

/// Notes what deadlines come to.
fn notes(service: &Service, step: &Step) {
    match step {
        Step::Retry => service.sim.reaches(check::LATE),
        Step::Fail(_) => service.sim.reaches(check::FAILED),
        _ => {}
    }
}

/// Puts a VM onto a host that is there: onto its own, once it has a disk there.
async fn reserve(service: &Service, vm: usize, seen: &VmRow, rows: &Rows) -> Result<(), Failure> {
    let is_free = |host: &usize| {
        let row = rows.hosts[*host];
        let is_own = !seen.has_disk || seen.host == Some(*host);
        is_own && !row.is_removed && row.state == State::Ready && service.is_there(*host)
    };
    let free: Vec<_> = (0..rows.hosts.len()).filter(is_free).collect();
    if free.is_empty() {
        let fails = Step::Fail("no host takes it".into());
        return record(service, vm, seen, |row| apply(row, &fails, service.wall())).await;
    }
    let host = free[service.sim.below(free.len())];
    record(service, vm, seen, |row| (row.host, row.reserved) = (Some(host), true)).await
}

async fn start(service: &Service, vm: usize, (seen, rows): (&VmRow, &Rows)) -> Result<(), Failure> {
    let intended = VmRow { generation: seen.generation + 1, ..*seen };
    let boot = seen.host.and_then(|host| service.boot_of(host));
    let intent = |row: &mut VmRow| {
        (row.generation, row.host_boot) = (intended.generation, boot);
        (row.guest_ready, row.power_off_at) = (false, None);
    };
    if !is_recorded(service, vm, seen, intent).await {
        return Ok(());
    }
    tell(service, vm, (&intended, rows), Deed::Start).await?;
    record(service, vm, seen, |row| apply(row, &Step::Running, service.wall())).await
}

/// Has the host do something, as was decided for the generation of this row.
async fn tell(service: &Service, vm: usize, (seen, rows): (&VmRow, &Rows), deed: Deed) -> Result<(), Failure> {
    let host = seen.host.ok_or(Failure::Passing)?;
    match service.ask_of(host, rows.hosts[host].is_removed, Ask::Do(deed, vm, Some(seen.generation))).await {
        Answer::Done => Ok(()),
        Answer::Gone => Err(Failure::Final(*seen)),
        Answer::Outdated(later) => Err(Failure::Outdated(*seen, later)),
        _ => Err(Failure::Passing),
    }
}

async fn record(service: &Service, vm: usize, seen: &VmRow, change: impl FnOnce(&mut VmRow)) -> Result<(), Failure> {
    is_recorded(service, vm, seen, change).await;
    Ok(())
}

/// Writes a change onto the row that it was decided for; whether that was still so.
async fn is_recorded(service: &Service, vm: usize, seen: &VmRow, change: impl FnOnce(&mut VmRow)) -> bool {
    let Some(mut tx) = service.begin().await else { return false };
    let decided_for = |row: &VmRow| (row.want, row.status, row.since);
    let is_still = decided_for(&tx.rows.vms[vm]) == decided_for(seen);
    if !is_still {
        service.sim.reaches(check::CHANGED);
    }
    if !is_still && !service.sim.world.borrow().lacks(Rule::RowsAreCompared) {
        tx.roll_back(&service.sim);
        return false;
    }
    let VmRow { want: wanted, status: before, .. } = tx.rows.vms[vm];
    change(&mut tx.rows.vms[vm]);
    let wish = tx.rows.vms[vm].wish;
    if wanted != tx.rows.vms[vm].want && wish != seen.wish {
        let taken_back = || format!("operation {wish} on VM {vm} is taken back by a step that was decided before");
        service.sim.world.borrow_mut().checker.found(taken_back);
    }
    let VmRow { want, status, generation, host, .. } = tx.rows.vms[vm];
    if status != before && tx.holds(&service.sim) {
        service.sim.world.borrow_mut().is_said(vm, &tx.rows);
    }
    service.sim.tell(|| {
        let me = service.me;
        format!("replica {me} records of VM {vm}: {status}, want {want}, generation {generation}, host {host:?}")
    });
    service.commit(tx).await
}

/// What a step that only records does to the row.
fn apply(row: &mut VmRow, step: &Step, now: Timestamp) {
    match step {
        Step::Enter(status, _) => row.enter(*status, now),
        Step::Running => {
            row.enter(Status::Running, now);
            row.start_after = None;
        }
        Step::GuestReady => row.guest_ready = true,
        Step::GuestOff => {
            row.want = Want::Stop;
            row.enter(Status::Stopping, now);
        }
        Step::StartAgain { delay, .. } => {
            row.deaths = if *delay == 0 { 1 } else { row.deaths + 1 };
            row.enter(Status::Starting, now);
            row.start_after = (*delay > 0).then(|| now.plus_seconds(*delay));
            row.ending = true;
        }
        Step::Ended => {
            row.ending = false;
            (row.power_off_at, row.pressed_at) = (None, None);
        }
        Step::Stopped { .. } => {
            row.enter(Status::Stopped, now);
            (row.reserved, row.ending) = (false, false);
        }
        Step::Fail(_) => {
            row.enter(Status::Failed, now);
            (row.want, row.reserved) = (Want::Stop, false);
        }
        Step::Retry => {
            row.attempts += 1;
            (row.ending, row.since) = (true, now);
        }
        other => unreachable!("no VM of these schedules wants {}", other.name()),
    }
}
