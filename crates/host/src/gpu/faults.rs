//! Devices that are out of service until the host starts again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use berth_domain::host::gpu::PciAddress;
use berth_process::folder;
use serde::{Deserialize, Serialize};

/// Most bytes that are read.
const LONGEST: u64 = 1 << 20;

/// The file of faults.
pub(super) struct Faults {
    file: PathBuf,
}

/// Why a device is out of service, and in which boot of the host.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Fault {
    boot: String,
    sentence: String,
}

impl Faults {
    pub(super) fn new(folder: &Path) -> Self {
        Self { file: folder.join("faults") }
    }

    fn read(&self) -> io::Result<BTreeMap<PciAddress, Fault>> {
        match folder::read(&self.file, LONGEST) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            bytes => Ok(serde_json::from_slice(&bytes?).unwrap_or_default()),
        }
    }

    /// Those of the host's present boot. Where that cannot be read, nothing is known to be wrong, and a machine that gets
    /// a broken device says so.
    pub(super) fn of_boot(&self, boot: &str) -> BTreeMap<PciAddress, String> {
        let all = self.read().unwrap_or_default().into_iter();
        all.filter(|(_, fault)| fault.boot == boot).map(|(address, fault)| (address, fault.sentence)).collect()
    }

    /// Notes one, and forgets those of other boots.
    pub(super) fn add(&self, address: PciAddress, boot: &str, sentence: &str) -> io::Result<()> {
        let mut all = self.read()?;
        all.retain(|_, fault| fault.boot == boot);
        all.insert(address, Fault { boot: boot.to_owned(), sentence: sentence.to_owned() });
        if let Some(folder) = self.file.parent() {
            fs::create_dir_all(folder)?;
        }
        folder::write(&self.file, &serde_json::to_vec(&all)?)
    }
}
