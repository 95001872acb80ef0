//! Questions about machines of sandboxes, and about those that nobody owns yet.

use super::question::questions;
use crate::host::Aim;
use crate::host::sandbox::{CheckpointDone, Paused, StartSpec, Started};
use crate::ids::{MachineId, MemoryId};
use crate::sandbox::network_policy::NetworkPolicy;
use crate::sandbox::plan::Machine;

questions! {
    /// What may be asked about a machine of a sandbox.
    "sandbox" {
        /// Looks at a machine.
        Observe "observe" {
            /// Which.
            id: MachineId,
        } -> Machine,
        /// Starts a machine, or finds that it runs already; answers when its agent has its identity. A memory is loaded
        /// onto a disk at most once, and never one that does not fit: then it starts from its disk.
        Start "start" {
            /// The machine.
            spec: StartSpec,
        } -> Started,
        /// Checkpoints the disk of a running machine, which goes on. A checkpoint that was made already is found made.
        /// After a permanent error the machine writes to the old top, and will not go over to the new one.
        Checkpoint "checkpoint" {
            /// The checkpoint.
            checkpoint: crate::host::sandbox::Checkpoint,
        } -> CheckpointDone,
        /// Checkpoints the disk of a sandbox without a machine. A new layer that is there already is left as it is: the
        /// machine had gone on in it before it ended. A memory is part of the answer only if it was captured then.
        CheckpointCold "checkpoint_cold" {
            /// The checkpoint.
            checkpoint: crate::host::sandbox::Checkpoint,
        } -> CheckpointDone,
        /// Ends a machine in good order, its disk consistent, and keeps its memory if it is wanted. Without a machine
        /// it answers what was kept before.
        Pause "pause" {
            /// Which, and what it was decided for.
            aim: Aim,
            /// Where its memory goes, if it is wanted.
            memory: Option<MemoryId>,
        } -> Paused,
        /// Ends a machine's process; fine where there is none. Afterwards none is missed: it is absent.
        End "end" {
            /// Which, and what it was decided for.
            aim: Aim,
        } -> (),
        /// Removes everything a machine left on the host, but for its layers and memories.
        Discard "discard" {
            /// Which, and what it was decided for.
            aim: Aim,
        } -> (),
        /// Changes what a running machine may reach.
        SetNetwork "set_network" {
            /// Which, and what it was decided for.
            aim: Aim,
            /// What it may reach.
            network: NetworkPolicy,
        } -> (),
        /// How a sandbox is used, as far as is known. Where more has to be asked of the guest, that is begun, and the
        /// host tells when it is known.
        Activity "activity" {
            /// Which.
            id: MachineId,
        } -> crate::host::sandbox::Activity,
        /// What a sandbox uses, if it runs.
        Sample "sample" {
            /// Which.
            id: MachineId,
        } -> Option<crate::host::sandbox::Sample>,
        /// Starts a machine that nobody owns yet with the memory that it is to begin with, and has it do once what is
        /// slow the first time. [`Start`] makes it somebody's.
        WarmUp "warm_up" {
            /// The machine.
            spec: StartSpec,
        } -> (),
        /// Whether a machine that was warmed up still runs, and nobody's.
        IsWarm "is_warm" {
            /// Which.
            id: MachineId,
        } -> bool,
    }
}
