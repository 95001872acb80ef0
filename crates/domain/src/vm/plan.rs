//! What the worker does next to bring the world to what a VM's row wants.
//!
//! [`next`] looks at one snapshot of row and world and names one [`Step`]. The worker does the step,
//! records it, takes a new snapshot and asks again, until the answer is [`Step::Rest`] or
//! [`Step::Wait`]. There is no memory between two calls: whatever was interrupted is found again in
//! the next snapshot, so a crash needs no special case. Each step is safe to repeat.
//!
//! What cannot be seen in the world any more after a step is written down before it. A guest that
//! powered itself off, for example, is first recorded as stopping and only then is its process ended,
//! because afterwards it would look like a machine that died.

mod step;

use serde::{Deserialize, Serialize};

pub use self::step::{Step, StepKind};
use super::disk::{self, DiskStatus, Move};
use super::disk_snapshot::Open;
use super::model::{RestartPolicy, Status, Want};
use crate::Timestamp;
use crate::ids::DiskId;

/// How long each transitional status may last, in seconds (contract, section 1).
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// `pending` and `provisioning`.
    pub provisioning: i64,
    /// `starting`.
    pub starting: i64,
    /// `restarting`.
    pub restarting: i64,
    /// `stopping`.
    pub stopping: i64,
    /// `suspending`.
    pub suspending: i64,
    /// `deleting`.
    pub deleting: i64,
    /// From the power button to the power switch.
    pub power_off: i64,
}

impl Deadlines {
    /// The deadline of a status; none for one that is at rest.
    pub const fn of(&self, status: Status) -> Option<i64> {
        match status {
            Status::Pending | Status::Provisioning => Some(self.provisioning),
            Status::Starting => Some(self.starting),
            Status::Restarting => Some(self.restarting),
            Status::Stopping => Some(self.stopping),
            Status::Suspending => Some(self.suspending),
            Status::Deleting => Some(self.deleting),
            _ => None,
        }
    }
}

/// The machine as the host shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Machine {
    /// There is no process.
    Absent,
    /// It executes.
    Running,
    /// It was paused.
    Paused,
    /// It stands still since the host had no room for what its guest wrote.
    Stalled,
    /// The guest powered itself off; the process waits to be ended.
    PoweredOff,
    /// The guest's kernel gave up.
    Panicked,
    /// The process is there but does not answer.
    Unresponsive,
}

/// A disk of the VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Its id.
    pub id: DiskId,
    /// Where it stands.
    pub status: DiskStatus,
    /// Why it failed.
    pub message: Option<String>,
    /// Whether it is smaller than it is to be.
    pub grows: bool,
    /// Whether it lies on another host than the machine, and is being brought to it by its own worker.
    pub is_elsewhere: bool,
    /// Since when it cannot be brought, for the reason that its message says.
    pub stuck_since: Option<Timestamp>,
    /// Whether it comes or goes while its machine runs, and since when.
    pub moving: Option<(Move, Timestamp)>,
    /// The first of its snapshots that are to be made, or to be given up.
    pub snapshot: Option<Open>,
}

/// One look at row and world.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When it was taken.
    pub now: Timestamp,
    /// The rules.
    pub deadlines: Deadlines,
    /// What the row wants.
    pub want: Want,
    /// Where it stands.
    pub status: Status,
    /// Since when.
    pub since: Timestamp,
    /// When the service began: before, nobody worked on it.
    pub served_since: Timestamp,
    /// How often the deadline of this status passed already.
    pub attempts: i64,
    /// How often it died in a row.
    pub deaths: i64,
    /// Whether processors, memory and address are reserved.
    pub reserved: bool,
    /// Whether its memory is on the disk, so that it goes on with that.
    pub has_memory: bool,
    /// Whether the machine that runs now has to end before another begins.
    pub ending: bool,
    /// Whether it is to go onto another host, since its own is drained.
    pub leaves: bool,
    /// When the power button was pressed first.
    pub power_off_at: Option<Timestamp>,
    /// When the power button was pressed last.
    pub pressed_at: Option<Timestamp>,
    /// Not to be started, or to go on, before this.
    pub start_after: Option<Timestamp>,
    /// Whether the host has room for what guests write.
    pub has_room: bool,
    /// Whether the guest was seen to have finished its boot.
    pub guest_ready: bool,
    /// Whether the running machine has other inbound ports or firewall rules than it should, or nobody carries its network.
    pub ports_changed: bool,
    /// Whether the guest is to get other SSH keys.
    pub keys_changed: bool,
    /// Whether the host itself was restarted since the machine was.
    pub host_restarted: bool,
    /// What to do when it dies.
    pub restart_policy: RestartPolicy,
    /// When its time is over, and it is deleted.
    pub expires_at: Option<Timestamp>,
    /// Its disks, root first.
    pub disks: Vec<Disk>,
    /// The machine.
    pub machine: Machine,
    /// Whether the guest reports that its boot finished.
    pub machine_ready: bool,
}

/// Longest wait before a machine that keeps dying is started again, in seconds.
pub const LONGEST_BACKOFF: i64 = 300;
/// Between two looks at a guest whose boot has not finished, in milliseconds.
const READY_POLL: i64 = 500;
/// How long a VM whose guest does not say that its boot finished is not asked to leave its host, in seconds.
pub const BOOT: i64 = 600;
/// Between two looks at a machine that does not answer, in seconds.
const SILENCE_POLL: i64 = 2;
/// Between two looks at a VM that waits for a disk of another host, in seconds.
const TRAVEL_POLL: i64 = 10;
/// Between two tries to let a machine go on that stands still for lack of room, in seconds.
pub const ROOM_POLL: i64 = 5;
/// Between two presses of the power button, in seconds. A guest hears it only once its kernel listens; what was
/// pressed before is lost.
const PRESS_AGAIN: i64 = 1;

/// What is done before anything is looked at: a machine that migrates was being sent by a worker that is gone, whatever is wanted
/// of it, and its host may not answer while the other one has what it is to be freed of.
pub fn first(migrates: bool) -> Option<Step> {
    migrates.then_some(Step::CallOff)
}

/// The next step.
pub fn next(s: &Snapshot) -> Step {
    let step = match s.want {
        Want::Gone => return gone(s),
        _ if s.expires_at.is_some_and(|at| at <= s.now) => return Step::Expire,
        Want::Stop => stop(s),
        Want::Suspend => suspend(s),
        Want::Run if s.status == Status::Running => keep_running(s),
        Want::Run => bring_up(s),
    };
    let look = if copies(s) { s.disks.iter().filter_map(|disk| disk.snapshot?.after).min() } else { None };
    match (step, s.expires_at.into_iter().chain(look).min()) {
        (Step::Rest, Some(at)) => Step::Wait(at),
        (Step::Wait(until), Some(at)) => Step::Wait(until.min(at)),
        (step, _) => step,
    }
}

fn gone(s: &Snapshot) -> Step {
    match s.machine {
        _ if s.status == Status::Deleted && s.machine == Machine::Absent => Step::Rest,
        _ if overdue(s) => try_again_or_fail(s),
        Machine::Absent => Step::Finish,
        _ => Step::PowerOff,
    }
}

fn stop(s: &Snapshot) -> Step {
    match (s.machine, s.status) {
        (Machine::Absent, _) if s.has_memory => Step::ForgetMemory,
        (Machine::Absent, Status::Stopped | Status::Failed) => {
            for_disks(s).or_else(|| move_on(s)).unwrap_or(Step::Rest)
        }
        (Machine::Absent, _) => Step::Stopped { is_late: overdue(s) },
        _ if overdue(s) => try_again_or_fail(s),
        (_, Status::Stopped | Status::Failed) => Step::PowerOff,
        _ => end(s),
    }
}

/// A machine that is about to be suspended and cannot be goes on: its guest did nothing wrong. One whose guest has ended
/// meanwhile is off, and one that died is what died.
fn suspend(s: &Snapshot) -> Step {
    match s.machine {
        Machine::Absent if s.status == Status::Suspended => snapshots(s).unwrap_or(Step::Rest),
        Machine::Absent if s.has_memory => Step::Suspended,
        // One that runs has gone on from it, and that was not recorded.
        _ if s.has_memory && s.machine != Machine::Running => Step::PowerOff,
        Machine::PoweredOff => Step::GuestOff,
        Machine::Panicked => Step::Fail("the guest's kernel panicked; start it again, or look at its console".into()),
        Machine::Stalled => Step::KeepRunning("the host's disk is full".into()),
        _ if overdue(s) => Step::KeepRunning("it took too long".into()),
        // The disks that its memory knows are those that it has.
        Machine::Running => changes(s).unwrap_or(Step::Suspend),
        // Of one whose process is gone the memory may be there, though that was not recorded.
        Machine::Absent | Machine::Paused | Machine::Unresponsive => Step::Suspend,
    }
}

/// Ends a machine in good order: button, patience, switch.
fn end(s: &Snapshot) -> Step {
    match s.machine {
        Machine::Absent => Step::Ended,
        Machine::PoweredOff | Machine::Panicked | Machine::Paused | Machine::Stalled => Step::PowerOff,
        Machine::Running | Machine::Unresponsive => match s.power_off_at {
            _ if s.attempts > 0 => Step::PowerOff,
            None => Step::PressPower,
            Some(at) => press_again(s, at.plus_seconds(s.deadlines.power_off)),
        },
    }
}

/// The button once more each second, until the switch.
fn press_again(s: &Snapshot, switch: Timestamp) -> Step {
    let again = s.pressed_at.map_or(s.now, |at| at.plus_seconds(PRESS_AGAIN));
    match s.now {
        now if now >= switch => Step::PowerOff,
        now if now >= again => Step::PressPower,
        _ => Step::Wait(again.min(switch)),
    }
}

fn keep_running(s: &Snapshot) -> Step {
    // Rules hold as soon as they can, whatever the machine does: another program carries its network.
    if s.ports_changed && matches!(s.machine, Machine::Running | Machine::Stalled | Machine::Unresponsive) {
        return Step::SetPorts;
    }
    if s.machine == Machine::Running
        && let Some(step) = for_disks(s)
    {
        return step;
    }
    match s.machine {
        Machine::Running if s.guest_ready && s.keys_changed => Step::SetKeys,
        Machine::Running if s.machine_ready && !s.guest_ready => Step::GuestReady,
        Machine::Running if s.leaves && has_booted(s) && !s.disks.iter().any(changes_now) => Step::Leave,
        Machine::Running if s.guest_ready => Step::Rest,
        Machine::Running => Step::Wait(s.now.plus_millis(ready_poll(s))),
        Machine::Paused => Step::Resume,
        Machine::Stalled => match s.start_after {
            // A copy that is given up may be what makes room.
            Some(at) if at > s.now => snapshots(s).unwrap_or(Step::Wait(at)),
            _ => Step::GoOn { has_room: s.has_room },
        },
        Machine::Unresponsive => Step::Wait(s.now.plus_seconds(SILENCE_POLL)),
        Machine::PoweredOff if s.restart_policy == RestartPolicy::Always => {
            Step::StartAgain { reason: "the guest powered itself off; it is started again", delay: backoff(s) }
        }
        Machine::PoweredOff => Step::GuestOff,
        Machine::Panicked => died(s, "the guest's kernel panicked"),
        Machine::Absent if s.host_restarted => {
            Step::StartAgain { reason: "the host was restarted; it is started again", delay: 0 }
        }
        Machine::Absent => died(s, "the machine's process ended unexpectedly"),
    }
}

/// Whether its guest finished its boot, or does not say so: what it says while it leaves, nobody hears.
fn has_booted(s: &Snapshot) -> bool {
    s.guest_ready || s.now >= s.since.plus_seconds(BOOT)
}

fn died(s: &Snapshot, reason: &str) -> Step {
    match s.restart_policy {
        RestartPolicy::Never => Step::Fail(format!("{reason}; start it again, or look at its console")),
        RestartPolicy::OnFailure | RestartPolicy::Always => {
            Step::StartAgain { reason: "the machine died; it is started again", delay: backoff(s) }
        }
    }
}

/// Seconds before the next start of a machine that died: none the first time, then doubling. A machine
/// that ran for longer than the longest wait begins anew.
fn backoff(s: &Snapshot) -> i64 {
    let ran_long = s.now >= s.since.plus_seconds(LONGEST_BACKOFF);
    match s.deaths {
        _ if ran_long => 0,
        0 => 0,
        n => {
            1_i64.checked_shl(u32::try_from(n).unwrap_or(u32::MAX)).unwrap_or(LONGEST_BACKOFF).clamp(1, LONGEST_BACKOFF)
        }
    }
}

/// A guest is looked at often while it boots and seldom when it takes long.
fn ready_poll(s: &Snapshot) -> i64 {
    let age = (s.now.0 - s.since.0) / 1000;
    (age / 20).clamp(READY_POLL, 10_000)
}

fn bring_up(s: &Snapshot) -> Step {
    if let Some(step) = is_late(s).filter(|_| !is_up(s)) {
        return step;
    }
    if s.ending {
        return end(s);
    }
    if s.status == Status::Pending {
        return Step::Enter(Status::Provisioning, "reserving processors, memory and an address");
    }
    if let Some(step) = move_on(s) {
        return step;
    }
    if !s.reserved {
        return Step::Reserve;
    }
    match unmade(s) {
        Some(disk) => make(disk),
        None if s.status == Status::Provisioning => Step::Enter(Status::Starting, "starting the machine"),
        None => switch_on(s),
    }
}

fn make(disk: &Disk) -> Step {
    match disk.status {
        DiskStatus::Failed => Step::Fail(disk.message.clone().unwrap_or_else(|| "a disk could not be made".into())),
        DiskStatus::Deleting | DiskStatus::Deleted => Step::Fail("one of its disks is gone".into()),
        _ => Step::MakeDisk(disk.id),
    }
}

fn switch_on(s: &Snapshot) -> Step {
    match s.machine {
        Machine::Absent => match s.start_after {
            Some(at) if at > s.now => Step::Wait(at),
            // Who brings a disk wakes the VM once it is there. It is copied as it is before it goes.
            _ if s.disks.iter().any(|disk| disk.is_elsewhere) => {
                snapshots(s).unwrap_or(Step::Wait(s.now.plus_seconds(TRAVEL_POLL)))
            }
            // One that goes on has the disks that its memory knows.
            _ if s.has_memory => Step::Start,
            _ => changes(s).unwrap_or(Step::Start),
        },
        Machine::Paused => Step::Resume,
        Machine::Unresponsive => Step::Wait(s.now.plus_seconds(SILENCE_POLL)),
        Machine::Running | Machine::Stalled | Machine::PoweredOff | Machine::Panicked => Step::Running,
    }
}

/// How it goes onto another host: once it is off, nothing of it is in memory, its disks are whole, and those that are to be
/// copied are.
fn move_on(s: &Snapshot) -> Option<Step> {
    if !s.leaves || s.machine != Machine::Absent || s.has_memory || unmade(s).is_some() {
        return None;
    }
    let later = s.disks.iter().filter_map(|disk| disk.snapshot?.after).min().map(Step::Wait);
    Some(snapshots(s).or(later).unwrap_or(Step::Move))
}

/// Whether something is under way for a disk that ends before its machine leaves.
const fn changes_now(disk: &Disk) -> bool {
    disk.moving.is_some() || disk.snapshot.is_some()
}

/// Whether the machine is there, and all that is left is to say so.
fn is_up(s: &Snapshot) -> bool {
    let whole = s.reserved && unmade(s).is_none();
    s.status == Status::Starting && s.machine == Machine::Running && whole && !s.ending
}

/// The first of its disks that cannot be used yet.
fn unmade(s: &Snapshot) -> Option<&Disk> {
    s.disks.iter().find(|disk| disk.status != DiskStatus::Ready)
}

/// What its disks want of a machine that runs, or that there is none of. What a disk is, is copied before it changes.
fn for_disks(s: &Snapshot) -> Option<Step> {
    snapshots(s).or_else(|| changes(s))
}

/// Whether this is a time at which snapshots are made: a machine that comes or goes does not wait for them.
fn copies(s: &Snapshot) -> bool {
    match s.status {
        Status::Running => matches!(s.machine, Machine::Running | Machine::Stalled),
        Status::Stopped | Status::Failed | Status::Suspended => s.machine == Machine::Absent,
        _ => false,
    }
}

/// The next snapshot that its disks want, or look at one.
fn snapshots(s: &Snapshot) -> Option<Step> {
    let open = s.disks.iter().filter_map(|disk| disk.snapshot);
    open.filter(|open| open.is_due(s.now)).map(|open| Step::SnapshotDisk(open.id)).next()
}

/// How its disks want to change. One that is being copied waits, and does not grow before it is copied; else a disk grows
/// before it comes to a machine. A machine that is about to be suspended gives up its copies last, and takes such a disk
/// with it.
fn changes(s: &Snapshot) -> Option<Step> {
    let leaves = |disk: &Disk| matches!(disk.moving, Some((Move::Out, _))) && s.status == Status::Suspending;
    let waits = |disk: &Disk| disk.snapshot.is_some() && (copies(s) || leaves(disk));
    let is_here = |disk: &&Disk| disk.status == DiskStatus::Ready && !disk.is_elsewhere;
    let disks = s.disks.iter().filter(is_here).filter(|disk| !waits(disk));
    disks.into_iter().find_map(|disk| match disk.moving {
        _ if disk.grows && disk.snapshot.is_none() => Some(Step::GrowDisk(disk.id)),
        Some((Move::In, _)) => Some(Step::AttachDisk(disk.id)),
        Some((Move::Out, since)) => {
            // A guest that was suspended meanwhile has its whole time from when it goes on.
            let asked = since.max(s.since);
            Some(Step::DetachDisk { id: disk.id, is_last: s.now >= asked.plus_seconds(disk::LETTING_GO) })
        }
        None => None,
    })
}

/// Whether the deadline passed, of the time in which a service ran.
fn overdue(s: &Snapshot) -> bool {
    overdue_from(s, s.since)
}

/// The same, where it did not begin before this.
fn overdue_from(s: &Snapshot, since: Timestamp) -> bool {
    let since = since.max(s.served_since);
    let from = s.start_after.map_or(since, |at| at.max(since));
    s.deadlines.of(s.status).is_some_and(|seconds| s.now >= from.plus_seconds(seconds))
}

/// What happens to one that is to run and does not in time. Bringing a disk from another host takes as long as that is
/// large, and no deadline passes meanwhile; but where it cannot be brought, its VM does not wait for ever.
fn is_late(s: &Snapshot) -> Option<Step> {
    let mut elsewhere = s.disks.iter().filter(|disk| disk.is_elsewhere).peekable();
    if elsewhere.peek().is_none() {
        return overdue(s).then(|| try_again_or_fail(s));
    }
    let stuck = elsewhere.find(|disk| disk.stuck_since.is_some_and(|at| overdue_from(s, s.since.max(at))))?;
    Some(Step::Fail(stuck.message.clone().unwrap_or_else(|| late(s))))
}

/// What happens when a deadline passes: the first time the status begins again, then the VM fails.
fn try_again_or_fail(s: &Snapshot) -> Step {
    if s.attempts == 0 { Step::Retry } else { Step::Fail(late(s)) }
}

fn late(s: &Snapshot) -> String {
    let seconds = s.deadlines.of(s.status).unwrap_or_default();
    let verb = match s.want {
        Want::Run => "start",
        Want::Stop => "stop",
        Want::Suspend => "suspend",
        Want::Gone => "delete",
    };
    format!("it was still {} after {seconds} seconds, twice; {verb} it to try again", s.status)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
