//! Captured boots of this host.
//!
//! ```text
//! boots/<key>/          boot.json, memory, state, disk.qcow2: a machine of an image and a size that waited for its owner
//! boots/making/<id>/    the machine that is to be captured, and its disk
//! ```
//!
//! A boot is there whole or not at all, and nobody's: whatever is missing or does not load costs a machine that boots
//! instead. It is made beside everything else, once a machine of its kind had to boot. The root disk of a machine that
//! begins with one is a copy of what the captured machine wrote, on the same image; only a disk that no machine had yet is
//! replaced so, which a note beside it tells. The note is gone before the disk is, so that whatever is interrupted boots.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use berth_domain::ids::MachineId;
use berth_qemu::accel;
use berth_qemu::image::Manifest;
use berth_qemu::machine::{self, Accel};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::vm::Started;

/// Changes whenever a captured machine differs from one of before.
const FORMAT: u32 = 3;
/// How many boots are kept: each takes some 200 MiB.
const MOST: usize = 16;
/// How long the machine that had to boot is left alone with that.
const QUIET: Duration = Duration::from_mins(2);
/// How long one stays that no machine begins with: it keeps its base, which may be all that is left of an image.
const KEPT: Duration = Duration::from_hours(24);
/// How long nobody tries again to capture a boot that could not be.
const PAUSE: Duration = Duration::from_hours(1);
pub(super) const NOTE: &str = "boot.json";
pub(super) const MEMORY: &str = "memory";
pub(super) const STATE: &str = "state";
pub(super) const DISK: &str = "disk.qcow2";
pub(super) const MAKING: &str = "making";

/// How a machine began.
#[derive(Default)]
pub(super) struct Begun {
    /// Why it booted, where it was to go on with its memory.
    pub(super) unloadable: Option<String>,
    /// Why it booted, where it might have begun with a captured boot.
    pub(super) booted: Option<String>,
    /// Whether its guest takes SSH keys at its first boot alone: cloud-init of an imported image does.
    pub(super) takes_keys_once: bool,
}

impl Begun {
    /// The same of a machine whose network is this.
    pub(super) fn told(self, network: Started) -> Started {
        let Self { unloadable, booted, takes_keys_once } = self;
        Started { unloadable, booted, takes_keys_once, ..network }
    }
}

/// What a boot is of, as its folder notes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Note {
    /// The name of the base that its disk builds on.
    pub(super) base: String,
}

/// A boot that is to be made.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) key: String,
    pub(super) like: machine::Spec,
    /// The folder of what its disk builds on.
    pub(super) base: PathBuf,
    pub(super) of: MachineId,
    pub(super) since: Instant,
}

/// The boots of this host.
pub(super) struct Boots {
    pub(super) folder: PathBuf,
    wanted: Mutex<Vec<Wanted>>,
    /// When those could not be captured that were tried last.
    failed: Mutex<BTreeMap<String, Instant>>,
    /// Those with which the last machine could not begin.
    doubtful: Mutex<BTreeSet<String>>,
}

impl Boots {
    pub(super) fn new(data: &Path) -> Self {
        Self {
            folder: data.join("boots"),
            wanted: Mutex::default(),
            failed: Mutex::default(),
            doubtful: Mutex::default(),
        }
    }

    /// Asks for a boot; whether it is made soon. One that could not be captured is left alone for a while.
    pub(super) fn want(&self, wanted: Wanted) -> bool {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.retain(|_, since| since.elapsed() < PAUSE);
        if failed.contains_key(&wanted.key) {
            return false;
        }
        let mut all = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < MOST && all.iter().all(|other| other.key != wanted.key) {
            all.push(wanted);
        }
        true
    }

    /// Notes that a boot could not be captured.
    pub(super) fn fail(&self, key: &str) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), Instant::now());
    }

    /// The next one whose machine has booted, or had the time for it.
    pub(super) fn next(&self, has_booted: impl Fn(MachineId) -> bool) -> Option<Wanted> {
        let mut all = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let next = all.iter().position(|wanted| wanted.since.elapsed() > QUIET || has_booted(wanted.of))?;
        Some(all.remove(next))
    }

    /// Those at hand: the folder of each, what it is of, and when it was used last.
    fn all(&self) -> Vec<(PathBuf, Note, SystemTime)> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let read = |dir: PathBuf| {
            let note = serde_json::from_slice(&std::fs::read(dir.join(NOTE)).ok()?).ok()?;
            let used = std::fs::metadata(dir.join(NOTE)).and_then(|about| about.modified()).ok()?;
            Some((dir, note, used))
        };
        entries.filter_map(|entry| read(entry.path())).collect()
    }

    /// The names of the bases that those at hand build on.
    pub(super) fn bases(&self) -> impl Iterator<Item = String> {
        self.all().into_iter().map(|(_, note, _)| note.base)
    }

    /// Notes whether a machine could begin with a boot; whether it is time to make another one. A single failure may be the
    /// machine's own, and all of the image and size share the boot.
    pub(super) fn loaded(&self, key: &str, has_begun: bool) -> bool {
        let mut doubtful = self.doubtful.lock().unwrap_or_else(PoisonError::into_inner);
        let is_second = !has_begun && doubtful.contains(key);
        if has_begun || is_second {
            doubtful.remove(key);
        } else {
            doubtful.insert(key.to_owned());
        }
        is_second
    }

    /// Removes the one that was not used for longest.
    pub(super) fn give_way(&self) {
        if let Some((dir, _, _)) = self.all().into_iter().min_by_key(|(_, _, used)| *used) {
            tracing::info!(boot = %dir.display(), "removing a captured boot, since the disk is full");
            // Another try comes with the next look.
            let _ = std::fs::remove_dir_all(dir);
        }
    }

    /// Folders whose removal was interrupted.
    fn halves(&self) -> impl Iterator<Item = PathBuf> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let is_half = |dir: &PathBuf| !dir.ends_with(MAKING) && !dir.join(NOTE).exists();
        entries.map(|entry| entry.path()).filter(is_half)
    }

    /// Removes those whose base is gone or that were not used for long, and beyond so many those that were not used for
    /// longest.
    pub(super) fn forget(&self, bases: &Path) {
        let is_recent = |used: &SystemTime| !used.elapsed().is_ok_and(|age| age >= KEPT);
        let (mut kept, gone): (Vec<_>, Vec<_>) =
            self.all().into_iter().partition(|(_, note, used)| bases.join(&note.base).is_dir() && is_recent(used));
        kept.sort_by_key(|(_, _, used)| std::cmp::Reverse(*used));
        let gone = gone.into_iter().chain(kept.into_iter().skip(MOST)).map(|(dir, _, _)| dir);
        for dir in gone.chain(self.halves()) {
            // Another try comes with the next look.
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

/// Names the machines that can begin with each other's boots on this host.
pub(super) fn key(machine: &machine::Spec, base: &Path) -> String {
    let processor = if machine.accel == Accel::Tcg { String::new() } else { accel::processor() };
    let program = std::fs::metadata(&machine.qemu).map(|about| (about.len(), about.modified().ok()));
    // The same version may have been built twice, on a kernel that differs.
    let files = Manifest::load(base).map(|manifest| manifest.sha256).unwrap_or_default();
    let about = format!(
        "{FORMAT} {:?} {processor} {:?} {} {} {:?} {files:?}",
        machine.accel,
        program.ok(),
        machine.places,
        machine.mtu,
        machine.boot
    );
    let digest: String = Sha256::digest(about).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    let base = base.file_name().unwrap_or_default().to_string_lossy();
    format!("{base}-{}x{}-{digest}", machine.vcpus, machine.memory_mb)
}

/// Puts a boot where others find it, whole.
pub(super) fn publish(dir: &Path, whole: &Path, to: &Path, note: &[u8]) -> std::io::Result<()> {
    for name in [MEMORY, DISK] {
        std::fs::rename(dir.join(name), whole.join(name))?;
    }
    std::fs::write(whole.join(NOTE), note)?;
    for name in [DISK, NOTE] {
        std::fs::File::open(whole.join(name))?.sync_all()?;
    }
    match std::fs::remove_dir_all(to) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::fs::rename(whole, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_is_doubted_after_one_failure_and_made_anew_after_two() {
        let boots = Boots::new(Path::new("/nowhere"));
        let told: Vec<_> = [false, true, false, false, false].map(|has_begun| boots.loaded("a", has_begun)).into();
        assert_eq!(told, [false, false, false, true, false]);
        assert!(!boots.loaded("b", false));
    }

    #[test]
    fn a_boot_goes_that_was_not_used_for_a_day_or_whose_base_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let boots = Boots::new(dir.path());
        std::fs::create_dir_all(dir.path().join("bases/there")).unwrap();
        for (name, base, age) in [
            ("new", "there", Duration::ZERO),
            ("nearly", "there", Duration::from_mins(24 * 60 - 1)),
            ("old", "there", Duration::from_mins(24 * 60 + 1)),
            ("orphan", "gone", Duration::ZERO),
        ] {
            let folder = boots.folder.join(name);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(NOTE), serde_json::to_vec(&Note { base: base.into() }).unwrap()).unwrap();
            let file = std::fs::File::options().write(true).open(folder.join(NOTE)).unwrap();
            let written = file.metadata().unwrap().modified().unwrap();
            file.set_modified(written.checked_sub(age).unwrap()).unwrap();
        }
        // What an interrupted removal left, and what is being made.
        for name in ["half", MAKING] {
            std::fs::create_dir_all(boots.folder.join(name).join(DISK)).unwrap();
        }
        boots.forget(&dir.path().join("bases"));
        let mut left: Vec<_> =
            std::fs::read_dir(&boots.folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [MAKING, "nearly", "new"]);
        assert_eq!(boots.bases().collect::<Vec<_>>(), ["there", "there"]);
    }
}
