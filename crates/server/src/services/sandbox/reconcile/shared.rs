//! Removes layers and memories that nobody needs any more, and uploads whose time is over: first the file, then the row.
//!
//! The row of a layer or memory comes here when something that named it does not any more. Whether anything still does
//! is asked in the transaction that marks it, and what is marked can be named by nobody: new names come only from rows
//! that have it already.

use std::fmt::Display;
use std::time::Duration;

use berth_domain::ids::{LayerId, MemoryId, UploadId};
use berth_domain::{Result, Timestamp};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::{PAUSE, StepError, fault};
use crate::db::{DbError, Tx};
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::store::{layer, memory, upload};
use crate::work::{Due, Reconciler};

/// Wait when not even the pause could be recorded.
const BLIND_PAUSE: Duration = Duration::from_millis(500);

/// Removes layers.
pub struct LayerReconciler(pub Sandboxes);

/// Removes memories.
pub struct MemoryReconciler(pub Sandboxes);

/// Removes uploads.
pub struct UploadReconciler(pub Sandboxes);

impl Reconciler for UploadReconciler {
    type Key = UploadId;
    const TABLE: &'static str = upload::TABLE;

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Due<UploadId>> {
        Ok(Due::at(now, upload::with_work(self.0.db(), limit).await?))
    }

    async fn reconcile(&self, id: UploadId) {
        if let Err(error) = remove_upload(&self.0, id).await {
            postpone(&self.0, "upload", id, &error, |tx, later| upload::look_at(tx, id, later).boxed()).await;
        }
    }
}

impl Reconciler for LayerReconciler {
    type Key = LayerId;
    const TABLE: &'static str = layer::TABLE;

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Due<LayerId>> {
        Ok(Due::at(now, layer::with_work(self.0.db(), limit).await?))
    }

    async fn reconcile(&self, id: LayerId) {
        if let Err(error) = remove_layer(&self.0, id).await {
            postpone(&self.0, "layer", id, &error, |tx, later| layer::look_at(tx, id, later).boxed()).await;
        }
    }
}

impl Reconciler for MemoryReconciler {
    type Key = MemoryId;
    const TABLE: &'static str = memory::TABLE;

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Due<MemoryId>> {
        Ok(Due::at(now, memory::with_work(self.0.db(), limit).await?))
    }

    async fn reconcile(&self, id: MemoryId) {
        if let Err(error) = remove_memory(&self.0, id).await {
            postpone(&self.0, "memory", id, &error, |tx, later| memory::look_at(tx, id, later).boxed()).await;
        }
    }
}

/// Has what could not be removed looked at again after a pause.
async fn postpone(
    sandboxes: &Sandboxes,
    what: &str,
    id: impl Display,
    error: &StepError,
    look_at: impl for<'t> FnOnce(&'t mut Tx, Timestamp) -> BoxFuture<'t, Result<(), DbError>> + Send,
) {
    tracing::warn!(what, %id, ?error, "what nobody needs could not be removed; trying again");
    let later = sandboxes.clock().now().plus_seconds(PAUSE);
    let postponed = async {
        let mut tx = sandboxes.db().begin().await?;
        look_at(&mut tx, later).await?;
        tx.commit().await
    };
    if postponed.await.is_err() {
        tokio::time::sleep(BLIND_PAUSE).await;
    }
}

async fn remove_layer(sandboxes: &Sandboxes, id: LayerId) -> Result<(), StepError> {
    let mut tx = sandboxes.db().begin().await?;
    let Some(row) = layer::find(&mut tx, id).await? else { return Ok(()) };
    if !layer::condemn(&mut tx, id).await? {
        layer::rest(&mut tx, id).await?;
        return Ok(tx.commit().await?);
    }
    tx.commit().await?;
    fault("sandbox", "remove_layer", "intent").await?;
    sandboxes.engine().remove_layer(id).await?;
    fault("sandbox", "remove_layer", "done").await?;
    let mut tx = sandboxes.db().begin().await?;
    layer::remove(&mut tx, &row, sandboxes.clock().now()).await?;
    Ok(tx.commit().await?)
}

async fn remove_memory(sandboxes: &Sandboxes, id: MemoryId) -> Result<(), StepError> {
    let mut tx = sandboxes.db().begin().await?;
    if memory::find(&mut tx, id).await?.is_none() {
        return Ok(());
    }
    if !memory::condemn(&mut tx, id).await? {
        memory::rest(&mut tx, id).await?;
        return Ok(tx.commit().await?);
    }
    tx.commit().await?;
    fault("sandbox", "remove_memory", "intent").await?;
    sandboxes.engine().remove_memory(id).await?;
    fault("sandbox", "remove_memory", "done").await?;
    let mut tx = sandboxes.db().begin().await?;
    memory::remove(&mut tx, id).await?;
    Ok(tx.commit().await?)
}

async fn remove_upload(sandboxes: &Sandboxes, id: UploadId) -> Result<(), StepError> {
    fault("sandbox", "remove_upload", "intent").await?;
    sandboxes.engine().remove_upload(id).await?;
    let mut tx = sandboxes.db().begin().await?;
    upload::remove(&mut tx, id).await?;
    Ok(tx.commit().await?)
}
