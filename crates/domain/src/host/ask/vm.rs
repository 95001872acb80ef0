//! Questions about machines of VMs.

use super::question::questions;
use crate::host::Aim;
use crate::host::disk::DiskSpec;
use crate::host::vm::{GuestKeys, MachineSpec, Open, Started};
use crate::ids::{DiskId, MachineId};
use crate::vm::plan::Machine;

questions! {
    /// What may be asked about a machine of a VM.
    "vm" {
        /// Looks at a machine.
        Observe "observe" {
            /// Which.
            id: MachineId,
        } -> Machine,
        /// Whether the guest of the present boot said that it finished booting.
        GuestReady "guest_ready" {
            /// Which.
            id: MachineId,
        } -> bool,
        /// Whether somebody carries the network of a running machine; if not, [`SetPorts`] has it carried again.
        HasNetwork "has_network" {
            /// Which.
            id: MachineId,
        } -> bool,
        /// Starts a machine; none if it runs already, with whatever ports an earlier start gave it.
        Start "start" {
            /// The machine.
            spec: MachineSpec,
        } -> Option<Started>,
        /// Writes a machine's memory to the disk; the machine stands still afterwards.
        Suspend "suspend" {
            /// The machine.
            spec: MachineSpec,
        } -> (),
        /// Removes the memory of a machine that was suspended; fine where there is none.
        ForgetMemory "forget_memory" {
            /// Which, and what it was decided for.
            aim: Aim,
        } -> (),
        /// Lets a paused machine go on; a memory that was written for it is removed first.
        Resume "resume" {
            /// Which, and what it was decided for.
            aim: Aim,
        } -> (),
        /// Presses the power button.
        PressPower "press_power" {
            /// Which, and what it was decided for.
            aim: Aim,
        } -> (),
        /// Ends a machine's process; fine where there is none.
        PowerOff "power_off" {
            /// Which, and what it was decided for.
            aim: Aim,
        } -> (),
        /// Removes everything a machine left on the host, but for its disks.
        Discard "discard" {
            /// Which, and what it was decided for.
            aim: Aim,
        } -> (),
        /// Changes the inbound ports of a running machine.
        SetPorts "set_ports" {
            /// The machine as it is to be.
            spec: MachineSpec,
            /// What is open so far.
            before: Open,
        } -> Started,
        /// Gives a user of the guest of a running machine SSH keys, and takes others away; false where no agent of the guest
        /// does so.
        SetKeys "set_keys" {
            /// Which machine, and what that was decided for.
            aim: Aim,
            /// Whose keys, and which.
            keys: GuestKeys,
        } -> bool,
        /// Hands a data disk to a machine that runs; fine where it has it, and where it does not run.
        AttachDisk "attach_disk" {
            /// Which machine, and what that was decided for.
            aim: Aim,
            /// Which disk.
            disk: DiskId,
        } -> (),
        /// Asks the guest of a machine that runs to let go of a data disk, and takes it away. False where it has not let go
        /// of it yet. Fine where there is no such disk, and where it does not run.
        DetachDisk "detach_disk" {
            /// Which machine, and what that was decided for.
            aim: Aim,
            /// Which disk.
            disk: DiskId,
        } -> bool,
        /// Makes the root disk of a machine that has ended anew, and removes the memory of that; whole or not at all. Fine
        /// where there is no such disk.
        RemakeDisk "remake_disk" {
            /// Which machine, and what that was decided for: its next start takes the new disk.
            aim: Aim,
            /// The disk as it is to be.
            disk: DiskSpec,
        } -> (),
        /// The last bytes a machine wrote to its console.
        ConsoleLog "console_log" {
            /// Which.
            id: MachineId,
            /// How many at most.
            bytes: usize,
        } -> Vec<u8>,
        /// What a machine uses, if it runs.
        Usage "usage" {
            /// Which.
            id: MachineId,
        } -> Option<crate::host::vm::Usage>,
    }
}
