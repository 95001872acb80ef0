//! Images of the platform that go to other hosts, and come from them.
//!
//! ```text
//! images/.<id>.<travel>.travelling/    what has come so far of an image; a file bears its name once it hashes to what it is to
//! ```
//!
//! An edition is a folder's manifest: its version, and when that file was written, which it keeps on every host. Of two who
//! bring the same image the one that began last goes on; the other one's folder is gone.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use berth_domain::Timestamp;
use berth_qemu::image::{self, MANIFEST, Manifest};
use uuid::Uuid;

use super::exports::digest;
use super::images::remove_tree;
use super::{QemuEngine, gib, room};
use crate::error::{qemu_failed, transient};
use crate::received::{receive, superseded};
use crate::vm::{Arrival, Content, Edition, ImageFile};
use crate::{EngineError, Result, fault};

/// How the folder of what is under way ends, and that of an image that another edition takes the place of; a dot begins both.
const TRAVELLING: &str = ".travelling";
const FORMER: &str = ".former";
/// Age after which nobody is at what is under way: each file that comes makes it young.
const OLD: Duration = Duration::from_hours(24);

impl QemuEngine {
    fn travelling(&self, image: &str, travel: Uuid) -> PathBuf {
        self.images_dir().join(format!(".{image}.{travel}{TRAVELLING}"))
    }

    /// The editions of the platform's images that are there.
    pub(super) fn platforms_editions(&self) -> Vec<Edition> {
        let all = image::list(&self.images_dir()).into_iter();
        all.filter(|(_, manifest)| !manifest.is_owned).filter_map(|(dir, manifest)| edition(&dir, manifest)).collect()
    }

    /// The files of an image that is of an edition, each with its length and hash.
    pub(super) async fn files_of_image(&self, wanted: &Edition) -> Result<Vec<ImageFile>> {
        let (dir, manifest) = self.of_edition(wanted)?;
        self.integrity.check(&dir, &manifest).await?;
        let mut files = Vec::new();
        // The manifest comes last: a target that has it has everything.
        for name in manifest.files().into_iter().chain([MANIFEST]) {
            let known = manifest.sha256.get(name);
            let about = match known {
                Some(sha256) => (dir.join(name).metadata().map_err(transient)?.len(), sha256.clone()),
                None => digest(&dir.join(name)).await.map(|about| (about.bytes, about.sha256))?,
            };
            files.push(ImageFile { name: name.to_owned(), bytes: about.0, sha256: about.1 });
        }
        Ok(files)
    }

    /// Opens a file of an image that is of an edition.
    pub(super) async fn open_image_file(&self, wanted: &Edition, name: &str) -> Result<Box<dyn Content>> {
        let (dir, manifest) = self.of_edition(wanted)?;
        if name != MANIFEST && !manifest.files().contains(&name) {
            return Err(EngineError::Permanent("the image has no such file".into()));
        }
        Ok(Box::new(tokio::fs::File::open(dir.join(name)).await.map_err(transient)?))
    }

    /// The folder of an image of the platform, if it is of an edition now.
    fn of_edition(&self, wanted: &Edition) -> Result<(PathBuf, Manifest)> {
        let all = image::list(&self.images_dir()).into_iter();
        let found =
            all.filter(|(_, manifest)| !manifest.is_owned && manifest.id == wanted.id).find(|(dir, manifest)| {
                edition(dir, manifest.clone()).is_some_and(|found| found.version == wanted.version)
            });
        found.ok_or_else(|| EngineError::Transient("the host does not have that edition of the image any more".into()))
    }

    /// Makes room for an image: nothing of another try for it is left, and the host's disk has room for all of it.
    pub(super) async fn make_room_for(&self, arrival: &Arrival) -> Result<()> {
        check(arrival)?;
        self.end_travels(&arrival.edition.id).await?;
        let most = gib(self.settings.image_file_gb);
        if let Some(file) = arrival.files.iter().find(|file| file.bytes > most) {
            return Err(EngineError::NoCapacity(format!(
                "the image's file {} has {} bytes, more than this host takes; its operator raises vm.image_file_gb",
                file.name, file.bytes
            )));
        }
        if !room::is_left(&self.settings.host.data, arrival.bytes(), self.reserve())? {
            return Err(EngineError::NoCapacity("the host's disk has no room for the image".into()));
        }
        let dir = self.travelling(&arrival.edition.id, arrival.travel);
        tokio::fs::create_dir_all(dir).await.map_err(transient)
    }

    /// Receives a file of an image that is expected.
    pub(super) async fn receive_image_file(
        &self,
        (travel, image): (Uuid, &str),
        file: &ImageFile,
        content: Box<dyn Content>,
    ) -> Result<()> {
        berth_domain::names::Slug::parse(image).map_err(EngineError::Permanent)?;
        if !file.is_plain() || file.bytes > gib(self.settings.image_file_gb) {
            return Err(EngineError::Permanent("this is no file of an image that is taken".into()));
        }
        let dir = self.travelling(image, travel);
        let part = dir.join(format!(".{}", file.name));
        let received = receive(&part, file, content).await;
        if received.is_err() {
            // What stays goes with the next try.
            let _ = tokio::fs::remove_file(&part).await;
        }
        received?;
        fault::point("image.travel.received").await.map_err(transient)?;
        tokio::fs::rename(&part, dir.join(&file.name)).await.map_err(|_| superseded())
    }

    /// Makes an image of what came.
    pub(super) async fn adopt(&self, arrival: &Arrival) -> Result<()> {
        check(arrival)?;
        let wanted = &arrival.edition;
        let (dir, whole) = (self.travelling(&wanted.id, arrival.travel), self.images_dir().join(&wanted.id));
        if let Some(found) = Manifest::load(&whole).ok().and_then(|manifest| edition(&whole, manifest))
            && !wanted.replaces(&found)
        {
            // It came before, or a later one was made here meanwhile.
            return remove_tree(&dir).await;
        }
        for file in &arrival.files {
            let found = dir.join(&file.name).metadata().map_err(|_| superseded())?;
            if found.len() != file.bytes {
                return Err(superseded());
            }
        }
        let manifest = Manifest::load(&dir).map_err(qemu_failed)?;
        let comes = |name: &str| arrival.files.iter().any(|file| file.name == name);
        let is_it = (manifest.id == wanted.id && manifest.version == wanted.version && !manifest.is_owned)
            && manifest.files().into_iter().all(comes);
        if !is_it {
            return Err(EngineError::Permanent("what came is not the image that was expected".into()));
        }
        make_as_old(&dir.join(MANIFEST), wanted.made_at)?;
        std::fs::File::open(&dir).and_then(|dir| dir.sync_all()).map_err(transient)?;
        fault::point("image.travel.half").await.map_err(transient)?;
        self.place(&wanted.id, &dir, &whole).await
    }

    /// Puts an image into its place; for a moment there is none, and never half of one.
    async fn place(&self, id: &str, dir: &Path, whole: &Path) -> Result<()> {
        let former = self.images_dir().join(format!(".{id}{FORMER}"));
        remove_tree(&former).await?;
        match tokio::fs::rename(whole, &former).await {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(transient(error)),
            _ => {}
        }
        fault::point("image.travel.former").await.map_err(transient)?;
        tokio::fs::rename(dir, whole).await.map_err(transient)?;
        fault::point("image.travel.whole").await.map_err(transient)?;
        remove_tree(&former).await
    }

    /// Removes what is under way of an image.
    pub(super) async fn end_travels(&self, image: &str) -> Result<()> {
        for (dir, _) in self.travels(&format!(".{image}.")) {
            remove_tree(&dir).await?;
        }
        Ok(())
    }

    /// Removes what nobody brings any more.
    pub(super) fn forget_travels(&self) {
        let is_old =
            |found: &Metadata| found.modified().ok().and_then(|at| at.elapsed().ok()).is_some_and(|age| age > OLD);
        for (dir, _) in self.travels(".").into_iter().filter(|(_, found)| is_old(found)) {
            // Another try comes with the next look.
            let gone = std::fs::remove_dir_all(&dir);
            tracing::info!(folder = %dir.display(), ?gone, "an image that nobody brings any more is removed");
        }
    }

    /// The folders of what is under way, whose names begin so.
    fn travels(&self, beginning: &str) -> Vec<(PathBuf, Metadata)> {
        let entries = std::fs::read_dir(self.images_dir()).into_iter().flatten().flatten();
        let is_one = |entry: &std::fs::DirEntry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let rest = name.strip_prefix(beginning).and_then(|name| name.strip_suffix(TRAVELLING));
            rest.is_some_and(|rest| beginning == "." || rest.parse::<Uuid>().is_ok())
        };
        entries.filter(is_one).filter_map(|entry| Some((entry.path(), entry.metadata().ok()?))).collect()
    }
}

/// What an image's folder is an edition of; none where its manifest speaks of another one.
fn edition(dir: &Path, manifest: Manifest) -> Option<Edition> {
    let written = dir.join(MANIFEST).metadata().and_then(|found| found.modified()).ok()?;
    let micros = written.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let made_at = Timestamp(i64::try_from(micros).ok()?);
    let is_its = dir.file_name().is_some_and(|name| *name == *manifest.id);
    is_its.then_some(Edition { id: manifest.id, version: manifest.version, made_at })
}

fn make_as_old(file: &Path, made_at: Timestamp) -> Result<()> {
    let at = SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(made_at.0).unwrap_or_default());
    let file = std::fs::File::options().append(true).open(file).map_err(transient)?;
    file.set_modified(at).and_then(|()| file.sync_all()).map_err(transient)
}

/// Whether this may come here.
fn check(arrival: &Arrival) -> Result<()> {
    let whole = arrival.check().and_then(|()| {
        let has_manifest = arrival.files.iter().any(|file| file.name == MANIFEST);
        if has_manifest { Ok(()) } else { Err(format!("an image has a file {MANIFEST}")) }
    });
    whole.map_err(EngineError::Permanent)
}
