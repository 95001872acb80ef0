//! What the worker does next to bring the world to what a sandbox's row wants.
//!
//! [`next`] looks at one snapshot of row and world and names one [`Step`]; the worker does it, records it, looks
//! again, until the answer is [`Step::Rest`] or [`Step::Wait`]. Each step is safe to repeat.
//!
//! Three rules keep disks whole:
//!
//! - A machine is known by its generation, which is recorded before it starts. One of another generation is
//!   ended, never used.
//! - A checkpoint (a snapshot, a fork) freezes the top layer and puts an empty one on it. Which one is recorded before.
//!   Once it has begun, the machine may have gone over to the new layer without anybody having noted it. If the
//!   machine is dead, the new layer is right in both cases: either it has what was written since, or it is empty.
//!   So a checkpoint that has begun is brought to its end before anything else starts. A snapshot whose time is over is
//!   told to have failed; its checkpoint ends all the same.
//! - A restore ends the machine first, then puts a new layer on the snapshot's, and only then is the old one
//!   nobody's.

use serde::{Deserialize, Serialize};

use super::model::{Phase, Wish};
use crate::Timestamp;
use crate::ids::{LayerId, SnapshotId};
use crate::words;

/// How long each transitional phase and a checkpoint may last, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// `Provisioning`.
    pub provisioning: i64,
    /// `Pausing`.
    pub pausing: i64,
    /// `Resuming`.
    pub resuming: i64,
    /// `Restoring`.
    pub restoring: i64,
    /// A checkpoint, from its beginning.
    pub snapshot: i64,
}

impl Deadlines {
    /// The deadline of a phase; none for one at rest, and none for deletion, which is never given up.
    pub const fn of(&self, phase: Phase) -> Option<i64> {
        match phase {
            Phase::Provisioning => Some(self.provisioning),
            Phase::Pausing => Some(self.pausing),
            Phase::Resuming => Some(self.resuming),
            Phase::Restoring => Some(self.restoring),
            _ => None,
        }
    }
}

/// The machine as the host shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Machine {
    /// There is no process.
    Absent,
    /// It executes.
    Running {
        /// Which of the sandbox's machines it is.
        generation: i64,
    },
    /// It was started and ended by itself.
    Ended,
}

/// What a sandbox is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// It is there.
    Ready,
    /// It will be.
    Waiting,
    /// It will not be.
    Failed(String),
}

/// The oldest snapshot that waits to be checkpointed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Which.
    pub snapshot: SnapshotId,
    /// When the checkpoint began; `None` before.
    pub begun: Option<Timestamp>,
    /// Whether the snapshot has failed or is not wanted any more, and only the checkpoint has to end.
    pub given_up: bool,
}

/// How a sandbox without a machine leaves its host, which is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// What it needs there is being brought.
    Waits,
    /// There is something to do for it.
    Goes,
}

/// When a sandbox's time is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expiry {
    /// End of its life time.
    pub expires_at: Option<Timestamp>,
    /// When it will have been idle for too long, as far as can be told now.
    pub idle_at: Option<Timestamp>,
}

/// One look at row and world.
#[derive(Clone, Debug)]
pub struct Look {
    /// When it was taken.
    pub now: Timestamp,
    /// The rules.
    pub deadlines: Deadlines,
    /// What the row wants.
    pub wish: Wish,
    /// Where it stands.
    pub phase: Phase,
    /// Since when.
    pub since: Timestamp,
    /// How often its deadline passed already.
    pub attempts: i64,
    /// What it is made of; looked at until it has a disk.
    pub source: Source,
    /// Whether memory and a slot are reserved.
    pub reserved: bool,
    /// The top of its disk.
    pub layer: Option<LayerId>,
    /// Whether the top was made.
    pub layer_made: bool,
    /// Whether its disk is to be put onto a snapshot's.
    pub swap: bool,
    /// The machine that it has or is about to have.
    pub generation: i64,
    /// The machine.
    pub machine: Machine,
    /// Whether the host itself was restarted since the machine was started.
    pub host_restarted: bool,
    /// Deaths since the first one that counts.
    pub deaths: i64,
    /// The first death that counts.
    pub deaths_since: Option<Timestamp>,
    /// What is to be checkpointed.
    pub checkpoint: Option<Checkpoint>,
    /// Whether it is to leave its host.
    pub leaving: Option<Leaving>,
    /// Whether the running machine has other rules for its network than it should.
    pub network_changed: bool,
    /// When its time is over.
    pub expiry: Expiry,
}

/// Why a sandbox's time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// It lived as long as it was to.
    Lifetime,
    /// Nobody used it.
    Idle,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Record a phase and what is being done.
    Enter(Phase, &'static str),
    /// Reserve memory and a slot.
    Reserve,
    /// Make the top layer on its source's.
    MakeDisk,
    /// Put a new top layer onto the snapshot's that is restored.
    Swap,
    /// Start the machine, or wait until the one that was started answers.
    Start,
    /// Checkpoint the disk of the running machine.
    Checkpoint(SnapshotId),
    /// Checkpoint the disk while there is no machine.
    CheckpointCold(SnapshotId),
    /// Record that a snapshot failed because its checkpoint takes too long.
    GiveUpCheckpoint(SnapshotId),
    /// Give the running machine its rules for the network.
    SetNetwork,
    /// Put the machine away.
    Pause,
    /// End the machine's process.
    End,
    /// Do what comes next for one that leaves its host.
    Leave,
    /// Record that it is to be started again from its disk.
    StartAgain {
        /// Why.
        reason: String,
        /// Whether it died; a restart of the host is no death.
        died: bool,
    },
    /// Record that its time is over, and what follows from that.
    Expire(Over),
    /// Begin again with another machine, because the deadline passed for the first time.
    Retry,
    /// Record a failure; no machine is wanted any more, but everything is kept.
    Fail(String),
    /// Remove its traces, release its disk, record that it is gone.
    Finish,
    /// Look again at this time.
    Wait(Timestamp),
    /// Nothing to do until something changes.
    Rest,
}

words! {
    /// What a step does, without on what: for logs, and for the points at which tests make it fail.
    StepKind {
        /// [`Step::Enter`].
        Enter = "enter",
        /// [`Step::Reserve`].
        Reserve = "reserve",
        /// [`Step::MakeDisk`].
        MakeDisk = "make_disk",
        /// [`Step::Swap`].
        Swap = "swap",
        /// [`Step::Start`].
        Start = "start",
        /// [`Step::Checkpoint`].
        Checkpoint = "checkpoint",
        /// [`Step::CheckpointCold`].
        CheckpointCold = "checkpoint_cold",
        /// [`Step::GiveUpCheckpoint`].
        GiveUpCheckpoint = "give_up_checkpoint",
        /// [`Step::SetNetwork`].
        SetNetwork = "set_network",
        /// [`Step::Pause`].
        Pause = "pause",
        /// [`Step::End`].
        End = "end",
        /// [`Step::Leave`].
        Leave = "leave",
        /// [`Step::StartAgain`].
        StartAgain = "start_again",
        /// [`Step::Expire`].
        Expire = "expire",
        /// [`Step::Retry`].
        Retry = "retry",
        /// [`Step::Fail`].
        Fail = "fail",
        /// [`Step::Finish`].
        Finish = "finish",
        /// [`Step::Wait`].
        Wait = "wait",
        /// [`Step::Rest`].
        Rest = "rest",
    }
}

impl StepKind {
    /// Whether it changes row or world, so that a crash may come in between.
    pub const fn acts(self) -> bool {
        !matches!(self, Self::Wait | Self::Rest)
    }
}

impl Step {
    /// What it does.
    pub const fn kind(&self) -> StepKind {
        match self {
            Self::Enter(..) => StepKind::Enter,
            Self::Reserve => StepKind::Reserve,
            Self::MakeDisk => StepKind::MakeDisk,
            Self::Swap => StepKind::Swap,
            Self::Start => StepKind::Start,
            Self::Checkpoint(_) => StepKind::Checkpoint,
            Self::CheckpointCold(_) => StepKind::CheckpointCold,
            Self::GiveUpCheckpoint(_) => StepKind::GiveUpCheckpoint,
            Self::SetNetwork => StepKind::SetNetwork,
            Self::Pause => StepKind::Pause,
            Self::End => StepKind::End,
            Self::Leave => StepKind::Leave,
            Self::StartAgain { .. } => StepKind::StartAgain,
            Self::Expire(_) => StepKind::Expire,
            Self::Retry => StepKind::Retry,
            Self::Fail(_) => StepKind::Fail,
            Self::Finish => StepKind::Finish,
            Self::Wait(_) => StepKind::Wait,
            Self::Rest => StepKind::Rest,
        }
    }

    /// The step's name, for logs and for the points at which tests make it fail.
    pub const fn name(&self) -> &'static str {
        self.kind().as_str()
    }
}

/// Most deaths within [`DEATH_WINDOW`] after which a sandbox is started again.
pub const MOST_DEATHS: i64 = 3;
/// Seconds within which deaths count together.
pub const DEATH_WINDOW: i64 = 600;
/// Between two looks at what a sandbox is made of, in seconds; it is told, too.
const SOURCE_POLL: i64 = 5;

/// The next step.
pub fn next(s: &Look) -> Step {
    match (s.wish, s.phase) {
        (Wish::Deleted, phase) if phase != Phase::Deleted => gone(s),
        (_, Phase::Deleted | Phase::Failed) | (Wish::Paused, Phase::Paused) => at_rest(s),
        (Wish::Ready, Phase::Ready) => keep(s),
        (Wish::Ready, Phase::Pending) => await_source(s),
        (Wish::Ready, _) => bring_up(s),
        (Wish::Paused | Wish::Deleted, _) => put_away(s),
    }
}

fn gone(s: &Look) -> Step {
    if s.machine == Machine::Absent { Step::Finish } else { Step::End }
}

/// Deaths that count at this moment.
pub fn deaths(s: &Look) -> i64 {
    let counts = s.deaths_since.is_some_and(|at| s.now < at.plus_seconds(DEATH_WINDOW));
    if counts { s.deaths } else { 0 }
}

/// Nothing is wanted but what was begun.
fn at_rest(s: &Look) -> Step {
    match (&s.machine, s.checkpoint) {
        (Machine::Absent, Some(checkpoint)) => cold(s, checkpoint),
        (Machine::Absent, None) => match s.leaving {
            Some(Leaving::Goes) => Step::Leave,
            Some(Leaving::Waits) => Step::Wait(s.now.plus_seconds(SOURCE_POLL)),
            None => Step::Rest,
        },
        _ => Step::End,
    }
}

fn put_away(s: &Look) -> Step {
    if overdue(s) {
        return late(s);
    }
    match (is_ours(s), &s.machine, s.checkpoint) {
        (true, _, Some(checkpoint)) if !checkpoint.given_up => live(s, checkpoint),
        (true, ..) | (_, Machine::Absent, _) => Step::Pause,
        _ => Step::End,
    }
}

/// Whether the machine that the row means runs.
fn is_ours(s: &Look) -> bool {
    s.machine == Machine::Running { generation: s.generation }
}

fn keep(s: &Look) -> Step {
    match &s.machine {
        Machine::Running { .. } if !is_ours(s) => Step::End,
        Machine::Running { .. } => match s.checkpoint {
            Some(checkpoint) if !checkpoint.given_up => live(s, checkpoint),
            _ if s.network_changed => Step::SetNetwork,
            checkpoint => live_on(s, checkpoint),
        },
        Machine::Ended | Machine::Absent if s.host_restarted => Step::StartAgain {
            reason: "the host was restarted; it was started again from its disk".into(),
            died: false,
        },
        Machine::Ended | Machine::Absent => died(s),
    }
}

/// A checkpoint of a running machine.
fn live(s: &Look, checkpoint: Checkpoint) -> Step {
    if takes_too_long(s, checkpoint) {
        Step::GiveUpCheckpoint(checkpoint.snapshot)
    } else {
        Step::Checkpoint(checkpoint.snapshot)
    }
}

/// A checkpoint without a machine. The top of one that was to leave its host, or left it, need not be made yet.
fn cold(s: &Look, checkpoint: Checkpoint) -> Step {
    if takes_too_long(s, checkpoint) {
        Step::GiveUpCheckpoint(checkpoint.snapshot)
    } else if s.layer.is_some() && !s.layer_made {
        Step::MakeDisk
    } else {
        Step::CheckpointCold(checkpoint.snapshot)
    }
}

fn takes_too_long(s: &Look, checkpoint: Checkpoint) -> bool {
    !checkpoint.given_up && checkpoint.begun.is_some_and(|at| s.now >= at.plus_seconds(s.deadlines.snapshot))
}

fn live_on(s: &Look, checkpoint: Option<Checkpoint>) -> Step {
    let Expiry { expires_at, idle_at } = s.expiry;
    let passed = |at: Option<Timestamp>| at.is_some_and(|at| at <= s.now);
    match expires_at.into_iter().chain(idle_at).min() {
        _ if passed(expires_at) => Step::Expire(Over::Lifetime),
        _ if passed(idle_at) => Step::Expire(Over::Idle),
        _ if checkpoint.is_some() => checkpoint.map_or(Step::Rest, |checkpoint| Step::Checkpoint(checkpoint.snapshot)),
        Some(at) => Step::Wait(at),
        None => Step::Rest,
    }
}

fn died(s: &Look) -> Step {
    if deaths(s) >= MOST_DEATHS {
        let minutes = DEATH_WINDOW / 60;
        return Step::Fail(format!(
            "the machine died, more than {MOST_DEATHS} times in {minutes} minutes; \
             its disk is kept: restore a snapshot, or delete it"
        ));
    }
    Step::StartAgain { reason: "the machine died; it was started again from its disk".into(), died: true }
}

fn await_source(s: &Look) -> Step {
    match &s.source {
        Source::Ready => Step::Enter(Phase::Provisioning, "reserving memory"),
        Source::Waiting => Step::Wait(s.now.plus_seconds(SOURCE_POLL)),
        Source::Failed(reason) => Step::Fail(reason.clone()),
    }
}

fn bring_up(s: &Look) -> Step {
    if overdue(s) {
        return late(s);
    }
    if s.swap {
        return swap(s);
    }
    if !s.reserved {
        return Step::Reserve;
    }
    match (&s.source, s.layer, s.layer_made) {
        (Source::Failed(reason), None, _) => return Step::Fail(reason.clone()),
        (Source::Waiting, None, _) => return Step::Wait(s.now.plus_seconds(SOURCE_POLL)),
        (_, None, _) | (_, Some(_), false) => return Step::MakeDisk,
        _ => {}
    }
    match (is_ours(s), &s.machine, s.checkpoint) {
        (true, ..) | (_, Machine::Absent, None) => Step::Start,
        (_, Machine::Absent, Some(checkpoint)) => cold(s, checkpoint),
        _ => Step::End,
    }
}

fn swap(s: &Look) -> Step {
    match (is_ours(s), &s.machine, s.checkpoint) {
        (true, _, Some(checkpoint)) if !checkpoint.given_up => live(s, checkpoint),
        (_, Machine::Absent, Some(checkpoint)) => cold(s, checkpoint),
        (_, Machine::Absent, None) if !s.reserved => Step::Reserve,
        (_, Machine::Absent, None) => Step::Swap,
        _ => Step::End,
    }
}

fn overdue(s: &Look) -> bool {
    s.deadlines.of(s.phase).is_some_and(|seconds| s.now >= s.since.plus_seconds(seconds))
}

fn late(s: &Look) -> Step {
    let seconds = s.deadlines.of(s.phase).unwrap_or_default();
    if s.attempts == 0 {
        return Step::Retry;
    }
    Step::Fail(format!("it was still {} after {seconds} seconds, twice; restore a snapshot, or delete it", s.phase))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
