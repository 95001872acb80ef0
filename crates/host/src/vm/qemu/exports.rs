//! Disks as stand-alone files.
//!
//! ```text
//! exports/<name>.half     what is being copied
//! exports/<name>.json     how long the file is, and what it hashes to
//! exports/<name>.qcow2    the file, in place last
//! ```
//!
//! A file is named after its source's id and the state of the source's own file, so a disk that was written to since is copied
//! anew, and what was made before is whole or not there. It is a cache: it is kept for [`KEPT`] after it was asked for last, and
//! what an earlier service left goes before the first one is made. A project's image needs none: its own disk is such a file.
//!
//! What a guest wrote into a header is not followed: the copy names every file of the chain itself
//! ([`snapshot::export`]). It takes no lock of a disk either, so that a VM which is started meanwhile starts. Whether the disk
//! was written to shows in its file's state, and then there is no export.
//!
//! All who ask for the same wait for one copy, which ends with the last of them. Few are made at a time ([`AT_ONCE`]): each takes
//! a core and all that the disk gives.

use std::collections::HashMap;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use berth_qemu::image;
use berth_qemu::machine::{Drive, memory, snapshot};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::notes::{self, make_young};
use super::room;
use crate::error::{qemu_failed, transient};
use crate::vm::Exported;
use crate::{EngineError, Result, fault};

/// How long a file is kept after it was asked for last.
pub(super) const KEPT: Duration = Duration::from_mins(10);
/// How long, where the host has no room for another one.
const KEPT_WITHOUT_ROOM: Duration = Duration::from_mins(1);
/// How long after it was made, whoever asks for it.
pub(super) const OLDEST: Duration = Duration::from_hours(6);
/// How many are made at a time.
pub(super) const AT_ONCE: usize = 2;

/// A file that is whole.
#[derive(Clone, Debug)]
pub(super) struct Flat {
    pub(super) file: PathBuf,
    pub(super) about: Exported,
}

pub(super) type Making = BoxFuture<'static, Result<Flat>>;

/// The files of a host, those that are being made among them.
pub(super) struct Exports {
    pub(super) folder: PathBuf,
    pub(super) under_way: Mutex<HashMap<String, WeakShared<Making>>>,
    pub(super) turns: Arc<Semaphore>,
    begun: Once,
}

impl Exports {
    /// Those below a data folder.
    pub(super) fn new(data: &Path) -> Self {
        Self {
            folder: data.join("exports"),
            under_way: Mutex::default(),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            begun: Once::new(),
        }
    }

    /// Removes what was not asked for during so long, and what was made long ago: who asks again and again does not keep a copy
    /// on the host that counts in nobody's quota.
    pub(super) fn sweep(&self, kept: Duration) {
        self.forget_earlier();
        for note in self.notes() {
            if age(&note).is_some_and(|age| age > kept)
                || age(&note.with_extension("qcow2")).is_some_and(|age| age > OLDEST)
            {
                forget(&note);
            }
        }
    }

    /// Removes the files of a source as it was before: only the last one is asked for.
    fn forget_former(&self, copy: &Copy) {
        let is_former = |note: &PathBuf| {
            let name = note.file_stem().unwrap_or_default().to_string_lossy();
            name.starts_with(&format!("{}-", copy.source)) && *name != copy.name
        };
        self.notes().into_iter().filter(is_former).for_each(|note| forget(&note));
    }

    fn notes(&self) -> Vec<PathBuf> {
        let all = std::fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path());
        all.filter(|path| path.extension().is_some_and(|end| end == "json")).collect()
    }

    /// What an earlier service left goes once: it knew who waited for it.
    fn forget_earlier(&self) {
        // What stays is in nobody's way: it is made anew where it is asked for.
        self.begun.call_once(|| drop(std::fs::remove_dir_all(&self.folder)));
    }

    /// A file of this name, if it is whole; it is young from then on.
    pub(super) fn kept(&self, name: &str) -> Option<Flat> {
        let (note, file) = (self.folder.join(format!("{name}.json")), self.folder.join(format!("{name}.qcow2")));
        let about = serde_json::from_str(&notes::read(&note).ok()??).ok()?;
        file.is_file().then(|| {
            make_young(&note);
            Flat { file, about }
        })
    }

    /// Waits for a copy of a disk, with all who wait for the same.
    pub(super) async fn make(self: &Arc<Self>, copy: Copy) -> Result<Flat> {
        self.forget_earlier();
        std::fs::create_dir_all(&self.folder).map_err(transient)?;
        self.joined(copy).await
    }

    fn joined(self: &Arc<Self>, copy: Copy) -> Shared<Making> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(making) = under_way.get(&copy.name).and_then(WeakShared::upgrade) {
            return making;
        }
        under_way.retain(|_, making| making.upgrade().is_some());
        let name = copy.name.clone();
        let making = copy.make(self.clone()).boxed().shared();
        if let Some(weak) = making.downgrade() {
            under_way.insert(name, weak);
        }
        making
    }
}

/// A copy that is to be made.
pub(super) struct Copy {
    /// What it is of.
    pub(super) source: Uuid,
    /// What it is called, by what it is of and how that is.
    pub(super) name: String,
    pub(super) drive: Drive,
    pub(super) state: State,
    /// What is kept back of the host's disk, in bytes.
    pub(super) reserve: u64,
}

/// How long a file is, and when it was written to last.
pub(super) type State = (u64, i128);

impl Copy {
    async fn make(self, exports: Arc<Exports>) -> Result<Flat> {
        if let Some(flat) = exports.kept(&self.name) {
            return Ok(flat);
        }
        let _turn = exports.turns.acquire().await.map_err(transient)?;
        self.require_room(&exports)?;
        let half = Half(exports.folder.join(format!("{}.half", self.name)));
        remove(&half.0).map_err(transient)?;
        snapshot::export(&self.drive, &half.0).await.map_err(qemu_failed)?;
        if state(&self.drive.path)? != self.state {
            return Err(EngineError::Transient("the disk was written to while it was copied".into()));
        }
        let about = digest(&half.0).await.map_err(transient)?;
        let (note, file) = (half.0.with_extension("json"), half.0.with_extension("qcow2"));
        let text = serde_json::to_string(&about).map_err(transient)?;
        notes::write(&note, text.as_bytes()).map_err(transient)?;
        fault::point("disk.export.noted").await.map_err(transient)?;
        std::fs::rename(&half.0, &file).map_err(transient)?;
        exports.forget_former(&self);
        Ok(Flat { file, about })
    }

    /// Refuses what the host has no room for: at most what all files of the chain take.
    fn require_room(&self, exports: &Exports) -> Result<()> {
        let bytes = room::taken_by_all(&self.drive)?;
        let has_room = || room::is_left(&exports.folder, bytes, self.reserve);
        if has_room()? {
            return Ok(());
        }
        exports.sweep(KEPT_WITHOUT_ROOM);
        if has_room()? {
            return Ok(());
        }
        Err(EngineError::NoCapacity("the host's disk has no room for a copy of the disk".into()))
    }
}

/// How long ago a file was written, or a note was looked at.
fn age(path: &Path) -> Option<Duration> {
    path.metadata().and_then(|found| found.modified()).ok().and_then(|at| at.elapsed().ok())
}

/// Removes a file with its note. Who reads it reads it to its end.
fn forget(note: &Path) {
    // Another try comes with the next look. The note goes last, so that nothing stays which has none.
    let gone = remove(&note.with_extension("qcow2")).and_then(|()| remove(note));
    tracing::debug!(export = %note.display(), ?gone, "removing an export");
}

/// What goes when nobody waits for it any more, or it is not whole.
struct Half(PathBuf);

impl Drop for Half {
    fn drop(&mut self) {
        // What stays goes with the next try, or with the next start.
        let _ = remove(&self.0);
    }
}

/// How long a file is, and what it hashes to. Whoever leaves ends that.
pub(super) async fn digest(path: &Path) -> Result<Exported> {
    let (path, left) = (path.to_path_buf(), Arc::new(()));
    let here = Arc::downgrade(&left);
    let hashed = tokio::task::spawn_blocking(move || {
        let mut file = File::open(&path).map_err(transient)?;
        let bytes = file.metadata().map_err(transient)?.len();
        let sha256 = image::hash_while(&mut file, || here.strong_count() > 0).map_err(transient)?;
        Ok(Exported { bytes, sha256 })
    });
    let hashed = hashed.await.map_err(transient)?;
    drop(left);
    hashed
}

pub(super) fn state(path: &Path) -> Result<State> {
    let states = memory::states(&[path]).map_err(qemu_failed)?;
    states.into_values().next().ok_or_else(|| transient("the disk's file cannot be looked at"))
}

fn remove(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
