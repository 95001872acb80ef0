//! What every sandbox boots, and what a captured memory has to fit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use berth_domain::hex;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use berth_qemu::machine::Accel;
use berth_qemu::sandbox::Begin;

use crate::EngineError;

/// The file that describes the guest.
const MANIFEST: &str = "guest.json";
/// Counts changes of the machine that make older captures useless: its devices, their order, its processor.
const MACHINE: u32 = 2;
/// What an emulated processor pays for. Against speculation it has nothing to hide; a program whose addresses differ
/// in each of its runs is translated in each of them; pressure and security modules are counted and asked at every
/// turn, and nobody looks.
const EMULATED: &str = "mitigations=off nokaslr norandmaps tsc=reliable psi=0 lsm=landlock,yama noautogroup";

/// The guest's manifest.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Guest {
    version: String,
    boot: Boot,
    sha256: BTreeMap<String, String>,
    #[serde(skip)]
    dir: PathBuf,
}

#[derive(Clone, Debug, Deserialize)]
struct Boot {
    kernel: String,
    initrd: String,
    cmdline: String,
}

impl Guest {
    /// Reads the guest's folder and compares its files with what they should be.
    pub(super) fn load(dir: &Path) -> Result<Self, EngineError> {
        let bytes = std::fs::read(dir.join(MANIFEST)).map_err(|_| missing())?;
        let mut guest: Self = serde_json::from_slice(&bytes).map_err(|e| damaged(&e.to_string()))?;
        guest.dir = dir.to_path_buf();
        for (name, want) in &guest.sha256 {
            let bytes = std::fs::read(dir.join(name)).map_err(|_| damaged(name))?;
            if hex::encode(&Sha256::digest(bytes)) != *want {
                return Err(damaged(name));
            }
        }
        Ok(guest)
    }

    pub(super) fn kernel(&self) -> PathBuf {
        self.dir.join(&self.boot.kernel)
    }

    pub(super) fn initrd(&self) -> PathBuf {
        self.dir.join(&self.boot.initrd)
    }

    /// How a machine boots it.
    pub(super) fn begin(&self, accel: Accel) -> Begin {
        let cmdline = match accel {
            Accel::Kvm => self.boot.cmdline.clone(),
            Accel::Tcg => format!("{} {EMULATED}", self.boot.cmdline),
        };
        Begin::Boot { kernel: self.kernel(), initrd: self.initrd(), cmdline }
    }

    /// Names every machine whose captures load into each other.
    pub(super) fn fingerprint(&self, accel: Accel, qemu: &str) -> String {
        let text = format!("{MACHINE} {} {accel:?} {qemu}", self.version);
        hex::encode(&Sha256::digest(text))[..16].to_owned()
    }
}

/// What to do where there is no guest.
pub(super) fn missing() -> EngineError {
    EngineError::Permanent("this host has not built what sandboxes boot; the operator types script/quickstart".into())
}

fn damaged(what: &str) -> EngineError {
    tracing::error!(what, "the guest of sandboxes is damaged");
    EngineError::Permanent("the guest of sandboxes is damaged; the operator builds it anew by script/quickstart".into())
}
