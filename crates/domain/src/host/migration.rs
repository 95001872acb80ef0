//! A machine of a VM that goes to another host while it runs.
//!
//! The host that it comes to has it wait, in a process of its own, with disks of the same size that are empty. Then each of its
//! disks is mirrored, its memory follows while it runs, and at last it stands still for as long as the rest takes. Neither host
//! knows the other: whoever asks both carries the bytes between them, and says which of the two goes on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::DiskId;

/// What a running machine is like: one that takes it up has to be alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Likeness {
    /// Its processor, and how that is made.
    pub processor: String,
    /// The release of its QEMU, whose machines differ from release to release.
    pub qemu: (u32, u32),
    /// The place of each of its data disks, by what the guest knows the disk by.
    pub places: BTreeMap<String, usize>,
    /// Whether it has a screen.
    pub has_screen: bool,
    /// Whether it has a port for the guest's agent.
    pub has_guest_port: bool,
    /// The size of each of its disks, in bytes, the root disk among them.
    pub disks: BTreeMap<DiskId, u64>,
}

/// What of a machine goes to another host on a connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Channel {
    /// What a disk has, and what is written to it from then on.
    Disk(DiskId),
    /// Its memory and the state of its devices.
    Memory,
}
