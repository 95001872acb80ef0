//! Questions about machines of VMs that go to another host while they run.

use super::question::questions;
use crate::host::Aim;
use crate::host::migration::Likeness;
use crate::host::vm::{MachineSpec, Started};

questions! {
    /// What may be asked about a machine that goes to another host, of the one that it leaves and the one that it comes to.
    "migration" {
        /// What a running machine is like.
        Describe "describe" {
            /// Which, as its row describes it.
            spec: MachineSpec,
        } -> Likeness,
        /// Has a machine wait for what is sent of it, with empty disks, at the ports of its new host. What an earlier try left is
        /// removed first.
        Expect "expect" {
            /// The machine as it is to be on this host.
            spec: MachineSpec,
            /// What it is like where it runs.
            likeness: Likeness,
        } -> Started,
        /// Waits until the other host has all that the disks have which are sent, and gets each further write.
        Mirrored "mirrored" {
            /// Which, and what it was decided for.
            aim: Aim,
        } -> (),
        /// Waits until the other host has all of a machine whose memory is sent. It stands still here afterwards. Where it cannot be
        /// handed over, and where whoever asks leaves, it goes on here.
        HandOver "hand_over" {
            /// Which, and what it was decided for.
            aim: Aim,
        } -> (),
        /// Waits until all of a machine has come. It stands still, and goes on once it is resumed.
        Taken "taken" {
            /// Which, and what it was decided for.
            aim: Aim,
        } -> (),
        /// Has a machine go on here that is being sent, or that was; nothing of it is sent any more.
        CallOff "call_off" {
            /// Which, and what it was decided for.
            aim: Aim,
        } -> (),
    }
}
