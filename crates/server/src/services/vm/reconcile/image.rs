//! Keeps the rows of images in step with what the host has, and carries out imports and removals.
//!
//! What the host has is looked at every two seconds, because the platform's own images are built beside a
//! running service. At the start the images that nobody knows yet become rows before the first request is
//! answered: a VM can be asked for at once. Whether their files are whole is judged right after, and again
//! whenever they are cloned.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use berth_domain::vm::ImageStatus;
use berth_domain::vm::brought_disk::Origin;
use berth_domain::vm::image::{ImageStep, Import, next};
use berth_domain::{Error, Result, Timestamp};
use berth_host::EngineError;
use berth_host::vm::{ImageImport, ImageInfo};
use tokio_util::sync::CancellationToken;

use super::wanted::unwanted;
use super::{StepError, download, fault};
use crate::services::vm::slots::{Slot, Work};
use crate::services::vm::store::image::ImageRow;
use crate::services::vm::{Vms, store};
use crate::work::lifecycle::{Life, Next};
use crate::work::{Due, Poker};

/// Between two looks at the images the host has.
const LOOK: Duration = Duration::from_secs(2);

/// Before the first request: images that nobody knows yet become rows, and uploads that no row owns go.
pub async fn prepare(vms: &Vms) -> Result<()> {
    for info in vms.engine().images().await.map_err(Error::unavailable)? {
        let known = store::image::find_ever(vms.db(), &info.id).await?;
        if known.is_none_or(|row| row.status == ImageStatus::Deleted) {
            record(vms, None, info).await?;
        }
    }
    let wanted = store::image::sources(vms.db()).await?;
    let uploads = wanted.iter().filter_map(|source| serde_json::from_str::<Import>(source).ok()?.upload);
    let disks = store::brought_disk::of_files(vms.db()).await?;
    let wanted: HashSet<String> = uploads.chain(disks.into_iter().map(|id| Origin::File.staged(id))).collect();
    let staging = vms.engine().staging().await.map_err(Error::unavailable)?;
    for file in std::fs::read_dir(staging).into_iter().flatten().flatten() {
        if !wanted.contains(&*file.file_name().to_string_lossy()) {
            // Another try comes with the next start.
            let _ = std::fs::remove_file(file.path());
        }
    }
    Ok(())
}

/// Has every image of the host and of the rows looked at, again and again, until told to stop.
pub async fn watch(vms: Vms, poke: Poker<String>, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        match everything(&vms).await {
            Ok(ids) => ids.into_iter().for_each(|id| poke.poke(id)),
            Err(error) => tracing::warn!(%error, "images cannot be looked at; trying again"),
        }
    }
}

async fn everything(vms: &Vms) -> Result<HashSet<String>> {
    let known = store::image::ids(vms.db()).await?;
    let found = vms.engine().images().await.map_err(Error::unavailable)?;
    Ok(known.into_iter().chain(found.into_iter().map(|info| info.id)).collect())
}

/// The lives of images.
pub struct ImageLife {
    vms: Vms,
}

/// One look at an image: its row, and what the host has of it.
pub struct Seen {
    id: String,
    row: Option<ImageRow>,
    host: Option<ImageInfo>,
}

impl Life for ImageLife {
    type Key = String;
    type Seen = Seen;
    type Step = ImageStep;
    const TABLE: &'static str = "images";
    const KIND: &'static str = "image";
    /// A download may take an hour; one that is dropped half way begins anew at the next start.
    const DROPPED_BY_A_STOP: bool = true;

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Due<String>> {
        Ok(Due::at(now, store::image::with_work(self.vms.db(), limit).await?))
    }

    async fn look(&self, id: &String) -> Result<Option<Seen>, StepError> {
        let row = store::image::find_ever(self.vms.db(), id).await?;
        Ok(Some(Seen { id: id.clone(), row, host: self.vms.engine().image(id).await? }))
    }

    async fn plan(&self, Seen { row, host, .. }: &Seen) -> Result<Next<ImageStep>, StepError> {
        let row = row.as_ref().map(|row| (row.status, row.version.as_str()));
        let step = next(row, host.as_ref().map(|info| info.version.as_str()));
        Ok(step.map_or(Next::Rest(None), Next::Take))
    }

    fn name(step: &ImageStep) -> &'static str {
        step.as_str()
    }

    async fn take(&self, seen: &Seen, step: ImageStep) -> Result<(), StepError> {
        match (step, &seen.row, &seen.host) {
            (ImageStep::Import, Some(row), _) => self.import(row).await,
            (ImageStep::Remove, Some(row), _) => self.remove(row).await,
            (ImageStep::Record, row, Some(info)) => {
                tracing::info!(image = seen.id, version = info.version, "image is ready");
                Ok(record(&self.vms, row.as_ref(), info.clone()).await?)
            }
            (ImageStep::Miss, Some(row), _) => {
                fail(&self.vms, row, "its files are missing or damaged; build or import it again".into()).await
            }
            _ => Ok(()),
        }
    }

    /// A row at rest has no time of its own: the host is looked at every two seconds.
    async fn rest(&self, _: &Seen, _: Option<Timestamp>) -> Result<(), StepError> {
        Ok(())
    }

    async fn postpone(&self, seen: &Seen, until: Timestamp) -> Result<(), StepError> {
        change(&self.vms, &seen.id, |row| row.work_at = row.work_at.map(|_| until)).await
    }

    /// An image that is to be removed is never given up.
    async fn give_up(&self, seen: &Seen, error: &EngineError) -> Result<bool, StepError> {
        match &seen.row {
            Some(row) if row.status == ImageStatus::Importing => {
                fail(&self.vms, row, error.to_string()).await?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

impl ImageLife {
    /// The lives of the service's images.
    pub const fn new(vms: Vms) -> Self {
        Self { vms }
    }

    /// Imports an image, or gives that up where nobody wants it any more. Of what was fetched nothing stays in either case.
    async fn import(&self, row: &ImageRow) -> Result<(), StepError> {
        let vms = &self.vms;
        let source = row.source.as_deref().unwrap_or_default();
        let import: Import = serde_json::from_str(source).map_err(Error::internal)?;
        let load = || store::image::find_ever(vms.db(), &row.id);
        let taken = tokio::select! {
            taken = self.take_in(row, &import) => Some(taken),
            () = unwanted(load, |row: &ImageRow| row.status == ImageStatus::Importing) => None,
        };
        vms.converting().forget(&Work::Image(row.id.clone()));
        fault("image", "import", "done").await?;
        match taken {
            Some(Ok(info)) => {
                tracing::info!(image = row.id, version = info.version, "image is imported");
                record(vms, Some(row), info).await?;
            }
            Some(Err(StepError::Engine(error))) if error.is_final() => fail(vms, row, error.to_string()).await?,
            Some(Err(error)) => return Err(error),
            None => {}
        }
        fault("image", "import", "recorded").await?;
        self.sweep(&import).await
    }

    /// Fetches an image and has it converted in its turn.
    async fn take_in(&self, row: &ImageRow, import: &Import) -> Result<ImageInfo, StepError> {
        let file = self.fetch(row, import).await?;
        fault("image", "import", "fetched").await?;
        let slot = self.slot(row).await?;
        say(&self.vms, row, "checking and converting".into()).await?;
        Ok(self.vms.engine().import_image(&file, &ImageImport::of(import, slot.number())).await?)
    }

    /// A slot among the conversions, once its turn has come.
    async fn slot(&self, row: &ImageRow) -> Result<Slot, StepError> {
        let work = Work::Image(row.id.clone());
        let ask = || self.vms.converting().ask(None, &work, self.vms.clock().now());
        if let Some(slot) = ask() {
            return Ok(slot);
        }
        say(&self.vms, row, "waiting for its turn to be converted".into()).await?;
        loop {
            tokio::time::sleep(LOOK).await;
            if let Some(slot) = ask() {
                return Ok(slot);
            }
        }
    }

    /// The file to import: the one named, what was uploaded, or what the URL gives.
    async fn fetch(&self, row: &ImageRow, import: &Import) -> std::result::Result<PathBuf, EngineError> {
        let staging = self.vms.engine().staging().await?;
        if let Some(name) = &import.upload {
            return Ok(staging.join(name));
        }
        let Some(url) = &import.url else {
            return Ok(PathBuf::from(import.path.as_deref().unwrap_or_default()));
        };
        let file = staging.join(import.download());
        let told = |progress: String| async move {
            // Only for who looks on; the next line comes in a moment.
            let _ = say(&self.vms, row, progress).await;
        };
        let fetched = download::fetch(url, &file, self.vms.config().image_bytes(), told).await;
        fetched.map_err(|reason| EngineError::Permanent(format!("the image cannot be downloaded: {reason}")))?;
        Ok(file)
    }

    /// Whatever became of it, what was fetched has served.
    async fn sweep(&self, import: &Import) -> Result<(), StepError> {
        let staging = self.vms.engine().staging().await?;
        for name in [import.upload.clone(), Some(import.download())].into_iter().flatten() {
            // Another try comes with the next start.
            let _ = tokio::fs::remove_file(staging.join(name)).await;
        }
        Ok(())
    }

    async fn remove(&self, row: &ImageRow) -> Result<(), StepError> {
        self.vms.engine().remove_image(&row.id).await?;
        fault("image", "remove", "done").await?;
        settle(&self.vms, row, |row| row.status = ImageStatus::Deleted).await
    }
}

/// Writes an image that the host has, onto the row it was decided for.
async fn record(vms: &Vms, decided: Option<&ImageRow>, info: ImageInfo) -> Result<()> {
    let now = vms.clock().now();
    let mut tx = vms.db().begin().await?;
    let known = store::image::find_ever(&mut tx, &info.id).await?;
    if decided.is_some_and(|row| known.as_ref().is_none_or(|known| known.updated_at != row.updated_at)) {
        return Ok(());
    }
    let living = known.filter(|row| row.status != ImageStatus::Deleted);
    let row = ImageRow {
        id: info.id,
        name: info.name,
        os: info.os,
        version: info.version,
        login_user: info.login_user,
        virtual_size: info.virtual_size,
        min_memory_mb: info.min_memory_mb,
        status: ImageStatus::Ready,
        message: None,
        source: None,
        work_at: None,
        created_at: living.map_or(now, |row| row.created_at),
        updated_at: now,
    };
    store::image::put(&mut tx, &row).await?;
    Ok(tx.commit().await?)
}

async fn fail(vms: &Vms, row: &ImageRow, reason: String) -> Result<(), StepError> {
    tracing::warn!(image = row.id, reason, "image failed");
    settle(vms, row, |row| {
        row.status = ImageStatus::Failed;
        row.message = Some(reason);
    })
    .await
}

/// Ends the work on a row, if it is still the one that was decided for.
async fn settle(vms: &Vms, decided: &ImageRow, end: impl FnOnce(&mut ImageRow)) -> Result<(), StepError> {
    let now = vms.clock().now();
    change(vms, &decided.id, |row| {
        if row.updated_at == decided.updated_at {
            end(row);
            // An address may hold a secret, and nobody fetches from it again.
            row.source = None;
            row.work_at = None;
            row.updated_at = now;
        }
    })
    .await
}

/// Tells how far the work on a row is.
async fn say(vms: &Vms, decided: &ImageRow, message: String) -> Result<(), StepError> {
    change(vms, &decided.id, |row| {
        if row.updated_at == decided.updated_at {
            row.message = Some(message);
        }
    })
    .await
}

async fn change(vms: &Vms, id: &str, change: impl FnOnce(&mut ImageRow)) -> Result<(), StepError> {
    let mut tx = vms.db().begin().await?;
    let Some(mut row) = store::image::find_ever(&mut tx, id).await? else {
        return Ok(());
    };
    change(&mut row);
    store::image::put(&mut tx, &row).await?;
    Ok(tx.commit().await?)
}
