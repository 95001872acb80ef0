//! What a sandbox's machine is made of.

use std::path::PathBuf;

use uuid::Uuid;

use crate::machine::{Accel, Assigned, Jail};
use crate::seed::Mac;

/// How a machine begins.
#[derive(Clone, Debug)]
pub enum Begin {
    /// By booting a kernel whose initrd holds the agent.
    Boot {
        /// The unpacked kernel.
        kernel: PathBuf,
        /// Its initrd.
        initrd: PathBuf,
        /// Its command line.
        cmdline: String,
    },
    /// Where a capture was made.
    Load {
        /// The memory's file.
        memory: PathBuf,
        /// The state of the devices.
        state: PathBuf,
    },
}

/// A layer of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Its file.
    pub path: PathBuf,
    /// Its id: what QEMU calls it.
    pub id: Uuid,
}

/// A machine to start.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Its id.
    pub id: Uuid,
    /// Its folder, which must exist.
    pub dir: PathBuf,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// Memory, in MiB.
    pub memory_mb: u32,
    /// Its disk, the top layer first.
    pub disk: Vec<Layer>,
    /// Its network card.
    pub mac: Mac,
    /// How it begins.
    pub begin: Begin,
    /// How its processor is made.
    pub accel: Accel,
    /// Devices of the host that it has for itself. One that has any boots.
    pub assigned: Assigned,
    /// How its process is confined.
    pub jail: Jail,
    /// Whether QEMU maps a memory that it cannot write to: it does from version 8.2 on.
    pub reads_memory: bool,
    /// QEMU's binary.
    pub qemu: PathBuf,
}
