//! Which devices a machine has taken: functions with the driver that each had before, and parts that are made for it.

use std::path::PathBuf;
use std::{fs, io};

use berth_domain::host::gpu::{Device, Part, PciAddress};
use berth_domain::ids::MachineId;
use berth_process::folder;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::error::transient;

/// Most bytes of a note: some hundred functions.
const LONGEST: u64 = 64 << 10;

/// Who tells whether a machine is somebody's: VMs' machines and sandboxes' have ids and folders apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Keeper {
    /// The engine of VMs.
    #[default]
    Vms,
    /// The engine of sandboxes.
    Sandboxes,
}

/// What a machine takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    /// The host's boot.
    pub(super) boot: String,
    /// Whose machine it is.
    #[serde(default)]
    pub(super) keeper: Keeper,
    /// The functions.
    pub(super) functions: Vec<Before>,
    /// Parts of GPUs.
    #[serde(default)]
    pub(super) parts: Vec<Part>,
}

/// A function, and how it was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Before {
    /// Where it is.
    pub(super) address: PciAddress,
    /// The driver that it had.
    pub(super) driver: Option<String>,
    /// The driver that somebody had chosen for it.
    pub(super) chosen: Option<String>,
}

impl Note {
    /// Whether one of these is among what is taken.
    pub(super) fn has_any(&self, wanted: &[Device]) -> bool {
        let functions = self.functions.iter().map(|before| Device::Function(before.address));
        let taken = functions.chain(self.parts.iter().cloned().map(Device::Part));
        taken.into_iter().any(|device| wanted.iter().any(|other| other.key() == device.key()))
    }
}

/// A folder of notes, each called by its machine's id.
pub(super) struct Notes {
    folder: PathBuf,
}

impl Notes {
    pub(super) const fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    fn path(&self, machine: MachineId) -> PathBuf {
        self.folder.join(format!("{machine}.json"))
    }

    pub(super) fn is_noted(&self, machine: MachineId) -> bool {
        self.path(machine).exists()
    }

    pub(super) fn holders(&self) -> Vec<MachineId> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut holders: Vec<MachineId> =
            entries.filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".json")?.parse().ok()).collect();
        holders.sort_unstable();
        holders
    }

    /// What is noted of a machine. One that holds no note, such as half of one, was left by a host that died, and that one
    /// chooses all drivers anew: none.
    pub(super) fn read(&self, machine: MachineId) -> Result<Option<Note>> {
        let bytes = match folder::read(&self.path(machine), LONGEST) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes.map_err(transient)?,
        };
        Ok(serde_json::from_slice(&bytes).ok())
    }

    pub(super) fn write(&self, machine: MachineId, note: &Note) -> Result<()> {
        fs::create_dir_all(&self.folder).map_err(transient)?;
        let text = serde_json::to_vec(note).map_err(transient)?;
        folder::write(&self.path(machine), &text).map_err(transient)
    }

    pub(super) fn remove(&self, machine: MachineId) -> Result<()> {
        match fs::remove_file(self.path(machine)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(transient(error)),
            _ => Ok(()),
        }
    }
}
