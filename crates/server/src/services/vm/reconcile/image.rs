//! Keeps the rows of images in step with what the engine has, and carries out imports.

use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_domain::{Error, Result};
use futures::StreamExt;
use tokio::io::AsyncWriteExt;
use tokio_util::sync::CancellationToken;

use crate::db::Signal;
use crate::services::vm::engine::EngineError;
use crate::services::vm::ops::image::{Import, record};
use crate::services::vm::store::image::ImageRow;
use crate::services::vm::{Vms, store};

/// Between two looks at the images the engine has: a platform image may be built while we run.
const LOOK: Duration = Duration::from_secs(2);

/// Runs until told to stop.
pub async fn watch(vms: Vms, stop: CancellationToken) {
    let mut signals = vms.db().watch();
    let mut ticks = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
            signal = signals.recv() => {
                if !matches!(signal, Ok(Signal::Work("images"))) {
                    continue;
                }
            }
        }
        if let Err(error) = look(&vms).await {
            tracing::warn!(%error, "images cannot be looked at; trying again");
        }
    }
}

async fn look(vms: &Vms) -> Result<()> {
    let found = vms.engine().images().await.map_err(|e| Error::unavailable(e.to_string()))?;
    for row in store::image::ready(vms.db()).await? {
        if !found.iter().any(|info| info.id == row.id) {
            fail(vms, row, "its files are missing or damaged; build or import it again".into()).await?;
        }
    }
    for info in found {
        let known = store::image::find(vms.db(), &info.id).await?;
        let same = known.as_ref().is_some_and(|row| row.version == info.version && row.status == "ready");
        let importing = known.is_some_and(|row| row.status == "importing");
        if !same && !importing {
            tracing::info!(image = info.id, version = info.version, "image is ready");
            record(vms, info).await?;
        }
    }
    for row in store::image::with_work(vms.db()).await? {
        carry_out(vms, row).await?;
    }
    Ok(())
}

async fn carry_out(vms: &Vms, row: ImageRow) -> Result<()> {
    let source = row.source.as_deref().unwrap_or_default();
    let import: Import = serde_json::from_str(source).map_err(Error::internal)?;
    let outcome = match fetch(vms, &import).await {
        Ok(file) => {
            let taken = vms.engine().import_image(&file, &import.for_engine()).await;
            if import.url.is_some() {
                // A download has served, whatever became of it.
                let _ = tokio::fs::remove_file(&file).await;
            }
            taken
        }
        Err(error) => Err(error),
    };
    match outcome {
        Ok(info) => record(vms, info).await.map(drop),
        Err(error) => fail(vms, row, error.to_string()).await,
    }
}

async fn fail(vms: &Vms, mut row: ImageRow, reason: String) -> Result<()> {
    tracing::warn!(image = row.id, reason, "image failed");
    row.status = "failed".into();
    row.message = Some(reason);
    row.work_at = None;
    row.updated_at = vms.clock().now();
    let mut tx = vms.db().begin().await?;
    store::image::put(&mut tx, &row).await?;
    Ok(tx.commit().await?)
}

/// The file to import: the one named, or what the URL gives.
async fn fetch(vms: &Vms, import: &Import) -> std::result::Result<PathBuf, EngineError> {
    let Some(url) = &import.url else {
        return Ok(PathBuf::from(import.path.as_deref().unwrap_or_default()));
    };
    let file = vms.engine().staging().await?.join(format!("{}.download", uuid::Uuid::now_v7()));
    match download(url, &file).await {
        Ok(()) => Ok(file),
        Err(reason) => {
            let _ = tokio::fs::remove_file(&file).await;
            Err(EngineError::Permanent(format!("the image cannot be downloaded: {reason}")))
        }
    }
}

async fn download(url: &str, file: &Path) -> std::result::Result<(), String> {
    let client = reqwest::Client::builder().connect_timeout(Duration::from_secs(20)).build();
    let response = client.map_err(|e| e.to_string())?.get(url).send().await.map_err(|e| e.to_string())?;
    let response = response.error_for_status().map_err(|e| e.to_string())?;
    let mut out = tokio::fs::File::create(file).await.map_err(|e| e.to_string())?;
    let mut body = response.bytes_stream();
    while let Some(chunk) = body.next().await {
        out.write_all(&chunk.map_err(|e| e.to_string())?).await.map_err(|e| e.to_string())?;
    }
    out.flush().await.map_err(|e| e.to_string())
}
