//! What a worker does at a time for a VM.

use crate::Timestamp;
use crate::ids::{DiskId, DiskSnapshotId};
use crate::vm::model::Status;
use crate::words;

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Record a status and what is being done.
    Enter(Status, &'static str),
    /// Reserve processors, memory, address.
    Reserve,
    /// Make a disk.
    MakeDisk(DiskId),
    /// Copy a disk into a snapshot, in the machine where that runs, or look how far that is.
    SnapshotDisk(DiskSnapshotId),
    /// Have a disk grow, in the machine where that runs.
    GrowDisk(DiskId),
    /// Hand a disk to the machine, where that runs.
    AttachDisk(DiskId),
    /// Have the guest let go of a disk, where that runs, and release it.
    DetachDisk {
        /// Which.
        id: DiskId,
        /// Whether it stays with the VM if the guest does not let go of it now.
        is_last: bool,
    },
    /// Start the machine.
    Start,
    /// Let a paused machine go on.
    Resume,
    /// Let a machine go on that stood still for lack of room, or tell that it stands still.
    GoOn {
        /// Whether there is room again.
        has_room: bool,
    },
    /// Record that it runs.
    Running,
    /// Write the machine's memory to the disk; the machine stands still afterwards.
    Suspend,
    /// Record that it is off with its memory on the disk.
    Suspended,
    /// Record that it could not be suspended, and goes on.
    KeepRunning(String),
    /// Remove the memory that is on the disk.
    ForgetMemory,
    /// Change the inbound ports and firewall rules of the running machine, and have its network carried again where nobody
    /// does.
    SetPorts,
    /// Give the login user other SSH keys, where the guest has an agent that does so.
    SetKeys,
    /// Record that the guest finished its boot.
    GuestReady,
    /// Record that the guest powered itself off: nobody wants it to run any more.
    GuestOff,
    /// Record that it is to be started again after its death.
    StartAgain {
        /// Why.
        reason: &'static str,
        /// Seconds to wait, growing with each death in a row.
        delay: i64,
    },
    /// Have a machine whose host is drained go to another host while it runs; else record that it has to end, if it may and another
    /// host takes it.
    Leave,
    /// Give up that another host waits for a machine which a worker was sending there, and have it go on where it is.
    CallOff,
    /// Put a VM that is off onto another host, since its own is drained. Its disks follow.
    Move,
    /// Press the power button.
    PressPower,
    /// End the process.
    PowerOff,
    /// Record that the machine that had to end has ended.
    Ended,
    /// Have the host let go of the machine, and record that it is off.
    Stopped {
        /// Whether the deadline has passed: then it is off though the host cannot let go of it.
        is_late: bool,
    },
    /// Begin again, because the deadline passed for the first time.
    Retry,
    /// Record a failure; nothing is wanted any more, but everything is kept.
    Fail(String),
    /// Record that its time is over: from then on it is wanted no more.
    Expire,
    /// Remove the machine's traces, release its disks, record that it is gone.
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
        /// [`Step::SnapshotDisk`].
        SnapshotDisk = "snapshot_disk",
        /// [`Step::GrowDisk`].
        GrowDisk = "grow_disk",
        /// [`Step::AttachDisk`].
        AttachDisk = "attach_disk",
        /// [`Step::DetachDisk`].
        DetachDisk = "detach_disk",
        /// [`Step::Start`].
        Start = "start",
        /// [`Step::Resume`] and [`Step::GoOn`].
        Resume = "resume",
        /// [`Step::Running`].
        Running = "running",
        /// [`Step::Suspend`].
        Suspend = "suspend",
        /// [`Step::Suspended`].
        Suspended = "suspended",
        /// [`Step::KeepRunning`].
        KeepRunning = "keep_running",
        /// [`Step::ForgetMemory`].
        ForgetMemory = "forget_memory",
        /// [`Step::SetPorts`].
        SetPorts = "set_ports",
        /// [`Step::SetKeys`].
        SetKeys = "set_keys",
        /// [`Step::GuestReady`].
        GuestReady = "guest_ready",
        /// [`Step::GuestOff`].
        GuestOff = "guest_off",
        /// [`Step::StartAgain`].
        StartAgain = "start_again",
        /// [`Step::Leave`].
        Leave = "leave",
        /// [`Step::CallOff`].
        CallOff = "call_off",
        /// [`Step::Move`].
        Move = "move",
        /// [`Step::PressPower`].
        PressPower = "press_power",
        /// [`Step::PowerOff`].
        PowerOff = "power_off",
        /// [`Step::Ended`].
        Ended = "ended",
        /// [`Step::Stopped`].
        Stopped = "stopped",
        /// [`Step::Retry`].
        Retry = "retry",
        /// [`Step::Fail`].
        Fail = "fail",
        /// [`Step::Expire`].
        Expire = "expire",
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
            Self::MakeDisk(_) => StepKind::MakeDisk,
            Self::SnapshotDisk(_) => StepKind::SnapshotDisk,
            Self::GrowDisk(_) => StepKind::GrowDisk,
            Self::AttachDisk(_) => StepKind::AttachDisk,
            Self::DetachDisk { .. } => StepKind::DetachDisk,
            Self::Start => StepKind::Start,
            Self::Resume | Self::GoOn { .. } => StepKind::Resume,
            Self::Running => StepKind::Running,
            Self::Suspend => StepKind::Suspend,
            Self::Suspended => StepKind::Suspended,
            Self::KeepRunning(_) => StepKind::KeepRunning,
            Self::ForgetMemory => StepKind::ForgetMemory,
            Self::SetPorts => StepKind::SetPorts,
            Self::SetKeys => StepKind::SetKeys,
            Self::GuestReady => StepKind::GuestReady,
            Self::GuestOff => StepKind::GuestOff,
            Self::StartAgain { .. } => StepKind::StartAgain,
            Self::Leave => StepKind::Leave,
            Self::CallOff => StepKind::CallOff,
            Self::Move => StepKind::Move,
            Self::PressPower => StepKind::PressPower,
            Self::PowerOff => StepKind::PowerOff,
            Self::Ended => StepKind::Ended,
            Self::Stopped { .. } => StepKind::Stopped,
            Self::Retry => StepKind::Retry,
            Self::Fail(_) => StepKind::Fail,
            Self::Expire => StepKind::Expire,
            Self::Finish => StepKind::Finish,
            Self::Wait(_) => StepKind::Wait,
            Self::Rest => StepKind::Rest,
        }
    }

    /// The name of what it does.
    pub const fn name(&self) -> &'static str {
        self.kind().as_str()
    }
}
