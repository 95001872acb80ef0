//! What every sandbox boots, and what a captured memory has to fit.
//!
//! It may be replaced while machines run, by whoever builds it here and by whoever brings it: those that run keep what they
//! booted, and each that starts boots what is there then.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use berth_domain::hex;
use berth_domain::host::guest::MANIFEST;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use berth_qemu::machine::Accel;
use berth_qemu::sandbox::Begin;

use crate::EngineError;

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
    /// What its manifest hashes to.
    #[serde(skip)]
    hash: String,
    #[serde(skip)]
    dir: PathBuf,
}

#[derive(Clone, Debug, Deserialize)]
struct Boot {
    kernel: String,
    initrd: String,
    cmdline: String,
}

/// The guest in its place, as it was checked last.
pub(super) struct Guests {
    dir: PathBuf,
    checked: Mutex<Option<Arc<Guest>>>,
    place: RwLock<()>,
}

impl Guests {
    /// Of the folder that has it.
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir, checked: Mutex::default(), place: RwLock::default() }
    }

    /// What is there now. Its files are compared with what they should be once: another manifest is another guest.
    pub(super) fn now(&self) -> Result<Arc<Guest>, EngineError> {
        let manifest = std::fs::read(self.dir.join(MANIFEST)).map_err(|_| missing())?;
        let hash = hash_of(&manifest);
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = checked.as_ref().filter(|known| known.hash == hash) {
            return Ok(known.clone());
        }
        let found = Arc::new(Guest::of(&self.dir, &manifest)?);
        *checked = Some(found.clone());
        Ok(found)
    }

    /// Keeps it in its place, for as long as a program opens its files.
    pub(super) async fn stays(&self) -> RwLockReadGuard<'_, ()> {
        self.place.read().await
    }

    /// Waits until nobody opens its files, and has them wait who want to.
    pub(super) async fn moves(&self) -> RwLockWriteGuard<'_, ()> {
        self.place.write().await
    }
}

impl Guest {
    /// Reads a guest's folder and compares its files with what they should be.
    pub(super) fn load(dir: &Path) -> Result<Self, EngineError> {
        Self::of(dir, &std::fs::read(dir.join(MANIFEST)).map_err(|_| missing())?)
    }

    fn of(dir: &Path, manifest: &[u8]) -> Result<Self, EngineError> {
        let mut guest: Self = serde_json::from_slice(manifest).map_err(|e| damaged(&e.to_string()))?;
        (guest.dir, guest.hash) = (dir.to_path_buf(), hash_of(manifest));
        for (name, want) in &guest.sha256 {
            let bytes = std::fs::read(dir.join(name)).map_err(|_| damaged(name))?;
            if hash_of(&bytes) != *want {
                return Err(damaged(name));
            }
        }
        Ok(guest)
    }

    /// What its manifest hashes to: that tells it from others.
    pub(super) fn hash(&self) -> &str {
        &self.hash
    }

    /// Its files but for the manifest, each with what it hashes to.
    pub(super) const fn files(&self) -> &BTreeMap<String, String> {
        &self.sha256
    }

    /// Whether its manifest says of all that it boots what that hashes to.
    pub(super) fn vouches(&self) -> bool {
        [&self.boot.kernel, &self.boot.initrd].into_iter().all(|name| self.sha256.contains_key(name))
    }

    /// The place of one of its files.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
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

fn hash_of(bytes: &[u8]) -> String {
    hex::encode(&Sha256::digest(bytes))
}

/// What to do where there is no guest.
pub(super) fn missing() -> EngineError {
    EngineError::Permanent("this host has not built what sandboxes boot; the operator types script/quickstart".into())
}

fn damaged(what: &str) -> EngineError {
    tracing::error!(what, "the guest of sandboxes is damaged");
    EngineError::Permanent("the guest of sandboxes is damaged; the operator builds it anew by script/quickstart".into())
}
