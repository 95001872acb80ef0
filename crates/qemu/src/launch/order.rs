//! What a launcher is told, over its standard input.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The file of a machine's folder in which its process is noted: by the process itself, as one of its last steps before it
/// becomes QEMU, so that there is no machine without a note. QEMU cannot write to it: it has no way to the folder any more
/// when its guest begins, or, without root, sees the note as a file that it can only read.
pub(crate) const NOTE: &str = "process.json";

/// A program to be started, and what it is confined to. What is ordered and cannot be had fails the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// The folder it works in, in which its process is noted.
    pub dir: PathBuf,
    /// Folders of the control groups that it joins before anything else.
    pub groups: Vec<PathBuf>,
    /// What it has to itself.
    pub parts: Vec<Part>,
    /// Files that it sees beside the programs of the host, where it has a tree of its own, and cannot write to.
    pub read: Vec<PathBuf>,
    /// Files that it sees and may write to.
    pub write: Vec<PathBuf>,
    /// The name of a file of its folder that it opens for reading and writing, and gets for reading alone.
    pub lend: Option<PathBuf>,
    /// How many descriptors it is given beside, from [`super::FIRST`] on.
    pub given: usize,
    /// Files of devices that it sees beside those that every one does, and may use.
    pub devices: Vec<PathBuf>,
    /// Bytes of its memory that it has to be able to lock.
    pub locked_bytes: Option<u64>,
    /// The user and group that it begins as; none where it stays who started it, or gives that up itself.
    pub user: Option<u32>,
    /// Most bytes of a file that it writes.
    pub file_bytes: Option<u64>,
}

/// Something of the host that a process has to itself: a namespace (namespaces(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Part {
    /// Users: without root, all others are had within this.
    Users,
    /// A network without a card.
    Network,
    /// Processes: it sees none but itself.
    Processes,
    /// A tree of files: programs, and what the order names.
    Files,
    /// Host name and System V's shared memory.
    Names,
}

impl Part {
    /// Every part that a machine is to have; users only where the service is not root.
    pub(crate) const ALL: [Self; 4] = [Self::Network, Self::Processes, Self::Files, Self::Names];
}
